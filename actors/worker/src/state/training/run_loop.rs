//! The run loop: form, sync, train; restore on abort, keep on interrupt; again, until told to leave. The
//! loop of Horovod's `hvd.elastic.run`, with the driver deciding when.

use std::rc::Rc;
use std::time::Duration;

use elastic_collectives::{
    AbortHandle, CollectiveError, Communicator, FormError, SoloCommunicator,
};
use elastic_protocol::messages::{Placement, SyncPlan};
use elastic_protocol::{Outcome, Stamp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::control::Control;
use super::error::{Error, Result};
use super::state::State;
use super::sync::{SyncError, sync};
use super::worker::{End, Place, Worker, chain, failure};
use crate::state::core::{Exit, TrainingCommand, TrainingEvent};

/// What forms communicators: the collectives of this process.
pub trait Fabric {
    /// Forms the group of a generation. Blocks until it stands, the deadline passes, or the abort word is
    /// set for this generation.
    ///
    /// # Errors
    /// [`FormError`] says who was missing.
    fn form(
        &mut self,
        placement: &Placement,
        deadline: Duration,
    ) -> Result<Box<dyn Communicator>, FormError>;
}

/// How a generation ended at the training thread.
enum Ended {
    /// It tells `AtRest` next.
    AtRest { steps_lost: u64 },
    /// It has told `Returned`, and waits.
    Returned,
    /// It has told `Failed` with this error, and waits.
    Failed(Error),
}

/// Trains without a driver: a world of one, generation 0, nothing to abort it.
///
/// # Errors
/// What `function` returned.
pub fn run_alone<T, F>(mut state: State<T>, mut function: F) -> Result<()>
where
    T: Serialize + DeserializeOwned,
    F: FnMut(&Worker, &mut State<T>) -> Result<()>,
{
    state.save_initial()?;
    let ledger = Rc::clone(state.ledger());
    let group = Box::new(SoloCommunicator::new());
    let worker = Worker::new(Place::ALONE, Stamp::default(), group, None, ledger);
    function(&worker, &mut state)
}

/// Trains under a driver, until told to leave.
///
/// # Errors
/// The training function's own error; or that the job failed, the driver is gone, or this library broke.
pub fn run_loop<T, F>(
    mut state: State<T>,
    control: Control,
    abort: &AbortHandle,
    fabric: &mut dyn Fabric,
    mut function: F,
) -> Result<()>
where
    T: Serialize + DeserializeOwned,
    F: FnMut(&Worker, &mut State<T>) -> Result<()>,
{
    let control = Rc::new(control);
    let mut ended = Ended::AtRest { steps_lost: 0 };
    loop {
        if let Ended::AtRest { steps_lost } = ended {
            let commit = state.commit_id();
            control.event(TrainingEvent::AtRest { commit, steps_lost });
        }
        match control.wait()? {
            TrainingCommand::Form(placement) => {
                let generation = Generation { control: &control, abort, placement: &placement };
                ended = generation.run(&mut state, fabric, &mut function)?;
            }
            TrainingCommand::Exit(exit) => return leave(exit, ended),
            command => return Err(control.unexpected(&command)),
        }
    }
}

fn leave(exit: Exit, ended: Ended) -> Result<()> {
    if let Ended::Failed(error) = ended {
        return Err(error);
    }
    match exit {
        Exit::Left { .. } | Exit::Failed => Ok(()),
        Exit::Finished { result } => match result.outcome {
            Outcome::Succeeded | Outcome::Stopped => Ok(()),
            Outcome::Failed => Err(Error::JobFailed { reason: result.reason, hint: result.hint }),
        },
        Exit::Orphaned { gone_ms } => Err(Error::DriverGone { gone_ms }),
        Exit::WrongJob { ours, theirs } => {
            Err(Error::WrongJob { ours: ours.to_string(), theirs: theirs.to_string() })
        }
    }
}

/// One generation at the training thread.
struct Generation<'a> {
    control: &'a Rc<Control>,
    abort: &'a AbortHandle,
    placement: &'a Placement,
}

impl Generation<'_> {
    fn run<T, F>(
        &self,
        state: &mut State<T>,
        fabric: &mut dyn Fabric,
        function: &mut F,
    ) -> Result<Ended>
    where
        T: Serialize + DeserializeOwned,
        F: FnMut(&Worker, &mut State<T>) -> Result<()>,
    {
        let stamp = self.placement.stamp;
        let mut group = match fabric.form(self.placement, self.control.shared().form_deadline()) {
            Ok(group) => group,
            Err(FormError::Aborted { .. }) => return Ok(Ended::AtRest { steps_lost: 0 }),
            Err(error) => {
                let peer = match &error {
                    FormError::DeadlinePassed { missing } => missing.first().map(|peer| peer.rank),
                    _ => None,
                };
                return Ok(self.broken(peer, chain(&error)));
            }
        };
        let Some(place) = Place::new(self.placement) else {
            return Ok(self.broken(None, "the assignment has no place for this rank".to_owned()));
        };
        self.control.event(TrainingEvent::Formed { stamp });
        let plan = match self.control.wait()? {
            TrainingCommand::Sync { plan, .. } => plan,
            TrainingCommand::End => return Ok(Ended::AtRest { steps_lost: 0 }),
            command => return Err(self.control.unexpected(&command)),
        };
        let goes_on = match self.sync(state, &mut *group, plan) {
            Ok(goes_on) => goes_on,
            Err(ended) => return Ok(ended),
        };
        let control = (Rc::clone(self.control), self.abort.clone());
        let ledger = Rc::clone(state.ledger());
        let worker = Worker::new(place, stamp, group, Some(control), ledger);
        if goes_on {
            state.call_back(&worker);
        }
        let result = function(&worker, state);
        self.conclude(state, &worker, result)
    }

    fn sync<T: Serialize + DeserializeOwned>(
        &self,
        state: &mut State<T>,
        group: &mut dyn Communicator,
        plan: SyncPlan,
    ) -> Result<bool, Ended> {
        let stamp = self.placement.stamp;
        let goes_on = match sync(state, group, plan, stamp.generation) {
            Ok(goes_on) => goes_on,
            Err(SyncError::Collective(error)) => {
                return Err(match &error {
                    CollectiveError::Aborted { .. } => Ended::AtRest { steps_lost: 0 },
                    error => match failure(error) {
                        End::Failed { peer, error } => self.broken(peer, error),
                        _ => Ended::AtRest { steps_lost: 0 },
                    },
                });
            }
            Err(SyncError::Fatal(error)) => return Err(self.failed(error)),
        };
        let Some(commit) = state.commit_id() else {
            return Err(self.broken(None, "told to skip the sync without a commit".to_owned()));
        };
        self.control.shared().set_step(commit.step);
        self.control.event(TrainingEvent::Synced { stamp, commit });
        Ok(goes_on)
    }

    /// What the end of the training function means. Whether the generation ended here decides, not what
    /// the function made of the error that told it so.
    fn conclude<T: Serialize + DeserializeOwned>(
        &self,
        state: &mut State<T>,
        worker: &Worker,
        result: Result<()>,
    ) -> Result<Ended> {
        match (worker.end(), result) {
            (Some(End::ActorsGone), Err(error)) => Err(error),
            (Some(End::ActorsGone), Ok(())) => Err(self.control.gone()),
            (Some(End::Interrupted { committed }), _) => {
                if !committed && let Err(error) = state.save() {
                    return Ok(self.failed(error));
                }
                state.keep_live();
                worker.close();
                Ok(Ended::AtRest { steps_lost: 0 })
            }
            (Some(End::Aborted { .. }), _) => Ok(self.rolled_back(state, worker)),
            (Some(End::Failed { peer, error }), _) => {
                self.broken(peer, error);
                Ok(self.rolled_back(state, worker))
            }
            (None, Ok(())) => {
                if let Err(error) = state.save() {
                    return Ok(self.failed(error));
                }
                worker.close();
                self.returned(state);
                Ok(Ended::Returned)
            }
            (None, Err(error)) => Ok(self.failed(error)),
        }
    }

    fn returned<T: Serialize + DeserializeOwned>(&self, state: &mut State<T>) {
        let stamp = self.placement.stamp;
        if let Some(commit) = state.commit_id() {
            self.control.shared().set_step(commit.step);
            let note = self.control.shared().progress().note;
            self.control.event(TrainingEvent::Returned { stamp, commit, note });
        }
    }

    fn rolled_back<T: Serialize + DeserializeOwned>(
        &self,
        state: &mut State<T>,
        worker: &Worker,
    ) -> Ended {
        state.discard_live();
        Ended::AtRest { steps_lost: worker.steps_beyond_commit() }
    }

    fn broken(&self, peer: Option<u32>, error: String) -> Ended {
        let stamp = self.placement.stamp;
        self.control.event(TrainingEvent::CollectiveFailed { stamp, peer, error });
        Ended::AtRest { steps_lost: 0 }
    }

    fn failed(&self, error: Error) -> Ended {
        let message = error.chain();
        self.control.event(TrainingEvent::Failed { stamp: self.placement.stamp, message });
        Ended::Failed(error)
    }
}
