//! `logs`: the output of a job's workers, from the files of `--output-dir` on this machine. Called by `main`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use elastic_agent::OutputStream;
use elastic_observe::{OutputRequest, WorkerOutput, WorkerOutputs};
use elastic_protocol::{GenerationId, HostName};

use super::event_log::read_event_log;
use super::failure::{CommandFailure, ResultExt as _};
use super::find_job::state_dir_of;
use super::printable::printable;
use super::stdout::{print_output, shows_escapes};
use crate::process::{EVENTS_FILE, file_of};

/// Interval at which `--follow` looks for more.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);

/// Bytes of a file that are read and printed at once.
const PART_BYTES: usize = 64 << 10;

/// Longest line that waits for its end, in bytes; a longer one is printed in parts.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Hint if the named worker is not there.
const WHERE_SHOWN: &str = "`elastic-node status` shows the ranks and their hosts";

/// Flags of `logs`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LogsFlags {
    /// The driver's state directory; it may be that of a job that is over [default: that of the job]
    #[arg(env = "ELASTIC_STATE_DIR", value_name = "STATE_DIR")]
    state_dir: Option<PathBuf>,
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
    let folder = state_dir_of(flags.state_dir.as_deref(), flags.job.as_deref())?;
    let request = OutputRequest { rank: flags.rank, host };
    let wanted = flags.generation.map(GenerationId);
    let read = || read_event_log(&folder, "logs", |lines| WorkerOutputs::of_lines(lines, wanted));
    let length = || fs::metadata(folder.join(EVENTS_FILE)).map(|it| it.len()).ok();
    let (mut length_read, mut outputs) = (length(), read()?);
    let mut shown = ShownFiles::default();
    loop {
        let stored_in = stored_in(flags, &outputs)?;
        let is_over = outputs.is_over || !flags.follow;
        let missing = match outputs.select(&request) {
            Ok(workers) => shown.add(&stored_in, &workers, flags.follow),
            // The worker may come with a later generation.
            Err(_) if !is_over => Vec::new(),
            Err(error) => return Err(CommandFailure::usage(error.to_string()).hint(WHERE_SHOWN)),
        };
        let has_more = shown.print_more(is_over)?;
        if is_over && !(flags.follow && has_more) {
            return if missing.is_empty() { Ok(()) } else { Err(not_here(&missing, &stored_in)) };
        }
        #[expect(clippy::disallowed_methods, reason = "the command's own thread: no actor waits")]
        std::thread::sleep(FOLLOW_EVERY);
        // The whole log is read, so only if there is more.
        let now = length();
        if now != length_read {
            (length_read, outputs) = (now, read()?);
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

/// The files that are printed, in the order in which they were found.
#[derive(Default)]
struct ShownFiles {
    files: Vec<ShownFile>,
    known: BTreeSet<PathBuf>,
}

impl ShownFiles {
    /// Adds the files of workers that are not known yet. Returns the workers that have none here.
    fn add(&mut self, folder: &Path, workers: &[&WorkerOutput], may_change: bool) -> Vec<String> {
        let mut missing = Vec::new();
        for output in workers {
            let name = format!("{}:{}", output.worker.host, output.worker.slot);
            let is_one = workers.len() == 1 && !may_change;
            let prefix = if is_one { String::new() } else { format!("[{name}] ") };
            let streams = [OutputStream::Stdout, OutputStream::Stderr];
            let files = streams.map(|stream| (stream, file_of(folder, output, stream)));
            if files.iter().all(|(_, path)| path.is_none()) {
                missing.push(name);
            }
            for (stream, path) in files {
                let Some(path) = path.filter(|path| self.known.insert(path.clone())) else {
                    continue;
                };
                let (prefix, read, line) = (printable(&prefix).into_owned(), 0, Vec::new());
                self.files.push(ShownFile { path, stream, prefix, read, line });
            }
        }
        missing
    }

    /// Prints the new output since the last time. True if there was more.
    fn print_more(&mut self, is_end: bool) -> Result<bool, CommandFailure> {
        let mut has_more = false;
        for file in &mut self.files {
            has_more |= file.print_more(is_end)?;
        }
        Ok(has_more)
    }
}

/// A file, and how much of it was printed.
struct ShownFile {
    path: PathBuf,
    stream: OutputStream,
    /// The text before each line; empty if only one worker is shown.
    prefix: String,
    /// Bytes that were read.
    read: u64,
    /// A line whose end has not been read.
    line: Vec<u8>,
}

impl ShownFile {
    /// Prints the new output since the last time, and at the end the last line, even if it has no end. True if there
    /// was more.
    fn print_more(&mut self, is_end: bool) -> Result<bool, CommandFailure> {
        let unreadable = format!("{} cannot be read", self.path.display());
        let mut file = File::open(&self.path).failed(&*unreadable)?;
        file.seek(SeekFrom::Start(self.read)).failed(&*unreadable)?;
        let (mut part, begin) = (vec![0; PART_BYTES], self.read);
        loop {
            let bytes = file.read(&mut part).failed(&*unreadable)?;
            if bytes == 0 {
                break;
            }
            self.read += bytes as u64;
            self.print(&part[..bytes])?;
        }
        if is_end && !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            self.print_lines(&line)?;
        }
        Ok(self.read > begin)
    }

    fn print(&mut self, bytes: &[u8]) -> Result<(), CommandFailure> {
        self.line.extend_from_slice(bytes);
        let end = self.line.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let end = if end == 0 && self.line.len() >= LINE_BYTES_MAX { self.line.len() } else { end };
        let whole: Vec<u8> = self.line.drain(..end).collect();
        self.print_lines(&whole)
    }

    fn print_lines(&self, bytes: &[u8]) -> Result<(), CommandFailure> {
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
        print_output(is_stdout, &text)
    }
}
