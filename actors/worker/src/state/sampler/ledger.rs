//! Which samples are done: a small table that is saved, restored and synced together with the state.

use serde::{Deserialize, Serialize};

/// What is walked through: two courses with equal values share one place in the ledger.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Course {
    /// Tells two data sets of one length apart.
    pub name: String,
    /// Number of samples.
    pub length: u64,
    /// Seed of the order; `None`: in the data set's own order.
    pub seed: Option<u64>,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Entry {
    course: Course,
    epoch: u64,
    consumed: u64,
}

/// How far each course is, the one used last at the end.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Ledger {
    entries: Vec<Entry>,
}

impl Ledger {
    /// Courses that are remembered; the one that was not used for longest is forgotten first.
    pub const ENTRIES_MAX: usize = 64;

    /// Samples of this epoch that are done; 0 for an epoch that was not begun, or not last.
    pub fn consumed(&self, course: &Course, epoch: u64) -> u64 {
        self.entries
            .iter()
            .find(|entry| entry.course == *course && entry.epoch == epoch)
            .map_or(0, |entry| entry.consumed)
    }

    /// Notes how many samples of this epoch are done.
    pub fn advance(&mut self, course: &Course, epoch: u64, consumed: u64) {
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
        self.entries.push(Entry { course: course.clone(), epoch, consumed });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(length: u64) -> Course {
        Course { name: String::new(), length, seed: Some(0) }
    }

    #[test]
    fn courses_do_not_disturb_each_other() {
        let mut ledger = Ledger::default();
        ledger.advance(&course(100), 2, 40);
        ledger.advance(&course(10), 2, 10);
        assert_eq!(ledger.consumed(&course(100), 2), 40);
        assert_eq!(ledger.consumed(&course(100), 3), 0);
        ledger.advance(&course(100), 3, 1);
        assert_eq!(ledger.consumed(&course(100), 2), 0, "a new epoch takes the old one's place");
    }

    #[test]
    fn it_does_not_grow_without_end() {
        let mut ledger = Ledger::default();
        for length in 0..1_000 {
            ledger.advance(&course(length), 0, 1);
        }
        assert_eq!(ledger.entries.len(), Ledger::ENTRIES_MAX);
        assert_eq!(ledger.consumed(&course(999), 0), 1);
    }
}
