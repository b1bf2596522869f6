//! The native stack of a process's main thread: the functions that it is in, in any language. It is read from outside,
//! so the program needs no change and holds no lock for it. Called by `inspection`.
//!
//! - `snapshot` stops the thread for as long as it takes to copy its registers and its stack (ptrace(2)), mostly less than
//!   a millisecond. A parent may do that to its child under every setting of Yama but the one that forbids all.
//! - `modules` walks up the copy by the unwind tables (`.eh_frame`) of the program and its libraries; frame pointers serve
//!   where there are none.
//! - `text` names the functions by their symbols, and those of just-in-time compilers by `/tmp/perf-PID.map`
//!   (`python -X perf` writes it).

mod modules;
mod snapshot;
mod text;

#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

use nix::unistd::Pid;

use modules::Modules;
use snapshot::ThreadSnapshot;

/// Reason for a missing native stack.
#[derive(Debug, thiserror::Error)]
pub(super) enum NativeStackError {
    /// The system does not let this process look at the other one.
    #[error(
        "the system does not let the agent trace it (kernel.yama.ptrace_scope, or the container's seccomp profile)"
    )]
    Refused(#[source] nix::Error),
    /// The thread did not stop in time, as one in uninterruptible sleep does not.
    #[error(
        "its main thread did not stop within {} ms to be looked at",
        snapshot::STOPPED_WITHIN_MS
    )]
    NotStopped,
    /// A file of `/proc` could not be read.
    #[error("{} could not be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// There is no thread to do it.
    #[error("no thread could be started that traces it")]
    NoThread(#[source] io::Error),
    /// No function could be named.
    #[error("its functions could not be named")]
    Unnamed(#[source] blazesym::Error),
}

/// The native stack of the main thread of a process that is not reaped: a line for each call, the innermost first, at most
/// [`ProcessSight::NATIVE_STACK_BYTES_MAX`](elastic_protocol::messages::ProcessSight::NATIVE_STACK_BYTES_MAX) bytes.
///
/// # Errors
/// The process is gone, may not be traced, or does not stop.
pub(super) fn native_stack(pid: Pid) -> Result<String, NativeStackError> {
    let mut snapshot = ThreadSnapshot::take(pid)?;
    if snapshot.is_empty() {
        // It started another program before it stopped: the memory that was opened is that of the earlier program.
        snapshot = ThreadSnapshot::take(pid)?;
    }
    let mut modules = Modules::of(pid)?;
    let calls = modules.calls(&snapshot);
    text::named(pid, &calls, &modules)
}
