//! Stretches of training, by the steps that they made, so that steps that are lost later can be found in time. Used by
//! the ledger.

use std::collections::VecDeque;

use elastic_protocol::Time;

use super::bucket::TimeBucket;

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
    /// When its generation was ended, whatever is cut off its end.
    stopped_at: Time,
    /// Slots that train, at its end.
    slots: u64,
    /// Since when it stands still, if it does, or did at its end.
    still_since: Option<Time>,
    /// Time in which it stood still and went on afterwards, in nanoseconds.
    stood_still: u64,
    /// The last such time.
    last_stood: (Time, Time),
    /// Slot-time of it that was booked under other buckets, in nanoseconds.
    waits: StepWaits,
}

/// Slot-time that steps waited, by bucket, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct StepWaits([(u128, Option<TimeBucket>); 3]);

impl StepWaits {
    fn add(&mut self, bucket: TimeBucket, nanos: u128) {
        let place = self.0.iter_mut().find(|(_, of)| of.is_none_or(|of| of == bucket));
        if let Some((sum, of)) = place {
            (*sum, *of) = (*sum + nanos, Some(bucket));
        }
    }
}

/// One as the share of a span.
pub(super) const WHOLE_PPM: u64 = 1_000_000;

/// The time of some slots, or a share of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct SlotSpan {
    pub(super) slots: u64,
    pub(super) start: Time,
    pub(super) end: Time,
    /// Share of the time, in millionths.
    pub(super) share_ppm: u64,
}

impl SlotSpan {
    pub(super) const fn whole(slots: u64, start: Time, end: Time) -> Self {
        Self { slots, start, end, share_ppm: WHOLE_PPM }
    }

    /// The slot-time of so much of it, in nanoseconds.
    pub(super) fn nanos_of(&self, nanos: u64) -> u128 {
        u128::from(nanos) * u128::from(self.slots) * u128::from(self.share_ppm)
            / u128::from(WHOLE_PPM)
    }

    /// Its slot-time in nanoseconds.
    pub(super) fn nanos(&self) -> u128 {
        self.nanos_of(self.end.0.saturating_sub(self.start.0))
    }
}

/// Training that a reset has lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LostTraining {
    /// Step at which training goes on.
    pub(super) goes_on_at: u64,
    /// Lost steps beyond it.
    pub(super) steps: u64,
    /// Those of them that were committed.
    pub(super) committed: u64,
    /// Time from the last commit to the end of the generation, in nanoseconds; 0 if no member has told it.
    pub(super) nanos: u64,
}

/// The job's training.
#[derive(Clone, Debug, Default)]
pub(super) struct TrainingHistory {
    stretches: VecDeque<TrainingStretch>,
}

impl TrainingStretch {
    /// Time in which it was trained, as far as its end is cut, in nanoseconds.
    const fn length(&self, end: Time) -> u64 {
        (end.0 - self.start.0).saturating_sub(self.stood_still)
    }

    /// Begin of its last `nanos` before the generation was ended, without the time in which it stood still.
    fn last_of(&self, nanos: u64) -> Time {
        let from = Time(self.stopped_at.0.saturating_sub(nanos)).max(self.start);
        let (since, until) = self.last_stood;
        let stood = until.0.saturating_sub(since.max(from).0);
        Time(from.0 + stood)
    }

    /// Adds the last part of the stretch to the loss: first the share that was booked as waiting of some kind.
    fn lose_from(
        &mut self,
        start: Time,
        end: Time,
        length: u64,
        lost: &mut Vec<(TimeBucket, SlotSpan)>,
    ) {
        let mut rest_ppm = WHOLE_PPM;
        let slot_time = (u128::from(length) * u128::from(self.slots)).max(1);
        for (nanos, bucket) in &mut self.waits.0 {
            let Some(bucket) = *bucket else { continue };
            // A share of at most the whole.
            let share = *nanos * u128::from(WHOLE_PPM) / slot_time;
            let share_ppm = share.min(u128::from(rest_ppm)) as u64;
            let span = SlotSpan { slots: self.slots, start, end, share_ppm };
            rest_ppm -= share_ppm;
            *nanos = nanos.saturating_sub(span.nanos());
            lost.push((bucket, span));
        }
        let span = SlotSpan { slots: self.slots, start, end, share_ppm: rest_ppm };
        lost.push((TimeBucket::Training, span));
    }
}

impl TrainingHistory {
    /// A generation begins to train at a step.
    pub(super) fn begin(&mut self, now: Time, from_step: u64, slots: u64) {
        self.end(now, slots);
        if self.stretches.len() == STRETCHES_MAX {
            self.stretches.pop_front();
        }
        self.stretches.push_back(TrainingStretch {
            from_step,
            to_step: None,
            start: now,
            end: None,
            stopped_at: now,
            slots,
            still_since: None,
            stood_still: 0,
            last_stood: (now, now),
            waits: StepWaits::default(),
        });
    }

    /// A member hangs: nothing was trained since. Returns the time of training that it was not.
    pub(super) fn stand_still(&mut self, now: Time, since: Time, slots: u64) -> Option<SlotSpan> {
        let open = |stretch: &&mut TrainingStretch| stretch.end.is_none();
        let stretch = self.stretches.back_mut().filter(open)?;
        let since = since.max(stretch.start);
        stretch.still_since = Some(since);
        Some(SlotSpan::whole(slots, since, now))
    }

    /// No member hangs any more.
    pub(super) fn go_on(&mut self, now: Time) {
        let open = |stretch: &&mut TrainingStretch| stretch.end.is_none();
        if let Some(stretch) = self.stretches.back_mut().filter(open)
            && let Some(since) = stretch.still_since.take()
        {
            stretch.stood_still += now.0.saturating_sub(since.0);
            stretch.last_stood = (since, now.max(since));
        }
    }

    /// A share of the last `nanos` of training was waiting of this kind. Returns that time. The generation may have ended a
    /// moment ago.
    pub(super) fn wait(
        &mut self,
        now: Time,
        nanos: u64,
        slots: u64,
        (bucket, share): (TimeBucket, f64),
    ) -> Option<SlotSpan> {
        let stretch = self.stretches.back_mut()?;
        let slots = if stretch.end.is_some() { stretch.slots } else { slots };
        let start = Time(now.0.saturating_sub(nanos)).max(stretch.start);
        let end = stretch.end.or(stretch.still_since).unwrap_or(now).min(now).max(start);
        // Of a share between 0 and 1.
        let share_ppm = (share.clamp(0.0, 1.0) * WHOLE_PPM as f64) as u64;
        let span = SlotSpan { slots, start, end, share_ppm };
        stretch.waits.add(bucket, span.nanos());
        Some(span)
    }

    /// The generation does not train any more; `slots` did.
    pub(super) fn end(&mut self, now: Time, slots: u64) {
        if let Some(last) = self.stretches.back_mut().filter(|last| last.end.is_none()) {
            last.end = Some(last.still_since.unwrap_or(now).min(now));
            last.stopped_at = now;
            last.slots = slots;
        }
    }

    /// Cuts the last ended stretch by the time in which its failure was not noticed, and returns that time. `None` if a
    /// member hung until the end: that time was no training.
    pub(super) fn cut_detection(&mut self, nanos: u64) -> Option<SlotSpan> {
        let stretch = self.last_ended().filter(|stretch| stretch.still_since.is_none())?;
        let end = stretch.end?;
        let start = Time(end.0.saturating_sub(nanos)).max(stretch.start);
        stretch.end = Some(start);
        Some(SlotSpan::whole(stretch.slots, start, end))
    }

    /// Training is lost. Returns it, from the buckets in which it is booked: of the last stretch all that followed its last
    /// commit, if a member has told when that was; then of each stretch the share of its steps that is lost, at its end. A
    /// stretch that made no step is lost as a whole.
    pub(super) fn lose(&mut self, training: &LostTraining) -> Vec<(TimeBucket, SlotSpan)> {
        let step = training.goes_on_at;
        let mut lost = Vec::new();
        if let Some(last) = self.last_ended() {
            let is_timed = training.nanos > 0;
            let steps = if is_timed { training.committed } else { training.steps };
            last.to_step.get_or_insert((step + steps).max(last.from_step));
            let (start, end) = (last.last_of(training.nanos), last.end.unwrap_or(last.start));
            if is_timed && start < end {
                last.lose_from(start, end, last.length(end), &mut lost);
                last.end = Some(start);
            }
        }
        for stretch in self.stretches.iter_mut().rev() {
            let (Some(end), Some(to_step)) = (stretch.end, stretch.to_step) else { continue };
            let made = to_step - stretch.from_step;
            let kept = step.saturating_sub(stretch.from_step).min(made);
            if made > 0 && kept == made {
                break;
            }
            let length = stretch.length(end);
            let kept_length = match made {
                0 => 0,
                _ => u128::from(length) * u128::from(kept) / u128::from(made),
            };
            // Not more than the length, which is of 64 bits.
            let start = Time(end.0 - (length - kept_length as u64));
            if start < end {
                stretch.lose_from(start, end, length, &mut lost);
            }
            stretch.end = Some(start);
            stretch.to_step = Some(stretch.from_step + kept);
        }
        // A stretch that is empty now was lost as a whole.
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

    fn span(slots: u64, start: u64, end: u64) -> SlotSpan {
        SlotSpan::whole(slots, at(start), at(end))
    }

    fn steps(goes_on_at: u64, steps: u64) -> LostTraining {
        LostTraining { goes_on_at, steps, ..LostTraining::default() }
    }

    fn lost(slots: u64, start: u64, end: u64) -> (TimeBucket, SlotSpan) {
        (TimeBucket::Training, span(slots, start, end))
    }

    #[test]
    fn what_followed_the_last_commit_is_lost_though_no_step_was_counted() {
        let mut history = TrainingHistory::default();
        history.begin(at(0), 0, 4);
        history.end(at(100), 4);
        assert!(history.cut_detection(2_000_000_000).is_some(), "it was dead for 2 s");
        let training =
            LostTraining { goes_on_at: 90, steps: 7, committed: 0, nanos: 10_000_000_000 };
        assert_eq!(
            history.lose(&training),
            [lost(4, 90, 98)],
            "the last commit was 10 s before the abort"
        );
        assert_eq!(history.lose(&steps(90, 0)), [], "the committed steps are kept");
    }

    #[test]
    fn time_in_which_a_member_hung_after_the_last_commit_is_not_lost_as_well() {
        let mut history = TrainingHistory::default();
        history.begin(at(0), 0, 2);
        assert!(history.stand_still(at(80), at(70), 2).is_some());
        history.go_on(at(85));
        history.end(at(100), 2);
        let training =
            LostTraining { goes_on_at: 10, steps: 3, committed: 0, nanos: 40_000_000_000 };
        assert_eq!(history.lose(&training), [lost(2, 75, 100)], "40 s, of which it hung for 15");
    }

    #[test]
    fn lost_steps_are_the_last_of_their_generation() {
        let mut history = TrainingHistory::default();
        history.begin(at(0), 10, 4);
        history.end(at(100), 4);
        assert_eq!(history.cut_detection(20_000_000_000), Some(span(4, 80, 100)));
        assert_eq!(history.lose(&steps(17, 1)), [lost(4, 70, 80)], "one of eight steps in 80 s");
        assert_eq!(history.lose(&steps(17, 0)), [], "what is lost is not lost twice");
    }

    #[test]
    fn the_loss_of_committed_steps_reaches_back_into_earlier_generations() {
        let mut history = TrainingHistory::default();
        history.begin(at(0), 0, 2);
        history.end(at(10), 2);
        assert_eq!(history.lose(&steps(10, 0)), []);
        history.begin(at(20), 10, 3);
        history.end(at(30), 3);
        // Step 20 was reached, and training goes on from step 5.
        assert_eq!(history.lose(&steps(5, 15)), [lost(3, 20, 30), lost(2, 5, 10)]);
    }

    #[test]
    fn what_steps_waited_for_is_lost_with_them() {
        let mut history = TrainingHistory::default();
        history.begin(at(0), 0, 2);
        let waited = history.wait(at(100), 50_000_000_000, 2, (TimeBucket::Data, 0.5));
        assert_eq!(
            waited.map(|span| span.nanos()),
            Some(50_000_000_000),
            "half of two slots' 50 s"
        );
        history.end(at(100), 2);
        let quarter = |share_ppm| SlotSpan { share_ppm, ..span(2, 90, 100) };
        let lost = [(TimeBucket::Data, quarter(250_000)), (TimeBucket::Training, quarter(750_000))];
        assert_eq!(
            history.lose(&steps(9, 1)),
            lost,
            "one of ten steps, a quarter of which was data"
        );
    }

    #[test]
    fn a_generation_that_stood_still_trained_for_the_rest_of_its_time() {
        let mut history = TrainingHistory::default();
        history.begin(at(0), 0, 2);
        assert_eq!(history.stand_still(at(30), at(20), 2), Some(span(2, 20, 30)));
        history.go_on(at(40));
        history.stand_still(at(120), at(110), 2);
        history.end(at(130), 2);
        assert_eq!(history.cut_detection(9_000_000_000), None, "it hung until then");
        assert_eq!(history.lose(&steps(8, 1)), [lost(2, 100, 110)], "one of nine steps in 90 s");
    }

    #[test]
    fn a_generation_that_made_no_step_is_lost_as_a_whole() {
        let mut history = TrainingHistory::default();
        history.begin(at(0), 7, 2);
        history.end(at(3), 2);
        assert_eq!(history.lose(&steps(7, 0)), [lost(2, 0, 3)]);
    }
}
