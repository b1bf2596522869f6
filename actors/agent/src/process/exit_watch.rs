//! Exit watch: sees the end of a process at once, and leaves the process unreaped. Used by `system`. The system
//! reuses neither the process id nor the id of its group before the process is reaped, so the rest of the group
//! can be killed safely.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::thread;

use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

/// A watch over one process, which waits for its end.
#[derive(Debug)]
pub(super) enum ExitWatch {
    /// A pidfd, which becomes readable when the process ends (pidfd_open(2), Linux 5.3).
    Pidfd(AsyncFd<OwnedFd>),
    /// A thread that waits for the process, where the kernel has no pidfd.
    Thread(oneshot::Receiver<()>),
}

impl ExitWatch {
    /// A watch over a child of this process that was not reaped yet.
    pub(super) fn new(pid: Pid) -> io::Result<Self> {
        match pidfd_open(pid) {
            Ok(fd) => Ok(Self::Pidfd(listen(fd)?)),
            Err(_not_there) => Self::with_thread(pid),
        }
    }

    pub(super) fn with_thread(pid: Pid) -> io::Result<Self> {
        let (seen, ended) = oneshot::channel();
        thread::Builder::new().name("wait for exit".to_owned()).spawn(move || {
            let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
            // Beside ends, the system tells the moments in which another thread of this process has it stopped, to look at
            // its stack.
            while let Ok(WaitStatus::Stopped(..) | WaitStatus::PtraceEvent(..))
            | Err(nix::Error::EINTR) = waitid(Id::Pid(pid), flags)
            {}
            // The receiver is gone if the agent is ending.
            let _ = seen.send(());
        })?;
        Ok(Self::Thread(ended))
    }

    /// Returns when the process has ended.
    pub(super) async fn ended(self) {
        match self {
            // An error means that the runtime is shutting down. The caller then reaps the process.
            Self::Pidfd(fd) => drop(fd.readable().await),
            Self::Thread(ended) => drop(ended.await),
        }
    }
}

/// Whether a child of this process has ended as a whole and was not reaped. One whose main thread alone has ended has not.
pub(super) fn has_ended(pid: Pid) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    matches!(waitid(Id::Pid(pid), flags), Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)))
}

#[expect(unsafe_code, reason = "tokio wants a promise about the descriptor")]
fn listen(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is valid, and stays so for as long as the `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE)? })
}

#[expect(unsafe_code, reason = "neither the standard library nor nix offers pidfd_open")]
pub(super) fn pidfd_open(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes a process id and flags, and touches no memory of this process.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened this descriptor (close-on-exec, always), and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
