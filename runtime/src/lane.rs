//! Lanes: kinds of blocking work that must not wait for one another. Each lane has a thread of its own, a bound
//! on the jobs under way, and a time within which a job should return. A lane that hangs delays its own work
//! only. Used by the processes of drivers and agents, through [`OffloadPort`](crate::OffloadPort).

use std::cell::{Cell, RefCell};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::sync::oneshot;

use crate::offload::{BlockingJob, Offload};

/// The name and the bounds of a kind of blocking work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockingLane {
    /// Its name, also that of its thread.
    pub name: &'static str,
    /// Most jobs under way at once; one of them runs, the others wait for it.
    pub jobs_max: usize,
    /// Time within which a job should return; `status` names a job that takes longer.
    pub answers_within: Duration,
}

impl BlockingLane {
    /// The driver's journal, and the driver's place among the drivers of a store.
    pub const JOURNAL: Self =
        Self { name: "journal", jobs_max: 4, answers_within: Duration::from_secs(5) };

    /// Reads of a discovery: one is outstanding, and a second is never started.
    pub const DISCOVERY: Self =
        Self { name: "discovery", jobs_max: 1, answers_within: Duration::from_secs(5) };

    /// Starts of the agents that a driver starts itself. Its thread must live as long as they do: the kernel ends them
    /// with it (prctl(2), `PR_SET_PDEATHSIG`).
    pub const AGENTS: Self =
        Self { name: "agents", jobs_max: 4096, answers_within: Duration::from_secs(5) };

    /// Starts and ends of an agent's processes.
    pub const PROCESSES: Self =
        Self { name: "processes", jobs_max: 4096, answers_within: Duration::from_secs(5) };

    /// Inspections of an agent's processes, through `/proc` and control groups. An inspection of a process that hangs
    /// may hang with it.
    pub const INSPECTIONS: Self =
        Self { name: "inspections", jobs_max: 16, answers_within: Duration::from_secs(5) };

    /// Native stacks of an agent's processes, for which the files of programs are read: a disk that hangs holds up these
    /// alone.
    pub const NATIVE_STACKS: Self =
        Self { name: "native stacks", jobs_max: 16, answers_within: Duration::from_secs(5) };

    /// Starts of an agent's health checks: the operator's command may be on a file system that hangs.
    pub const HEALTH_CHECKS: Self =
        Self { name: "health checks", jobs_max: 2, answers_within: Duration::from_secs(5) };

    /// Lookups of the process that connected to an agent's store port: one lookup answers for all who wait.
    pub const ADMISSION: Self =
        Self { name: "admission", jobs_max: 1, answers_within: Duration::from_secs(5) };

    /// The driver's state directory, other than its journal.
    pub const STATE: Self =
        Self { name: "state directory", jobs_max: 4, answers_within: Duration::from_secs(5) };

    /// Writes of the live line on a terminal.
    pub const TERMINAL: Self =
        Self { name: "terminal", jobs_max: 1, answers_within: Duration::from_secs(5) };

    /// All other work, such as the simulation's.
    pub const OTHER: Self =
        Self { name: "blocking work", jobs_max: 32, answers_within: Duration::from_secs(5) };
}

type LaneQueue = Sender<(BlockingJob, oneshot::Sender<()>)>;

/// A lane's thread. It ends when this is dropped and the last job has returned; the process does not wait for
/// it.
#[derive(Debug)]
pub(crate) struct LaneThread {
    name: &'static str,
    queue: RefCell<Option<LaneQueue>>,
    /// Whether the want of a thread was told since there was one.
    is_want_told: Cell<bool>,
}

impl LaneThread {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, queue: RefCell::new(None), is_want_told: Cell::new(false) }
    }
}

impl Offload for LaneThread {
    fn start(&self, _label: &'static str, job: BlockingJob) -> LocalBoxFuture<'static, ()> {
        let (done, is_done) = oneshot::channel();
        let mut slot = self.queue.borrow_mut();
        let queue = slot.get_or_insert_with(|| {
            let (queue, work) = mpsc::channel::<(BlockingJob, oneshot::Sender<()>)>();
            let run = move || {
                for (job, done) in work {
                    job();
                    // The caller may have given up: then the signal has no receiver.
                    let _ = done.send(());
                }
            };
            // Without a thread the queue is closed, and the work is reported as not run.
            let started = thread::Builder::new().name(self.name.to_owned()).spawn(run);
            let was_told = self.is_want_told.replace(started.is_err());
            if let Err(error) = started
                && !was_told
            {
                tracing::warn!(lane = self.name, %error, "no thread can be started");
            }
            queue
        });
        let is_queued = queue.send((job, done)).is_ok();
        if !is_queued {
            // The next job tries to start a thread again.
            *slot = None;
        }
        Box::pin(async move {
            // An error means that the thread is gone: the job has dropped its result's channel then.
            let _ = is_done.await;
        })
    }
}
