//! The event log: one JSON object a line, `{t, term, generation, kind, …}`. Written by the driver's process; its lines are
//! read by the commands, the page and the accounting.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
    PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use elastic_driver::{DriverEvent, Glance};
use elastic_protocol::messages::{FileUmask, GoodputStatus};
use elastic_runtime::{DroppingWriter, DroppingWriterLane, is_for_want_of_room, wall_clock};
use nix::libc::O_NONBLOCK;
use serde::Serialize;

use super::plain_file;
use super::state_dir::EVENTS_FILE;

/// Size limit in bytes (64 MiB): past it the log is renamed to `events.jsonl.1`, which replaces the previous one.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Most bytes of a line that are read: more than any event has.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Timeout for writing the last lines when the driver ends.
pub(super) const LAST_LINES_WITHIN: Duration = Duration::from_secs(1);

/// Opens a log to be read.
///
/// # Errors
/// It cannot be opened, or is no plain file: a device may have no end, and to open a pipe is to wait for its writer.
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    plain_file::open(path)
}

/// Opens a log from which its job goes on. No more is read than a log has: a file that is longer is none that was written
/// here, or has a hole after a crash.
pub(crate) fn open_log_to_go_on(path: &Path) -> io::Result<File> {
    let mut log = open_log(path)?;
    let bytes = log.metadata()?.len();
    log.seek(SeekFrom::Start(bytes.saturating_sub(FILE_BYTES_MAX)))?;
    Ok(log)
}

/// The number of a log that was put aside, by the driver or by logrotate, from the name of its file: the higher the older.
pub(crate) fn number_aside(name: &str) -> Option<u32> {
    name.strip_prefix(EVENTS_FILE)?.strip_prefix('.')?.parse().ok()
}

/// The lines of a log, to its end or the first that the disk does not give. A damaged line is no reason to leave out
/// those after it. Bytes that are no UTF-8 are replaced, bytes beyond the length of a line are left out, and the reader
/// of the line finds that it is no event.
pub(crate) fn lines_of(log: impl Read) -> impl Iterator<Item = String> {
    let mut log = BufReader::new(log);
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        (&mut log).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).ok()?;
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.is_empty() {
            return None;
        } else if line.len() as u64 == LINE_BYTES_MAX {
            log.skip_until(b'\n').ok()?;
        }
        Some(String::from_utf8_lossy(&line).into_owned())
    })
}

/// Writes `events.jsonl`: the lines of later jobs follow those of earlier ones. The file is written in a lane of its
/// own, so that a hanging disk blocks no other work: lines that do not fit are dropped, and counted in the log itself.
#[derive(Debug)]
pub(crate) struct EventLog {
    words: DroppingWriter,
    term: u64,
}

/// One line of the log.
#[derive(Serialize)]
struct EventLine<'a> {
    /// Time of the event: RFC 3339, with milliseconds.
    t: String,
    #[serde(flatten)]
    event: &'a DriverEvent,
}

/// The first line of a job.
#[derive(Serialize)]
struct JobStartLine<'a> {
    t: String,
    term: u64,
    generation: u64,
    kind: &'static str,
    job: &'a str,
    address: &'a str,
    version: &'static str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_dir: Option<&'a str>,
}

/// The first line of a file in which the log goes on. The lines that began the job may be gone.
#[derive(Debug, Serialize)]
struct ContinuedLine {
    t: String,
    term: u64,
    generation: u64,
    kind: &'static str,
    job: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_dir: Option<String>,
}

impl ContinuedLine {
    fn new(term: u64, job: &LoggedStart<'_>) -> Self {
        let (t, generation, kind) = (String::new(), 0, "log_continued");
        let output_dir = job.output_dir.map(ToOwned::to_owned);
        Self { t, term, generation, kind, job: job.job.to_owned(), output_dir }
    }
}

/// The line in place of dropped ones.
#[derive(Serialize)]
struct Dropped {
    t: String,
    term: u64,
    generation: u64,
    kind: &'static str,
    lines: u64,
}

/// The goodput up to a time.
#[derive(Serialize)]
struct GoodputLine<'a> {
    t: String,
    term: u64,
    generation: u64,
    kind: &'static str,
    #[serde(flatten)]
    goodput: &'a GoodputStatus,
    /// The highest step that a worker has reported.
    step: u64,
}

/// Writes lines that are no events of the driver.
#[derive(Clone, Debug)]
pub(crate) struct EventMarker {
    words: DroppingWriter,
    term: u64,
}

impl EventMarker {
    /// Adds a line that says how much goodput there was, and how far training has come.
    pub(crate) fn goodput(&self, at: SystemTime, goodput: &GoodputStatus, glance: &Glance) {
        let (t, term, kind) = (rfc_3339(at), self.term, "goodput");
        let Glance { generation, step, .. } = *glance;
        write_line(&self.words, &GoodputLine { t, term, generation, kind, goodput, step });
    }
}

/// The job in the first line of a driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedStart<'a> {
    /// The job's id.
    pub(crate) job: &'a str,
    /// Address at which the driver is reached.
    pub(crate) address: &'a str,
    /// The folder on each host that gets the output of its workers, if it is stored.
    pub(crate) output_dir: Option<&'a str>,
}

impl EventLog {
    /// Opens the log, without these permissions, and writes its first line, which names the job. A job that goes on under
    /// another driver does so without its log, too, until that can be opened.
    pub(crate) fn open(
        path: PathBuf,
        umask: FileUmask,
        at: SystemTime,
        term: u64,
        job: &LoggedStart<'_>,
    ) -> io::Result<Self> {
        let mut file = EventFile::unopened(path, umask, ContinuedLine::new(term, job));
        match file.open() {
            // The first write tries to open it again, and reports a failure.
            Err(_) if term > 1 => {}
            opened => opened?,
        }
        let dropped = move |lines| {
            let (t, kind) = (rfc_3339(wall_clock()), "lines_dropped");
            let dropped = Dropped { t, term, generation: 0, kind, lines };
            serde_json::to_string(&dropped).map(|line| line + "\n").unwrap_or_default()
        };
        let words = DroppingWriter::new(
            DroppingWriterLane::kept("event log"),
            Box::new(file),
            Box::new(dropped),
        )?;
        let log = Self { words, term };
        let version = env!("CARGO_PKG_VERSION");
        let kind = "driver_started";
        let pid = std::process::id();
        let (t, generation, LoggedStart { job, address, output_dir }) = (rfc_3339(at), 0, *job);
        let start =
            JobStartLine { t, term, generation, kind, job, address, version, pid, output_dir };
        log.write(&start);
        Ok(log)
    }

    /// The log's lane, for the watchdog.
    pub(crate) fn words(&self) -> DroppingWriter {
        self.words.clone()
    }

    /// Adds a line. A line that cannot be written is left out, and the first such failure is logged; the job goes on,
    /// and the log continues once there is room.
    pub(crate) fn add(&self, at: SystemTime, event: &DriverEvent) {
        self.write(&EventLine { t: rfc_3339(at), event });
    }

    /// Writes other lines to the same log.
    pub(crate) fn marker(&self) -> EventMarker {
        EventMarker { words: self.words.clone(), term: self.term }
    }

    fn write(&self, line: &impl Serialize) {
        write_line(&self.words, line);
    }
}

fn write_line(words: &DroppingWriter, line: &impl Serialize) {
    match serde_json::to_vec(line) {
        Ok(line) => words.push(&[&line, b"\n"]),
        Err(error) => tracing::error!(%error, "an event cannot be written as JSON"),
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        if !self.words.flush(LAST_LINES_WITHIN) {
            tracing::warn!("the last events were not written in time");
        }
    }
}

/// The file, used on the lane's thread. A write that fails is tried again by the lane, in the file that has the name by then: a
/// server that was gone knows no descriptor of before.
#[derive(Debug)]
struct EventFile {
    path: PathBuf,
    umask: FileUmask,
    /// The open log; none until it could be opened, and after a failure that may be the descriptor's own.
    file: Option<File>,
    bytes: u64,
    is_failing: bool,
    /// The first line of each further file.
    continued: ContinuedLine,
}

impl EventFile {
    const fn unopened(path: PathBuf, umask: FileUmask, continued: ContinuedLine) -> Self {
        Self { path, umask, file: None, bytes: 0, is_failing: false, continued }
    }

    /// Opens the file that has its name now.
    fn open(&mut self) -> io::Result<()> {
        let file = open_masked(&self.path, self.umask)?;
        self.bytes = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().ok_or(io::ErrorKind::NotFound)?.write(bytes)
    }

    /// Goes on in the file that has its name now.
    fn go_on(&mut self) -> io::Result<()> {
        self.open()?;
        self.continued.t = rfc_3339(wall_clock());
        let mut line = serde_json::to_vec(&self.continued)?;
        line.push(b'\n');
        // A write that failed may have left part of a line.
        if self.is_failing && self.bytes > 0 {
            line.insert(0, b'\n');
        }
        let written = self.append(&line)?;
        self.bytes += written as u64;
        match written == line.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    /// Renames a log that has become too long.
    fn rotate(&mut self) -> io::Result<()> {
        let mut aside = self.path.clone().into_os_string();
        aside.push(".1");
        fs::rename(&self.path, aside)?;
        self.go_on()
    }

    /// Goes on in the file of that name, with a line that names the job, if the log was removed, moved away or cut short:
    /// by a cleaner of temporary folders, or by logrotate.
    fn go_on_if_taken(&mut self) -> io::Result<()> {
        let number = |found: &fs::Metadata| (found.dev(), found.ino());
        let ours = self.file.as_ref().map(File::metadata).transpose()?;
        match fs::metadata(&self.path) {
            // Only this driver adds to it. A device has no length.
            Ok(found) if ours.as_ref().map(number) == Some(number(&found)) => {
                match found.is_file() && found.len() < self.bytes {
                    true => return self.go_on(),
                    false => return Ok(()),
                }
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if let Some(folder) = self.path.parent() {
            DirBuilder::new().recursive(true).mode(self.umask.of_folders()).create(folder)?;
        }
        self.go_on()
    }

    /// Writes lines, as many bytes as the disk takes, and returns their number.
    fn write_lines(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.go_on_if_taken()?;
        if self.bytes > 0 && self.bytes + lines.len() as u64 > FILE_BYTES_MAX {
            self.rotate()?;
        }
        // A single write: a reader of the growing file sees whole lines.
        let written = self.append(lines)?;
        self.bytes += written as u64;
        Ok(written)
    }
}

impl Write for EventFile {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let written = self.write_lines(lines);
        let was_failing = std::mem::replace(&mut self.is_failing, written.is_err());
        let path = self.path.display();
        match &written {
            Err(error) if !was_failing => {
                tracing::error!(%path, %error, "the event log cannot be written; it is tried again");
            }
            Ok(_) if was_failing => tracing::info!(%path, "the event log is written again"),
            _ => {}
        }
        written.inspect_err(|error| {
            if !is_for_want_of_room(error) {
                self.file = None;
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens the file. By default it is for this user alone: events contain the last output of workers.
fn open_masked(path: &Path, umask: FileUmask) -> io::Result<File> {
    // Opening a pipe waits for its reader. A pipe without a reader is refused. A device is let be: /dev/null takes
    // everything.
    if fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        let at_once = OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(path);
        at_once.map_err(|_nobody_reads| {
            let why = format!("{} is no plain file", path.display());
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })?;
    }
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    // The process's own umask, an older version or another --umask may have left other permissions. The target of a
    // link may be everybody's: /dev/null is.
    if file.metadata()?.is_file() {
        file.set_permissions(fs::Permissions::from_mode(umask.of_files()))?;
    }
    Ok(file)
}

fn rfc_3339(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}

#[cfg(test)]
mod tests {
    use elastic_driver::EventKind;
    use elastic_protocol::{GenerationId, Term};

    use super::*;

    const START: LoggedStart<'_> =
        LoggedStart { job: "j", address: "127.0.0.1:1", output_dir: None };

    #[test]
    fn a_device_that_the_log_is_a_link_to_keeps_its_permissions() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("null");
        // A device like /dev/null, which is everybody's.
        let mut made = std::process::Command::new("mknod");
        made.args(["-m", "666"]).arg(&path).args(["c", "1", "3"]);
        if !made.status().is_ok_and(|status| status.success()) {
            return;
        }
        open_masked(&path, FileUmask::PRIVATE).expect("it can be written");
        let mode = fs::metadata(&path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o666);
    }

    #[test]
    fn s_12_a_line_without_an_end_is_cut_off_and_what_comes_after_it_is_read() {
        let endless = vec![0; 3 * LINE_BYTES_MAX as usize];
        let log = [b"one\n\n", &endless[..], b"\nlast"].concat();
        let lengths: Vec<usize> = lines_of(&log[..]).map(|line| line.len()).collect();
        assert_eq!(lengths, [3, 0, LINE_BYTES_MAX as usize, 4]);
    }

    #[test]
    fn s_12_a_log_that_is_too_long_to_be_one_is_not_read_from_its_beginning() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        let file = File::create(&path).expect("made");
        file.set_len(1 << 40).expect("a file with a hole");
        drop(file);
        let mut file = OpenOptions::new().append(true).open(&path).expect("there");
        file.write_all(b"\nlast\n").expect("written");
        let lines = lines_of(open_log_to_go_on(&path).expect("there"));
        assert_eq!(lines.last().as_deref(), Some("last"));
    }

    #[test]
    fn a_line_has_its_time_term_generation_and_kind() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        let at = SystemTime::UNIX_EPOCH;
        let umask = FileUmask::PRIVATE;
        let log = EventLog::open(path.clone(), umask, at, 1, &START).expect("made");
        let kind = EventKind::Warning { message: "m".to_owned() };
        log.add(at, &DriverEvent { term: Term(1), generation: GenerationId(2), kind });
        drop(log);
        let mode = fs::metadata(&path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let text = fs::read_to_string(path).expect("written");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        assert_eq!(lines[0]["kind"], "driver_started");
        let expected = serde_json::json!({
            "t": "1970-01-01T00:00:00.000Z", "term": 1, "generation": 2,
            "kind": "warning", "message": "m",
        });
        assert_eq!(lines[1], expected);
    }

    #[test]
    fn g_9_a_log_that_is_not_written_holds_up_the_end_for_no_longer_than_its_timeout() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        // A pipe without a reader stands for the disk that hangs.
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let both_ends = OpenOptions::new().read(true).write(true).open(&path).expect("no wait");
        let (umask, at) = (FileUmask::PRIVATE, SystemTime::UNIX_EPOCH);
        let log = EventLog::open(path, umask, at, 1, &START).expect("made");
        let words = log.words();
        let kind = EventKind::Warning { message: "m".repeat(1 << 20) };
        log.add(at, &DriverEvent { term: Term(1), generation: GenerationId(2), kind });
        drop(log);
        assert!(!words.flush(Duration::ZERO), "the lines are still being written");
        drop(both_ends);
    }

    #[test]
    fn s_12_a_log_that_is_removed_or_moved_away_is_begun_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("of the job/events.jsonl");
        let folder = path.parent().expect("it has one");
        fs::create_dir(folder).expect("made");
        let continued = ContinuedLine::new(1, &START);
        let mut file = EventFile::unopened(path.clone(), FileUmask::PRIVATE, continued);
        file.open().expect("made");
        file.write_all(b"1\n").expect("written");
        fs::remove_dir_all(folder).expect("removed");
        file.write_all(b"2\n").expect("written");
        fs::rename(&path, folder.join("aside")).expect("moved");
        file.write_all(b"3\n").expect("written");
        for (name, last) in [("aside", "2"), ("events.jsonl", "3")] {
            let text = fs::read_to_string(folder.join(name)).expect("there");
            let (first, rest) = text.split_once('\n').expect("two lines");
            let first: serde_json::Value = serde_json::from_str(first).expect("an object");
            assert_eq!((&first["kind"], &first["job"]), (&"log_continued".into(), &"j".into()));
            assert_eq!(rest.trim(), last);
        }
    }

    #[test]
    fn s_12_a_log_whose_descriptor_is_dead_goes_on_in_the_file_of_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        let continued = ContinuedLine::new(1, &START);
        let mut file = EventFile::unopened(path.clone(), FileUmask::PRIVATE, continued);
        file.open().expect("made");
        file.write_all(b"1\n").expect("written");
        // It takes no bytes any more, as that of a server that was gone.
        file.file = Some(File::open(&path).expect("to be read alone"));
        file.write(b"2\n").expect_err("not by this descriptor");
        file.write_all(b"2\n").expect("by another one");
        let text = fs::read_to_string(&path).expect("there");
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        let [first, continued, last] = lines[..] else { panic!("{text}") };
        assert!(continued.contains("log_continued"), "{continued}");
        assert_eq!((first, last), ("1", "2"));
    }

    #[test]
    fn s_12_a_log_that_is_cut_short_in_its_place_names_its_job_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        let continued = ContinuedLine::new(1, &START);
        let mut file = EventFile::unopened(path.clone(), FileUmask::PRIVATE, continued);
        file.open().expect("made");
        let line = [vec![b'x'; (FILE_BYTES_MAX / 4) as usize - 1], vec![b'\n']].concat();
        for _ in 0..4 {
            file.write_all(&line).expect("written");
        }
        for number in 0..2 {
            File::create(&path).expect("logrotate with copytruncate");
            file.write_all(format!("{number}\n").as_bytes()).expect("written");
            file.write_all(b"more\n").expect("written");
            let text = fs::read_to_string(&path).expect("there");
            let (first, rest) = text.split_once('\n').expect("three lines");
            let first: serde_json::Value = serde_json::from_str(first).expect("an object");
            assert_eq!((&first["kind"], &first["job"]), (&"log_continued".into(), &"j".into()));
            assert_eq!(rest, format!("{number}\nmore\n"));
        }
        assert!(!folder.path().join("events.jsonl.1").exists(), "it is not too long any more");
    }

    #[test]
    fn a_log_that_is_a_device_is_not_taken_for_one_that_was_cut_short() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        std::os::unix::fs::symlink("/dev/null", &path).expect("a link");
        let continued = ContinuedLine::new(1, &START);
        let mut file = EventFile::unopened(path, FileUmask::PRIVATE, continued);
        file.open().expect("made");
        file.write_all(b"1\n").expect("written");
        file.write_all(b"2\n").expect("written");
        assert_eq!(file.bytes, 4, "the lines alone");
    }

    #[test]
    fn s_12_a_log_that_has_become_too_long_is_put_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        let group_reads = FileUmask::new(0o027).expect("it takes nothing from the owner");
        let continued = ContinuedLine::new(1, &START);
        let mut file = EventFile::unopened(path.clone(), group_reads, continued);
        file.open().expect("made");
        let line = [vec![b'x'; (FILE_BYTES_MAX / 4) as usize - 1], vec![b'\n']].concat();
        for _ in 0..9 {
            file.write_all(&line).expect("written");
        }
        let seen = |name: &str| {
            let found = fs::metadata(folder.path().join(name)).expect("there");
            (found.len(), found.permissions().mode() & 0o777)
        };
        let (first, again) = (seen("events.jsonl.1"), seen("events.jsonl"));
        let lines = |bytes: u64| (bytes / line.len() as u64, bytes % line.len() as u64);
        assert!((48 << 20..=64 << 20).contains(&first.0) && first.1 == 0o640, "{first:?}");
        assert_eq!(lines(again.0).0, 9 - 4 - lines(first.0).0, "{again:?}");
        assert!((1..200).contains(&lines(again.0).1) && again.1 == 0o640, "it names its job");
    }
}
