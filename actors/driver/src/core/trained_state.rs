//! [`TrainedState`]: how far the training state has come, and how many of its steps are lost. A part of the core.
//!
//! The driver does not hold the state. It knows the steps that every member has committed, from the members' reports,
//! and the training time behind them. Both are journaled, so that a new driver counts on.

use std::time::Duration;

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{CommitId, GenerationId, Step, Time, WorkerId};

use super::DriverCore;
use super::config::OnTotalLoss;
use super::output::EventKind;
use super::phase::RoundPhase;
use crate::journal::{Image, JournalRecord, StateLossImage};

/// Training time that a job may lose without being asked: with less behind the state, a job begins again from the
/// start when no `--on-total-loss` is given.
const CHEAP_TO_REPEAT: Duration = Duration::from_secs(60);

/// Interval between two records of the progress.
const RECORDED_EVERY: Duration = Duration::from_secs(10);

/// Progress of the training state, and its losses.
#[derive(Debug, Default)]
pub(crate) struct TrainedState {
    /// Highest step that all members of a generation are known to hold; none until members were told to begin.
    committed: Option<Step>,
    /// Training time behind the state, without the generation that trains now.
    trained: Duration,
    /// Time since which the generation formed last trains; none if it does not.
    trains_since: Option<Time>,
    /// Time of the last record of the progress.
    recorded_at: Option<Time>,
    /// Lost steps in the whole job.
    steps_lost: u64,
    /// The last loss of committed steps.
    loss: Option<StateLossImage>,
}

impl TrainedState {
    /// The progress that a former driver has recorded.
    pub(crate) fn restored(image: &Image) -> Self {
        Self {
            committed: image.committed,
            trained: Duration::from_millis(image.trained_ms),
            trains_since: None,
            recorded_at: None,
            steps_lost: image.steps_lost,
            loss: image.loss.clone(),
        }
    }

    /// Lost steps in the whole job.
    pub(crate) const fn steps_lost(&self) -> u64 {
        self.steps_lost
    }

    /// The last loss of committed steps, in words; none if there was none.
    pub(crate) fn loss_in_words(&self) -> Option<String> {
        self.loss.as_ref().map(|loss| {
            let StateLossImage { generation, committed, begins_at } = loss;
            format!(
                "generation {generation} began again at step {begins_at}, and step {committed} had been committed: \
                 every worker that held it was gone"
            )
        })
    }

    /// All members were told to begin at this step, and take its commit over.
    pub(crate) fn shared(&mut self, step: Step) {
        self.reached(step);
    }

    /// A former driver's generation goes on; `trains`: it was recorded to train.
    pub(crate) fn resumed(&mut self, now: Time, trains: bool) {
        self.trains_since = trains.then_some(now);
    }

    fn reached(&mut self, step: Step) {
        self.committed = self.committed.max(Some(step));
    }

    /// A generation trains.
    pub(crate) const fn trains(&mut self, now: Time) {
        self.trains_since = Some(now);
        self.recorded_at = Some(now);
    }

    /// The generation formed last does not train any more.
    fn rests(&mut self, now: Time) {
        self.trained = self.trained_for(now);
        self.trains_since = None;
    }

    fn trained_for(&self, now: Time) -> Duration {
        self.trained + self.trains_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Forgets the state, since the job begins with another kind of process. The lost steps stay counted.
    pub(crate) fn forget(&mut self) {
        (self.committed, self.trained, self.trains_since) = (None, Duration::ZERO, None);
    }

    /// Checks that training time is only counted of a state that exists.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.trains_since.is_some() && self.committed.is_none() {
            return Err("a generation trains whose members were never told to begin".to_owned());
        }
        Ok(())
    }
}

impl DriverCore {
    /// Notes the step that all members hold, as they have reported it, before the first of them is lost: later
    /// reports of the others are of no commit that all have.
    pub(crate) fn note_committed_step(&mut self) {
        let Some(current) = self.round.current() else { return };
        if self.is_by_restart() || self.state.trains_since.is_none() {
            return;
        }
        let step_of = |worker: &WorkerId| self.roster.workers.get(worker).map(|record| record.step);
        let least = current.alive.iter().filter_map(step_of).min();
        let is_whole = current.alive.len() == current.assignment.world_size() as usize;
        if let Some(step) = least.filter(|_| is_whole) {
            self.state.reached(step);
        }
    }

    /// Records the progress every now and then, for a driver that finds no worker any more.
    pub(crate) fn record_progress(&mut self, now: Time) {
        let is_due = self.state.recorded_at.is_none_or(|at| now >= at + RECORDED_EVERY);
        if is_due && self.outbox.keeps_records() {
            self.state.recorded_at = Some(now);
            self.note_committed_step();
            self.record_state(now);
        }
    }

    /// The generation formed last does not train any more.
    pub(crate) fn rest_state(&mut self, now: Time) {
        if self.state.trains_since.is_some() {
            self.note_committed_step();
            self.state.rests(now);
            self.record_state(now);
        }
    }

    fn record_state(&mut self, now: Time) {
        let trained = self.state.trained_for(now).as_millis();
        self.record(&JournalRecord::Trained {
            committed: self.state.committed,
            trained_ms: u64::try_from(trained).unwrap_or(u64::MAX),
            steps_lost: self.state.steps_lost,
        });
    }

    /// Fails the job if these members would begin again from the start, although steps have been committed, and the
    /// job may not. True if it has failed.
    pub(crate) fn fails_of_total_loss(&mut self, now: Time, members: &[WorkerId]) -> bool {
        let Some(committed) = self.state.committed else { return false };
        let is_held = members.iter().any(|worker| self.roster.commit_order_of(worker).is_some());
        let trained = self.state.trained;
        let is_dear = match self.config.on_total_loss {
            Some(OnTotalLoss::Fail) => true,
            Some(OnTotalLoss::Restart) => false,
            None => trained >= CHEAP_TO_REPEAT,
        };
        if is_held || !is_dear || self.is_by_restart() || is_planted(Bug::TotalLossTolerated) {
            return false;
        }
        let reason = format!(
            "every worker that held the training state is gone: at least {} steps, committed in {} s of training, \
             are lost",
            committed.0,
            trained.as_secs()
        );
        let hint = "--on-total-loss restart begins again from the start; the state outlives a failure as long as one \
                    worker keeps it: put workers on more hosts";
        self.fail(now, &reason, Some(hint));
        true
    }

    /// Counts the steps that are lost because the next generation begins at `step`, and says so. `commits` are the
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
        let reported = self.round.reset().map_or(0, |reset| reset.steps_lost);
        let is_held = commits.iter().any(Option::is_some);
        let rolled_back =
            self.state.committed.map_or(0, |committed| committed.0.saturating_sub(step.0));
        let Some(committed) = self.state.committed.filter(|_| rolled_back > 0 || !is_held) else {
            return;
        };
        if is_planted(Bug::LossNotTold) {
            return;
        }
        let steps_lost = reported + rolled_back;
        if self.round.reset().is_some() {
            self.round.note_lost_steps(steps_lost);
        } else {
            self.state.steps_lost += steps_lost;
        }
        self.state.committed = Some(step).filter(|_| is_held);
        if !is_held {
            self.state.trained = Duration::ZERO;
        }
        let (generation, begins_at) = (next, step);
        let loss = StateLossImage { generation, committed, begins_at };
        self.record(&JournalRecord::StateLost { loss: loss.clone() });
        self.state.loss = Some(loss);
        self.record_state(now);
        self.event(EventKind::StateLost {
            committed: committed.0,
            begins_at: begins_at.0,
            steps_lost,
        });
    }

    /// Adds the steps of a reset that is over to those of the whole job.
    pub(crate) fn count_lost_steps(&mut self, now: Time, steps_lost: u64) {
        if steps_lost > 0 {
            self.state.steps_lost += steps_lost;
            self.record_state(now);
        }
    }
}

impl DriverCore {
    /// Checks the part against the phase.
    pub(crate) fn check_state(&self) -> Result<(), String> {
        self.state.check()?;
        let trains = matches!(
            self.round.phase(),
            RoundPhase::Run | RoundPhase::Pausing { .. } | RoundPhase::Stopping { .. }
        );
        if self.state.trains_since.is_some() && !trains && !self.round.phase().is_over() {
            return Err("training time is counted of a generation that does not train".to_owned());
        }
        Ok(())
    }
}
