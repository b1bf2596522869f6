//! [`SlowedProcess`]: a process that runs for half of the time. Used by `rebalance`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::pause;

/// Length of a stop, and of the run that follows: much shorter than a step, or the steps fall into step with the
/// turns.
const TURN: Duration = Duration::from_millis(5);

/// A process that is stopped and continued in turns, until this is dropped.
pub(super) struct SlowedProcess {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SlowedProcess {
    /// Begins with a stop.
    pub(super) fn begin(pid: u32) -> anyhow::Result<Self> {
        let pid = Pid::from_raw(i32::try_from(pid)?);
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        #[expect(clippy::disallowed_methods, reason = "signals come beside the measurement")]
        let thread = std::thread::spawn(move || {
            // A process that has ended gets no signals; the job says why.
            while !seen.load(Ordering::Relaxed) && kill(pid, Signal::SIGSTOP).is_ok() {
                pause(TURN);
                if kill(pid, Signal::SIGCONT).is_err() {
                    return;
                }
                pause(TURN);
            }
        });
        Ok(Self { is_over, thread: Some(thread) })
    }

    /// Lets it run.
    pub(super) fn end(self) {
        drop(self);
    }
}

impl Drop for SlowedProcess {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends with the process running, whatever it saw.
            let _ = thread.join();
        }
    }
}
