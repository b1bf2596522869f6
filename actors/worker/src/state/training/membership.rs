//! `Membership`: a process's part in its job, one generation after the other, as far as the training thread
//! goes. `run_loop` is made of it; so are other languages' bindings, which own their loop.

use std::any::Any;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

use elastic_collectives::{
    AbortHandle, CollectiveError, Communicator, FormError, Progress, SoloCommunicator,
};
use elastic_protocol::messages::{Placement, SyncPlan};
use elastic_protocol::{Outcome, Stamp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::control::Control;
use super::error::{Error, Result};
use super::life::{End, chain, failure};
use super::state::State;
use super::sync::{SyncError, sync};
use super::worker::{Place, Worker};
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
    /// It has told `Failed` with the message of a panic, which goes on once the vote is out.
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
    ended: Ended,
}

/// What a process has under a driver.
struct Driven {
    control: Rc<Control>,
    abort: AbortHandle,
    fabric: Box<dyn Fabric>,
    /// Its thread, once started, serves all generations.
    progress: Progress,
}

impl Membership {
    /// Without a driver: a world of one, generation 0, nothing to abort it.
    pub const fn alone() -> Self {
        Self { driven: None, ended: Ended::AtRest { steps_lost: 0 } }
    }

    /// Under a driver.
    pub fn new(control: Control, abort: AbortHandle, fabric: impl Fabric + 'static) -> Self {
        let (control, fabric) = (Rc::new(control), Box::new(fabric));
        let driven = Driven { control, abort, fabric, progress: Progress::new() };
        Self { driven: Some(driven), ended: Ended::AtRest { steps_lost: 0 } }
    }

    /// Waits for the next generation that this process takes part in, and brings `state` in step with its
    /// members. `None`: it is over, and well.
    ///
    /// # Errors
    /// What the last generation was concluded with; or that the job failed, the driver is gone, or this library
    /// broke.
    pub fn enter<T>(&mut self, state: &mut State<T>) -> Result<Option<Worker>>
    where
        T: Serialize + DeserializeOwned,
    {
        let Some(driven) = &mut self.driven else { return alone(state, &mut self.ended) };
        loop {
            if let Ended::AtRest { steps_lost } = self.ended {
                let commit = state.commit_id();
                driven.control.event(TrainingEvent::AtRest { commit, steps_lost });
            }
            match driven.control.wait()? {
                TrainingCommand::Form(placement) => match driven.begin(state, &placement)? {
                    Ok(worker) => return Ok(Some(worker)),
                    Err(ended) => self.ended = ended,
                },
                TrainingCommand::Exit(exit) => {
                    let ended = std::mem::replace(&mut self.ended, Ended::Returned);
                    return leave(exit, ended).map(|()| None);
                }
                command => return Err(driven.control.unexpected(&command)),
            }
        }
    }

    /// What the end of the training function means. Whether the generation ended here decides, not what
    /// the function made of the error that told it so.
    ///
    /// # Errors
    /// This library broke. The training function's own error comes from the next [`enter`](Self::enter).
    pub fn conclude<T: Serialize + DeserializeOwned>(
        &mut self,
        state: &mut State<T>,
        worker: &Worker,
        result: Result<()>,
    ) -> Result<()> {
        self.ended = match (&self.driven, result) {
            (Some(driven), result) => driven.conclude(state, worker, result)?,
            (None, Ok(())) => Ended::Returned,
            (None, Err(error)) => Ended::Failed(error),
        };
        Ok(())
    }

    /// The training function panicked. The next [`enter`](Self::enter) goes on with it.
    pub(super) fn panicked(&mut self, worker: &Worker, panic: Box<dyn Any + Send>) {
        if let Some(driven) = &self.driven {
            driven.panicked(worker.stamp(), &*panic);
        }
        self.ended = Ended::Panicked(panic);
    }
}

/// Enters the one generation of a world of one, or leaves it.
fn alone<T>(state: &mut State<T>, ended: &mut Ended) -> Result<Option<Worker>>
where
    T: Serialize + DeserializeOwned,
{
    match std::mem::replace(ended, Ended::Returned) {
        Ended::AtRest { .. } => {}
        Ended::Returned => return Ok(None),
        Ended::Failed(error) => return Err(error),
        Ended::Panicked(panic) => resume_unwind(panic),
    }
    state.save_initial()?;
    let (ledger, group) = (Rc::clone(state.ledger()), Box::new(SoloCommunicator::new()));
    let worker = Worker::new(Place::ALONE, Stamp::default(), group, &Progress::new(), None, ledger);
    Ok(Some(worker))
}

fn leave(exit: Exit, ended: Ended) -> Result<()> {
    match ended {
        Ended::Failed(error) => return Err(error),
        Ended::Panicked(panic) => resume_unwind(panic),
        Ended::AtRest { .. } | Ended::Returned => {}
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

impl Driven {
    /// Forms a generation's group, and brings `state` in step with its members. Where that fails, says how the
    /// generation ended here.
    fn begin<T>(
        &mut self,
        state: &mut State<T>,
        placement: &Placement,
    ) -> Result<Result<Worker, Ended>>
    where
        T: Serialize + DeserializeOwned,
    {
        let stamp = placement.stamp;
        let mut group = match self.fabric.form(placement, self.control.shared().form_deadline()) {
            Ok(group) => group,
            Err(FormError::Aborted { .. }) => return Ok(Err(Ended::AtRest { steps_lost: 0 })),
            Err(error) => {
                let peer = match &error {
                    FormError::DeadlinePassed { missing } => missing.first().map(|peer| peer.rank),
                    _ => None,
                };
                return Ok(Err(self.broken(stamp, peer, chain(&error))));
            }
        };
        let Some(place) = Place::new(placement) else {
            let error = "the assignment has no place for this rank".to_owned();
            return Ok(Err(self.broken(stamp, None, error)));
        };
        self.control.event(TrainingEvent::Formed { stamp });
        let plan = match self.control.wait()? {
            TrainingCommand::Sync { plan, .. } => plan,
            TrainingCommand::End => return Ok(Err(Ended::AtRest { steps_lost: 0 })),
            command => return Err(self.control.unexpected(&command)),
        };
        let goes_on = match self.sync(state, &mut *group, plan, stamp) {
            Ok(goes_on) => goes_on,
            Err(ended) => return Ok(Err(ended)),
        };
        let control = (Rc::clone(&self.control), self.abort.clone());
        let ledger = Rc::clone(state.ledger());
        let worker = Worker::new(place, stamp, group, &self.progress, Some(control), ledger);
        if goes_on {
            state.call_back(&worker);
        }
        Ok(Ok(worker))
    }

    fn sync<T: Serialize + DeserializeOwned>(
        &self,
        state: &mut State<T>,
        group: &mut dyn Communicator,
        plan: SyncPlan,
        stamp: Stamp,
    ) -> Result<bool, Ended> {
        let shared = self.control.shared();
        // What the program wants shown stands there again when the state is here.
        let note = shared.progress().note;
        let show = |text: &str| shared.set_note(text);
        let synced = sync(state, group, plan, stamp.generation, &show);
        shared.set_note(&note);
        let goes_on = match synced {
            Ok(goes_on) => goes_on,
            Err(SyncError::Collective(error)) => {
                return Err(match &error {
                    CollectiveError::Aborted { .. } => Ended::AtRest { steps_lost: 0 },
                    error => match failure(error) {
                        End::Failed { peer, error } => self.broken(stamp, peer, error),
                        _ => Ended::AtRest { steps_lost: 0 },
                    },
                });
            }
            Err(SyncError::Fatal(error)) => return Err(self.failed(stamp, error)),
        };
        let Some(commit) = state.commit_id() else {
            return Err(self.broken(
                stamp,
                None,
                "told to skip the sync without a commit".to_owned(),
            ));
        };
        self.control.shared().set_step(commit.step);
        self.control.event(TrainingEvent::Synced { stamp, commit });
        Ok(goes_on)
    }

    fn conclude<T: Serialize + DeserializeOwned>(
        &self,
        state: &mut State<T>,
        worker: &Worker,
        result: Result<()>,
    ) -> Result<Ended> {
        let stamp = worker.stamp();
        match (worker.end(), result) {
            (Some(End::ActorsGone), Err(error)) => Err(error),
            (Some(End::ActorsGone), Ok(())) => Err(self.control.gone()),
            (Some(End::Interrupted { committed }), _) => {
                if !committed && let Err(error) = state.save() {
                    return Ok(self.failed(stamp, error));
                }
                state.keep_live();
                worker.close();
                Ok(Ended::AtRest { steps_lost: 0 })
            }
            (Some(End::Aborted { .. }), _) => Ok(self.rolled_back(state, worker)),
            (Some(End::Failed { peer, error }), _) => {
                self.broken(stamp, peer, error);
                Ok(self.rolled_back(state, worker))
            }
            (None, Ok(())) => {
                if let Err(error) = state.save() {
                    return Ok(self.failed(stamp, error));
                }
                worker.close();
                self.returned(state, stamp);
                Ok(Ended::Returned)
            }
            (None, Err(error)) => Ok(self.failed(stamp, error)),
        }
    }

    fn returned<T: Serialize + DeserializeOwned>(&self, state: &mut State<T>, stamp: Stamp) {
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

    fn broken(&self, stamp: Stamp, peer: Option<u32>, error: String) -> Ended {
        self.control.event(TrainingEvent::CollectiveFailed { stamp, peer, error });
        Ended::AtRest { steps_lost: 0 }
    }

    fn failed(&self, stamp: Stamp, error: Error) -> Ended {
        let message = error.chain();
        self.control.event(TrainingEvent::Failed { stamp, message });
        Ended::Failed(error)
    }

    /// A panic of the training function is its failure, told before the process dies of it (G-10, G-12).
    fn panicked(&self, stamp: Stamp, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = format!("panicked: {}", text.unwrap_or("without a message"));
        self.control.event(TrainingEvent::Failed { stamp, message });
    }
}
