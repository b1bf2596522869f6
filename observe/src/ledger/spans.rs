//! Stretches of training, by the steps that they made, so that steps that are lost later can be found in time. Used by
//! the ledger.

use std::collections::VecDeque;

use elastic_protocol::Time;

/// Stretches that are kept; steps that were made before them cannot be found any more.
const STRETCHES_MAX: usize = 1_024;

/// Training of one generation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct TrainingStretch {
    /// Step at its begin.
    pub(super) from_step: u64,
    /// Step at its end; none while that is not known.
    to_step: Option<u64>,
    /// Its begin.
    start: Time,
    /// Its end; none while it goes on.
    end: Option<Time>,
    /// Slots that train, at its end.
    slots: u64,
}

/// Training that turned out to be lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct LostTraining {
    pub(super) slots: u64,
    pub(super) start: Time,
    pub(super) end: Time,
}

/// The job's training.
#[derive(Clone, Debug, Default)]
pub(super) struct TrainingHistory {
    stretches: VecDeque<TrainingStretch>,
}

impl TrainingHistory {
    /// A generation begins to train at a step.
    pub(super) fn begin(&mut self, now: Time, from_step: u64, slots: u64) {
        self.end(now, slots);
        if self.stretches.len() == STRETCHES_MAX {
            self.stretches.pop_front();
        }
        let stretch = TrainingStretch { from_step, to_step: None, start: now, end: None, slots };
        self.stretches.push_back(stretch);
    }

    /// The generation does not train any more; `slots` did.
    pub(super) fn end(&mut self, now: Time, slots: u64) {
        if let Some(last) = self.stretches.back_mut().filter(|last| last.end.is_none()) {
            last.end = Some(now);
            last.slots = slots;
        }
    }

    /// Cuts the last ended stretch by the time in which its failure was not noticed, and returns that time.
    pub(super) fn cut_detection(&mut self, nanos: u64) -> Option<LostTraining> {
        let stretch = self.last_ended()?;
        let end = stretch.end?;
        let start = Time(end.0.saturating_sub(nanos)).max(stretch.start);
        stretch.end = Some(start);
        Some(LostTraining { slots: stretch.slots, start, end })
    }

    /// Training goes on from `step`, and `steps_lost` beyond it are lost. Returns the training that made them: of each
    /// stretch the share of its steps that is lost, at its end. A stretch that made no step is lost as a whole.
    pub(super) fn lose(&mut self, step: u64, steps_lost: u64) -> Vec<LostTraining> {
        if let Some(last) = self.last_ended() {
            last.to_step.get_or_insert((step + steps_lost).max(last.from_step));
        }
        let mut lost = Vec::new();
        for stretch in self.stretches.iter_mut().rev() {
            let (Some(end), Some(to_step)) = (stretch.end, stretch.to_step) else { continue };
            let made = to_step - stretch.from_step;
            let kept = step.saturating_sub(stretch.from_step).min(made);
            if made > 0 && kept == made {
                break;
            }
            let length = u128::from(end.0 - stretch.start.0);
            let kept_length = match made {
                0 => 0,
                _ => length * u128::from(kept) / u128::from(made),
            };
            // Not more than the length, which is of 64 bits.
            let start = Time(stretch.start.0 + kept_length as u64);
            if start < end {
                lost.push(LostTraining { slots: stretch.slots, start, end });
            }
            stretch.end = Some(start);
            stretch.to_step = Some(stretch.from_step + kept);
        }
        // What is empty now was lost as a whole.
        self.stretches.retain(|stretch| stretch.end.is_none_or(|end| end > stretch.start));
        lost
    }

    fn last_ended(&mut self) -> Option<&mut TrainingStretch> {
        self.stretches.iter_mut().rev().find(|stretch| stretch.end.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_ms(seconds * 1_000)
    }

    fn lost(slots: u64, start: u64, end: u64) -> LostTraining {
        LostTraining { slots, start: at(start), end: at(end) }
    }

    #[test]
    fn lost_steps_are_the_last_of_their_generation() {
        let mut history = TrainingHistory::default();
        history.begin(at(0), 10, 4);
        history.end(at(100), 4);
        assert_eq!(history.cut_detection(20_000_000_000), Some(lost(4, 80, 100)));
        assert_eq!(history.lose(17, 1), [lost(4, 70, 80)], "one of eight steps in 80 s");
        assert_eq!(history.lose(17, 0), [], "what is lost is not lost twice");
    }

    #[test]
    fn the_loss_of_committed_steps_reaches_back_into_earlier_generations() {
        let mut history = TrainingHistory::default();
        history.begin(at(0), 0, 2);
        history.end(at(10), 2);
        assert_eq!(history.lose(10, 0), []);
        history.begin(at(20), 10, 3);
        history.end(at(30), 3);
        // Step 20 was reached, and training goes on from step 5.
        assert_eq!(history.lose(5, 15), [lost(3, 20, 30), lost(2, 5, 10)]);
    }

    #[test]
    fn a_generation_that_made_no_step_is_lost_as_a_whole() {
        let mut history = TrainingHistory::default();
        history.begin(at(0), 7, 2);
        history.end(at(3), 2);
        assert_eq!(history.lose(7, 0), [lost(2, 0, 3)]);
    }
}
