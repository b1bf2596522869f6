//! The file in which a process leaves the stacks of its Python threads when a signal asks for them. The Python package
//! (`_stacks.py`) makes it: a file in memory, to which `faulthandler` appends. Called by `inspection`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};

use nix::unistd::Pid;

use super::memory_file::path_of;
use super::stack_text::arranged;
use crate::process::proc_files::ProcessStatus;

/// The name of the file, as `_stacks.py` has it.
const NAME: &str = "elastic-stacks";

/// The signal that asks for the stacks is the last one but so many, as `_stacks.py` has it. Few programs use any of the
/// real-time signals, and those that do begin with the first.
const BELOW_LAST_SIGNAL: i32 = 3;

/// Most bytes that are read; a hundred threads, of which `faulthandler` writes no more, take less.
const READ_MAX: u64 = 1 << 20;

/// The signal that asks a process for its stacks.
fn signal() -> i32 {
    libc::SIGRTMAX() - BELOW_LAST_SIGNAL
}

/// The file, opened here.
#[derive(Debug)]
pub(super) struct StackFile(File);

impl StackFile {
    /// The file of a process, emptied. `None` if it has none, or does not handle the signal: that would end it.
    pub(super) fn find(pid: i32) -> Option<Self> {
        if !ProcessStatus::of(pid)?.catches(signal()) {
            return None;
        }
        let file = OpenOptions::new().read(true).write(true).open(path_of(pid, NAME)?);
        let refused =
            |error: &io::Error| tracing::debug!(pid, %error, "its stacks are not to be had");
        let file = file.inspect_err(refused).ok()?;
        // Removes stacks that were written after an earlier inspection had stopped waiting for them.
        file.set_len(0).inspect_err(refused).ok()?;
        Some(Self(file))
    }

    /// Asks a process that was not reaped to write its stacks.
    #[expect(unsafe_code, reason = "nix does not know real-time signals")]
    pub(super) fn ask(pid: Pid) {
        // SAFETY: kill takes two numbers, and touches no memory of this process.
        let result = unsafe { libc::kill(pid.as_raw(), signal()) };
        if result != 0 {
            let error = io::Error::last_os_error();
            tracing::debug!(%pid, %error, "it was not asked for its stacks");
        }
    }

    /// Number of bytes written; `None` if it cannot be read.
    pub(super) fn length(&self) -> Option<u64> {
        Some(self.0.metadata().ok()?.len())
    }

    /// The stacks that were written, arranged and bounded. The file is empty afterwards.
    pub(super) fn take(&self) -> Option<String> {
        let mut written = Vec::new();
        let read = (&self.0).take(READ_MAX).read_to_end(&mut written);
        // Fails if the process is gone. The read has failed then, too.
        let _ = self.0.set_len(0);
        read.ok()?;
        Some(arranged(&String::from_utf8_lossy(&written)))
    }
}
