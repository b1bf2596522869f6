//! Events of the training thread. Part of `StateCore`.

use std::net::SocketAddr;

use elastic_protocol::messages::{Ballot, MovedBytes, StepTimes, UndoneTraining, WorkerToDriver};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{CommitId, Stamp, Time};

use super::{
    DriverAttachment, RunExit, StateCore, ThreadState, TrainingCommand, TrainingEvent,
    TrainingProgress,
};

impl StateCore {
    /// Handles an event of the training thread.
    pub fn handle_training(&mut self, now: Time, event: TrainingEvent) {
        if self.is_exited() {
            return;
        }
        match event {
            TrainingEvent::Moved { data_address, commit } => {
                self.commit = commit;
                self.moved(now, data_address);
            }
            TrainingEvent::AtRest { commit, undone } => self.at_rest(commit, undone),
            TrainingEvent::Formed { stamp } => self.formed(stamp),
            TrainingEvent::Resumed { stamp, step, notes, is_gone } => {
                self.say_resumed(stamp, step, notes, is_gone);
            }
            TrainingEvent::NotResumed { stamp, reason, hint } => {
                self.say_not_resumed(stamp, reason, hint);
            }
            TrainingEvent::Warned { text } => self.warn(text),
            TrainingEvent::Synced { stamp, commit } => self.synced(now, stamp, commit),
            TrainingEvent::CollectiveFailed { stamp, peer, told_by, error } => {
                self.collective_failed(stamp, (peer, told_by), error);
            }
            TrainingEvent::Returned { stamp, commit, note, reported } => {
                let step = commit.step;
                let progress = TrainingProgress { step, note, reported, ..Default::default() };
                self.returned(now, stamp, commit, progress);
            }
            TrainingEvent::Failed { stamp, message } => self.failed(stamp, message),
        }
        self.note_waiting(now);
    }

    /// Takes the progress of training. Called after [`StateOutput::SampleProgress`](super::StateOutput::SampleProgress),
    /// and at once after the first commit of a generation.
    pub fn handle_progress(&mut self, now: Time, mut progress: TrainingProgress) {
        if matches!(self.training, ThreadState::Syncing | ThreadState::Running { .. }) {
            self.say_moved(progress.moved);
        }
        // A thread that hangs as its generation ends holds up the next one.
        if !matches!(self.training, ThreadState::Running { .. } | ThreadState::Ending) {
            return;
        }
        self.note_position(now, progress.position.clone());
        if matches!(self.training, ThreadState::Ending) {
            return;
        }
        if let Some(digests) = progress.digests.take() {
            self.digests.extend(digests);
        }
        let due =
            self.sent_progress.as_ref().is_none_or(|(at, _)| *at + self.deadlines.beat <= now);
        if due {
            self.say_progress(now, progress);
        }
    }

    /// Tells the driver the progress of a bulk move of bytes, if it has changed since the last report. A move that
    /// takes less than a beat is not reported.
    fn say_moved(&mut self, moved: Option<MovedBytes>) {
        if moved != self.sent_moved {
            self.sent_moved = moved;
            if let Some(bytes) = moved {
                self.tell_driver(WorkerToDriver::Moves { stamp: self.stamp, bytes });
            }
        }
    }

    fn say_progress(&mut self, now: Time, mut progress: TrainingProgress) {
        progress.note.truncate(prefix(&progress.note, WorkerToDriver::NOTE_BYTES_MAX).len());
        let is_old = |before: &TrainingProgress| {
            (before.step, &before.note, &before.reported)
                == (progress.step, &progress.note, &progress.reported)
        };
        if self.sent_progress.as_ref().is_some_and(|(_, before)| is_old(before)) {
            return;
        }
        let steps = self.steps_due(now, progress.steps);
        let links = steps.map_or_else(Vec::new, |_| std::mem::take(&mut progress.links));
        let digests = self.digests.take();
        self.tell_driver(WorkerToDriver::Progress {
            stamp: self.stamp,
            step: progress.step,
            note: progress.note.clone(),
            reported: progress.reported.clone(),
            steps,
            links,
            digests,
        });
        self.sent_progress = Some((now, progress));
    }

    /// The step times, if the driver was not told of them a moment ago.
    fn steps_due(&mut self, now: Time, steps: Option<StepTimes>) -> Option<StepTimes> {
        let steps = steps.filter(|_| self.is_step_time_due(now))?;
        self.sent_steps_at = Some(now);
        Some(steps)
    }

    /// Whether the next progress tells the driver step times and paces of links. Those of any other are not used.
    pub fn is_step_time_due(&self, now: Time) -> bool {
        self.sent_steps_at.is_none_or(|at| at + StepTimes::EVERY <= now)
    }

    /// Attaches again: the driver takes the address of the latest `Attach`, and its answer has everything else
    /// announced again.
    fn moved(&mut self, now: Time, data_address: SocketAddr) {
        self.config.data_address = data_address;
        if !matches!(self.link, DriverAttachment::Down { .. }) {
            self.attach(now);
        }
    }

    fn at_rest(&mut self, commit: Option<CommitId>, undone: UndoneTraining) {
        if self.commit.is_none() || !is_planted(Bug::OldCommitTold) {
            self.commit = commit;
        }
        self.undone = undone;
        self.placement = None;
        self.sample_at = None;
        self.training = ThreadState::AtRest;
        self.say_arrived();
        self.go_on();
    }

    /// Tells the driver of a condition, each once: it may be noticed in every generation. Not kept for a driver that is
    /// away, nor told again to the next one.
    fn warn(&mut self, text: String) {
        let text = prefix(&text, WorkerToDriver::WARNING_BYTES_MAX).to_owned();
        let is_attached = matches!(self.link, DriverAttachment::Attached);
        let is_full = self.warnings.len() >= WorkerToDriver::WARNINGS_MAX;
        if is_attached && !is_full && self.warnings.insert(text.clone()) {
            self.tell_driver(WorkerToDriver::Warning { text });
        }
    }

    fn formed(&mut self, stamp: Stamp) {
        if stamp == self.stamp && matches!(self.training, ThreadState::Forming) {
            self.training = ThreadState::Formed;
            self.vote(Ballot::Ready);
        } else {
            self.command(TrainingCommand::End);
        }
    }

    fn synced(&mut self, now: Time, stamp: Stamp, commit: CommitId) {
        self.commit = Some(commit);
        if stamp == self.stamp && matches!(self.training, ThreadState::Syncing) {
            self.sample_at = Some(now + self.deadlines.beat);
            self.trains();
        }
    }

    /// Notes that this worker holds the generation's commit and trains from it.
    pub(super) fn trains(&mut self) {
        self.training = ThreadState::Running { held: None };
        self.vote(Ballot::Synced);
    }

    fn collective_failed(
        &mut self,
        stamp: Stamp,
        (peer, told_by): (Option<u32>, Option<u32>),
        error: String,
    ) {
        let live = matches!(
            self.training,
            ThreadState::Forming | ThreadState::Syncing | ThreadState::Running { held: None }
        );
        if stamp != self.stamp || !live {
            return;
        }
        self.tell_driver(WorkerToDriver::CollectiveFailed { stamp, peer, told_by, error });
        self.training = ThreadState::Ending;
        self.placement = None;
    }

    fn returned(&mut self, now: Time, stamp: Stamp, commit: CommitId, progress: TrainingProgress) {
        if stamp == self.stamp && matches!(self.training, ThreadState::Running { .. }) {
            self.say_progress(now, progress);
            self.commit = Some(commit);
            self.undone = UndoneTraining::default();
            self.training = ThreadState::Returned;
            self.sample_at = None;
            self.vote(Ballot::Success);
        } else {
            self.at_rest(Some(commit), UndoneTraining::default());
        }
    }

    fn failed(&mut self, stamp: Stamp, message: String) {
        if stamp == self.stamp {
            self.vote(Ballot::Failure { status: None, message });
        }
        self.placement = None;
        self.pending = None;
        self.sample_at = None;
        self.training = ThreadState::Exited;
        self.command(TrainingCommand::Exit(RunExit::Failed));
    }
}

/// The longest prefix of a text with at most `bytes` bytes, cut at a character.
pub(in crate::state) fn prefix(text: &str, bytes: usize) -> &str {
    let fits = |end: &usize| text.is_char_boundary(*end);
    let end = (0..=bytes.min(text.len())).rev().find(fits).unwrap_or(0);
    &text[..end]
}
