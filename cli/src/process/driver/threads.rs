//! Whether a driver can have the threads without which it does not lead. Looked at before it leads, by `opening`.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use crate::command_line::{CommandFailure, MORE_THREADS, ResultExt};

/// Threads without which a driver does not lead: those of its journal, its event log and its lease.
const NEEDED_THREADS: usize = 3;

/// Makes as many threads as the driver needs, and ends them.
///
/// # Errors
/// The system refuses one.
pub(super) fn has_threads() -> Result<(), CommandFailure> {
    let all: io::Result<Vec<_>> =
        std::iter::repeat_with(TriedThread::start).take(NEEDED_THREADS).collect();
    all.map(drop)
        .failed("the driver has no threads for its journal, event log and lease")
        .map_err(|failure| failure.hint(MORE_THREADS))
}

/// A thread that waits for this to be dropped, which waits for its end.
struct TriedThread {
    ends: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TriedThread {
    fn start() -> io::Result<Self> {
        let (ends, ended) = sync_channel(0);
        let wait = move || {
            // The sender is dropped, never used.
            let _ = ended.recv();
        };
        let thread = Builder::new().name("tried".to_owned()).spawn(wait)?;
        Ok(Self { ends: Some(ends), thread: Some(thread) })
    }
}

impl Drop for TriedThread {
    fn drop(&mut self) {
        drop(self.ends.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing that could panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_can_be_had_and_are_given_back() {
        has_threads().expect("the system has some");
        let tasks = std::fs::read_dir("/proc/self/task").expect("ours");
        let names =
            tasks.flatten().filter_map(|it| std::fs::read_to_string(it.path().join("comm")).ok());
        assert_eq!(names.filter(|name| name.trim() == "tried").count(), 0);
    }
}
