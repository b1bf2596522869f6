//! A process's attachment to its job, on which `run` is built. Bindings of other languages, which own their loop, use
//! it directly.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use elastic_worker::state::environment::WorkerEnvironment;
use elastic_worker::state::training::{Error, Membership, Result};

use super::process::ThreadEnd;
use super::start;

/// Options of a process's attachment.
#[derive(Debug)]
pub struct AttachOptions {
    /// Whether SIGINT is a notice that this worker is to leave, as SIGTERM always is. Otherwise SIGINT keeps
    /// its handler. Default: `true`.
    pub watch_interrupt: bool,
    /// A check that is repeated while the training thread waits for the driver. Default: none.
    pub while_waiting: Option<WhileWaiting>,
}

/// A check that is repeated while the training thread waits for the driver.
#[derive(Clone, Copy, Debug)]
pub struct WhileWaiting {
    /// Interval of the check.
    pub period: Duration,
    /// The check; an error ends the wait with that error.
    pub check: fn() -> Result<()>,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self { watch_interrupt: true, while_waiting: None }
    }
}

/// A process's attachment to its job.
pub struct Attachment {
    membership: Membership,
    /// The actor thread, which ends when the worker leaves; its result is the error, if any. `None` without a driver.
    thread: Option<JoinHandle<ThreadEnd>>,
}

/// Attaches this process to the driver that its environment names; without one it is a world of one. Under a
/// driver, a process can attach once only.
///
/// # Errors
/// [`Error::RanBefore`]; or [`Error::Environment`] and [`Error::Start`], which name what is missing.
pub fn attach(options: AttachOptions) -> Result<Attachment> {
    static ATTACHED: AtomicBool = AtomicBool::new(false);
    let Some(environment) = WorkerEnvironment::parse(|name| std::env::var(name).ok())? else {
        return Ok(Attachment { membership: Membership::alone(), thread: None });
    };
    if ATTACHED.swap(true, Ordering::SeqCst) {
        return Err(Error::RanBefore);
    }
    let started = start::start(environment, options)?;
    let membership = Membership::new(started.control, started.abort, started.fabric);
    Ok(Attachment { membership, thread: Some(started.thread) })
}

impl Attachment {
    /// This process's part in the job's generations.
    pub const fn membership(&mut self) -> &mut Membership {
        &mut self.membership
    }

    /// Whether there is a driver.
    pub const fn has_driver(&self) -> bool {
        self.thread.is_some()
    }

    /// Leaves the job, once the membership is over. Last messages, such as a vote, get a moment to reach the
    /// driver.
    ///
    /// # Errors
    /// The error of `result`, with what is known of its cause.
    pub fn finish(self, result: Result<()>) -> Result<()> {
        drop(self.membership);
        let Some(thread) = self.thread else { return result };
        match (result, thread.join()) {
            (Err(Error::ActorsGone { .. }), Ok(Err(reason))) => Err(Error::ActorsGone { reason }),
            (Err(Error::ActorsGone { .. }), Err(_)) => {
                Err(Error::ActorsGone { reason: "it panicked".to_owned() })
            }
            (result, _) => result,
        }
    }
}
