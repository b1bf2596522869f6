//! The ledger of finished samples: a small table that is saved, restored and synced together with the state.
//! Used by `training`.

use serde::{Deserialize, Serialize};

use super::plan::{InvalidBatchPlan, LedgerPlan};

/// A pass through a data set. Two courses with equal values share one entry of the ledger.
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

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct PassEntry {
    course: DataPass,
    epoch: u64,
    consumed: u64,
}

impl PassEntry {
    const fn is_finished(&self) -> bool {
        self.consumed >= self.course.length
    }
}

/// A pass cannot begin: as many are unfinished as the ledger holds.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "the pass {name:?} through {length} samples cannot begin: {} passes are unfinished, and a commit holds no more; walk passes to \
     their end, or give those that are broken off one name and another epoch number each time",
    SampleLedger::ENTRIES_MAX
)]
pub struct TooManyPasses {
    /// The name of the pass.
    pub name: String,
    /// Its number of samples.
    pub length: u64,
}

/// The progress of each course; the course that was used last is at the end.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SampleLedger {
    entries: Vec<PassEntry>,
}

impl SampleLedger {
    /// The most courses that are remembered. Each takes about 10 bytes of each commit and those of its name: 1024 with names of
    /// 20 bytes take 30 KiB. Beyond it, the finished one that was used least recently is forgotten; an unfinished one never is.
    pub const ENTRIES_MAX: usize = 1024;

    /// The number of finished samples of this epoch; 0 unless it is the epoch that the course began last.
    pub fn consumed(&self, course: &DataPass, epoch: u64) -> u64 {
        self.place(course, epoch).unwrap_or(0)
    }

    /// The same; `None` unless it is the epoch that the course began last, or if the course is forgotten.
    pub fn place(&self, course: &DataPass, epoch: u64) -> Option<u64> {
        let is_held = |entry: &&PassEntry| entry.course == *course && entry.epoch == epoch;
        self.entries.iter().find(is_held).map(|entry| entry.consumed)
    }

    /// Notes that a course begins, unless it has begun before.
    ///
    /// # Errors
    /// [`TooManyPasses`]: [`ENTRIES_MAX`](Self::ENTRIES_MAX) others are unfinished.
    pub fn begin(&mut self, course: &DataPass, epoch: u64) -> Result<(), TooManyPasses> {
        if self.entries.iter().any(|entry| entry.course == *course) {
            return Ok(());
        }
        let is_full = self.entries.len() >= Self::ENTRIES_MAX;
        if is_full && !self.entries.iter().any(PassEntry::is_finished) {
            return Err(TooManyPasses { name: course.name.clone(), length: course.length });
        }
        self.advance(course, epoch, 0);
        Ok(())
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

    /// Notes the number of finished samples of this epoch. It never forgets an unfinished course, so the ledger of a program that
    /// calls no [`begin`](Self::begin) grows with its unfinished courses.
    pub fn advance(&mut self, course: &DataPass, epoch: u64, consumed: u64) {
        match self.entries.iter().rposition(|entry| entry.course == *course) {
            Some(at) => self.entries[at..].rotate_left(1),
            None => {
                if self.entries.len() >= Self::ENTRIES_MAX
                    && let Some(oldest) = self.entries.iter().position(PassEntry::is_finished)
                {
                    self.entries.remove(oldest);
                }
                self.entries.push(PassEntry { course: course.clone(), epoch, consumed });
            }
        }
        if let Some(last) = self.entries.last_mut() {
            (last.epoch, last.consumed) = (epoch, consumed);
        }
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(ledger.consumed(&course(100), 2), 0, "a new epoch takes the old one's place");
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
        ledger.advance(&course(100), 2, 100);
        assert_eq!(ledger.other_length(&course(101), 2), None, "a finished pass");
        ledger.advance(&course(100), 2, 40);
        ledger.advance(&course(101), 2, 10);
        assert_eq!(ledger.other_length(&course(101), 2), None, "one that has begun");
    }

    fn named(number: usize) -> DataPass {
        DataPass { name: format!("task {number}"), ..course(20) }
    }

    #[test]
    fn finished_passes_do_not_make_it_grow_without_end() {
        let mut ledger = SampleLedger::default();
        ledger.advance(&course(7), 3, 5);
        for number in 0..2 * SampleLedger::ENTRIES_MAX {
            assert_eq!(ledger.begin(&named(number), 0), Ok(()));
            ledger.advance(&named(number), 0, 20);
        }
        assert_eq!(ledger.entries.len(), SampleLedger::ENTRIES_MAX);
        assert_eq!(ledger.place(&named(0), 0), None, "the oldest");
        assert_eq!(ledger.place(&named(2 * SampleLedger::ENTRIES_MAX - 1), 0), Some(20));
        assert_eq!(ledger.consumed(&course(7), 3), 5, "unfinished, and the oldest of all");
    }

    #[test]
    fn h_23_an_unfinished_pass_is_never_forgotten_and_one_too_many_is_refused() {
        let mut ledger = SampleLedger::default();
        let all = 0..SampleLedger::ENTRIES_MAX;
        for consumed in [5, 10] {
            for number in all.clone() {
                assert_eq!(ledger.begin(&named(number), 0), Ok(()));
                ledger.advance(&named(number), 0, consumed);
            }
        }
        assert!(all.clone().all(|number| ledger.consumed(&named(number), 0) == 10));
        let refused = ledger.begin(&named(all.end), 0).map_err(|error| error.to_string());
        let said = |error: &String| error.contains("1024 passes") && error.contains("task 1024");
        assert!(refused.as_ref().is_err_and(said), "{refused:?}");
        assert_eq!(ledger.begin(&named(3), 1), Ok(()), "one that it holds");
        ledger.advance(&named(9), 0, 20);
        assert_eq!(ledger.begin(&named(all.end), 0), Ok(()), "in the place of a finished one");
        assert_eq!(ledger.place(&named(9), 0), None);
        // As the samplers of a Python program, all of which are in its state.
        ledger.advance(&named(all.end + 1), 0, 5);
        assert_eq!(ledger.entries.len(), all.end + 1);
    }
}
