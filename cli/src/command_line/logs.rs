//! `logs`: the output of a job's workers, from the files of `--output-dir` on this machine. Called by `main`.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use elastic_agent::OutputStream;
use elastic_agent::output::part_of;
use elastic_observe::{OutputRequest, WorkerOutput, WorkerOutputs};
use elastic_protocol::{GenerationId, HostName, WorkerId};

use super::event_log::{OLDER_LOGS, read_event_log};
use super::failure::{CommandFailure, ResultExt as _};
use super::find_job::{JobLog, StateDirFlags};
use super::printable::printable;
use super::stdout::{print_output, shows_escapes};
use crate::process::{EVENTS_FILE, file_of};

/// Interval at which `--follow` looks for more.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);

/// Bytes of a file that are read and printed at once.
const PART_BYTES: usize = 64 << 10;

/// Longest line that waits for its end, in bytes; a longer one is printed in parts.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The most files that stay open. One beyond them is opened for each look, and is lost from sight when it is moved away.
const HELD_FILES_MAX: usize = 256;

/// Hint if the named worker is not there.
const WHERE_SHOWN: &str = "`elastic-node status` shows the ranks and their hosts";

/// Flags of `logs`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LogsFlags {
    /// The driver's state directory.
    #[command(flatten)]
    folder: StateDirFlags,
    /// The job, by the first letters of its id as `list` shows it [default: the one that runs on this machine, else
    /// the last]
    #[arg(long, value_name = "JOB", conflicts_with = "state_dir")]
    job: Option<String>,
    /// Only the worker with this rank
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,
    /// Only the workers of this host
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// The workers of this generation [default: the last one]
    #[arg(long, value_name = "GENERATION")]
    generation: Option<u64>,
    /// Go on with what the workers write, and with further generations, until the job ends
    #[arg(long, short)]
    follow: bool,
    /// The folder with the output, if it is not where the job was told to store it
    #[arg(long, value_name = "FOLDER")]
    output_dir: Option<PathBuf>,
}

/// Prints the output: stdout of the workers on stdout, stderr on stderr. Lines begin with `[host:slot] ` if several
/// workers are selected, or may come to be (`--follow`).
pub(crate) fn print_logs(flags: &LogsFlags) -> Result<(), CommandFailure> {
    let host = flags
        .host
        .as_deref()
        .map(HostName::new)
        .transpose()
        .map_err(|error| CommandFailure::usage(format!("--host: {error}")).hint(WHERE_SHOWN))?;
    let log = JobLog::find(flags.folder.given(), flags.job.as_deref())?;
    let request = OutputRequest { rank: flags.rank, host };
    let wanted = flags.generation.map(GenerationId);
    let read = || read_event_log(&log, "logs", |lines| WorkerOutputs::of_lines(lines, wanted));
    let seen = || fs::metadata(log.folder.join(EVENTS_FILE)).map(|it| (number(&it), it.len())).ok();
    let (mut seen_read, mut outputs) = (seen(), read()?);
    let mut shown = ShownFiles::new(flags.follow);
    loop {
        let stored_in = stored_in(flags, &outputs)?;
        let is_over = outputs.is_over || !flags.follow;
        let missing = match outputs.select(&request) {
            Ok(workers) => shown.add(&stored_in, &outputs.job, &workers),
            // The worker may come with a later generation.
            Err(_) if !is_over => Vec::new(),
            Err(error) => {
                let hint = if error.lacks_begin() { OLDER_LOGS } else { WHERE_SHOWN };
                return Err(CommandFailure::usage(error.to_string()).hint(hint));
            }
        };
        let has_more = shown.print_more(is_over)?;
        if is_over && !(flags.follow && has_more) {
            return if missing.is_empty() { Ok(()) } else { Err(not_here(&missing, &stored_in)) };
        }
        #[expect(clippy::disallowed_methods, reason = "the command's own thread: no actor waits")]
        std::thread::sleep(FOLLOW_EVERY);
        // The whole log is read, so only if there is more.
        let now = seen();
        if now != seen_read {
            seen_read = now;
            match read() {
                Ok(read) => outputs = read,
                // The log was moved away or emptied: the driver goes on with its next line.
                Err(_) if log.folder.is_dir() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn stored_in(flags: &LogsFlags, outputs: &WorkerOutputs) -> Result<PathBuf, CommandFailure> {
    let logged = || outputs.output_dir.as_ref().map(PathBuf::from);
    flags.output_dir.clone().or_else(logged).ok_or_else(|| {
        CommandFailure::usage("the job does not store what its workers write")
            .hint("start it with --output-dir FOLDER")
    })
}

fn not_here(workers: &[String], folder: &Path) -> CommandFailure {
    let (workers, folder) = (workers.join(", "), folder.display());
    CommandFailure::new(format!("there is no output of {workers} in {folder}")).hint(
        "each host stores the output of its own workers: run this there, or name a copy by --output-dir",
    )
}

/// Device and number of a file: what is the same file whatever its name is.
fn number(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// The files that are printed, in the order in which they were found.
struct ShownFiles {
    files: Vec<ShownFile>,
    known: BTreeSet<PathBuf>,
    /// The workers with a file among them.
    workers: BTreeSet<WorkerId>,
    /// Whether more is to come: files may be moved away, cut short and made anew.
    is_followed: bool,
}

impl ShownFiles {
    fn new(is_followed: bool) -> Self {
        let (files, known, workers) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        Self { files, known, workers, is_followed }
    }

    /// Adds the files of workers that are not known yet. Returns the workers that have none here.
    fn add(&mut self, folder: &Path, job: &str, workers: &[&WorkerOutput]) -> Vec<String> {
        let mut missing = Vec::new();
        for output in workers {
            let name = format!("{}:{}", output.worker.host, output.worker.slot);
            let is_one = workers.len() == 1 && !self.is_followed;
            let prefix = if is_one { String::new() } else { format!("[{name}] ") };
            let streams = [OutputStream::Stdout, OutputStream::Stderr];
            for stream in streams {
                let path = file_of(folder, output, stream);
                let Some(path) = path.filter(|path| self.known.insert(path.clone())) else {
                    continue;
                };
                self.workers.insert(output.worker.clone());
                let prefix = printable(&prefix).into_owned();
                let is_held = self.is_followed && self.files.len() < HELD_FILES_MAX;
                let (begin, end) = part_of(folder, &path, job);
                let file = ShownFile::new(path, stream, prefix, is_held);
                self.files.push(ShownFile { read: begin, end, ..file });
            }
            if !self.workers.contains(&output.worker) {
                missing.push(name);
            }
        }
        missing
    }

    /// Prints the new output since the last time. True if there was more.
    fn print_more(&mut self, is_end: bool) -> Result<bool, CommandFailure> {
        let mut has_more = false;
        for file in &mut self.files {
            match file.print_more(is_end) {
                Ok(printed) => has_more |= printed,
                Err(ShowError::Read(error))
                    if self.is_followed && error.kind() == ErrorKind::NotFound => {}
                Err(ShowError::Read(error)) => {
                    let unreadable = format!("{} cannot be read", file.path.display());
                    return Err(error).failed(unreadable);
                }
                Err(ShowError::Print(failure)) => return Err(failure),
            }
        }
        Ok(has_more)
    }
}

/// Why a file is not shown.
enum ShowError {
    Read(io::Error),
    Print(CommandFailure),
}

impl From<io::Error> for ShowError {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

/// A file, and how much of it was printed.
struct ShownFile {
    path: PathBuf,
    stream: OutputStream,
    /// The text before each line; empty if only one worker is shown.
    prefix: String,
    /// The file that is read. Its writer goes on in it, also if it is moved away.
    file: Option<(File, (u64, u64))>,
    /// Whether the file stays open.
    is_held: bool,
    /// The number of the file that was read last.
    number: Option<(u64, u64)>,
    /// Bytes of it that were read, or are of a former job.
    read: u64,
    /// The first byte that is of a later job.
    end: Option<u64>,
    /// A line whose end has not been read.
    line: Vec<u8>,
}

impl ShownFile {
    fn new(path: PathBuf, stream: OutputStream, prefix: String, is_held: bool) -> Self {
        let (file, number, read, end, line) = (None, None, 0, None, Vec::new());
        Self { path, stream, prefix, file, is_held, number, read, end, line }
    }

    /// Prints the new output since the last time, and at the end the last line, even if it has no end. True if there
    /// was more.
    fn print_more(&mut self, is_end: bool) -> Result<bool, ShowError> {
        let printed = self.print_rest();
        // Another file may have come in the place of the one that is read: as `tail -F`, it is read from its beginning.
        let there = fs::metadata(&self.path).ok().map(|found| number(&found));
        let is_another = there.is_some_and(|there| Some(there) != self.number);
        let printed = match printed {
            Ok(before) if is_another => {
                self.file = None;
                self.print_rest().map(|printed| printed || before)
            }
            printed => printed,
        };
        if is_end {
            self.end_line()?;
        }
        printed
    }

    /// Prints the rest of the file that is open, else of the one with the name.
    fn print_rest(&mut self) -> Result<bool, ShowError> {
        let (mut file, opened) = match self.file.take() {
            Some(held) => held,
            None => {
                let file = File::open(&self.path)?;
                let opened = number(&file.metadata()?);
                (file, opened)
            }
        };
        let is_cut = file.metadata()?.len() < self.read;
        if self.number.replace(opened).is_some_and(|former| former != opened) || is_cut {
            (self.read, self.end) = (0, None);
            self.end_line()?;
        }
        file.seek(SeekFrom::Start(self.read))?;
        let (mut part, begin) = (vec![0; PART_BYTES], self.read);
        loop {
            let left = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.read));
            let bytes = (&mut file).take(left).read(&mut part)?;
            if bytes == 0 {
                break;
            }
            self.read += bytes as u64;
            self.print(&part[..bytes])?;
        }
        self.file = self.is_held.then_some((file, opened));
        Ok(self.read > begin)
    }

    /// Prints a line whose end does not come.
    fn end_line(&mut self) -> Result<(), ShowError> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() { Ok(()) } else { self.print_lines(&line) }
    }

    fn print(&mut self, bytes: &[u8]) -> Result<(), ShowError> {
        self.line.extend_from_slice(bytes);
        let end = self.line.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let end = if end == 0 && self.line.len() >= LINE_BYTES_MAX { self.line.len() } else { end };
        let whole: Vec<u8> = self.line.drain(..end).collect();
        self.print_lines(&whole)
    }

    fn print_lines(&self, bytes: &[u8]) -> Result<(), ShowError> {
        let is_stdout = self.stream == OutputStream::Stdout;
        let mut text = Vec::with_capacity(bytes.len());
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            text.extend_from_slice(self.prefix.as_bytes());
            match shows_escapes(is_stdout) {
                true => {
                    text.extend_from_slice(printable(&String::from_utf8_lossy(line)).as_bytes())
                }
                false => text.extend_from_slice(line),
            }
            if !line.ends_with(b"\n") && !self.prefix.is_empty() {
                text.push(b'\n');
            }
        }
        print_output(is_stdout, &text).map_err(ShowError::Print)
    }
}
