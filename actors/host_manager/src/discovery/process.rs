//! The process group of a discovery script, which is killed with it, and the output that is read while it runs.
//! Used by `script`.

use std::cell::{Cell, RefCell};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::core::limits::{OUTPUT_BYTES_MAX, STDERR_BYTES_MAX};

const CHUNK_BYTES: usize = 8 << 10;

/// The script and all processes that it started, except those that left the group. The group is killed
/// (SIGKILL) when this is dropped: at the time limit, when the result is not wanted any more, and after the
/// script's own end, so that background processes do not pile up poll by poll.
pub(super) struct ProcessGroup {
    leader: Cell<Option<Pid>>,
}

impl ProcessGroup {
    /// The group of a process that was started as the leader of a new group.
    pub(super) fn of(leader: Option<u32>) -> Self {
        let leader = leader.and_then(|leader| i32::try_from(leader).ok());
        Self { leader: Cell::new(leader.map(Pid::from_raw)) }
    }

    /// Kills the group, once.
    pub(super) fn kill(&self) {
        let Some(leader) = self.leader.take() else { return };
        match killpg(leader, Signal::SIGKILL) {
            // The group was empty.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => tracing::warn!(%leader, %error, "a process group cannot be ended"),
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The output read so far; shared, so that it is available when reading is cut short.
#[derive(Default)]
pub(super) struct CommandOutput {
    stdout: RefCell<Vec<u8>>,
    stderr: RefCell<Vec<u8>>,
    overflown: Cell<bool>,
}

impl CommandOutput {
    /// Reads stdout up to the bound; beyond it, kills the group.
    pub(super) async fn read_stdout(&self, mut pipe: impl AsyncRead + Unpin, group: &ProcessGroup) {
        let mut chunk = [0; CHUNK_BYTES];
        while let Ok(bytes @ 1..) = pipe.read(&mut chunk).await {
            let mut stdout = self.stdout.borrow_mut();
            if stdout.len() + bytes > OUTPUT_BYTES_MAX {
                self.overflown.set(true);
                return group.kill();
            }
            stdout.extend_from_slice(&chunk[..bytes]);
        }
    }

    /// Reads stderr and keeps its end.
    pub(super) async fn read_stderr(&self, mut pipe: impl AsyncRead + Unpin) {
        let mut chunk = [0; CHUNK_BYTES];
        while let Ok(bytes @ 1..) = pipe.read(&mut chunk).await {
            let mut stderr = self.stderr.borrow_mut();
            stderr.extend_from_slice(&chunk[..bytes]);
            let too_many = stderr.len().saturating_sub(STDERR_BYTES_MAX);
            stderr.drain(..too_many);
        }
    }

    pub(super) const fn is_overflown(&self) -> bool {
        self.overflown.get()
    }

    /// The stdout as text. Bytes that are not UTF-8 are replaced, so that their lines are named as malformed.
    pub(super) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.borrow()).into_owned()
    }

    pub(super) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.borrow()).trim().to_owned()
    }
}
