//! `Membership`: a process's part in its job, one generation after the other, at the training thread. Used by
//! `run_loop`, and by other languages' bindings, which have a loop of their own.

use std::any::Any;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use elastic_checkpoint::CheckpointLoadError;
use elastic_collectives::{
    AbortHandle, AsyncCommunicator, CollectiveError, Communicator, FormError, GroupNumbers,
    ProgressThread, SoloCommunicator,
};
use elastic_protocol::messages::{
    CheckpointSource, MovedBytes, Placement, SyncPlan, UndoneTraining,
};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{JobOutcome, Stamp, Step};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::beginning::{Beginning, SharedFabric, form_and_tell};
use super::checkpoint::ResumePorts;
use super::control::TrainingControl;
use super::error::{Error, Result};
use super::group::Group;
use super::life::{GenerationEnd, GenerationLife, chain, failure};
use super::state::State;
use super::sync::{SyncError, sync};
use super::worker::{Worker, WorkerRanks};
use crate::state::core::{RunExit, TrainingCommand, TrainingEvent, TrainingProgress};

/// Timeouts of a group, from the driver's deadlines.
#[derive(Clone, Copy, Debug)]
pub struct GroupDeadlines {
    /// Timeout for forming the group.
    pub form: Duration,
    /// Timeout for the acknowledgement of sent data.
    pub path: Duration,
}

/// Forms the communicators of this process.
pub trait Fabric {
    /// Forms the group of a generation. Blocks until it stands, the deadline passes, or the abort word is
    /// set for this generation.
    ///
    /// # Errors
    /// [`FormError`] names the missing peers.
    fn form(
        &mut self,
        placement: &Placement,
        deadlines: GroupDeadlines,
    ) -> Result<Box<dyn Communicator>, FormError>;

    /// The thread that runs operations that the training function launches.
    fn progress_thread(&self) -> ProgressThread {
        ProgressThread::new()
    }

    /// Listens at a new address if this host has lost the address at which other workers know this process. Returns
    /// that new address. Called while no group stands.
    fn relocate(&mut self) -> Option<SocketAddr> {
        None
    }

    /// Warnings for the operator since the last call.
    fn take_warnings(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// End of a generation at the training thread.
enum TrainingEnd {
    /// The thread sends `AtRest` next.
    AtRest { undone: UndoneTraining },
    /// The thread has sent `Returned`, and waits.
    Returned,
    /// The thread has sent `Failed` with this error, and waits.
    Failed(Error),
    /// The thread has sent `Failed` with the message of a panic. The panic is resumed once the vote is out.
    Panicked(Box<dyn Any + Send>),
}

/// A process's part in its job.
///
/// ```text
/// while let Some(worker) = membership.enter(&mut state)? {
///     let result = train(&worker, &mut state);
///     membership.conclude(&mut state, &worker, result)?;
/// }
/// ```
pub struct Membership {
    driven: Option<Driven>,
    ended: TrainingEnd,
    has_finished: bool,
}

impl TrainingEnd {
    /// The generation has ended without training that an abort undid.
    const AT_REST: Self = Self::AtRest { undone: UndoneTraining { steps: 0, ms: 0 } };
}

/// The ports of a process under a driver.
struct Driven {
    control: Rc<TrainingControl>,
    abort: AbortHandle,
    fabric: SharedFabric,
    /// The progress thread; once started, it serves all generations.
    progress: ProgressThread,
}

impl Membership {
    /// A membership without a driver: a world of one, generation 0, never aborted.
    pub const fn alone() -> Self {
        Self { driven: None, ended: TrainingEnd::AT_REST, has_finished: false }
    }

    /// A membership under a driver.
    pub fn new(
        control: TrainingControl,
        abort: AbortHandle,
        fabric: impl Fabric + Send + 'static,
    ) -> Self {
        let progress = fabric.progress_thread();
        let (control, fabric) = (Rc::new(control), Arc::new(Mutex::new(fabric)));
        let driven = Driven { control, abort, fabric, progress };
        Self { driven: Some(driven), ended: TrainingEnd::AT_REST, has_finished: false }
    }

    /// Waits for the next generation that this process takes part in, and brings `state` in step with its
    /// members. `None`: the job, or this process's part in it, has ended with success.
    ///
    /// # Errors
    /// The error that the last generation was concluded with. Or: the job failed, the driver is gone, or this
    /// library has a fault.
    pub fn enter<T>(&mut self, state: &mut State<T>) -> Result<Option<Worker>>
    where
        T: Serialize + DeserializeOwned,
    {
        let Some(driven) = &mut self.driven else {
            let entered = alone(state, &mut self.ended)?;
            self.has_finished = entered.is_none();
            return Ok(entered);
        };
        loop {
            if let TrainingEnd::AtRest { undone } = self.ended {
                let commit = state.commit_id();
                if let Some(data_address) = driven.fabric().relocate() {
                    driven.control.event(TrainingEvent::Moved { data_address, commit });
                }
                driven.tell_warnings();
                driven.control.event(TrainingEvent::AtRest { commit, undone });
            }
            match driven.control.wait()? {
                TrainingCommand::Form(placement) => match driven.begin(state, &placement)? {
                    Ok(worker) => return Ok(Some(worker)),
                    Err(ended) => self.ended = ended,
                },
                TrainingCommand::SaveLast(part) => {
                    let order = driven.control.shared().checkpoints().take_last(*part);
                    if let Err(error) = state.save_last(&driven.control, order.clone()) {
                        driven.control.shared().checkpoints().fail(&order, error.chain());
                    }
                }
                TrainingCommand::Exit(exit) => {
                    let ended = std::mem::replace(&mut self.ended, TrainingEnd::Returned);
                    self.has_finished = exit.is_success() && matches!(ended, TrainingEnd::Returned);
                    return leave(exit, ended).map(|()| None);
                }
                command => return Err(driven.control.unexpected(&command)),
            }
        }
    }

    /// Whether the job has succeeded, and this process's training function has returned in its last generation. Any other
    /// process that leaves, such as one that came when training had ended, holds no trained state.
    pub const fn has_finished(&self) -> bool {
        self.has_finished
    }

    /// Concludes the generation after the end of the training function. An end of the generation at this worker
    /// decides, even if the training function has swallowed the error that reported it: what was drawn after it does not count.
    ///
    /// # Errors
    /// This library has a fault. The training function's own error comes from the next [`enter`](Self::enter).
    pub fn conclude<T: Serialize + DeserializeOwned>(
        &mut self,
        state: &mut State<T>,
        worker: &Worker,
        result: Result<()>,
    ) -> Result<()> {
        self.ended = match (&self.driven, result) {
            (Some(driven), result) => driven.conclude(state, worker, result)?,
            (None, Ok(())) => TrainingEnd::Returned,
            (None, Err(error)) => TrainingEnd::Failed(error),
        };
        Ok(())
    }

    /// Concludes the generation after a panic of the training function. An end of the generation at this worker decides, as
    /// in [`conclude`](Self::conclude), where the state goes back to a commit: a program that calls `unwrap` on the error of
    /// a collective keeps its process. Else the next [`enter`](Self::enter) resumes the panic.
    ///
    /// # Errors
    /// This library has a fault.
    pub(super) fn panicked<T: Serialize + DeserializeOwned>(
        &mut self,
        state: &mut State<T>,
        worker: &Worker,
        panic: Box<dyn Any + Send>,
    ) -> Result<()> {
        self.ended = match &self.driven {
            Some(driven) => driven.panicked(state, worker, panic)?,
            None => TrainingEnd::Panicked(panic),
        };
        Ok(())
    }
}

/// Enters the one generation of a world of one, or leaves it.
fn alone<T>(state: &mut State<T>, ended: &mut TrainingEnd) -> Result<Option<Worker>>
where
    T: Serialize + DeserializeOwned,
{
    match std::mem::replace(ended, TrainingEnd::Returned) {
        TrainingEnd::AtRest { .. } => {}
        TrainingEnd::Returned => return Ok(None),
        TrainingEnd::Failed(error) => return Err(error),
        TrainingEnd::Panicked(panic) => resume_unwind(panic),
    }
    state.save_initial()?;
    let progress = ProgressThread::new();
    let life = Rc::new(GenerationLife::new(Stamp::default(), None));
    let group = AsyncCommunicator::new(Box::new(SoloCommunicator::new()), None, &progress);
    let group = Group::new(Rc::clone(&life), group, &progress, Vec::new());
    Ok(Some(Worker::new(WorkerRanks::ALONE, life, group, Rc::clone(state.ledger()))))
}

fn leave(exit: RunExit, ended: TrainingEnd) -> Result<()> {
    match ended {
        TrainingEnd::Failed(error) => return Err(error),
        TrainingEnd::Panicked(panic) => resume_unwind(panic),
        TrainingEnd::AtRest { .. } | TrainingEnd::Returned => {}
    }
    match exit {
        RunExit::Left { .. } | RunExit::Failed => Ok(()),
        RunExit::Finished { result } => match result.outcome {
            JobOutcome::Succeeded | JobOutcome::Stopped => Ok(()),
            JobOutcome::Failed => {
                Err(Error::JobFailed { reason: result.reason, hint: result.hint })
            }
        },
        RunExit::Orphaned { gone_ms } => Err(Error::DriverGone { gone_ms }),
        RunExit::WrongJob { ours, theirs } => {
            Err(Error::WrongJob { ours: ours.to_string(), theirs: theirs.to_string() })
        }
    }
}

impl Driven {
    /// Forms a generation's group, and brings `state` in step with its members. If that fails, the inner error
    /// is how the generation ended here.
    fn begin<T>(
        &mut self,
        state: &mut State<T>,
        placement: &Placement,
    ) -> Result<Result<Worker, TrainingEnd>>
    where
        T: Serialize + DeserializeOwned,
    {
        let stamp = placement.stamp;
        let relocated = self.fabric().relocate();
        if let Some(data_address) = relocated {
            let error =
                "its host has another address, which the next generation's members are told";
            let ended = self.broken(stamp, (None, None), error.to_owned());
            let commit = state.commit_id();
            self.control.event(TrainingEvent::Moved { data_address, commit });
            return Ok(Err(ended));
        }
        let Some(place) = WorkerRanks::new(placement) else {
            let error = "the assignment has no place for this rank".to_owned();
            return Ok(Err(self.broken(stamp, (None, None), error)));
        };
        if placement.sync == SyncPlan::Skip
            && let Some(commit) = state.commit_id()
        {
            return self.begin_ahead(state, placement, place, commit.step);
        }
        let (deadlines, tell) = (self.control.shared().group_deadlines(), self.control.teller());
        let Ok(mut group) = form_and_tell(&self.fabric, placement, deadlines, &tell) else {
            return Ok(Err(TrainingEnd::AT_REST));
        };
        let (plan, source) = match self.control.wait()? {
            TrainingCommand::Sync { plan, source, .. } => (plan, source),
            TrainingCommand::End => return Ok(Err(TrainingEnd::AT_REST)),
            command => return Err(self.control.unexpected(&command)),
        };
        let is_one_host = place.local_size == place.size;
        let goes_on = match self.sync(state, &mut *group, (plan, source), (stamp, is_one_host)) {
            Ok(goes_on) => goes_on,
            Err(ended) => return Ok(Err(ended)),
        };
        let watch = self.control.shared().operations().over_all();
        let abort = Some(self.abort.clone());
        let group = AsyncCommunicator::watched(group, abort, &self.progress, Some(watch));
        let life = Rc::new(self.life(stamp));
        let worker = self.worker(state, placement, place, life, group);
        match if goes_on { state.call_back(&worker) } else { Ok(()) } {
            Ok(()) => Ok(Ok(worker)),
            Err(panic) => self.panicked(state, &worker, panic).map(Err),
        }
    }

    /// Lets the training function begin with the commit that all members hold, while the group forms ([`super::beginning`]).
    fn begin_ahead<T: Serialize + DeserializeOwned>(
        &self,
        state: &mut State<T>,
        placement: &Placement,
        place: WorkerRanks,
        step: Step,
    ) -> Result<Result<Worker, TrainingEnd>> {
        let stamp = placement.stamp;
        // The driver may order a checkpoint from its `Go` on.
        self.starts_from(step);
        let numbers = GroupNumbers {
            term: stamp.term.0,
            generation: stamp.generation.0,
            rank: placement.rank,
            world_size: place.size,
            encrypts: placement.encrypts,
        };
        let (fabric, of_job) = (Arc::clone(&self.fabric), placement.clone());
        let (deadlines, tell) = (self.control.shared().group_deadlines(), self.control.teller());
        let form = move || {
            // The training function goes first where both share a processor.
            // Equivalent mutant: only time depends on it.
            std::thread::yield_now();
            form_and_tell(&fabric, &of_job, deadlines, &tell)
        };
        let watch = self.control.shared().operations().over_all();
        let abort = Some(self.abort.clone());
        let (group, forming) =
            AsyncCommunicator::forming(numbers, abort, &self.progress, Some(watch), form);
        let life = Rc::new(self.life(stamp).with_beginning(Beginning::new(forming)));
        let worker = self.worker(state, placement, place, life, group);
        if let Err(error) = state.refresh() {
            // The command that follows a group that stands is taken first.
            let _ = worker.end();
            return Ok(Err(self.failed(stamp, error)));
        }
        match state.call_back(&worker) {
            Ok(()) => Ok(Ok(worker)),
            Err(panic) => self.panicked(state, &worker, panic).map(Err),
        }
    }

    fn life(&self, stamp: Stamp) -> GenerationLife {
        GenerationLife::new(stamp, Some((Rc::clone(&self.control), self.abort.clone())))
    }

    fn worker<T>(
        &self,
        state: &State<T>,
        placement: &Placement,
        place: WorkerRanks,
        life: Rc<GenerationLife>,
        group: AsyncCommunicator,
    ) -> Worker
    where
        T: Serialize + DeserializeOwned,
    {
        let counts = placement.shards.counts().to_vec();
        let group = Group::new(Rc::clone(&life), group, &self.progress, counts);
        Worker::new(place, life, group, Rc::clone(state.ledger()))
    }

    fn fabric(&self) -> MutexGuard<'_, dyn Fabric + Send + 'static> {
        self.fabric.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the step of the commit from which a generation begins.
    fn starts_from(&self, step: Step) {
        let shared = self.control.shared();
        shared.set_step(step);
        shared.checkpoints().begin_from(step);
        shared.digests().begin_from(step);
    }

    fn sync<T: Serialize + DeserializeOwned>(
        &self,
        state: &mut State<T>,
        group: &mut dyn Communicator,
        (plan, source): (SyncPlan, Option<CheckpointSource>),
        (stamp, is_one_host): (Stamp, bool),
    ) -> Result<bool, TrainingEnd> {
        let shared = self.control.shared();
        let show = |moved: MovedBytes| shared.set_moved(Some(moved));
        let resumed = |step, is_gone, notes| {
            self.control.event(TrainingEvent::Resumed { stamp, step, notes, is_gone });
        };
        let directory = source.as_ref().map_or(Path::new(""), |it| Path::new(&it.directory));
        let store = shared.store();
        let files = (store.of)(directory);
        let warn = |text| self.control.event(TrainingEvent::Warned { text });
        let (resumed, show, warn, pause) = (&resumed, &show, &warn, &store.pause);
        let fields = state.fields();
        shared.checkpoints().set_fields(fields.as_deref().cloned());
        let fields = fields.as_deref();
        let ports = ResumePorts { files, resumed, warn, pause, show, is_one_host, fields };
        let synced = sync(state, group, plan, source.as_ref(), ports, stamp.generation);
        shared.set_moved(None);
        let goes_on = match synced {
            Ok(goes_on) => goes_on,
            Err(SyncError::Collective(error)) => {
                return Err(match &error {
                    CollectiveError::Aborted { .. } => TrainingEnd::AT_REST,
                    error => match failure(error) {
                        GenerationEnd::Failed { blame, error } => {
                            self.broken(stamp, (blame.rank(group.rank()), blame.told_by()), error)
                        }
                        _ => TrainingEnd::AT_REST,
                    },
                });
            }
            Err(SyncError::Fatal(error)) => {
                if let Error::Checkpoint(error) = &error
                    && no_root_could_load(error, source.as_ref())
                {
                    let (reason, hint) = (chain(error), error.hint());
                    self.control.event(TrainingEvent::NotResumed { stamp, reason, hint });
                }
                return Err(self.failed(stamp, error));
            }
        };
        let Some(commit) = state.commit_id() else {
            return Err(self.broken(
                stamp,
                (None, None),
                "told to skip the sync without a commit".to_owned(),
            ));
        };
        self.starts_from(commit.step);
        self.control.shared().note_kept();
        self.control.event(TrainingEvent::Synced { stamp, commit });
        Ok(goes_on)
    }

    fn conclude<T: Serialize + DeserializeOwned>(
        &self,
        state: &mut State<T>,
        worker: &Worker,
        result: Result<()>,
    ) -> Result<TrainingEnd> {
        let stamp = worker.stamp();
        let end = worker.end();
        if worker.has_begun() || is_planted(Bug::UnbegunGenerationCounts) {
            state.enter_generation(stamp.generation);
        }
        match (end, result) {
            (Some(GenerationEnd::ActorsGone), Err(error)) => Err(error),
            (Some(GenerationEnd::ActorsGone), Ok(())) => Err(self.control.gone()),
            (Some(GenerationEnd::Interrupted { committed }), _) => {
                if !committed && let Err(error) = state.save() {
                    return Ok(self.failed(stamp, error));
                }
                state.keep_live();
                worker.close();
                Ok(TrainingEnd::AT_REST)
            }
            (Some(GenerationEnd::Aborted { .. }), _) => Ok(self.rolled_back(state, worker)),
            (Some(GenerationEnd::Failed { blame, error }), _) => {
                let blamed = blame.rank(worker.rank());
                let blamed = blamed.filter(|_| !is_planted(Bug::BlameForgotten));
                self.broken(stamp, (blamed, blame.told_by()), error);
                Ok(self.rolled_back(state, worker))
            }
            (None, Ok(())) => {
                if let Err(error) = state.save() {
                    return Ok(self.failed(stamp, error));
                }
                worker.close();
                self.returned(state, stamp);
                Ok(TrainingEnd::Returned)
            }
            (None, Err(error)) => Ok(self.failed(stamp, error)),
        }
    }

    fn returned<T: Serialize + DeserializeOwned>(&self, state: &mut State<T>, stamp: Stamp) {
        if let Some(commit) = state.commit_id() {
            self.control.shared().set_step(commit.step);
            let TrainingProgress { note, reported, .. } = self.control.shared().progress();
            self.control.event(TrainingEvent::Returned { stamp, commit, note, reported });
        }
    }

    fn rolled_back<T: Serialize + DeserializeOwned>(
        &self,
        state: &mut State<T>,
        worker: &Worker,
    ) -> TrainingEnd {
        state.discard_live();
        let steps =
            if is_planted(Bug::UndoneStepsNotCounted) { 0 } else { worker.steps_beyond_commit() };
        let undone = UndoneTraining { steps, ms: self.control.shared().undone_ms() };
        TrainingEnd::AtRest { undone }
    }

    fn tell_warnings(&self) {
        for text in self.fabric().take_warnings() {
            self.control.event(TrainingEvent::Warned { text });
        }
    }

    /// Reports the failure of a collective, with the rank to blame and the rank that has reported it to this one.
    fn broken(
        &self,
        stamp: Stamp,
        (peer, told_by): (Option<u32>, Option<u32>),
        error: String,
    ) -> TrainingEnd {
        self.control.event(TrainingEvent::CollectiveFailed { stamp, peer, told_by, error });
        TrainingEnd::AT_REST
    }

    fn failed(&self, stamp: Stamp, error: Error) -> TrainingEnd {
        let message = error.chain();
        self.control.event(TrainingEvent::Failed { stamp, message });
        TrainingEnd::Failed(error)
    }

    /// Takes a panic of the program, in its training function or in a callback of a reset. Where the generation has ended
    /// here, and the state goes back to a commit, the worker goes on: the panic is mostly that of an `unwrap` of the error
    /// which told of the end. Else it is reported as the worker's failure, before the process dies of it (G-10, G-12).
    fn panicked<T: Serialize + DeserializeOwned>(
        &self,
        state: &mut State<T>,
        worker: &Worker,
        panic: Box<dyn Any + Send>,
    ) -> Result<TrainingEnd> {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = format!("panicked: {}", text.unwrap_or("without a message"));
        // The command that follows a group that stands is taken first.
        let end = worker.end().filter(|_| !is_planted(Bug::UnwrapAtTheEndFails));
        if let Some(
            GenerationEnd::Aborted { .. }
            | GenerationEnd::Failed { .. }
            | GenerationEnd::Interrupted { committed: true },
        ) = end
        {
            let rank = worker.rank();
            self.control.event(TrainingEvent::Warned {
                text: format!(
                    "the training function of rank {rank} {message}, as its generation ended; it goes on \
                     from a commit: return the error of a collective with `?`"
                ),
            });
            return self.conclude(state, worker, Ok(()));
        }
        self.control.event(TrainingEvent::Failed { stamp: worker.stamp(), message });
        Ok(TrainingEnd::Panicked(panic))
    }
}

/// Whether another root would fail as well: all members have tried, or it would read the same files.
fn no_root_could_load(error: &CheckpointLoadError, source: Option<&CheckpointSource>) -> bool {
    match error {
        CheckpointLoadError::NoneWhole { .. }
        | CheckpointLoadError::List { .. }
        | CheckpointLoadError::InTheWay { .. }
        | CheckpointLoadError::NoSuchStep { .. } => true,
        // One that was asked for, or that the job may not begin without.
        CheckpointLoadError::Damaged { .. } => source.is_some_and(|it| {
            it.exactly.is_some() || it.last.as_ref().is_some_and(|last| last.must_exist)
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use elastic_checkpoint::Damage;

    use super::*;

    #[test]
    fn another_root_is_tried_where_it_may_find_what_this_one_has_not() {
        let source = |exactly: Option<&str>| CheckpointSource {
            directory: "shared".to_owned(),
            exactly: exactly.map(ToOwned::to_owned),
            begins_anew: false,
            last: None,
            name: None,
        };
        let damaged =
            || CheckpointLoadError::Damaged { path: "shared".into(), damage: Damage::Partial };
        let is_hopeless = |error, exactly| no_root_could_load(&error, Some(&source(exactly)));
        assert!(is_hopeless(damaged(), Some("step-7")), "all would read the same files");
        assert!(!is_hopeless(damaged(), None));
        assert!(!no_root_could_load(&damaged(), None));
        let (path, damages) = ("shared".into(), String::new());
        assert!(is_hopeless(CheckpointLoadError::NoneWhole { path, damages }, None));
        let (path, source) = ("shared/step-9".into(), std::io::ErrorKind::ResourceBusy.into());
        assert!(is_hopeless(CheckpointLoadError::InTheWay { path, source }, Some("step-7")));
        // The driver has heard that nothing is there, and knows better what that means.
        assert!(!is_hopeless(CheckpointLoadError::Gone { step: 9, path: "shared".into() }, None));
    }
}
