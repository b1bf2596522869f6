//! The view of workers' output on the agent's own stdout and stderr.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use super::lossy_lane::LossyLane;
use super::{OutputSink, OutputStream};

/// What a line on a terminal begins with: it takes away what a progress line has left there.
pub const FRESH_LINE: &[u8] = b"\r\x1b[2K";

/// Shows workers' stdout on the agent's stdout, their stderr on the agent's stderr, with what tells them apart
/// before each line. A reader that does not keep up loses lines, and is told how many; the workers notice nothing.
///
/// At most 1 MiB waits for each of the two. Each has a thread, which sleeps when there is nothing to show.
#[derive(Debug)]
pub struct StandardStreams {
    stdout: LossyLane,
    stderr: LossyLane,
    /// What lines of stdout and of stderr begin with.
    begins: [&'static [u8]; 2],
}

impl StandardStreams {
    /// On this process's own streams. It writes past the locks of [`std::io::stdout`] and `stderr`: a reader
    /// that does not read would hold them.
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

    /// On other streams.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn with_writers(
        stdout: Box<dyn Write + Send>,
        stderr: Box<dyn Write + Send>,
    ) -> io::Result<Self> {
        Ok(Self {
            stdout: LossyLane::new("show stdout", stdout)?,
            stderr: LossyLane::new("show stderr", stderr)?,
            begins: [b"", b""],
        })
    }

    /// Waits until all lines were written, for `within` at most for each stream; says whether they were. To be
    /// called before the process ends.
    pub fn flush(&self, within: Duration) -> bool {
        let stdout = self.stdout.flush(within);
        self.stderr.flush(within) && stdout
    }
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
