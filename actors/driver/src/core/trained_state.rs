//! [`TrainedState`]: the progress of the training state, and the number of lost steps. A part of the core; `state_losses`
//! acts on it.
//!
//! The driver does not hold the state. It knows the steps that every member has committed, from the members' reports,
//! and the training time behind them. Both are journaled, so that a new driver counts on.

use std::time::Duration;

use elastic_protocol::{GenerationId, Step, Time};
use serde::{Deserialize, Serialize};

use crate::journal::{Image, JournalRecord, StateLossImage};

/// Interval between two records of the progress.
const RECORDED_EVERY: Duration = Duration::from_secs(10);

/// The least training time behind a state that was trained: while no driver lived, or before the driver heard that training began.
const UNSEEN: Duration = Duration::from_millis(1);

/// A moment of the driver's clock, and of the wall clock.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct ClockReading {
    at: Time,
    wall_ms: u64,
}

/// Progress of the training state, and its losses.
#[derive(Debug, Default, Deserialize, Serialize)]
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
    /// Whether no generation has trained since that loss, and this driver counted it: the root may find a later checkpoint than
    /// was known.
    #[serde(default)]
    loss_is_open: bool,
    /// Whether the members may have committed later steps while no driver lived, of which none has told this driver.
    #[serde(default)]
    unseen: bool,
    /// The wall clock at the driver's start; none if nobody has told it.
    #[serde(default)]
    clock: Option<ClockReading>,
    /// Time from the former driver's last record of a generation that trained until this driver's start; taken when the takeover
    /// is over.
    #[serde(default)]
    without_a_driver: Option<Duration>,
    /// Wall clock of the former driver's last record.
    #[serde(default)]
    recorded_until_ms: Option<u64>,
    /// Whether the state has come from a checkpoint of an earlier job: the training behind it is not in `trained`.
    #[serde(default)]
    is_inherited: bool,
}

impl TrainedState {
    /// The progress that a former driver has recorded. `wall_ms`: the wall clock now.
    pub(crate) fn restored(image: &Image, now: Time, wall_ms: Option<u64>) -> Self {
        Self {
            committed: image.committed,
            trained: Duration::from_millis(image.trained_ms),
            trains_since: None,
            recorded_at: None,
            steps_lost: image.steps_lost,
            loss: image.loss.clone(),
            loss_is_open: false,
            unseen: false,
            clock: wall_ms.map(|wall_ms| ClockReading { at: now, wall_ms }),
            without_a_driver: None,
            recorded_until_ms: image.trained_until_ms,
            is_inherited: image.is_inherited,
        }
    }

    /// Lost steps in the whole job.
    pub(crate) const fn steps_lost(&self) -> u64 {
        self.steps_lost
    }

    /// The last loss of committed steps.
    pub(crate) const fn loss(&self) -> Option<&StateLossImage> {
        self.loss.as_ref()
    }

    /// The last loss of committed steps, in words; none if there was none, or the job went on from a checkpoint of the last one.
    pub(crate) fn loss_in_words(&self) -> Option<String> {
        let loss = self.loss.as_ref().filter(|loss| loss.begins_at < loss.committed);
        loss.map(|loss| {
            let StateLossImage { generation, committed, begins_at } = loss;
            format!(
                "generation {generation} began again at step {begins_at}, and step {committed} had been committed: \
                 every worker that held it was gone"
            )
        })
    }

    /// Highest step that all members of a generation are known to hold.
    pub(crate) const fn committed(&self) -> Option<Step> {
        self.committed
    }

    /// Training time behind the state, without the generation that trains now.
    pub(crate) const fn trained(&self) -> Duration {
        self.trained
    }

    /// Whether the generation formed last trains.
    pub(crate) const fn is_training(&self) -> bool {
        self.trains_since.is_some()
    }

    /// Goes on with a former driver's generation. `trains`: it was recorded to train; `trains_on`: and not to stop. It may have
    /// trained and committed without a driver even if that is not recorded: that counts as [`UNSEEN`] at least. Returns whether
    /// that is to be recorded.
    pub(crate) fn resumed(&mut self, now: Time, trains: bool, trains_on: bool) -> bool {
        self.trains_since = trains.then_some(now);
        let until = self.recorded_until_ms.filter(|_| trains_on);
        self.without_a_driver = self.wall_ms(now).zip(until).map(|(now_ms, until_ms)| {
            // Clocks of two hosts may differ, and one may have been set back.
            Duration::from_millis(now_ms.saturating_sub(until_ms))
        });
        self.unseen = true;
        self.trained_unseen()
    }

    /// Notes that the state was trained while no driver lived, or before the driver heard that training began: that counts as
    /// [`UNSEEN`] at least. Returns whether that is to be recorded.
    pub(crate) fn trained_unseen(&mut self) -> bool {
        let is_news = self.trained < UNSEEN;
        self.trained = self.trained.max(UNSEEN);
        is_news
    }

    /// The time that a generation may have trained while no driver lived. It is taken once.
    pub(crate) const fn take_time_without_a_driver(&mut self) -> Option<Duration> {
        self.without_a_driver.take()
    }

    /// Notes that the state was trained for longer than was seen.
    pub(crate) fn trained_for_longer(&mut self, unseen: Duration) {
        self.trained += unseen;
    }

    /// Notes that the state has come from a checkpoint of an earlier job.
    pub(crate) const fn inherit(&mut self) {
        self.is_inherited = true;
    }

    /// Whether the state has come from a checkpoint of an earlier job: more training is behind it than `trained`.
    pub(crate) const fn is_inherited(&self) -> bool {
        self.is_inherited
    }

    /// The wall clock at this time, in milliseconds since 1970.
    fn wall_ms(&self, now: Time) -> Option<u64> {
        let ClockReading { at, wall_ms } = self.clock?;
        Some(wall_ms.saturating_add(whole_ms(now.since(at))))
    }

    /// Notes that all members hold this step: they were told to begin at it, or have reported it.
    pub(crate) fn reached(&mut self, step: Step) {
        self.unseen &= Some(step) <= self.committed;
        self.committed = self.committed.max(Some(step));
    }

    /// Whether the members may have committed later steps than the one that is known, before this driver lived.
    pub(crate) const fn has_unseen(&self) -> bool {
        self.unseen
    }

    /// Notes that the members go back to this step, and that the later ones are counted as lost.
    pub(crate) const fn go_back_to(&mut self, step: Step) {
        self.committed = Some(step);
    }

    /// Notes that a generation trains.
    pub(crate) const fn trains(&mut self, now: Time) {
        (self.unseen, self.loss_is_open) = (false, false);
        self.trains_since = Some(now);
        self.recorded_at = Some(now);
    }

    /// Notes that the generation formed last does not train any more.
    pub(crate) fn rests(&mut self, now: Time) {
        self.trained = self.trained_for(now);
        if self.trains_since.take().is_some() {
            self.trained_unseen();
        }
    }

    fn trained_for(&self, now: Time) -> Duration {
        self.trained + self.trains_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Forgets the state, since the job begins anew: from nothing, or with another kind of process. The lost steps stay counted.
    pub(crate) fn forget(&mut self) {
        (self.committed, self.trained, self.trains_since) = (None, Duration::ZERO, None);
        (self.unseen, self.is_inherited) = (false, false);
    }

    /// Whether the progress is to be recorded again. It then counts as recorded.
    pub(crate) fn take_record_due(&mut self, now: Time) -> bool {
        let is_due = self.recorded_at.is_none_or(|at| now >= at + RECORDED_EVERY);
        if is_due {
            self.recorded_at = Some(now);
        }
        is_due
    }

    /// The progress as a record of the journal. While a takeover lasts, it is that of the former driver's last record: should
    /// this driver die, too, the next one counts from there.
    pub(crate) fn to_record(&self, now: Time) -> JournalRecord {
        let (trained, at_ms) = match self.without_a_driver {
            Some(_) => (self.trained, self.recorded_until_ms),
            None => (self.trained_for(now), self.wall_ms(now)),
        };
        JournalRecord::TrainedUntil {
            committed: self.committed,
            trained_ms: whole_ms(trained),
            steps_lost: self.steps_lost,
            at_ms,
            is_inherited: self.is_inherited,
        }
    }

    /// Counts lost steps.
    pub(crate) const fn lose_steps(&mut self, steps: u64) {
        self.steps_lost += steps;
    }

    /// Takes back lost steps.
    pub(crate) const fn take_back_lost_steps(&mut self, steps: u64) {
        self.steps_lost = self.steps_lost.saturating_sub(steps);
    }

    /// Goes on from the step at which a generation begins again. If there is neither a commit nor a checkpoint, it
    /// begins from the start. Returns the loss, which may have begun with an earlier generation that never trained.
    pub(crate) fn lose(&mut self, mut loss: StateLossImage, goes_on: bool) -> StateLossImage {
        self.committed = goes_on.then_some(loss.begins_at);
        if !goes_on {
            (self.trained, self.is_inherited) = (Duration::ZERO, false);
        }
        let open = self.loss.take().filter(|_| self.loss_is_open);
        loss.committed = open.map_or(loss.committed, |open| open.committed.max(loss.committed));
        self.loss = Some(loss.clone());
        (self.loss_is_open, self.unseen) = (true, false);
        loss
    }

    /// This generation begins at an earlier step than was told with the last loss: its checkpoint is gone. Returns the loss as it
    /// is now; none if the loss is of another generation.
    pub(crate) fn begins_earlier(
        &mut self,
        generation: GenerationId,
        step: Step,
    ) -> Option<StateLossImage> {
        let is_open = self.loss_is_open;
        let loss = self.loss.as_mut().filter(|loss| is_open || loss.generation == generation)?;
        (loss.generation, loss.begins_at) = (generation, step);
        Some(loss.clone())
    }

    /// This generation begins at a later step than was told with the last loss. Returns the number of committed steps that were
    /// told to be lost and are not, and the loss as it is now; none if that loss is over, or was told rightly.
    pub(crate) fn begins_later(
        &mut self,
        generation: GenerationId,
        step: Step,
    ) -> Option<(u64, StateLossImage)> {
        let loss = self.loss.as_mut().filter(|_| self.loss_is_open)?;
        let regained = step.min(loss.committed).0.saturating_sub(loss.begins_at.0);
        if regained == 0 {
            return None;
        }
        (loss.generation, loss.begins_at) = (generation, step);
        Some((regained, loss.clone()))
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

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l_1_a_generation_that_trained_while_no_driver_lived_has_trained() {
        for recorded_to_train in [true, false] {
            let mut state = TrainedState::default();
            let is_news = state.resumed(Time::ZERO, recorded_to_train, recorded_to_train);
            assert!(is_news, "it is to be recorded");
            state.rests(Time::ZERO);
            assert!(!state.trained().is_zero(), "recorded to train: {recorded_to_train}");
        }
    }

    #[test]
    fn l_1_a_generation_of_whose_begin_and_end_the_driver_hears_at_once_has_trained() {
        let mut state = TrainedState::default();
        state.rests(Time::ZERO);
        assert!(state.trained().is_zero(), "nothing has begun");
        state.trains(Time::ZERO);
        state.rests(Time::ZERO);
        assert_eq!((state.trained(), state.is_training()), (UNSEEN, false));
    }

    #[test]
    fn l_1_training_time_counts_on_from_a_checkpoint_and_begins_anew_at_the_start() {
        for (goes_on, trained_s, committed) in [(true, 8, Some(Step(3))), (false, 0, None)] {
            let mut state = TrainedState::default();
            state.trains(Time::ZERO);
            state.reached(Step(9));
            state.rests(Time::ZERO + Duration::from_secs(8));
            let generation = GenerationId(2);
            let loss = StateLossImage { generation, committed: Step(9), begins_at: Step(3) };
            state.lose(loss, goes_on);
            assert_eq!(state.trained(), Duration::from_secs(trained_s));
            assert_eq!(state.committed(), committed);
        }
    }
}
