//! Messages from the training threads of mode `training` to their States, in words, for the recorded decisions. Called
//! by `training::world`.

use elastic_protocol::Stamp;
use elastic_worker::state::core::{CheckpointOutcome, TrainingEvent};
use elastic_worker::state::training::ThreadMessage;

use super::words::{list, or_none, stamp};

/// A message of a training thread to its State.
pub(crate) fn message(message: &ThreadMessage) -> String {
    match message {
        ThreadMessage::Event(event) => of_event(event),
        ThreadMessage::Boundary { stamp: of, boundary } => {
            format!("is at boundary {boundary} of {}", stamp(*of))
        }
        ThreadMessage::Checkpoint(CheckpointOutcome { stamp: of, step, report }) => {
            format!("step {step} of {}: {report:?}", stamp(*of))
        }
        ThreadMessage::FirstCommit => "has made its first commit".to_owned(),
    }
}

fn of_event(event: &TrainingEvent) -> String {
    let of = |of: &Stamp| stamp(*of);
    match event {
        TrainingEvent::Moved { data_address, commit } => {
            format!("listens at {data_address}, holds {}", or_none(*commit))
        }
        TrainingEvent::AtRest { commit, undone } => {
            format!("is at rest with {}, {} steps lost", or_none(*commit), undone.steps)
        }
        TrainingEvent::Formed { stamp } => format!("has formed {}", of(stamp)),
        TrainingEvent::Synced { stamp, commit } => {
            format!("has synced {} at {commit}", of(stamp))
        }
        TrainingEvent::CollectiveFailed { stamp, peer, told_by, error } => {
            let (peer, told_by) = (or_none(*peer), or_none(*told_by));
            format!("a collective of {} failed with {peer}, told by {told_by}: {error}", of(stamp))
        }
        TrainingEvent::Resumed { stamp, step, notes, is_gone } => {
            let notes = list(notes);
            let gone = if *is_gone { ", the last is gone" } else { "" };
            format!("begins {} from step {}{gone}; {notes}", of(stamp), or_none(*step))
        }
        TrainingEvent::Warned { text } => format!("warns: {text}"),
        TrainingEvent::Returned { stamp, commit, note, reported } => {
            format!("has returned in {} with {commit}: {note} {reported}", of(stamp))
        }
        TrainingEvent::NotResumed { stamp, reason, hint } => {
            let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("cannot begin {}: {reason}{hint}", of(stamp))
        }
        TrainingEvent::Failed { stamp, message } => {
            format!("has failed in {}: {message}", of(stamp))
        }
    }
}
