//! The ledger of finished samples: a small table that is saved, restored and synced together with the state.
//! Used by `training`.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::plan::{InvalidBatchPlan, LedgerPlan};

/// A way through a data set, epoch by epoch. Two courses with equal values are the same one: an epoch of it is a pass.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DataPass {
    /// A name that tells data sets of the same length apart.
    pub name: String,
    /// Number of samples.
    pub length: u64,
    /// Seed of the order; `None`: the data set's own order.
    pub seed: Option<u64>,
    /// The batch plan; `None` where batches are those of ranks.
    pub plan: Option<LedgerPlan>,
}

/// The progress of an epoch of a course, or a run of epochs that are finished. Earlier releases read a run as its last epoch.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct PassEntry {
    course: DataPass,
    /// Of a run, the last one.
    epoch: u64,
    /// Finished samples of the epoch; of a run, the samples of one epoch and the number of epochs before the last.
    consumed: u64,
}

impl PassEntry {
    const fn is_finished(&self) -> bool {
        self.consumed >= self.course.length
    }

    /// Its epochs: one, unless it is a run.
    const fn epochs(&self) -> RangeInclusive<u64> {
        let before = self.consumed.saturating_sub(self.course.length);
        self.epoch.saturating_sub(before)..=self.epoch
    }

    /// An order of runs: the greatest is the one to which a program is least likely to come back before others. Those are the
    /// shortest, and of them the one with the highest number. A training function that begins anew after a reset, and whose epoch
    /// number is not in its state, comes back to its epochs from the first one on: they have low numbers, and follow on each
    /// other. A high number that stands alone is that of an evaluation at some step.
    const fn dispensable(&self) -> (Reverse<u64>, u64) {
        let epochs = self.epochs();
        (Reverse(*epochs.end() - *epochs.start()), *epochs.start())
    }

    fn holds(&self, course: &DataPass, epoch: u64) -> bool {
        self.epochs().contains(&epoch) && self.course == *course
    }

    /// The run of this one's epochs and another's; `None` unless both are finished and one follows on the other.
    fn joined(&self, other: &Self) -> Option<Self> {
        let follows = |first: &Self, then: &Self| {
            first.epoch.checked_add(1).is_some_and(|next| next == *then.epochs().start())
        };
        let are_finished = self.is_finished() && other.is_finished();
        if !are_finished || !(follows(self, other) || follows(other, self)) {
            return None;
        }
        let epoch = self.epoch.max(other.epoch);
        let before = epoch - *self.epochs().start().min(other.epochs().start());
        let consumed = self.course.length.checked_add(before)?;
        (self.course == other.course).then(|| Self { course: self.course.clone(), epoch, consumed })
    }
}

/// A pass cannot begin: as many are unfinished as the ledger holds.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "the pass {name:?} through {length} samples cannot begin: {} passes are unfinished, and a commit holds no more; walk passes \
     to their end, or give those that are broken off one name and another epoch number each time",
    SampleLedger::UNFINISHED_MAX
)]
pub struct TooManyPasses {
    /// The name of the pass.
    pub name: String,
    /// Its number of samples.
    pub length: u64,
}

/// The progress of passes, which are epochs of courses; the one that was used last is at the end.
///
/// A pass that is finished stays so: nobody is given its samples again. Finished epochs that follow on each other take one entry.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SampleLedger {
    entries: Vec<PassEntry>,
}

impl SampleLedger {
    /// The most unfinished passes that are remembered. Each takes about 10 bytes of each commit and those of its name. Beyond it,
    /// the epoch of a course that was used least recently is forgotten, unless it is being walked.
    pub const UNFINISHED_MAX: usize = 1024;
    /// The most finished passes, or runs of them, that are remembered: with names of 20 bytes they take 490 KiB. A program with so many is
    /// one that names each. Beyond it, one is forgotten that is not among the last [`RECENT_MAX`](Self::RECENT_MAX).
    pub const FINISHED_MAX: usize = 16_384;
    /// Of them, the most runs of one course, as of evaluations whose epoch numbers are those of steps. Each commit encodes them:
    /// so many take 0.1 ms, and as many as of all courses would take 2 ms.
    pub const RUNS_MAX: usize = 1024;
    /// The passes that were used last, which are forgotten last. Among equals, it is the newest one before them that is
    /// forgotten, so a program that comes back to all of its passes trains those again that were forgotten and these, not all.
    pub const RECENT_MAX: usize = 1024;

    /// The number of finished samples of this epoch.
    pub fn consumed(&self, course: &DataPass, epoch: u64) -> u64 {
        self.place(course, epoch).unwrap_or(0)
    }

    /// The same; `None` if the pass has not begun, or is forgotten.
    pub fn place(&self, course: &DataPass, epoch: u64) -> Option<u64> {
        // From the end, where the pass is that is being walked.
        let held = self.entries.iter().rev().find(|entry| entry.holds(course, epoch))?;
        Some(held.consumed.min(course.length))
    }

    /// Notes that a pass begins, unless it has begun before. Passes that `is_walked` names are not forgotten for it. Returns the
    /// epoch that is forgotten for it, if samples of it were drawn: another one of its course, before those of others.
    ///
    /// # Errors
    /// [`TooManyPasses`]: [`UNFINISHED_MAX`](Self::UNFINISHED_MAX) others are unfinished, each of a course of its own or walked.
    pub fn begin(
        &mut self,
        course: &DataPass,
        epoch: u64,
        is_walked: impl Fn(&DataPass, u64) -> bool,
    ) -> Result<Option<(DataPass, u64)>, TooManyPasses> {
        if self.place(course, epoch).is_some() {
            return Ok(None);
        }
        let unfinished = self.entries.iter().filter(|entry| !entry.is_finished()).count();
        let mut forgotten = None;
        if unfinished >= Self::UNFINISHED_MAX {
            let is_idle =
                |entry: &PassEntry| !entry.is_finished() && !is_walked(&entry.course, entry.epoch);
            let own = |entry: &PassEntry| is_idle(entry) && entry.course == *course;
            let oldest = self.entries.iter().position(own);
            let Some(oldest) = oldest.or_else(|| self.replaced_epoch(is_idle)) else {
                return Err(TooManyPasses { name: course.name.clone(), length: course.length });
            };
            let PassEntry { course, epoch, consumed } = self.entries.remove(oldest);
            forgotten = (consumed > 0).then_some((course, epoch));
        }
        self.advance(course, epoch, 0);
        Ok(forgotten)
    }

    /// The place of the idle pass that was used least recently of those whose course has a newer unfinished one.
    fn replaced_epoch(&self, is_idle: impl Fn(&PassEntry) -> bool) -> Option<usize> {
        let is_replaced = |at: usize| {
            let mut newer = self.entries[at + 1..].iter().filter(|entry| !entry.is_finished());
            newer.any(|entry| entry.course == self.entries[at].course)
        };
        (0..self.entries.len()).find(|at| is_idle(&self.entries[*at]) && is_replaced(*at))
    }

    /// Checks that no pass by this name, through the same data, was made with another batch plan.
    ///
    /// # Errors
    /// [`InvalidBatchPlan::OtherPlan`].
    pub fn check_plan(&self, course: &DataPass) -> Result<(), InvalidBatchPlan> {
        let Some(given) = course.plan else { return Ok(()) };
        let is_same = |of: &DataPass| (&of.name, of.length) == (&course.name, course.length);
        let held = self.entries.iter().filter(|entry| is_same(&entry.course));
        match held.filter_map(|entry| entry.course.plan).find(|held| *held != given) {
            Some(held) => Err(InvalidBatchPlan::OtherPlan { held, given }),
            None => Ok(()),
        }
    }

    /// The unfinished pass of this epoch that has the course's name, seed and plan and goes through another number of
    /// samples, as (finished samples, all samples); `None` once the course itself has begun. A rank whose data set
    /// has another length than the others' meets it after a sync.
    pub fn other_length(&self, course: &DataPass, epoch: u64) -> Option<(u64, u64)> {
        if self.entries.iter().any(|entry| entry.course == *course) {
            return None;
        }
        let is_other = |entry: &&PassEntry| {
            let as_long = DataPass { length: course.length, ..entry.course.clone() };
            let is_unfinished = (1..entry.course.length).contains(&entry.consumed);
            as_long == *course && entry.epoch == epoch && is_unfinished
        };
        let other = self.entries.iter().rev().find(is_other)?;
        Some((other.consumed, other.course.length))
    }

    /// Notes the number of finished samples of this epoch. A pass that is finished stays so. Returns the finished pass that is
    /// forgotten for it, where as many others are as the ledger holds; of a run, the last epoch. It never forgets an unfinished
    /// pass, so the ledger of a program that calls no [`begin`](Self::begin) grows with its unfinished passes.
    pub fn advance(
        &mut self,
        course: &DataPass,
        epoch: u64,
        consumed: u64,
    ) -> Option<(DataPass, u64)> {
        match self.entries.iter().rposition(|entry| entry.holds(course, epoch)) {
            Some(at) if self.entries[at].is_finished() => return None,
            Some(at) => self.entries[at..].rotate_left(1),
            None => self.entries.push(PassEntry { course: course.clone(), epoch, consumed: 0 }),
        }
        let mut last = self.entries.pop()?;
        last.consumed = consumed.min(course.length);
        if !last.is_finished() {
            self.entries.push(last);
            return None;
        }
        self.entries.retain(|entry| match entry.joined(&last) {
            Some(run) => {
                last = run;
                false
            }
            None => true,
        });
        let forgotten = self.forget_run(course);
        self.entries.push(last);
        forgotten.or_else(|| self.forget_finished())
    }

    /// Makes room for one more run of the course. Returns the last epoch of the one that is forgotten.
    fn forget_run(&mut self, course: &DataPass) -> Option<(DataPass, u64)> {
        let runs = self.entries.iter().enumerate();
        let runs = runs.filter(|(_, entry)| entry.is_finished() && entry.course == *course);
        if runs.clone().count() < Self::RUNS_MAX {
            return None;
        }
        let (at, _) = runs.max_by_key(|(_, entry)| entry.dispensable())?;
        let PassEntry { course, epoch, .. } = self.entries.remove(at);
        Some((course, epoch))
    }

    /// Forgets a finished pass, if there is one too many, and returns it.
    fn forget_finished(&mut self) -> Option<(DataPass, u64)> {
        if self.entries.len() <= Self::FINISHED_MAX {
            return None;
        }
        let finished = self.entries.iter().filter(|entry| entry.is_finished()).count();
        if finished <= Self::FINISHED_MAX {
            return None;
        }
        let recent = self.entries.len().saturating_sub(Self::RECENT_MAX);
        let before = self.entries[..recent].iter().enumerate();
        let before = before.filter(|(_, entry)| entry.is_finished());
        // Of equals, the last one.
        let dispensable = before.max_by_key(|(_, entry)| entry.dispensable()).map(|(at, _)| at);
        let at = dispensable.or_else(|| self.entries.iter().position(PassEntry::is_finished))?;
        let PassEntry { course, epoch, .. } = self.entries.remove(at);
        Some((course, epoch))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn course(length: u64) -> DataPass {
        DataPass { name: String::new(), length, seed: Some(0), plan: None }
    }

    #[test]
    fn courses_do_not_disturb_each_other() {
        let mut ledger = SampleLedger::default();
        ledger.advance(&course(100), 2, 40);
        ledger.advance(&course(10), 2, 10);
        assert_eq!(ledger.consumed(&course(100), 2), 40);
        assert_eq!(ledger.consumed(&course(100), 3), 0);
        ledger.advance(&course(100), 3, 1);
        assert_eq!(ledger.consumed(&course(100), 2), 40, "epochs of a course, neither");
    }

    #[test]
    fn c_2_a_commit_is_not_continued_by_another_batch_plan() {
        let mut ledger = SampleLedger::default();
        let with = |shards, global_batch| DataPass {
            plan: Some(LedgerPlan { shards, global_batch }),
            ..course(100)
        };
        ledger.advance(&with(8, 64), 0, 64);
        assert_eq!(ledger.check_plan(&with(8, 64)), Ok(()));
        for other in [with(4, 64), with(8, 32)] {
            let refused = ledger.check_plan(&other).map_err(|error| error.to_string());
            assert!(refused.is_err_and(|error| error.contains("8 shards of a global batch of 64")));
        }
        let named = DataPass { name: "phase 2".to_owned(), ..with(4, 64) };
        assert_eq!(ledger.check_plan(&named), Ok(()), "another pass");
        assert_eq!(ledger.check_plan(&course(100)), Ok(()), "batches of ranks");
    }

    #[test]
    fn h_23_an_unfinished_pass_through_another_number_of_samples_is_found() {
        let mut ledger = SampleLedger::default();
        assert_eq!(ledger.other_length(&course(101), 2), None, "nothing has begun");
        ledger.advance(&course(100), 2, 40);
        assert_eq!(ledger.other_length(&course(101), 2), Some((40, 100)));
        assert_eq!(ledger.other_length(&course(100), 2), None, "the pass itself");
        assert_eq!(ledger.other_length(&course(101), 3), None, "another epoch");
        let named = DataPass { name: "validation".to_owned(), ..course(10) };
        assert_eq!(ledger.other_length(&named, 2), None, "another pass");
        let in_order = DataPass { seed: None, ..course(10) };
        assert_eq!(ledger.other_length(&in_order, 2), None, "another order");
        ledger.advance(&course(102), 2, 40);
        ledger.advance(&course(101), 2, 10);
        assert_eq!(ledger.other_length(&course(101), 2), None, "one that has begun");
        let mut ledger = SampleLedger::default();
        ledger.advance(&course(100), 2, 100);
        assert_eq!(ledger.other_length(&course(101), 2), None, "a finished pass");
    }

    fn named(number: usize) -> DataPass {
        DataPass { name: format!("task {number}"), ..course(20) }
    }

    impl SampleLedger {
        /// A ledger with so many finished passes, each of a name of its own.
        pub(crate) fn with_finished(count: usize) -> Self {
            let finished = |number| PassEntry { course: named(number), epoch: 0, consumed: 20 };
            Self { entries: (0..count).map(finished).collect() }
        }
    }

    /// Begins a pass while no other one is walked.
    fn begin(
        ledger: &mut SampleLedger,
        course: &DataPass,
        epoch: u64,
    ) -> Result<(), TooManyPasses> {
        ledger.begin(course, epoch, |_, _| false).map(drop)
    }

    #[test]
    fn h_23_finished_epochs_that_follow_on_each_other_take_one_entry_in_any_order() {
        let mut ledger = SampleLedger::default();
        for epoch in [7, 3, 5, 4, 0, 1, 1_000_000, 2, u64::MAX, u64::MAX - 1] {
            ledger.advance(&course(100), epoch, 99);
            assert_eq!(ledger.place(&course(100), epoch), Some(99));
            ledger.advance(&course(100), epoch, 100);
        }
        ledger.advance(&course(100), 1, 3);
        let runs: Vec<_> = ledger.entries.iter().map(PassEntry::epochs).collect();
        let last_two = u64::MAX - 1..=u64::MAX;
        assert_eq!(runs, [7..=7, 1_000_000..=1_000_000, 0..=5, last_two]);
        assert!((0..6).all(|epoch| ledger.place(&course(100), epoch) == Some(100)));
        assert_eq!(ledger.place(&course(100), 6), None);
        assert_eq!(ledger.place(&course(101), 1), None);
        let bytes = postcard::to_allocvec(&ledger).expect("it encodes");
        assert_eq!(postcard::from_bytes::<SampleLedger>(&bytes).as_ref(), Ok(&ledger));
    }

    #[test]
    fn h_23_a_ledger_of_an_earlier_release_is_read_and_an_earlier_release_reads_a_run_as_its_end() {
        let position = r#"{"entries":[{"course":{"name":"","length":100,"seed":0,"plan":null},"epoch":2,"consumed":100}]}"#;
        let mut ledger: SampleLedger = serde_json::from_str(position).expect("it is one");
        assert_eq!(ledger.place(&course(100), 2), Some(100));
        assert_eq!(serde_json::to_string(&ledger).expect("it is JSON"), position);
        ledger.advance(&course(100), 3, 100);
        let run = position.replace("\"epoch\":2,\"consumed\":100", "\"epoch\":3,\"consumed\":101");
        assert_eq!(serde_json::to_string(&ledger).expect("it is JSON"), run);
    }

    #[test]
    fn h_23_finished_passes_do_not_make_it_grow_without_end_and_few_are_made_again_for_one_forgotten()
     {
        let held = SampleLedger::FINISHED_MAX;
        let mut ledger = SampleLedger::with_finished(held);
        ledger.advance(&course(7), 3, 5);
        ledger.entries.rotate_right(1);
        let mut forgotten = BTreeSet::new();
        for number in held..held + 100 {
            assert_eq!(begin(&mut ledger, &named(number), 0), Ok(()));
            let gone = ledger.advance(&named(number), 0, 20);
            forgotten.extend(gone.map(|(course, _)| course.name));
        }
        assert_eq!((ledger.entries.len(), forgotten.len()), (1 + held, 100));
        assert_eq!(ledger.consumed(&course(7), 3), 5, "unfinished, and the oldest of all");
        let recent = held + 100 - SampleLedger::RECENT_MAX..held + 100;
        assert!(recent.map(named).all(|recent| !forgotten.contains(&recent.name)));
        // A program that comes back to all of them makes one again, and the ledger forgets another.
        let mut made_again = 0;
        for course in (0..held + 100).map(named) {
            if forgotten.remove(&course.name) {
                assert_eq!(ledger.place(&course, 0), None);
                made_again += 1;
                let gone = ledger.advance(&course, 0, 20);
                forgotten.extend(gone.map(|(course, _)| course.name));
            }
        }
        assert!((100..=100 + SampleLedger::RECENT_MAX).contains(&made_again), "{made_again}");
    }

    /// As many runs as one course has: finished epochs, none of which follows on another, from `first` on.
    fn full_of_single_ones(first: u64) -> SampleLedger {
        let epochs = (first..).step_by(2).take(SampleLedger::RUNS_MAX);
        let finished = |epoch| PassEntry { course: course(7), epoch, consumed: 7 };
        SampleLedger { entries: epochs.map(finished).collect() }
    }

    #[test]
    fn h_23_epochs_are_remembered_before_passes_whose_numbers_are_those_of_steps() {
        let mut ledger = full_of_single_ones(1_000_000);
        let mut evaluated: Vec<u64> = ledger.entries.iter().map(|entry| entry.epoch).collect();
        let mut forgotten = BTreeSet::new();
        let mut advance = |ledger: &mut SampleLedger, epoch, consumed| {
            let gone = ledger.advance(&course(7), epoch, consumed);
            forgotten.extend(gone.map(|(_, epoch)| epoch));
        };
        // Evaluations within each epoch; the last epoch is not finished.
        for epoch in 0..3 {
            advance(&mut ledger, epoch, 1);
            for step in 0..SampleLedger::RUNS_MAX as u64 {
                let number = 2_000_000 + 10_000 * epoch + 2 * step;
                advance(&mut ledger, number, 7);
                evaluated.push(number);
            }
            advance(&mut ledger, epoch, if epoch < 2 { 7 } else { 2 });
        }
        let places: Vec<_> = (0..3).filter_map(|epoch| ledger.place(&course(7), epoch)).collect();
        assert_eq!(places, [7, 7, 2]);
        assert_eq!(ledger.entries.len(), 1 + SampleLedger::RUNS_MAX);
        evaluated.retain(|number| ledger.place(&course(7), *number).is_none());
        assert_eq!(evaluated.len(), 3 * SampleLedger::RUNS_MAX + 1);
        assert_eq!(forgotten, evaluated.into_iter().collect(), "each is told");
    }

    #[test]
    fn h_23_a_run_of_epochs_is_remembered_before_single_ones_of_lower_numbers() {
        let mut ledger = full_of_single_ones(0);
        (1_000_000..1_000_002).for_each(|epoch| drop(ledger.advance(&course(7), epoch, 7)));
        for step in 0..2 * SampleLedger::RUNS_MAX as u64 {
            assert!(ledger.advance(&course(7), 100_000 + 2 * step, 7).is_some());
        }
        assert_eq!(ledger.place(&course(7), 1_000_000), Some(7));
    }

    #[test]
    fn h_23_an_unfinished_pass_is_never_forgotten_and_one_too_many_is_refused() {
        let mut ledger = SampleLedger::default();
        let all = 0..SampleLedger::UNFINISHED_MAX;
        for consumed in [5, 10] {
            for number in all.clone() {
                assert_eq!(begin(&mut ledger, &named(number), 0), Ok(()));
                ledger.advance(&named(number), 0, consumed);
            }
        }
        assert!(all.clone().all(|number| ledger.consumed(&named(number), 0) == 10));
        let refused = begin(&mut ledger, &named(all.end), 0).map_err(|error| error.to_string());
        let said = |error: &String| error.contains("1024 passes") && error.contains("task 1024");
        assert!(refused.as_ref().is_err_and(said), "{refused:?}");
        assert_eq!(begin(&mut ledger, &named(3), 1), Ok(()), "in the place of its other epoch");
        assert_eq!(ledger.place(&named(3), 0), None);
        ledger.advance(&named(9), 0, 20);
        assert_eq!(begin(&mut ledger, &named(all.end), 0), Ok(()), "one is finished");
        assert_eq!(ledger.place(&named(9), 0), Some(20));
        // As the samplers of a Python program, all of which are in its state.
        ledger.advance(&named(all.end + 1), 0, 5);
        assert_eq!(ledger.entries.len(), all.end + 2);
    }

    #[test]
    fn h_23_the_epoch_that_was_broken_off_first_gives_way_unless_it_is_walked() {
        let mut ledger = SampleLedger::default();
        let all = 0..SampleLedger::UNFINISHED_MAX as u64;
        all.clone().for_each(|epoch| drop(ledger.advance(&course(7), epoch, epoch % 2)));
        let next = ledger.begin(&course(7), 10_000, |_, epoch| epoch < 2);
        assert_eq!(next, Ok(None), "nothing of it was drawn");
        let next = ledger.begin(&course(7), 10_001, |_, epoch| epoch < 2);
        assert_eq!(next, Ok(Some((course(7), 3))));
        let held: Vec<_> = all.filter(|epoch| ledger.place(&course(7), *epoch).is_none()).collect();
        assert_eq!(held, [2, 3]);
        let refused =
            ledger.begin(&course(7), 101_000, |_, _| true).map_err(|error| error.to_string());
        assert!(refused.as_ref().is_err_and(|text| text.contains("1024 passes")), "{refused:?}");
    }
}
