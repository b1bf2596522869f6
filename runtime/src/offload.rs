//! The port for blocking work, which must not run on the actors' thread: production hands each kind of it to a
//! [`BlockingLane`] with a thread of its own, the simulation does it at once and answers after a simulated delay. Actors
//! get an [`OffloadPort`] and know nothing else.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::lane::{BlockingLane, LaneThread};
use crate::panics;

/// Work that may block.
pub type BlockingJob = Box<dyn FnOnce() + Send>;

/// Executor of blocking jobs.
pub trait Offload {
    /// Starts a job now; the future ends when it is done. A job that has begun is not stopped by dropping the
    /// future. `label` says what it is, for logs and for the simulation's choice of a delay.
    fn start(&self, label: &'static str, job: BlockingJob) -> LocalBoxFuture<'static, ()>;
}

/// Reason for a missing result.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OffloadError {
    /// As many jobs as the lane takes are under way; nothing was started.
    #[error("{label} was not started: the lane `{lane}` is busy, for {} s", busy_for.as_secs())]
    Busy {
        /// The name of the work.
        label: &'static str,
        /// The lane.
        lane: &'static str,
        /// Time since its oldest job began.
        busy_for: Duration,
    },
    /// The work panicked.
    #[error("{label} panicked: {message}")]
    Panicked {
        /// The name of the work.
        label: &'static str,
        /// Its message.
        message: String,
    },
    /// The lane has no thread, or the runtime ends: it was never run. The next work tries to start a thread again.
    #[error(
        "{label} was not run: there is no thread for it (limits: ulimit -u, and pids.max of the control group)"
    )]
    Cancelled {
        /// The name of the work.
        label: &'static str,
    },
}

/// A lane whose oldest job takes longer than [`BlockingLane::answers_within`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hanging {
    /// The lane.
    pub lane: &'static str,
    /// The name of the work that does not return.
    pub label: &'static str,
    /// Time since it began.
    pub since: Duration,
}

impl fmt::Display for Hanging {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lane, label, since } = self;
        write!(formatter, "{lane}: not answered for {} s ({label})", since.as_secs())
    }
}

/// The handle that actors hold; clones share the lane and its bound.
#[derive(Clone)]
pub struct OffloadPort {
    to: Rc<dyn Offload>,
    lane: BlockingLane,
    under_way: Arc<UnderWay>,
}

impl OffloadPort {
    /// A port to `to`, with the bounds of [`BlockingLane::OTHER`].
    pub fn new(to: impl Offload + 'static) -> Self {
        Self { to: Rc::new(to), lane: BlockingLane::OTHER, under_way: Arc::default() }
    }

    /// The port of production: a thread of this lane's own, which does one job after the other. It is started with
    /// the first job; the end of the process never waits for it.
    pub fn lane(lane: BlockingLane) -> Self {
        Self { lane, ..Self::new(LaneThread::new(lane.name)) }
    }

    /// The name and the bounds of its lane.
    pub const fn bounds(&self) -> &BlockingLane {
        &self.lane
    }

    /// The oldest job, if it takes longer than the lane allows.
    pub fn hanging(&self) -> Option<Hanging> {
        let (label, since) = self.under_way.oldest()?;
        (since > self.lane.answers_within).then_some(Hanging { lane: self.lane.name, label, since })
    }

    /// Starts `work` now; the future gives its result. Dropping the future stops nothing: the job's place is free
    /// again only when its thread is back from it.
    ///
    /// In an actor: `ctx.spawn(port.run("discovery", move || ..).into_actor(self).map(|result, actor, ctx| ..))`.
    ///
    /// # Errors
    /// [`OffloadError`] says why there is no result.
    pub fn run<T, W>(
        &self,
        label: &'static str,
        work: W,
    ) -> impl Future<Output = Result<T, OffloadError>> + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let lane = self.lane;
        let started = UnderWay::begin(&self.under_way, label, lane.jobs_max).map(|place| {
            let (result, received) = oneshot::channel();
            let place_of_job = Arc::clone(&place);
            let job = move || {
                let outcome = catch_unwind(AssertUnwindSafe(work));
                drop(place_of_job);
                // The caller may be gone.
                let _ = result.send(outcome.map_err(|payload| panics::message(&*payload)));
            };
            (self.to.start(label, Box::new(job)), received, place)
        });
        async move {
            let (done, received, _place) = match started {
                Ok(started) => started,
                Err(busy_for) => {
                    return Err(OffloadError::Busy { label, lane: lane.name, busy_for });
                }
            };
            done.await;
            match received.await {
                Ok(Ok(result)) => Ok(result),
                Ok(Err(message)) => Err(OffloadError::Panicked { label, message }),
                Err(_never_run) => Err(OffloadError::Cancelled { label }),
            }
        }
    }
}

impl fmt::Debug for OffloadPort {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let under_way = self.under_way.lock().jobs.len();
        write!(formatter, "OffloadPort({}: {under_way} under way)", self.lane.name)
    }
}

/// The jobs of a lane that have not come back.
#[derive(Debug, Default)]
struct UnderWay(Mutex<Jobs>);

#[derive(Debug, Default)]
struct Jobs {
    last: u64,
    jobs: BTreeMap<u64, (&'static str, Instant)>,
}

impl UnderWay {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        // The list is whole between any two statements, so a panic elsewhere does not spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn oldest(&self) -> Option<(&'static str, Duration)> {
        let jobs = self.lock();
        let (_, (label, since)) = jobs.jobs.first_key_value()?;
        Some((label, since.elapsed()))
    }

    /// A place among `jobs_max`, or for how long the oldest has held its own.
    fn begin(
        this: &Arc<Self>,
        label: &'static str,
        jobs_max: usize,
    ) -> Result<Arc<LanePlace>, Duration> {
        let mut list = this.lock();
        if list.jobs.len() >= jobs_max {
            let oldest = list.jobs.first_key_value();
            return Err(oldest.map(|(_, (_, since))| since.elapsed()).unwrap_or_default());
        }
        list.last += 1;
        let number = list.last;
        list.jobs.insert(number, (label, Instant::now()));
        Ok(Arc::new(LanePlace { under_way: Arc::clone(this), number }))
    }
}

/// A place in a lane; free when both the job and its future are gone.
#[derive(Debug)]
struct LanePlace {
    under_way: Arc<UnderWay>,
    number: u64,
}

impl Drop for LanePlace {
    fn drop(&mut self) {
        self.under_way.lock().jobs.remove(&self.number);
    }
}

/// Simulation and tests: does the job at once, and answers after a delay on the node's own clock.
pub struct Delayed<F>(
    /// Duration of a job of this label.
    pub F,
);

impl<F: Fn(&'static str) -> Duration> Offload for Delayed<F> {
    fn start(&self, label: &'static str, job: BlockingJob) -> LocalBoxFuture<'static, ()> {
        let delay = tokio::time::sleep((self.0)(label));
        job();
        Box::pin(delay)
    }
}
