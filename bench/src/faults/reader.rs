//! A reader of a process's output that can stop reading. Used by the jobs and the peers of `faults`.

use std::io::{PipeReader, Read as _};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

use anyhow::Context as _;
use nix::fcntl::{FcntlArg, fcntl};

/// Reads and discards the data of a pipe of one page, until it is told to stand still.
pub(super) struct OutputReader {
    stands_still: Arc<AtomicBool>,
    thread: Thread,
}

impl OutputReader {
    /// Starts a reader; returns the other end of its pipe, for the process.
    pub(super) fn start() -> anyhow::Result<(Self, Stdio)> {
        let (reader, writer) = std::io::pipe()?;
        fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096))?;
        let stands_still = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stands_still);
        let started = thread::Builder::new().spawn(move || read(reader, &flag));
        let thread = started.context("a thread cannot be started")?.thread().clone();
        Ok((Self { stands_still, thread }, writer.into()))
    }

    /// From here on nobody reads.
    pub(super) fn stand_still(&self) {
        self.stands_still.store(true, Ordering::Release);
    }

    /// Ends that.
    pub(super) fn go_on(&self) {
        self.stands_still.store(false, Ordering::Release);
        self.thread.unpark();
    }
}

impl Drop for OutputReader {
    fn drop(&mut self) {
        // The thread ends with the last writer.
        self.go_on();
    }
}

fn read(mut reader: PipeReader, stands_still: &AtomicBool) {
    let mut bytes = [0; 4096];
    loop {
        while stands_still.load(Ordering::Acquire) {
            thread::park();
        }
        if !matches!(reader.read(&mut bytes), Ok(1..)) {
            return;
        }
    }
}
