//! Committed steps and their loss: records the members' progress, and ends a job, or lets it begin again, if nobody holds
//! its state any more. Called by `gather`, `losses` and `workers`.

use std::time::Duration;

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{CommitId, GenerationId, Step, Time, WorkerId, counted};

use super::DriverCore;
use super::config::OnTotalLoss;
use super::event::EventKind;
use super::phase::RoundPhase;
use crate::journal::{JournalRecord, StateLossImage};

/// Training time that a job may lose if no `--on-total-loss` is given: with less behind the state, it begins again from the
/// start. A state that came from a checkpoint of an earlier job has more behind it.
const CHEAP_TO_REPEAT: Duration = Duration::from_secs(60);

impl DriverCore {
    /// Notes the step that all members hold, as they have reported it, before the first of them is lost: later
    /// reports of the others are of no commit that all have.
    pub(crate) fn note_committed_step(&mut self) {
        let Some(current) = self.round.current() else { return };
        if self.is_by_restart() || !self.state.is_training() {
            return;
        }
        let step_of = |worker: &WorkerId| self.roster.worker(worker).map(|record| record.step);
        let least = current.alive.iter().filter_map(step_of).min();
        let is_whole = current.alive.len() == current.assignment.world_size() as usize;
        if let Some(step) = least.filter(|_| is_whole) {
            self.state.reached(step);
        }
    }

    /// Notes that a worker has committed this step. If it is later than the step that all were known to hold, the generation
    /// trained, though the driver has not heard of it: the message of a member that is lost by now may be missing.
    pub(crate) fn note_later_step(&mut self, now: Time, step: Option<Step>) {
        if !self.state.is_training()
            && self.state.committed().is_some_and(|committed| step > Some(committed))
            && self.state.trained_unseen()
        {
            self.record_state(now);
        }
    }

    /// Records the progress now and then, for a successor that finds no worker any more.
    pub(crate) fn record_progress(&mut self, now: Time) {
        if self.outbox.keeps_records() && self.state.take_record_due(now) {
            self.note_committed_step();
            self.record_state(now);
        }
    }

    /// Notes that the generation formed last does not train any more.
    pub(crate) fn rest_state(&mut self, now: Time) {
        self.end_checkpoints();
        if self.state.is_training() {
            self.note_committed_step();
            self.state.rests(now);
            self.record_state(now);
        }
    }

    /// Counts the time without a driver as trained if the takeover has found every member of the generation, and it trains on: a
    /// member that is lost would have stopped the others.
    pub(crate) fn count_training_without_a_driver(&mut self, now: Time) {
        let unseen = self.state.take_time_without_a_driver();
        let is_whole = self
            .round
            .current()
            .is_some_and(|current| current.alive.len() == current.assignment.world_size() as usize);
        let trains_on = is_whole && matches!(self.round.phase(), RoundPhase::Run);
        if let Some(unseen) = unseen.filter(|_| trains_on && !self.is_by_restart()) {
            self.state.trained_for_longer(unseen);
            self.record_state(now);
        }
    }

    /// Notes that training goes on from a checkpoint of an earlier job: the training behind it is this job's to lose.
    pub(crate) fn inherit_state(&mut self, now: Time) {
        self.state.inherit();
        self.record_state(now);
    }

    pub(crate) fn record_state(&mut self, now: Time) {
        self.record(&self.state.to_record(now));
    }

    /// Fails the job if these members would begin again from the start, although steps have been committed, and the
    /// job may not. True if it has failed.
    pub(crate) fn fails_of_total_loss(&mut self, now: Time, members: &[WorkerId]) -> bool {
        let Some(committed) = self.state.committed() else { return false };
        let held = members.iter().filter_map(|worker| self.roster.commit_order_of(worker)).max();
        // An earlier commit spares the job its start. Under `fail` it does not count, since the steps after it are lost.
        let is_held = match (held, self.config.on_total_loss) {
            (Some((_, step)), Some(OnTotalLoss::Fail)) => step >= committed,
            (held, _) => held.is_some(),
        };
        let trained = self.state.trained();
        if trained.is_zero() {
            // No step was made since the job began, from the start or from a checkpoint: it can begin from there again.
            return false;
        }
        let is_dear = self.is_loss_dear();
        let is_saved = self.checkpointed_step().is_some();
        if is_held
            || is_saved
            || !is_dear
            || self.is_by_restart()
            || is_planted(Bug::TotalLossTolerated)
        {
            return false;
        }
        let left = held.map_or(0, |(_, step)| step.0);
        let lost = committed.0.saturating_sub(left);
        self.state.lose_steps(lost);
        self.record_state(now);
        let what = match lost {
            0 => format!("the steps after step {left}, of which no driver was told,"),
            _ if self.state.is_inherited() => format!("at least {}", counted(lost, "step")),
            _ => format!(
                "at least {}, committed in {} s of training,",
                counted(lost, "step"),
                trained.as_secs()
            ),
        };
        let reason = format!("every worker that held the training state is gone: {what} are lost");
        let hint = match held {
            None => "--on-total-loss restart begins again from the start; the state outlives a failure as long as one \
                     worker keeps it: put workers on more hosts".to_owned(),
            Some(_) => format!(
                "a worker is left that holds step {left}: --on-total-loss restart trains on from there; the state outlives \
                 a failure as long as one worker keeps it: put workers on more hosts"
            ),
        };
        let hint = hint.as_str();
        self.fail(now, &reason, Some(hint));
        true
    }

    /// Whether the job fails rather than repeat its lost training.
    pub(crate) fn is_loss_dear(&self) -> bool {
        match self.config.on_total_loss {
            Some(OnTotalLoss::Fail) => true,
            Some(OnTotalLoss::Restart) => false,
            None => self.state.is_inherited() || self.state.trained() >= CHEAP_TO_REPEAT,
        }
    }

    /// Counts steps that are lost besides those of which [`Self::tell_of_lost_steps`] has told.
    pub(crate) fn lose_further_steps(&mut self, now: Time, steps: u64) {
        match self.round.reset().map(|reset| reset.undone.steps) {
            Some(reported) => self.round.note_lost_steps(reported + steps),
            None => {
                self.state.lose_steps(steps);
                self.record_state(now);
            }
        }
    }

    /// Takes back the loss of steps that this generation begins with: its checkpoint was saved just before the loss, and no driver
    /// had heard of it. Returns their number.
    pub(crate) fn regain_steps(&mut self, now: Time, generation: GenerationId, step: Step) -> u64 {
        if is_planted(Bug::RegainedStepsStayLost) {
            return 0;
        }
        let Some((steps, loss)) = self.state.begins_later(generation, step) else { return 0 };
        // Steps that were lost before the reset under way are in the sum.
        let before = self.round.take_back_lost_steps(steps);
        self.state.take_back_lost_steps(before);
        self.record(&JournalRecord::StateLost { loss });
        self.record_state(now);
        steps
    }

    /// Counts the steps that are lost because the next generation begins at `step`, and reports them. `commits` are the
    /// members'.
    pub(crate) fn tell_of_lost_steps(
        &mut self,
        now: Time,
        next: GenerationId,
        step: Step,
        commits: &[Option<CommitId>],
    ) {
        if self.is_by_restart() {
            return;
        }
        let is_held = commits.iter().any(Option::is_some);
        if is_held {
            // A holder is back before any generation has trained without it.
            self.regain_steps(now, next, step);
        }
        let checkpointed = self.checkpointed_step().filter(|_| !is_held);
        let step = checkpointed.unwrap_or(step);
        let reported = self.round.reset().map_or(0, |reset| reset.undone.steps);
        let rolled_back =
            self.state.committed().map_or(0, |committed| committed.0.saturating_sub(step.0));
        let Some(committed) = self.state.committed().filter(|_| rolled_back > 0 || !is_held) else {
            return;
        };
        if is_planted(Bug::LossNotTold) {
            return;
        }
        let steps_lost = reported + rolled_back;
        if self.round.reset().is_some() {
            self.round.note_lost_steps(steps_lost);
        } else {
            self.state.lose_steps(steps_lost);
        }
        let (generation, begins_at) = (next, step);
        // A member that holds a commit knows of every step that was made.
        let unseen = self.state.has_unseen() && !is_held;
        let loss = StateLossImage { generation, committed, begins_at };
        let loss = self.state.lose(loss, is_held || checkpointed.is_some());
        self.record(&JournalRecord::StateLost { loss });
        self.record_state(now);
        self.event(EventKind::StateLost {
            committed: committed.0,
            begins_at: begins_at.0,
            steps_lost,
            unseen,
        });
    }

    /// Adds the steps of a reset that is over to those of the whole job.
    pub(crate) fn count_lost_steps(&mut self, now: Time, steps_lost: u64) {
        if steps_lost > 0 {
            self.state.lose_steps(steps_lost);
            self.record_state(now);
        }
    }

    /// Checks the part against the phase.
    pub(crate) fn check_state(&self) -> Result<(), String> {
        self.state.check()?;
        let trains = matches!(
            self.round.phase(),
            RoundPhase::Run | RoundPhase::Pausing { .. } | RoundPhase::Stopping { .. }
        );
        if self.state.is_training() && !trains && !self.round.phase().is_over() {
            return Err("training time is counted of a generation that does not train".to_owned());
        }
        Ok(())
    }
}
