//! Output of workers: stored whole in files, and shown line by line with a prefix. Used by
//! [`SystemProcesses`](super::SystemProcesses), in production only. This code blocks, so it runs on threads of
//! its own, outside the actors.
//!
//! Each process has a thread that waits in `poll` for its two pipes (`pump`). It writes the bytes unchanged to
//! the files, and hands complete lines to an [`OutputSink`]. Neither the disk nor the reader of the agent's own
//! stdout and stderr can hold a worker up for longer than a second (X-16, S-6).

mod allowance;
mod file_name;
mod lines;
mod owner;
mod plan;
mod prefix;
mod pump;
mod standard;
mod stored;
mod tail;

#[cfg(test)]
mod tests;

pub use allowance::ShownRate;
pub use file_name::file_stem;
pub use owner::{FolderTaken, check_folder, part_of};
pub(super) use plan::OutputPlan;
pub use pump::{AttachError, TAIL_PATIENCE};
pub(super) use pump::{Attached, Pipes, attach};
pub use standard::{FRESH_LINE, StandardStreams, not_shown};
pub(crate) use stored::OutputFiles;

/// The two output streams of a worker.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum OutputStream {
    /// The worker's stdout.
    Stdout,
    /// The worker's stderr.
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

/// Shows the lines that workers write. Called on the processes' output threads, so it must not wait for a slow
/// reader.
pub trait OutputSink: Send + Sync {
    /// Shows `prefix` and one line, without its line end. The line has at most [`LINE_BYTES_MAX`] bytes, and a
    /// note of how much was cut; invalid UTF-8 is replaced. The files hold the unchanged bytes.
    fn line(&self, prefix: &str, stream: OutputStream, line: &str);
}

/// The most bytes of a line that are shown.
pub const LINE_BYTES_MAX: usize = 8192;
