//! Shows the workers' output on the agent's own stdout and stderr. Made by the command line.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use elastic_runtime::{DroppingWriter, DroppingWriterLane, DroppingWriterTrouble};
use tokio::time::Instant;

use super::allowance::{OutputAllowance, ShownRate, Verdict};
use super::{OutputSink, OutputStream};

/// Start of a line on a terminal: erases the rest of a progress line.
pub const FRESH_LINE: &[u8] = b"\r\x1b[2K";

/// Shows the workers' stdout on the agent's stdout and their stderr on the agent's stderr. Each line has the
/// worker's prefix. A reader that does not keep up loses lines, and is told how many. The workers are not held
/// up.
///
/// The bounds of [`DroppingWriterLane::shown`] hold for each of the two streams. Each has a thread, which sleeps while
/// there is nothing to show.
#[derive(Debug)]
pub struct StandardStreams {
    stdout: DroppingWriter,
    stderr: DroppingWriter,
    /// The bytes that begin each line of stdout and of stderr.
    begins: [&'static [u8]; 2],
    /// The allowances of stdout and of stderr; none: everything is shown that is read.
    allowances: Option<[Mutex<OutputAllowance>; 2]>,
}

impl StandardStreams {
    /// A view on this process's own streams. It bypasses the locks of [`std::io::stdout`] and `stderr`: a
    /// reader that does not read would keep them locked.
    ///
    /// # Errors
    /// If a stream is closed, or no thread can be started.
    pub fn new() -> io::Result<Self> {
        let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let begin = |is_terminal: bool| if is_terminal { FRESH_LINE } else { b"" };
        let begins = [begin(stdout.is_terminal()), begin(stderr.is_terminal())];
        Ok(Self { begins, ..Self::with_writers(Box::new(stdout), Box::new(stderr))? })
    }

    /// A view on other streams.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn with_writers(
        stdout: Box<dyn Write + Send>,
        stderr: Box<dyn Write + Send>,
    ) -> io::Result<Self> {
        Ok(Self {
            stdout: shown("show stdout", stdout)?,
            stderr: shown("show stderr", stderr)?,
            begins: [b"", b""],
            allowances: None,
        })
    }

    /// Shows so much of the workers' output only, and the number of lines that are missing.
    #[must_use]
    pub fn limited(mut self, rate: ShownRate) -> Self {
        let allowance = || Mutex::new(OutputAllowance::new(rate, Instant::now()));
        self.allowances = Some([allowance(), allowance()]);
        self
    }

    /// The streams that are not read, or have lost lines.
    pub fn troubles(&self) -> Vec<DroppingWriterTrouble> {
        [&self.stdout, &self.stderr].into_iter().filter_map(DroppingWriter::trouble).collect()
    }

    /// Waits until all lines were written, for `within` at most for each stream. Returns whether they were. To
    /// be called before the process ends.
    pub fn flush(&self, within: Duration) -> bool {
        for (allowance, lane) in self.allowances.iter().flatten().zip([&self.stdout, &self.stderr])
        {
            let missed = allowance.lock().unwrap_or_else(PoisonError::into_inner).missed();
            if missed > 0 {
                lane.push(&[too_much(missed).as_bytes()]);
            }
        }
        let stdout = self.stdout.flush(within);
        self.stderr.flush(within) && stdout
    }
}

/// The line that replaces lines that were not shown.
pub fn not_shown(lines: u64) -> String {
    format!("[elastic-node] {lines} lines are not shown: this output is read too slowly\n")
}

/// The line that replaces lines beyond the allowance.
fn too_much(lines: u64) -> String {
    format!(
        "[elastic-node] {lines} lines are not shown: more output than a launcher passes on; --output-dir stores all of it\n"
    )
}

fn shown(name: &'static str, writer: Box<dyn Write + Send>) -> io::Result<DroppingWriter> {
    DroppingWriter::new(DroppingWriterLane::shown(name), writer, Box::new(not_shown))
}

impl OutputSink for StandardStreams {
    fn line(&self, prefix: &str, stream: OutputStream, line: &str) {
        let [of_stdout, of_stderr] = self.begins;
        let (lane, begin, index) = match stream {
            OutputStream::Stdout => (&self.stdout, of_stdout, 0),
            OutputStream::Stderr => (&self.stderr, of_stderr, 1),
        };
        if let Some(allowances) = &self.allowances {
            let mut allowance = allowances[index].lock().unwrap_or_else(PoisonError::into_inner);
            match allowance.take(Instant::now(), prefix.len() + line.len() + 1) {
                Verdict::Show { missed: 0 } => {}
                Verdict::Show { missed } => lane.push(&[begin, too_much(missed).as_bytes()]),
                Verdict::Drop => return,
            }
        }
        lane.push(&[begin, prefix.as_bytes(), line.as_bytes(), b"\n"]);
    }
}
