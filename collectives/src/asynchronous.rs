//! Operations that run beside the training thread, so that communication overlaps computation. Used by the
//! worker's training API, and by other languages' bindings.
//!
//! One [`Progress`] thread serves a process for its life. It runs what was launched one after the other, in the
//! order of the launches, over all communicators; programs that launch in one order on every rank therefore never
//! wait for each other in a circle. What is called without a launch waits until all launched before is done.

use std::fmt;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crate::abort::AbortHandle;
use crate::communicator::Communicator;
use crate::element::DataType;
use crate::error::CollectiveError;
use crate::reduce::ReduceOp;

/// Operations of one communicator that may be launched and not done; one more launch waits.
pub const LAUNCHED_MAX: usize = 256;

type Job = Box<dyn FnOnce() + Send>;

/// The thread that runs launched operations. Clones share it; it starts with the first launch, and ends when the
/// last clone is dropped.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    jobs: Arc<OnceLock<Sender<Job>>>,
}

impl Progress {
    /// Nothing is started yet.
    pub fn new() -> Progress {
        Progress::default()
    }

    fn jobs(&self) -> io::Result<&Sender<Job>> {
        if let Some(jobs) = self.jobs.get() {
            return Ok(jobs);
        }
        let (sender, receiver) = channel::<Job>();
        let run = move || receiver.into_iter().for_each(|job| job());
        thread::Builder::new().name("collectives".to_owned()).spawn(run)?;
        Ok(self.jobs.get_or_init(|| sender))
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Shared {
    communicator: Mutex<Box<dyn Communicator>>,
    launched: Mutex<usize>,
    done: Condvar,
}

/// A communicator whose operations can be launched. Its calls and launches come from one thread. Clones share it.
#[derive(Clone)]
pub struct AsyncCommunicator {
    shared: Arc<Shared>,
    progress: Progress,
    abort: Option<AbortHandle>,
    term: u64,
    generation: u64,
    rank: u32,
    world: u32,
}

impl fmt::Debug for AsyncCommunicator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AsyncCommunicator")
            .field("generation", &self.generation)
            .field("rank", &self.rank)
            .field("world", &self.world)
            .finish_non_exhaustive()
    }
}

impl AsyncCommunicator {
    /// Over `communicator`, whose generation `abort` ends.
    pub fn new(
        communicator: Box<dyn Communicator>,
        abort: Option<AbortHandle>,
        progress: &Progress,
    ) -> AsyncCommunicator {
        let (term, generation) = (communicator.term(), communicator.generation());
        let (rank, world) = (communicator.rank(), communicator.world_size());
        let (launched, done) = (Mutex::new(0), Condvar::new());
        let shared = Shared { communicator: Mutex::new(communicator), launched, done };
        let (shared, progress) = (Arc::new(shared), progress.clone());
        AsyncCommunicator { shared, progress, abort, term, generation, rank, world }
    }

    /// The same for a group of its own, such as a sub-group, on the same thread and with the same abort word.
    pub fn beside(&self, communicator: Box<dyn Communicator>) -> AsyncCommunicator {
        AsyncCommunicator::new(communicator, self.abort.clone(), &self.progress)
    }

    /// This process's rank in the group.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks of the group.
    pub fn world_size(&self) -> u32 {
        self.world
    }

    /// Runs `operation` on this thread, after all that was launched before.
    pub fn call<T>(&self, operation: impl FnOnce(&mut dyn Communicator) -> T) -> T {
        self.wait_for_launched(0);
        operation(&mut **lock(&self.shared.communicator))
    }

    /// Launches `operation`, which runs on the progress thread after all that was launched before. Where
    /// [`LAUNCHED_MAX`] are launched and not done, this waits for one of them.
    ///
    /// All ranks launch, and call, the same operations in the same order.
    pub fn launch<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut dyn Communicator) -> Result<T, CollectiveError> + Send + 'static,
    ) -> Launched<T> {
        self.wait_for_launched(LAUNCHED_MAX - 1);
        *lock(&self.shared.launched) += 1;
        let outcome = Arc::new(Outcome { result: Mutex::new(None), ready: Condvar::new() });
        let ticket = Ticket { shared: Arc::clone(&self.shared), outcome: Arc::clone(&outcome) };
        let job: Job = Box::new(move || ticket.run(operation));
        match self.progress.jobs() {
            // A thread that is gone drops the job, whose ticket says so.
            Ok(jobs) => drop(jobs.send(job)),
            // Without a thread the order is kept all the same: nothing else is launched.
            Err(error) => {
                tracing::warn!(%error, "no thread for collectives: they do not overlap computation");
                job();
            }
        }
        let (term, generation) = (self.term, self.generation);
        Launched { outcome, abort: self.abort.clone(), term, generation }
    }

    /// Launches [`Communicator::all_reduce_bytes`] on a buffer that comes back from [`Launched::wait`].
    pub fn all_reduce<B: AsMut<[u8]> + Send + 'static>(
        &self,
        mut buffer: B,
        data_type: DataType,
        op: ReduceOp,
    ) -> Launched<B> {
        self.launch(move |group| {
            group.all_reduce_bytes(buffer.as_mut(), data_type, op)?;
            Ok(buffer)
        })
    }

    fn wait_for_launched(&self, most: usize) {
        let mut launched = lock(&self.shared.launched);
        while *launched > most {
            launched = self.shared.done.wait(launched).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

struct Outcome<T> {
    result: Mutex<Option<Result<T, CollectiveError>>>,
    ready: Condvar,
}

/// A launched operation's claim to an outcome: dropped without a run, as when its thread panics, it fails.
struct Ticket<T> {
    shared: Arc<Shared>,
    outcome: Arc<Outcome<T>>,
}

impl<T> Ticket<T> {
    fn run(self, operation: impl FnOnce(&mut dyn Communicator) -> Result<T, CollectiveError>) {
        let result = operation(&mut **lock(&self.shared.communicator));
        *lock(&self.outcome.result) = Some(result);
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        let mut result = lock(&self.outcome.result);
        result.get_or_insert_with(|| {
            let error = io::Error::other("the operation ended without a result");
            Err(CollectiveError::System(Arc::new(error)))
        });
        drop(result);
        self.outcome.ready.notify_all();
        *lock(&self.shared.launched) -= 1;
        self.shared.done.notify_all();
    }
}

/// An operation that was launched. Dropping it lets the operation go on.
#[must_use = "its result, and its buffer, come from `wait`"]
pub struct Launched<T> {
    outcome: Arc<Outcome<T>>,
    abort: Option<AbortHandle>,
    term: u64,
    generation: u64,
}

impl<T> fmt::Debug for Launched<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = &self.generation;
        formatter.debug_struct("Launched").field("generation", generation).finish_non_exhaustive()
    }
}

impl<T> Launched<T> {
    /// Whether it is done, well or not: [`Launched::wait`] returns at once then.
    pub fn test(&self) -> bool {
        lock(&self.outcome.result).is_some()
    }

    /// Waits until it is done, but not longer than `patience`; returns whether it is.
    pub fn wait_for(&self, patience: Duration) -> bool {
        let result = lock(&self.outcome.result);
        let waited = self.outcome.ready.wait_timeout_while(result, patience, |it| it.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    /// Waits until it is done. It ends by the operation's own deadline, or by an abort.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    pub fn wait(self) -> Result<T, CollectiveError> {
        let mut result = lock(&self.outcome.result);
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            result = self.outcome.ready.wait(result).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the generation at this rank, and with it this operation and all others: the peers are told. A
    /// single operation cannot be taken back, since the others may be in it already.
    pub fn abort(&self, reason: &str) {
        if let Some(abort) = &self.abort {
            abort.abort(self.term, self.generation, reason);
        }
    }
}
