//! Shows the workers' output on the agent's own stdout and stderr. Made by the command line.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use elastic_runtime::{DroppingWriter, DroppingWriterLane, DroppingWriterTrouble};

use super::{OutputSink, OutputStream};

/// Start of a line on a terminal: erases what a progress line has left there.
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
        })
    }

    /// The streams that are not read, or have lost lines.
    pub fn troubles(&self) -> Vec<DroppingWriterTrouble> {
        [&self.stdout, &self.stderr].into_iter().filter_map(DroppingWriter::trouble).collect()
    }

    /// Waits until all lines were written, for `within` at most for each stream. Returns whether they were. To
    /// be called before the process ends.
    pub fn flush(&self, within: Duration) -> bool {
        let stdout = self.stdout.flush(within);
        self.stderr.flush(within) && stdout
    }
}

/// The line that replaces lines that were not shown.
pub fn not_shown(lines: u64) -> String {
    format!("[elastic-node] {lines} lines are not shown: this output is read too slowly\n")
}

fn shown(name: &'static str, writer: Box<dyn Write + Send>) -> io::Result<DroppingWriter> {
    DroppingWriter::new(DroppingWriterLane::shown(name), writer, Box::new(not_shown))
}

impl OutputSink for StandardStreams {
    fn line(&self, prefix: &str, stream: OutputStream, line: &str) {
        let [of_stdout, of_stderr] = self.begins;
        let (lane, begin) = match stream {
            OutputStream::Stdout => (&self.stdout, of_stdout),
            OutputStream::Stderr => (&self.stderr, of_stderr),
        };
        lane.push(&[begin, prefix.as_bytes(), line.as_bytes(), b"\n"]);
    }
}
