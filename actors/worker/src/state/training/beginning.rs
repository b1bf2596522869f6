//! [`Beginning`]: the begin of a generation, for a training thread that starts to train before it. Made by
//! `membership`, waited for by `life`.
//!
//! If all members hold the same commit, they exchange nothing before they train. The training function then starts at
//! once. While it computes the first step, the group forms on the progress thread, and the driver waits for READY of
//! all members. The first collective, commit or boundary waits for both, so nothing of the generation is visible to
//! others before it has begun.

use std::sync::{Arc, Mutex, PoisonError};

use elastic_collectives::{Communicator, FormError, FormingGroup};
use elastic_protocol::messages::Placement;

use super::control::{Tell, ThreadMessage, TrainingControl};
use super::error::Result;
use super::life::{Blame, GenerationEnd, chain};
use super::membership::{Fabric, GroupDeadlines};
use crate::state::core::{TrainingCommand, TrainingEvent};

/// A fabric that the training thread and the progress thread use in turn.
pub(super) type SharedFabric = Arc<Mutex<dyn Fabric + Send>>;

/// A generation that has not begun at this training thread.
pub(super) struct Beginning(FormingGroup);

/// The result of waiting for a [`Beginning`].
pub(super) enum Begun {
    /// All members stand: the driver has given its `Go`.
    Goes,
    /// The generation has ended.
    Ended(GenerationEnd),
}

impl Beginning {
    pub(super) const fn new(forming: FormingGroup) -> Self {
        Self(forming)
    }

    /// Waits until the group stands and the driver has given its `Go`, or until the generation has ended.
    ///
    /// # Errors
    /// The actor thread is gone, or the check that runs while the thread waits has failed.
    pub(super) fn wait(self, control: &TrainingControl) -> Result<Begun> {
        let ended = match self.0.wait() {
            // The formed group was reported. Exactly one command follows that report in any case.
            Ok(()) => match control.wait()? {
                TrainingCommand::Sync { .. } => return Ok(Begun::Goes),
                TrainingCommand::End => {
                    GenerationEnd::Aborted { reason: "the generation has ended".to_owned() }
                }
                command => return Err(control.unexpected(&command)),
            },
            Err(FormError::Aborted { reason, .. }) => {
                GenerationEnd::Aborted { reason: reason.to_string() }
            }
            Err(error) => {
                GenerationEnd::Failed { blame: Blame::of_forming(&error), error: chain(&error) }
            }
        };
        Ok(Begun::Ended(ended))
    }
}

/// Forms a generation's group, and reports the result to the actor.
pub(super) fn form_and_tell(
    fabric: &Mutex<dyn Fabric + Send>,
    placement: &Placement,
    deadlines: GroupDeadlines,
    tell: &Tell,
) -> Result<Box<dyn Communicator>, FormError> {
    let mut fabric = fabric.lock().unwrap_or_else(PoisonError::into_inner);
    let formed = fabric.form(placement, deadlines);
    let event = |event| tell(ThreadMessage::Event(event));
    fabric.take_warnings().into_iter().for_each(|text| event(TrainingEvent::Warned { text }));
    let stamp = placement.stamp;
    match &formed {
        Ok(_) => event(TrainingEvent::Formed { stamp }),
        Err(FormError::Aborted { .. }) => {}
        Err(error) => {
            let blame = Blame::of_forming(error);
            let (peer, told_by) = (blame.rank(placement.rank), blame.told_by());
            let error = chain(error);
            event(TrainingEvent::CollectiveFailed { stamp, peer, told_by, error });
        }
    }
    formed
}
