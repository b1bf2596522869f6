//! A thread for calls that may never return: the caller stops waiting after a while, and the thread is left behind.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;

/// A call did not return in time. Its thread is left behind, and nothing that it holds is touched again.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{call} has not returned after {} ms, and is left behind", patience.as_millis())]
pub struct Stuck {
    /// The call that did not return.
    pub call: &'static str,
    /// The time for which the caller waited.
    pub patience: Duration,
}

type BlockingWork = Box<dyn FnOnce() + Send>;
/// Work that the caller takes back when it gives up before the work has begun.
type WorkSlot = Arc<Mutex<Option<BlockingWork>>>;

/// A thread that starts when it is first needed, and is replaced when a call is stuck in it.
#[derive(Debug)]
pub struct Bounded {
    name: &'static str,
    thread: Mutex<Option<Sender<WorkSlot>>>,
    left_behind: AtomicU32,
}

impl Bounded {
    /// A thread of this name, not started yet.
    pub const fn new(name: &'static str) -> Bounded {
        Bounded { name, thread: Mutex::new(None), left_behind: AtomicU32::new(0) }
    }

    /// Number of threads left behind so far.
    pub fn left_behind(&self) -> u32 {
        self.left_behind.load(Ordering::Relaxed)
    }

    /// Runs `work` and gives its result, unless that takes longer than `patience`.
    ///
    /// # Errors
    ///
    /// It takes longer, or the system gives no thread.
    #[expect(clippy::disallowed_methods, reason = "this is outside of the deterministic world")]
    pub fn run<T: Send + 'static>(
        &self,
        call: &'static str,
        patience: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let due = Instant::now() + patience;
        let (result, received) = mpsc::sync_channel(1);
        let work: BlockingWork = Box::new(move || {
            // The caller may have stopped waiting.
            let _ = result.send(work());
        });
        let place = Arc::new(Mutex::new(Some(work)));
        let stuck = Stuck { call, patience };
        self.hand_over(&place).map_err(|_| stuck)?;
        match received.recv_timeout(patience) {
            Ok(result) => return Ok(result),
            // The work panicked; the thread has ended with it.
            Err(RecvTimeoutError::Disconnected) => return Err(stuck),
            Err(RecvTimeoutError::Timeout) => {}
        }
        self.leave_thread_behind();
        // An earlier call hangs: this work runs on the new thread.
        let taken_back = lock(&place).take();
        let Some(work) = taken_back else { return Err(stuck) };
        self.hand_over(&Arc::new(Mutex::new(Some(work)))).map_err(|_| stuck)?;
        let patience = patience.max(due.saturating_duration_since(Instant::now()));
        received.recv_timeout(patience).map_err(|_| {
            self.leave_thread_behind();
            stuck
        })
    }

    /// Runs `work` at some later time, without waiting for it.
    pub(super) fn post(&self, work: impl FnOnce() + Send + 'static) {
        // Without a thread from the system, there is no reader for an error.
        let _ = self.hand_over(&Arc::new(Mutex::new(Some(Box::new(work)))));
    }

    fn hand_over(&self, place: &WorkSlot) -> std::io::Result<()> {
        let mut thread = lock(&self.thread);
        if let Some(sender) = thread.as_ref()
            && sender.send(Arc::clone(place)).is_ok()
        {
            return Ok(());
        }
        let (sender, places) = mpsc::channel::<WorkSlot>();
        let _ = sender.send(Arc::clone(place));
        std::thread::Builder::new().name(self.name.to_owned()).spawn(move || {
            for place in places {
                let work = lock(&place).take();
                if let Some(work) = work {
                    work();
                }
            }
        })?;
        *thread = Some(sender);
        Ok(())
    }

    /// The next call gets another thread; this one ends when the call in which it hangs does.
    fn leave_thread_behind(&self) {
        if lock(&self.thread).take().is_some() {
            self.left_behind.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn calls_run_on_one_thread() {
        let bounded = Bounded::new("test");
        let thread = || std::thread::current().id();
        let first = bounded.run("a", LONG, thread).expect("it returns");
        assert_eq!(bounded.run("b", LONG, thread), Ok(first));
        assert_eq!(bounded.left_behind(), 0);
    }

    #[test]
    fn a_call_that_hangs_is_left_behind_and_the_next_one_runs() {
        let bounded = Bounded::new("test");
        let (release, held) = mpsc::channel::<()>();
        let hangs = bounded.run("hangs", SHORT, move || held.recv().is_err());
        assert_eq!(hangs, Err(Stuck { call: "hangs", patience: SHORT }));
        assert_eq!(bounded.left_behind(), 1);
        assert_eq!(bounded.run("works", LONG, || 5), Ok(5));
        drop(release);
    }

    #[test]
    fn what_waits_behind_a_posted_call_that_hangs_runs_all_the_same() {
        let bounded = Bounded::new("test");
        let (release, held) = mpsc::channel::<()>();
        bounded.post(move || held.recv().unwrap_or_default());
        assert_eq!(bounded.run("works", SHORT, || 5), Ok(5));
        drop(release);
    }
}
