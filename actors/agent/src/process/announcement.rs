//! Announcement of a process's id by the process itself, between fork and exec. The start returns the id to the agent
//! only later, and the program may have sent a request to the agent's store by then. Used by `command` and `system`.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;

use nix::fcntl::OFlag;
use nix::unistd::{getpid, pipe2, write};

/// Write end of the pipe through which a process announces its id, between fork and exec.
#[derive(Debug)]
pub(super) struct Announcer(OwnedFd);

/// Read end of that pipe. The announcement may not have been made yet.
#[derive(Debug)]
pub(super) struct Announcement {
    pipe: File,
    told: Cell<Option<u32>>,
}

/// Makes a pipe for the announcement of one process.
pub(super) fn announcement() -> io::Result<(Announcer, Announcement)> {
    let (pipe, end) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    Ok((Announcer(end), Announcement { pipe: pipe.into(), told: Cell::default() }))
}

impl Announcer {
    /// Tells the id of the calling process. One system call for the id and one for the pipe, so it may run in the forked
    /// child of a process with threads.
    pub(super) fn announce(&self) {
        // The start returns the id, too, though later.
        let _ = write(&self.0, &getpid().as_raw().unsigned_abs().to_ne_bytes());
    }
}

impl Announcement {
    /// The id, if the process has told it. Never waits.
    pub(super) fn id(&self) -> Option<u32> {
        if self.told.get().is_none() {
            let mut id = [0; size_of::<u32>()];
            // A pipe takes so few bytes as a whole: all of them are there, or none.
            let is_told = (&self.pipe).read_exact(&mut id).is_ok();
            self.told.set(is_told.then(|| u32::from_ne_bytes(id)));
        }
        self.told.get()
    }
}
