//! Inspections: observations of the process of a worker that others wait for, as the operating system shows it. An
//! inspection takes two readings some time apart. It may also take the native stack of the process's main thread, and
//! ask the process for the stacks of its Python threads. Used by `system`.

mod activity;
mod descendants;
mod findings;
mod memory_file;
mod native_stack;
mod peer;
mod pressure;
mod reading;
mod recorded;
mod stack_file;
mod stack_text;
mod system_calls;
mod texts;
mod waits_in;

#[cfg(test)]
mod tests;

use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use elastic_protocol::messages::{ProcessActivity, ProcessSight};
use elastic_runtime::{BlockingLane, OffloadPort};
use nix::unistd::Pid;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use findings::add_lock_of_python;
use native_stack::native_stack;
use reading::Reading;
use stack_file::StackFile;

/// Interval between the two readings of a look.
const WATCHED: Duration = Duration::from_millis(200);

/// Time limit for a process to write its stacks. A process whose main thread sleeps in the kernel, or computes, writes
/// them within a millisecond; one that does not get a processor takes longer.
const STACKS_WITHIN: Duration = Duration::from_millis(500);

/// Time limit for a native stack. Reading the symbols of torch's libraries for the first time takes a good part of it.
const NATIVE_STACK_WITHIN: Duration = Duration::from_secs(1);

/// Interval between two looks at whether the stacks are written.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Number of consecutive looks that must find the same length before the stacks count as complete. The thread that
/// writes them may lose its processor in between.
const SAME_LENGTHS: u32 = 2;

/// Looks at processes, on a lane of its own: a look at a process that hangs may hang with it. The waits between
/// two readings hold up no other look.
#[derive(Clone)]
pub(super) struct Inspector {
    lane: OffloadPort,
    /// One permit for each job that the lane takes. Further inspections wait, since each must have its answer.
    places: Rc<Semaphore>,
    /// Lane for native stacks, which are read from the files of programs: a disk that hangs holds up no other
    /// inspection.
    stacks: OffloadPort,
}

impl Inspector {
    pub(super) fn new() -> Self {
        let lane = OffloadPort::lane(BlockingLane::INSPECTIONS);
        let places = Rc::new(Semaphore::new(lane.bounds().jobs_max));
        Self { lane, places, stacks: OffloadPort::lane(BlockingLane::NATIVE_STACKS) }
    }

    /// The lanes that looks run on, to be watched.
    pub(super) fn lanes(&self) -> [OffloadPort; 2] {
        [self.lane.clone(), self.stacks.clone()]
    }

    /// Looks at a process for a while; `None` if it is gone. `is_alive` says whether the process is still there, so that
    /// its id means no other one; it is asked before anything is done to the process, and at the end.
    pub(super) async fn look(
        self,
        pid: Pid,
        with_stack: bool,
        is_alive: impl Fn() -> bool,
    ) -> Option<ProcessSight> {
        let first = self.run("first look", move || Reading::take(pid.as_raw())).await?;
        if let Some(sight) = first.at_once() {
            return is_alive().then_some(sight);
        }
        sleep(WATCHED).await;
        let seen = self.run("second look", move || {
            let second = Reading::take(pid.as_raw())?;
            second.since(&first)
        });
        let mut sight = seen.await?;
        // In any other state no signal is handled before the cause is gone.
        let may_answer =
            matches!(sight.activity, ProcessActivity::Waiting | ProcessActivity::Working);
        if with_stack && may_answer && is_alive() {
            // The native stack is taken first, since the signal that asks for the Python stacks would disturb it.
            sight.native_stack = self.native_stack(pid).await.unwrap_or_default();
            sight.stack = self.stacks(pid, &is_alive).await.unwrap_or_default();
            add_lock_of_python(&mut sight);
        }
        is_alive().then_some(sight)
    }

    /// The native stack of a process's main thread, if it can be had in time.
    async fn native_stack(&self, pid: Pid) -> Option<String> {
        let taken = self.stacks.run("native stack", move || native_stack(pid));
        let refused = |error: &(dyn Error + 'static)| {
            tracing::info!(%pid, error, "a native stack is not to be had");
        };
        let taken = timeout(NATIVE_STACK_WITHIN, taken).await.inspect_err(|error| refused(error));
        let taken = taken.ok()?.inspect_err(|error| refused(error));
        taken.ok()?.inspect_err(|error| refused(error)).ok()
    }

    /// The stacks of a process's Python threads, if it offers them.
    async fn stacks(&self, pid: Pid, is_alive: &impl Fn() -> bool) -> Option<String> {
        let find = move || StackFile::find(pid.as_raw()).map(Arc::new);
        let file = self.run("find stacks", find).await?;
        if !is_alive() {
            return None;
        }
        // Processes are reaped on this thread, so the id is that of the process that was looked at.
        StackFile::ask(pid);
        let until = Instant::now() + STACKS_WITHIN;
        let (mut length, mut same) = (0, 0);
        while same < SAME_LENGTHS && Instant::now() < until {
            sleep(LOOK_EVERY).await;
            let written = Arc::clone(&file);
            let now = self.run("length of stacks", move || written.length()).await?;
            same = if now > 0 && now == length { same + 1 } else { 0 };
            length = now;
        }
        self.run("read stacks", move || file.take()).await
    }

    /// Runs a job on the lane as soon as there is a place.
    async fn run<T: Send + 'static>(
        &self,
        label: &'static str,
        job: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        // The semaphore is never closed.
        let _place = self.places.acquire().await.ok()?;
        let done = self.lane.run(label, job).await;
        done.inspect_err(|error| tracing::debug!(%error, "a process was not looked at")).ok()?
    }
}
