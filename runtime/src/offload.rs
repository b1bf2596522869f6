//! The port for blocking work, which must not run on the actors' thread: production hands it to a pool of
//! threads, the simulation does it at once and answers after a simulated delay. Actors get an
//! [`OffloadPort`] and know nothing else.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::sync::oneshot;

use crate::panics;

/// Jobs of one port that may be under way at once: as many as there are threads, and three times as many that
/// wait for one.
pub const JOBS_MAX: usize = 4 * crate::system::BLOCKING_THREADS_MAX;

/// Work that may block.
pub type Job = Box<dyn FnOnce() + Send>;

/// Where blocking work is done.
pub trait Offload {
    /// Starts a job now; the future ends when it is done. A job that has begun is not stopped by dropping the
    /// future. `label` says what it is, for logs and for the simulation's choice of a delay.
    fn start(&self, label: &'static str, job: Job) -> LocalBoxFuture<'static, ()>;
}

/// Why there is no result.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OffloadError {
    /// [`JOBS_MAX`] jobs are under way; nothing was started.
    #[error("{label}: {JOBS_MAX} blocking jobs are under way already")]
    Busy {
        /// What it was.
        label: &'static str,
    },
    /// It panicked.
    #[error("{label} panicked: {message}")]
    Panicked {
        /// What it was.
        label: &'static str,
        /// Its message.
        message: String,
    },
    /// The runtime ends, and it was never run.
    #[error("{label} was not run: the runtime ends")]
    Cancelled {
        /// What it was.
        label: &'static str,
    },
}

/// What actors hold; clones share the bound.
#[derive(Clone)]
pub struct OffloadPort {
    to: Rc<dyn Offload>,
    under_way: Rc<Cell<usize>>,
}

impl OffloadPort {
    /// A port to `to`.
    pub fn new(to: impl Offload + 'static) -> Self {
        Self { to: Rc::new(to), under_way: Rc::default() }
    }

    /// The port of production: tokio's pool of blocking threads.
    pub fn blocking_threads() -> Self {
        Self::new(BlockingThreads)
    }

    /// Starts `work` now; the future gives its result.
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
        let started = (self.under_way.get() < JOBS_MAX).then(|| {
            let place = Place::take(&self.under_way);
            let (result, received) = oneshot::channel();
            let job = move || {
                let outcome = catch_unwind(AssertUnwindSafe(work));
                // Whoever wanted the result may be gone.
                let _ = result.send(outcome.map_err(|payload| panics::message(&*payload)));
            };
            (self.to.start(label, Box::new(job)), received, place)
        });
        async move {
            let Some((done, received, _place)) = started else {
                return Err(OffloadError::Busy { label });
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
        write!(formatter, "OffloadPort({} under way)", self.under_way.get())
    }
}

/// A place among [`JOBS_MAX`].
struct Place(Rc<Cell<usize>>);

impl Place {
    fn take(under_way: &Rc<Cell<usize>>) -> Self {
        under_way.set(under_way.get() + 1);
        Self(under_way.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Production: tokio's pool of blocking threads, bounded by
/// [`BLOCKING_THREADS_MAX`](crate::system::BLOCKING_THREADS_MAX).
#[derive(Clone, Copy, Debug)]
struct BlockingThreads;

impl Offload for BlockingThreads {
    #[expect(clippy::disallowed_methods, reason = "this is the Offload port of production")]
    fn start(&self, _label: &'static str, job: Job) -> LocalBoxFuture<'static, ()> {
        let running = tokio::task::spawn_blocking(job);
        Box::pin(async move {
            // The job catches its own panics; an error here is a cancelled job, which drops its channel.
            let _ = running.await;
        })
    }
}

/// Simulation and tests: does the job at once, and answers after a delay of the node's own clock.
pub struct Delayed<F>(
    /// How long a job of this label takes.
    pub F,
);

impl<F: Fn(&'static str) -> Duration> Offload for Delayed<F> {
    fn start(&self, label: &'static str, job: Job) -> LocalBoxFuture<'static, ()> {
        let delay = tokio::time::sleep((self.0)(label));
        job();
        Box::pin(delay)
    }
}
