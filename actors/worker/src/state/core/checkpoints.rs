//! Durable checkpoints, as the State sees them: it passes the driver's orders on to its shell, and reports the results
//! to the driver. A report is kept, and sent again on every new connection while the generation lasts. Part of
//! `StateCore`.

use elastic_protocol::messages::{CheckpointOrder, CheckpointReport, WorkerToDriver};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Stamp, Step, Time};

use super::{
    CheckpointCommand, CheckpointOutcome, CheckpointPart, StateCore, StateOutput, ThreadState,
    TrainingCommand, prefix,
};

/// The step that a worker was told to save.
#[derive(Debug)]
pub(super) struct OrderedCheckpoint {
    stamp: Stamp,
    step: Step,
    /// Whether it is the commit with which training has ended.
    is_last: bool,
    is_by_rank_0: bool,
    /// Whether the worker was told to make the checkpoint whole.
    seals: bool,
    report: Option<CheckpointReport>,
}

impl StateCore {
    /// The driver orders a step to be saved. It repeats orders: the second one saves nothing anew. Another order takes the place of the
    /// one before, of a later step or of an earlier one: a job that is to end does not wait for a step that lies far ahead.
    pub(super) fn save_checkpoint(&mut self, order: CheckpointOrder) {
        let Some(placement) = &self.placement else { return };
        let (stamp, step) = (order.stamp, order.step);
        let is_by_rank_0 = order.is_by_rank_0;
        let parts = if is_by_rank_0 { 1 } else { placement.assignment.world_size() };
        let part = CheckpointPart { order, job: self.config.job, rank: placement.rank, parts };
        if matches!(self.training, ThreadState::Returned) {
            return self.save_last(part);
        }
        let known = self.checkpoint.as_ref().map(|known| (known.stamp, known.step));
        if known == Some((stamp, step)) {
            // A driver that has taken over may order the step that the one before had ordered, and have dropped the report.
            if !is_planted(Bug::RepeatedSaveUnanswered) {
                self.say_checkpoint();
            }
            return;
        }
        let (is_last, seals, report) = (false, false, None);
        self.checkpoint =
            Some(OrderedCheckpoint { stamp, step, is_last, is_by_rank_0, seals, report });
        self.outputs.push_back(StateOutput::Checkpoint(CheckpointCommand::Save(part)));
    }

    /// An order after the user's function has returned: only the commit with which it ended can still be saved. It may have
    /// been ordered before as one that would come, which its commit then passed over.
    fn save_last(&mut self, part: CheckpointPart) {
        let (stamp, step) = (part.order.stamp, part.order.step);
        let is_by_rank_0 = part.order.is_by_rank_0;
        let is_same = |known: &OrderedCheckpoint| {
            (known.stamp, known.step, known.is_by_rank_0) == (stamp, step, is_by_rank_0)
        };
        let known = self.checkpoint.as_ref();
        let is_repeated = known.is_some_and(|known| known.is_last && is_same(known));
        let reached = self.commit.map(|commit| commit.step).unwrap_or_default();
        if is_repeated {
            // Training has ended with a step that was being saved: the driver has ordered it anew, and waits for all members again.
            return self.say_checkpoint();
        }
        if reached != step {
            let report = CheckpointReport::Missed { reached };
            return self.tell_driver(WorkerToDriver::Checkpoint { stamp, step, report });
        }
        let (is_last, seals, report) = (true, false, None);
        self.checkpoint =
            Some(OrderedCheckpoint { stamp, step, is_last, is_by_rank_0, seals, report });
        self.command(TrainingCommand::SaveLast(Box::new(part)));
    }

    /// The driver orders the last commit to be saved, and its plan to end the generation was here first. It would wait in vain.
    pub(super) fn refuse_save(&mut self, order: &CheckpointOrder) {
        let (stamp, step) = (order.stamp, order.step);
        let reason = "its generation was interrupted after the end of training".to_owned();
        let report = CheckpointReport::Failed { reason };
        self.tell_driver(WorkerToDriver::Checkpoint { stamp, step, report });
    }

    /// The driver orders a checkpoint to be made whole.
    pub(super) fn seal_checkpoint(
        &mut self,
        stamp: Stamp,
        step: Step,
        (keep, spared): (u32, Option<Step>),
    ) {
        let known = self.checkpoint.as_mut();
        let Some(known) = known.filter(|known| (known.stamp, known.step) == (stamp, step)) else {
            return;
        };
        if !std::mem::replace(&mut known.seals, true) {
            let command = CheckpointCommand::Seal { stamp, step, keep, spared };
            self.outputs.push_back(StateOutput::Checkpoint(command));
        }
    }

    /// Takes the outcome of an order. Outcomes of earlier orders are ignored.
    pub fn handle_checkpoint(&mut self, _now: Time, outcome: CheckpointOutcome) {
        let CheckpointOutcome { stamp, step, report } = outcome;
        let known = self.checkpoint.as_mut();
        let Some(known) = known.filter(|known| (known.stamp, known.step) == (stamp, step)) else {
            return;
        };
        known.report = Some(bounded(report));
        self.say_checkpoint();
    }

    /// Tells the driver the last report, if its generation lasts.
    pub(super) fn say_checkpoint(&mut self) {
        if let Some(OrderedCheckpoint { stamp, step, report: Some(report), .. }) = &self.checkpoint
            && *stamp == self.stamp
        {
            let (stamp, step, report) = (*stamp, *step, report.clone());
            self.tell_driver(WorkerToDriver::Checkpoint { stamp, step, report });
        }
    }

    /// Tells the driver that the root cannot load any checkpoint.
    pub(super) fn say_not_resumed(&mut self, stamp: Stamp, reason: String, hint: Option<String>) {
        let (reason, hint) = (bounded_text(reason), hint.map(bounded_text));
        self.tell_driver(WorkerToDriver::NotResumed { stamp, reason, hint });
    }

    /// Tells the driver which checkpoint the root has loaded.
    pub(super) fn say_resumed(
        &mut self,
        stamp: Stamp,
        step: Option<Step>,
        notes: Vec<String>,
        is_gone: bool,
    ) {
        let notes = notes.into_iter().take(CheckpointReport::TEXTS_MAX).map(bounded_text).collect();
        self.tell_driver(WorkerToDriver::Resumed { stamp, step, notes, is_gone });
    }
}

/// A report whose texts have their longest length at most.
fn bounded(report: CheckpointReport) -> CheckpointReport {
    match report {
        CheckpointReport::Failed { reason } => {
            CheckpointReport::Failed { reason: bounded_text(reason) }
        }
        CheckpointReport::Differ { reason } => {
            CheckpointReport::Differ { reason: bounded_text(reason) }
        }
        CheckpointReport::Sealed { bytes, troubles } => {
            let troubles = troubles.into_iter().take(CheckpointReport::TEXTS_MAX);
            CheckpointReport::Sealed { bytes, troubles: troubles.map(bounded_text).collect() }
        }
        report => report,
    }
}

fn bounded_text(text: String) -> String {
    prefix(&text, CheckpointReport::TEXT_BYTES_MAX).to_owned()
}
