//! Reads the content of a support bundle: the job's entry, events, journal, recording, the last output of workers,
//! status, and facts about this host. Nothing is changed, and missing parts are noted. Called by `report`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use elastic_agent::OutputStream;
use elastic_agent::output::part_of;
use elastic_driver::journal::Image;
use elastic_driver::recording::job_of_segment;
use elastic_journal::{FileJournal, JournalError};
use elastic_observe::{JobLines, OutputRequest, WorkerOutputs};
use elastic_runtime::system;
use serde_json::{Value, json};

use super::bundle::{RECORDING_PREFIX, SupportBundle, TextForm};
use crate::command_line::doctor::host_findings;
use crate::command_line::event_log::{logs_aside, read_event_log};
use crate::command_line::explain::ask_driver;
use crate::command_line::failure::{CommandFailure, ResultExt as _};
use crate::command_line::find_job::JobLog;
use crate::process::{
    EVENTS_FILE, JOURNAL_FILE, JobEntry, RECORDING_FOLDER, file_of, lines_of, messages_known,
    open_log, read_recording,
};

/// Most bytes of each event log, its last ones (16 MiB).
const EVENTS_BYTES_MAX: u64 = 16 << 20;

/// Most logs with lines of the job, the last of them.
const LOGS_OF_JOB_MAX: usize = 4;

/// Most bytes of each stream of a worker, its last ones (64 KiB).
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// Most bytes of all workers' output (8 MiB).
const OUTPUTS_BYTES_MAX: usize = 8 << 20;

/// Reads everything that is there.
pub(super) fn gather(
    log: &JobLog,
    entry: Option<&JobEntry>,
) -> Result<SupportBundle, CommandFailure> {
    let mut bundle = SupportBundle::default();
    add_versions(&mut bundle, entry);
    add_entry(&mut bundle, entry);
    let status = system::run(ask_driver(log)).failed("the system refuses a client")?;
    let running = status.and_then(|status| serde_json::to_value(status).ok());
    add_status(&mut bundle, running, entry);
    match &log.job {
        Some(job) => add_events_of(&mut bundle, &log.folder, job),
        None => add_last_events(&mut bundle, &log.folder),
    }
    add_journal(&mut bundle, log);
    add_recording(&mut bundle, log);
    add_outputs(&mut bundle, log);
    match host_findings() {
        Ok(found) => bundle.add_json("doctor.json", "what this host has, as `doctor` says", &found),
        Err(error) => bundle.leave_out("doctor.json", error.to_string()),
    }
    Ok(bundle)
}

fn add_versions(bundle: &mut SupportBundle, entry: Option<&JobEntry>) {
    let line = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let system = line("/etc/os-release");
    let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let versions = json!({
        "program": env!("CARGO_PKG_VERSION"),
        "protocol": messages_known(),
        "driver": entry.map(|entry| &entry.version),
        "kernel": line("/proc/sys/kernel/osrelease"),
        "system": system.map(|name| name.trim_matches('"')),
        "machine": std::env::consts::ARCH,
    });
    bundle.add_json(
        "versions.json",
        "versions of this program, the driver and the system",
        &versions,
    );
}

fn add_entry(bundle: &mut SupportBundle, entry: Option<&JobEntry>) {
    let Some(entry) = entry else {
        bundle.leave_out(
            "job.json",
            "the job is not in the list of this user's jobs on this machine",
        );
        return;
    };
    // The status has a file of its own.
    let mut entry = entry.clone();
    entry.ended.iter_mut().for_each(|end| end.status = None);
    match serde_json::to_value(entry) {
        Ok(entry) => {
            bundle.add_json(
                "job.json",
                "the driver's flags, the program, how the job ended",
                &entry,
            );
        }
        Err(error) => bundle.leave_out("job.json", error.to_string()),
    }
}

fn add_status(bundle: &mut SupportBundle, running: Option<Value>, entry: Option<&JobEntry>) {
    let last = || serde_json::to_value(entry?.ended.as_ref()?.status.as_ref()?).ok();
    match (running, last()) {
        (Some(status), _) => bundle.add_json("status.json", "how the job stands now", &status),
        (None, Some(status)) => {
            bundle.add_json("status.json", "how the job stood at its end", &status)
        }
        (None, None) => {
            bundle.leave_out("status.json", "no driver answers, and none has left its last status")
        }
    }
}

/// The purpose of an event log.
const fn purpose(is_present: bool) -> &'static str {
    if is_present { "what happened in the job" } else { "what happened before that" }
}

/// Adds the present log of a state directory, and the one before it.
fn add_last_events(bundle: &mut SupportBundle, folder: &Path) {
    for (name, is_present) in [(EVENTS_FILE.to_owned(), true), (format!("{EVENTS_FILE}.1"), false)]
    {
        match read_end(&folder.join(&name), (0, None), EVENTS_BYTES_MAX) {
            Ok(end) => {
                let why = end.describe(purpose(is_present));
                bundle.add(&name, why, TextForm::JsonLines, &end.text);
            }
            // A log is put aside only when it has become too long.
            Err(error) if error.kind() == ErrorKind::NotFound && !is_present => {}
            Err(error) => bundle.leave_out(&name, error.to_string()),
        }
    }
}

/// Adds the lines of one job from each log that has some, the last logs of these.
fn add_events_of(bundle: &mut SupportBundle, folder: &Path, job: &str) {
    let (mut own, mut found) = (JobLines::new(job.to_owned()), VecDeque::new());
    let mut earlier = 0;
    for path in logs_aside(folder).into_iter().chain([folder.join(EVENTS_FILE)]) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let lines = match open_log(&path) {
            Ok(log) => lines_of(log).filter(|line| own.handle_line(line)),
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => {
                bundle.leave_out(name, error.to_string());
                continue;
            }
        };
        let end = FileEnd::of_lines(lines, EVENTS_BYTES_MAX);
        if !end.text.is_empty() {
            found.push_back((name.to_owned(), end));
        }
        if found.len() > LOGS_OF_JOB_MAX {
            found.pop_front();
            earlier += 1;
        }
    }
    if found.is_empty() {
        bundle.leave_out(EVENTS_FILE, "the event log has no line of this job");
    }
    if earlier > 0 {
        let why = format!("of {earlier} logs: more than the last {LOGS_OF_JOB_MAX} of the job");
        bundle.leave_out("earlier events", why);
    }
    for (name, end) in found {
        let why = end.describe(purpose(name == EVENTS_FILE));
        bundle.add(&name, why, TextForm::JsonLines, &end.text);
    }
}

fn add_journal(bundle: &mut SupportBundle, log: &JobLog) {
    let path = "journal.json";
    let image = FileJournal::read_beside_driver(&log.folder.join(JOURNAL_FILE))
        .and_then(|loaded| loaded.map(|loaded| Image::of(&loaded)).transpose());
    let is_own = |image: &Image| image.job.is_none_or(|job| log.is_of(&job.to_string()));
    let image = image.map(|image| image.filter(is_own));
    // As JSON the image has no secrets, no keys, and neither arguments nor environment of the program.
    let value = image.map(|image| image.map(serde_json::to_value));
    match value {
        Ok(Some(Ok(value))) => {
            bundle.add_json(
                path,
                "the driver's journal, without the job's secrets and keys",
                &value,
            );
        }
        Ok(None) => {
            bundle.leave_out(path, "there is none: the job is over, or it is kept in a store")
        }
        Ok(Some(Err(error))) => bundle.leave_out(path, error.to_string()),
        Err(error @ JournalError::Corrupt(_)) => {
            bundle.leave_out(path, format!("it cannot be read: {error}"));
        }
        Err(error) => bundle.leave_out(path, error.to_string()),
    }
}

fn add_recording(bundle: &mut SupportBundle, log: &JobLog) {
    let is_own = |segment: &String| {
        log.job.is_none() || job_of_segment(segment).is_some_and(|job| log.is_of(&job.to_string()))
    };
    let missing = "the job is not recorded (--record), or those after it have taken its place";
    if !log.folder.join(RECORDING_FOLDER).exists() {
        bundle.leave_out("recording", missing);
        return;
    }
    let read = read_recording(&log.folder);
    match read.map(|segments| segments.into_iter().filter(is_own).collect::<Vec<_>>()) {
        Ok(segments) if segments.is_empty() => bundle.leave_out("recording", missing),
        Ok(segments) => {
            for (number, segment) in (1..).zip(segments) {
                let path = format!("{RECORDING_PREFIX}{number:08}.jsonl");
                let why = "what the driver was told and decided, for `replay`";
                bundle.add(&path, why, TextForm::JsonLines, &segment);
            }
        }
        Err(error) => bundle.leave_out("recording", error.to_string()),
    }
}

fn add_outputs(bundle: &mut SupportBundle, log: &JobLog) {
    let outputs = read_event_log(log, "report", |lines| WorkerOutputs::of_lines(lines, None));
    let Ok(outputs) = outputs else {
        bundle.leave_out("outputs", "the event log does not name the job");
        return;
    };
    let Some(stored_in) = outputs.output_dir.as_ref().map(PathBuf::from) else {
        bundle.leave_out("outputs", "the job does not store what its workers write (--output-dir)");
        return;
    };
    let workers = match outputs.select(&OutputRequest::default()) {
        Ok(workers) => workers,
        Err(error) => return bundle.leave_out("outputs", error.to_string()),
    };
    let (mut bytes, mut missing) = (0, 0);
    for output in workers {
        let mut is_there = false;
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let file = file_of(&stored_in, output, stream).filter(|path| path.is_file());
            let room = bytes < OUTPUTS_BYTES_MAX;
            let read = file.filter(|_| room).map(|path| {
                let part = part_of(&stored_in, &path, &outputs.job);
                read_end(&path, part, OUTPUT_BYTES_MAX)
            });
            let Some(Ok(end)) = read else { continue };
            is_there = true;
            bytes += end.text.len();
            let path = format!("outputs/rank-{}.{}.log", output.rank, stream.name());
            let (host, slot) = (&output.worker.host, output.worker.slot);
            let why = end.describe(&format!("{} of worker {host}:{slot}", stream.name()));
            bundle.add(&path, why, TextForm::Plain, &end.text);
        }
        missing += u32::from(!is_there);
    }
    if missing > 0 {
        let mib = OUTPUTS_BYTES_MAX >> 20;
        let why = format!("of {missing} workers: on other hosts, or more than {mib} MiB in all");
        bundle.leave_out("outputs", why);
    }
}

/// The last lines of a file, or of a job's part of it.
struct FileEnd {
    text: String,
    /// Bytes of the whole part, if it is longer.
    cut_from: Option<u64>,
}

impl FileEnd {
    /// Of these lines the last, of so many bytes at most.
    fn of_lines(lines: impl Iterator<Item = String>, bytes_max: u64) -> Self {
        let (mut kept, mut bytes, mut whole) = (VecDeque::new(), 0, 0);
        for line in lines {
            let length = line.len() as u64 + 1;
            (bytes, whole) = (bytes + length, whole + length);
            kept.push_back(line);
            while bytes > bytes_max
                && let Some(first) = kept.pop_front()
            {
                bytes -= first.len() as u64 + 1;
            }
        }
        let text = kept.into_iter().flat_map(|line| [line, "\n".to_owned()]).collect();
        Self { text, cut_from: (whole > bytes).then_some(whole) }
    }

    fn describe(&self, what: &str) -> String {
        match self.cut_from {
            Some(bytes) => format!("{what}: the last part of {bytes} bytes"),
            None => what.to_owned(),
        }
    }
}

/// Reads the last bytes of a part of a file, which begins and ends at these bytes, from the begin of a line on. Bytes that are
/// no text are replaced.
fn read_end(path: &Path, part: (u64, Option<u64>), bytes_max: u64) -> io::Result<FileEnd> {
    let mut file = File::open(path)?;
    let end = file.metadata()?.len().min(part.1.unwrap_or(u64::MAX));
    let length = end.saturating_sub(part.0);
    let skipped = length.saturating_sub(bytes_max);
    file.seek(SeekFrom::Start(part.0 + skipped))?;
    let mut bytes = Vec::new();
    // The file may be growing.
    file.take(length - skipped).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // Part of a word might be part of a secret.
    let begin = match skipped {
        0 => 0,
        _ => text.find('\n').or_else(|| text.find(' ')).map_or(text.len(), |at| at + 1),
    };
    let cut_from = (skipped > 0).then_some(length);
    Ok(FileEnd { text: text[begin..].to_owned(), cut_from })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_file_the_last_whole_lines_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "first\nsecond\nthird\n").expect("written");
        let read = |bytes_max| {
            let end = read_end(&path, (0, None), bytes_max).expect("there");
            (end.describe("it"), end.text)
        };
        let part = read_end(&path, (6, Some(13)), 19).expect("there");
        assert_eq!((part.text.as_str(), part.cut_from), ("second\n", None), "one job's");
        assert_eq!(read(19), ("it".to_owned(), "first\nsecond\nthird\n".to_owned()));
        let cut = "it: the last part of 19 bytes".to_owned();
        assert_eq!(read(18), (cut.clone(), "second\nthird\n".to_owned()));
        assert_eq!(read(4), (cut, String::new()), "one line is longer than that");
    }

    #[test]
    fn of_many_lines_the_last_are_kept_and_the_whole_is_told() {
        let lines = || ["first", "second", "third"].map(ToOwned::to_owned).into_iter();
        let end = FileEnd::of_lines(lines(), 19);
        assert_eq!((end.text.as_str(), end.cut_from), ("first\nsecond\nthird\n", None));
        let end = FileEnd::of_lines(lines(), 18);
        assert_eq!((end.text.as_str(), end.cut_from), ("second\nthird\n", Some(19)));
    }

    #[test]
    fn a_report_of_a_job_has_its_own_events_of_all_logs_and_none_of_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let started = |job: &str| {
            format!(r#"{{"t":"2026-01-01T00:00:00Z","kind":"driver_started","job":"{job}"}}"#)
        };
        let write = |name: &str, lines: &[String]| {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            std::fs::write(folder.path().join(name), text).expect("written");
        };
        write("events.jsonl.2", &[started("a"), "of a".to_owned()]);
        write("events.jsonl.1", &[started("a"), started("b"), "of b".to_owned()]);
        write(EVENTS_FILE, &[started("b")]);
        let events = |job: &str| {
            let mut bundle = SupportBundle::default();
            add_events_of(&mut bundle, folder.path(), job);
            let files = bundle.files.into_iter().map(|file| (file.path, file.text));
            files.collect::<Vec<_>>()
        };
        let (a, b) = (started("a"), started("b"));
        let file = |name: &str, text: String| (name.to_owned(), text);
        let of_a = [
            file("events.jsonl.2", format!("{a}\nof a\n")),
            file("events.jsonl.1", format!("{a}\n")),
        ];
        assert_eq!(events("a"), of_a);
        let of_b =
            [file("events.jsonl.1", format!("{b}\nof b\n")), file(EVENTS_FILE, format!("{b}\n"))];
        assert_eq!(events("b"), of_b);
        assert_eq!(events("c"), []);
    }

    #[test]
    fn what_is_not_there_is_noted() {
        let folder = tempfile::tempdir().expect("a folder");
        let bundle = gather(&JobLog::of_last(folder.path()), None).expect("no fault of ours");
        let paths: Vec<&str> = bundle.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["versions.json", "doctor.json"]);
        let text = bundle.describe("x");
        for name in ["job.json", "status.json", EVENTS_FILE, "journal.json", "recording", "outputs"]
        {
            assert!(text.contains(&format!("without {name}: ")), "{name}: {text}");
        }
    }
}
