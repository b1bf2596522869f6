//! Operations that run beside the training thread, so that communication overlaps computation. Used by the
//! worker's training API, and by other languages' bindings.
//!
//! One [`ProgressThread`] thread serves a process for its life. It runs launched operations one after the other, in the
//! order of the launches, over all communicators but those that were made [apart](AsyncCommunicator::apart). Programs that
//! launch in one order on every rank therefore cannot deadlock. A direct call waits until all earlier launches are done.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crate::abort::AbortHandle;
use crate::communicator::Communicator;
use crate::error::{CollectiveError, FormError};
use crate::operation::Operation;
use crate::unformed::{GroupNumbers, UnformedGroup};
use crate::waited::WaitUnderWay;
use crate::watch::WatchedGroup;

/// Most operations of one communicator that are launched and not done; a further launch waits.
pub const LAUNCHED_MAX: usize = 256;

type LaunchedJob = Box<dyn FnOnce() + Send>;

/// The thread that runs launched operations. Clones share it; it starts with the first launch, and ends when the
/// last clone is dropped.
#[derive(Clone, Debug, Default)]
pub struct ProgressThread {
    jobs: Arc<OnceLock<Sender<LaunchedJob>>>,
    /// The number of launched operations that are not done, of all communicators.
    in_flight: Arc<AtomicUsize>,
    /// Whether launched operations run on the thread that launches them.
    is_inline: bool,
}

impl ProgressThread {
    /// A handle whose thread has not started.
    pub fn new() -> ProgressThread {
        ProgressThread::default()
    }

    /// A handle without a thread: operations run where they are launched, before the launch returns. For a process whose
    /// threads take turns, as in the simulation.
    pub fn inline() -> ProgressThread {
        ProgressThread { is_inline: true, ..ProgressThread::default() }
    }

    fn jobs(&self) -> io::Result<&Sender<LaunchedJob>> {
        if let Some(jobs) = self.jobs.get() {
            return Ok(jobs);
        }
        let (sender, receiver) = channel::<LaunchedJob>();
        let run = move || receiver.into_iter().for_each(|job| job());
        thread::Builder::new().name("collectives".to_owned()).spawn(run)?;
        Ok(self.jobs.get_or_init(|| sender))
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct SharedCommunicator {
    communicator: Mutex<Box<dyn Communicator>>,
    launched: Mutex<usize>,
    done: Condvar,
    watch: Option<WatchedGroup>,
}

/// A communicator whose operations can be launched. Its calls and launches come from one thread. Clones share it.
#[derive(Clone)]
pub struct AsyncCommunicator {
    shared: Arc<SharedCommunicator>,
    progress: ProgressThread,
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
    /// An asynchronous communicator over `communicator`; `abort` ends its generation.
    pub fn new(
        communicator: Box<dyn Communicator>,
        abort: Option<AbortHandle>,
        progress: &ProgressThread,
    ) -> AsyncCommunicator {
        AsyncCommunicator::watched(communicator, abort, progress, None)
    }

    /// As [`AsyncCommunicator::new`]; `watch` sees the calls of this communicator, and of those beside it.
    pub fn watched(
        communicator: Box<dyn Communicator>,
        abort: Option<AbortHandle>,
        progress: &ProgressThread,
        watch: Option<WatchedGroup>,
    ) -> AsyncCommunicator {
        let (term, generation) = (communicator.term(), communicator.generation());
        let (rank, world) = (communicator.rank(), communicator.world_size());
        let communicator = WatchedGroup::naming(watch.as_ref(), communicator);
        let (communicator, launched, done) =
            (Mutex::new(communicator), Mutex::new(0), Condvar::new());
        let shared = Arc::new(SharedCommunicator { communicator, launched, done, watch });
        let progress = progress.clone();
        AsyncCommunicator { shared, progress, abort, term, generation, rank, world }
    }

    /// An asynchronous communicator whose group `form` makes on the progress thread, beside the training thread. Its calls and
    /// launches come after that; if it fails, each of them does. The second value waits for the group.
    pub fn forming(
        numbers: GroupNumbers,
        abort: Option<AbortHandle>,
        progress: &ProgressThread,
        watch: Option<WatchedGroup>,
        form: impl FnOnce() -> Result<Box<dyn Communicator>, FormError> + Send + 'static,
    ) -> (AsyncCommunicator, FormingGroup) {
        let unformed = Box::new(UnformedGroup::new(numbers));
        let watch_of_job = watch.clone();
        let communicator = AsyncCommunicator::watched(unformed, abort, progress, watch);
        let failure = Arc::new(Mutex::new(None));
        let failure_of_job = Arc::clone(&failure);
        let formed = communicator.launch_on(move |slot| match form() {
            Ok(group) => {
                *slot = WatchedGroup::naming(watch_of_job.as_ref(), group);
                Ok(())
            }
            Err(error) => {
                *lock(&failure_of_job) = Some(error);
                Err(UnformedGroup::error())
            }
        });
        (communicator, FormingGroup { formed, failure })
    }

    /// An asynchronous communicator for the sub-group of this colour that the last split of this group has made, on the
    /// same thread and with the same abort word.
    pub fn beside(&self, communicator: Box<dyn Communicator>, colour: u32) -> AsyncCommunicator {
        self.part(communicator, colour, &self.progress)
    }

    /// As [`AsyncCommunicator::beside`], on a thread of its own: an operation of one group does not wait for those of the
    /// other. Not for groups on a GPU, where operations of two groups at one time may wait for each other.
    pub fn apart(&self, communicator: Box<dyn Communicator>, colour: u32) -> AsyncCommunicator {
        let is_inline = self.progress.is_inline;
        let progress = ProgressThread { is_inline, ..ProgressThread::default() };
        self.part(communicator, colour, &progress)
    }

    fn part(
        &self,
        communicator: Box<dyn Communicator>,
        colour: u32,
        progress: &ProgressThread,
    ) -> AsyncCommunicator {
        let ranks = communicator.world_size();
        let watch = self.shared.watch.as_ref().map(|watch| watch.over_part(colour, ranks));
        AsyncCommunicator::watched(communicator, self.abort.clone(), progress, watch)
    }

    /// This process's rank in the group.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks of the group.
    pub fn world_size(&self) -> u32 {
        self.world
    }

    /// The driver's term and the generation of the group.
    pub fn stamp(&self) -> (u64, u64) {
        (self.term, self.generation)
    }

    /// The abort word of the group, if it has one.
    pub fn abort_handle(&self) -> Option<AbortHandle> {
        self.abort.clone()
    }

    /// Runs `operation` on the calling thread, after all earlier launches.
    pub fn call<T>(&self, operation: impl FnOnce(&mut dyn Communicator) -> T) -> T {
        let _call = WatchedGroup::enter(self.shared.watch.as_ref());
        let _wait = self.waiting();
        self.wait_for_launched(0);
        operation(&mut **lock(&self.shared.communicator))
    }

    /// Counts the time until the result is dropped as time in which the process is blocked in collectives. Calls, and waits
    /// for launches, count by themselves; a launched operation that a foreign library waits for does not.
    pub fn waiting(&self) -> WaitUnderWay {
        WatchedGroup::wait(self.shared.watch.as_ref())
    }

    /// Launches `operation`, which runs on the progress thread after all earlier launches. With [`LAUNCHED_MAX`]
    /// operations launched and not done, this waits for one of them.
    ///
    /// All ranks must launch, and call, the same operations in the same order.
    pub fn launch<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut dyn Communicator) -> Result<T, CollectiveError> + Send + 'static,
    ) -> Launched<T> {
        self.wait_for_launched(LAUNCHED_MAX - 1);
        self.launch_unbounded(operation)
    }

    /// As [`AsyncCommunicator::launch`], without waiting for room: the caller bounds the number of its launches.
    pub fn launch_unbounded<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut dyn Communicator) -> Result<T, CollectiveError> + Send + 'static,
    ) -> Launched<T> {
        let watch = self.shared.watch.clone();
        self.launch_on(move |communicator| {
            let _call = WatchedGroup::enter(watch.as_ref());
            operation(&mut **communicator)
        })
    }

    /// Launches `job`, which may replace the communicator.
    fn launch_on<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Box<dyn Communicator>) -> Result<T, CollectiveError> + Send + 'static,
    ) -> Launched<T> {
        self.progress.in_flight.fetch_add(1, Ordering::AcqRel);
        let (ticket, launched) = self.ticket();
        let job: LaunchedJob = Box::new(move || ticket.run(job));
        if self.progress.is_inline {
            job();
            return launched;
        }
        match self.progress.jobs() {
            // A thread that has ended drops the job; its ticket then reports the failure.
            Ok(jobs) => drop(jobs.send(job)),
            // Without a thread every launch runs here at once, so the order is kept.
            Err(error) => {
                tracing::warn!(%error, "no thread for collectives: they do not overlap computation");
                job();
            }
        }
        launched
    }

    /// As [`AsyncCommunicator::launch`], for a caller that waits at once. If no launched operation of its thread is
    /// in flight, the operation runs on the calling thread; otherwise behind those that are, without waiting for room: a
    /// thread has one such operation at a time. The order is that of the launches either way.
    pub fn launch_or_run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut dyn Communicator) -> Result<T, CollectiveError> + Send + 'static,
    ) -> Launched<T> {
        let in_flight = &self.progress.in_flight;
        if in_flight.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return self.launch_unbounded(operation);
        }
        let (ticket, launched) = self.ticket();
        let _wait = self.waiting();
        let _call = WatchedGroup::enter(self.shared.watch.as_ref());
        ticket.run(|communicator| operation(&mut **communicator));
        launched
    }

    /// The two ends of an operation that has been counted as in flight.
    fn ticket<T>(&self) -> (LaunchTicket<T>, Launched<T>) {
        *lock(&self.shared.launched) += 1;
        let slot = ResultSlot { result: None, is_set: false };
        let outcome = Arc::new(LaunchOutcome { slot: Mutex::new(slot), ready: Condvar::new() });
        let ticket = LaunchTicket {
            shared: Arc::clone(&self.shared),
            in_flight: Arc::clone(&self.progress.in_flight),
            outcome: Arc::clone(&outcome),
            result: None,
        };
        let (abort, term, generation) = (self.abort.clone(), self.term, self.generation);
        let watch = self.shared.watch.clone();
        (ticket, Launched { outcome, abort, term, generation, watch })
    }

    /// Launches an operation on memory of its own; the operation comes back, with its memory, from [`Launched::wait`].
    pub fn launch_operation<I, O, C>(
        &self,
        mut operation: Operation<I, O, C>,
    ) -> Launched<Operation<I, O, C>>
    where
        I: AsRef<[u8]> + Send + 'static,
        O: AsMut<[u8]> + Send + 'static,
        C: AsRef<[usize]> + Send + 'static,
    {
        self.launch(move |group| {
            group.run(operation.borrowed())?;
            Ok(operation)
        })
    }

    fn wait_for_launched(&self, most: usize) {
        let mut launched = lock(&self.shared.launched);
        let _wait = (*launched > most).then(|| self.waiting());
        while *launched > most {
            launched = self.shared.done.wait(launched).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

struct LaunchOutcome<T> {
    slot: Mutex<ResultSlot<T>>,
    ready: Condvar,
}

struct ResultSlot<T> {
    /// The result, until the waiting thread takes it.
    result: Option<Result<T, CollectiveError>>,
    /// Whether there was a result; a later one is dropped.
    is_set: bool,
}

impl<T> ResultSlot<T> {
    fn set(&mut self, result: Result<T, CollectiveError>) {
        if !std::mem::replace(&mut self.is_set, true) {
            self.result = Some(result);
        }
    }
}

/// Sets the result of a launched operation before the operation's turn, in which its own result is dropped.
pub struct EarlyResult<T>(Arc<LaunchOutcome<T>>);

impl<T> fmt::Debug for EarlyResult<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EarlyResult").finish_non_exhaustive()
    }
}

impl<T> EarlyResult<T> {
    /// Sets the result, unless the operation has set its own. Waits end.
    pub fn set(self, result: Result<T, CollectiveError>) {
        lock(&self.0.slot).set(result);
        self.0.ready.notify_all();
    }
}

/// The right to set a launched operation's outcome, which its end does. Dropped without a run, or when its thread
/// panics, it sets a failure.
struct LaunchTicket<T> {
    shared: Arc<SharedCommunicator>,
    in_flight: Arc<AtomicUsize>,
    outcome: Arc<LaunchOutcome<T>>,
    result: Option<Result<T, CollectiveError>>,
}

impl<T> LaunchTicket<T> {
    fn run(mut self, job: impl FnOnce(&mut Box<dyn Communicator>) -> Result<T, CollectiveError>) {
        self.result = Some(job(&mut lock(&self.shared.communicator)));
    }
}

impl<T> Drop for LaunchTicket<T> {
    fn drop(&mut self) {
        let result = self.result.take().unwrap_or_else(|| {
            let how = if thread::panicking() { "panicked" } else { "ended without a result" };
            let error = io::Error::other(format!("the operation {how}"));
            Err(CollectiveError::System(Arc::new(error)))
        });
        // Both under the lock of the result: an operation that was waited for is no longer in flight, and one that is
        // not in flight has its result.
        let mut slot = lock(&self.outcome.slot);
        slot.set(result);
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        *lock(&self.shared.launched) -= 1;
        drop(slot);
        self.outcome.ready.notify_all();
        self.shared.done.notify_all();
    }
}

/// A group that forms on the progress thread.
#[derive(Debug)]
pub struct FormingGroup {
    formed: Launched<()>,
    failure: Arc<Mutex<Option<FormError>>>,
}

impl FormingGroup {
    /// Waits until the group stands. The deadline of the forming, or an abort, ends the wait.
    ///
    /// # Errors
    ///
    /// Any [`FormError`] of the forming.
    pub fn wait(self) -> Result<(), FormError> {
        self.formed.wait().map_err(|error| {
            let failure = lock(&self.failure).take();
            failure.unwrap_or_else(|| FormError::from(error))
        })
    }
}

/// A launched operation. Dropping it lets the operation go on.
#[must_use = "its result, and its buffer, come from `wait`"]
pub struct Launched<T> {
    outcome: Arc<LaunchOutcome<T>>,
    abort: Option<AbortHandle>,
    term: u64,
    generation: u64,
    watch: Option<WatchedGroup>,
}

impl<T> fmt::Debug for Launched<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = &self.generation;
        formatter.debug_struct("Launched").field("generation", generation).finish_non_exhaustive()
    }
}

impl<T> Launched<T> {
    /// Whether the operation is done, well or not: [`Launched::wait`] then returns at once.
    pub fn test(&self) -> bool {
        lock(&self.outcome.slot).result.is_some()
    }

    /// Waits until the operation is done, but not longer than `patience`; returns whether it is done.
    pub fn wait_for(&self, patience: Duration) -> bool {
        let _wait = WatchedGroup::wait(self.watch.as_ref());
        let (slot, ready) = (lock(&self.outcome.slot), &self.outcome.ready);
        let waited = ready.wait_timeout_while(slot, patience, |slot| slot.result.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.result.is_some()
    }

    /// Waits until the operation is done. The operation's own deadline, or an abort, ends the wait.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    pub fn wait(self) -> Result<T, CollectiveError> {
        let _wait = WatchedGroup::wait(self.watch.as_ref());
        let mut slot = lock(&self.outcome.slot);
        loop {
            if let Some(result) = slot.result.take() {
                return result;
            }
            slot = self.outcome.ready.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The right to set the result before the operation's turn.
    pub fn early(&self) -> EarlyResult<T> {
        EarlyResult(Arc::clone(&self.outcome))
    }

    /// Ends the generation at this rank, with this operation and all others; the peers are told. A single operation
    /// cannot be taken back, since the others may be in it already.
    pub fn abort(&self, reason: &str) {
        if let Some(abort) = &self.abort {
            abort.abort(self.term, self.generation, reason);
        }
    }
}
