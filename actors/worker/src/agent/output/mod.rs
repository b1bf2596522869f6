//! What workers write: stored whole in files, shown by line with a prefix. Production only, and outside
//! actor code: it blocks, so it has threads of its own. [`SystemProcesses`](super::SystemProcesses) uses it.
//!
//! Each process has a thread that waits in `poll` for its two pipes (`pump`). It writes the bytes as they
//! are to the files, and hands complete lines to an [`OutputSink`]. Only the disk can hold a worker up; who
//! reads the agent's own stdout and stderr cannot.

mod file_name;
mod lines;
mod lossy_lane;
mod plan;
mod pump;
mod standard;
mod tail;

#[cfg(test)]
mod tests;

pub use file_name::file_stem;
pub(super) use plan::OutputPlan;
pub use pump::{AttachError, TAIL_PATIENCE};
pub(super) use pump::{Attached, Pipes, attach};
pub use standard::{FRESH_LINE, StandardStreams};

/// Which of a worker's streams.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum OutputStream {
    /// Its stdout.
    Stdout,
    /// Its stderr.
    Stderr,
}

impl OutputStream {
    /// The stream's name, and the extension of its file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Takes lines that workers wrote, to show them. Called on the processes' output threads: it must not wait
/// for a slow reader.
pub trait OutputSink: Send + Sync {
    /// One line, without its end, and what is to stand before it. At most [`LINE_BYTES_MAX`] bytes and a note of what was cut; invalid UTF-8
    /// is replaced. The files have all of it as it was.
    fn line(&self, prefix: &str, stream: OutputStream, line: &str);
}

/// How much of a line is shown, in bytes.
pub const LINE_BYTES_MAX: usize = 8192;
