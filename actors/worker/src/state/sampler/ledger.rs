//! The ledger of finished samples: a small table that is saved, restored and synced together with the state.
//! Used by `training`.

use serde::{Deserialize, Serialize};

/// A pass through a data set. Two courses with equal values share one entry of the ledger.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DataPass {
    /// A name that tells data sets of the same length apart.
    pub name: String,
    /// Number of samples.
    pub length: u64,
    /// Seed of the order; `None`: the data set's own order.
    pub seed: Option<u64>,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct PassEntry {
    course: DataPass,
    epoch: u64,
    consumed: u64,
}

/// The progress of each course; the course that was used last is at the end.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SampleLedger {
    entries: Vec<PassEntry>,
}

impl SampleLedger {
    /// The most courses that are remembered. The least recently used one is forgotten first.
    pub const ENTRIES_MAX: usize = 64;

    /// The number of finished samples of this epoch; 0 unless it is the epoch that the course began last.
    pub fn consumed(&self, course: &DataPass, epoch: u64) -> u64 {
        self.entries
            .iter()
            .find(|entry| entry.course == *course && entry.epoch == epoch)
            .map_or(0, |entry| entry.consumed)
    }

    /// Notes the number of finished samples of this epoch.
    pub fn advance(&mut self, course: &DataPass, epoch: u64, consumed: u64) {
        if let Some(last) = self.entries.last_mut()
            && last.course == *course
        {
            (last.epoch, last.consumed) = (epoch, consumed);
            return;
        }
        self.entries.retain(|entry| entry.course != *course);
        if self.entries.len() >= Self::ENTRIES_MAX {
            self.entries.remove(0);
        }
        self.entries.push(PassEntry { course: course.clone(), epoch, consumed });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(length: u64) -> DataPass {
        DataPass { name: String::new(), length, seed: Some(0) }
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
    fn it_does_not_grow_without_end() {
        let mut ledger = SampleLedger::default();
        for length in 0..1_000 {
            ledger.advance(&course(length), 0, 1);
        }
        assert_eq!(ledger.entries.len(), SampleLedger::ENTRIES_MAX);
        assert_eq!(ledger.consumed(&course(999), 0), 1);
    }
}
