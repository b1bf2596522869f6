//! Bytes that a worker moves in bulk beside or before training: a state that it takes over, a checkpoint that it loads or
//! saves. Told by the worker, and shown by `status` and the driver's line.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Kinds of bulk transfers.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkWork {
    /// The worker reads its share of a checkpoint.
    LoadsCheckpoint,
    /// A member takes the root's commit over.
    TakesState,
    /// A member writes its part of a checkpoint.
    SavesCheckpoint,
}

impl BulkWork {
    /// Whether it is done before training, so that training waits for it.
    pub const fn is_sync(self) -> bool {
        !matches!(self, Self::SavesCheckpoint)
    }
}

impl fmt::Display for BulkWork {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::LoadsCheckpoint => "loads a checkpoint",
            Self::TakesState => "takes the state over",
            Self::SavesCheckpoint => "saves a checkpoint",
        })
    }
}

/// Progress of a bulk transfer.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MovedBytes {
    /// The kind of transfer.
    pub work: BulkWork,
    /// Bytes so far.
    pub done: u64,
    /// Bytes in all, as far as is known.
    pub total: u64,
}

impl MovedBytes {
    /// The sum over several workers. If they do different kinds of work, only the earliest kind counts.
    pub fn together(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        all.into_iter().fold(None, |sum: Option<Self>, one| match sum {
            Some(sum) if sum.work == one.work => Some(Self {
                work: sum.work,
                done: sum.done.saturating_add(one.done),
                total: sum.total.saturating_add(one.total),
            }),
            Some(sum) if sum.work < one.work => Some(sum),
            _ => Some(one),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_several_workers_are_one_sum_and_the_root_that_loads_comes_first() {
        let takes = |done| MovedBytes { work: BulkWork::TakesState, done, total: 10 };
        let loads = MovedBytes { work: BulkWork::LoadsCheckpoint, done: 1, total: 4 };
        assert_eq!(MovedBytes::together([]), None);
        let two = MovedBytes { work: BulkWork::TakesState, done: 7, total: 20 };
        assert_eq!(MovedBytes::together([takes(3), takes(4)]), Some(two));
        assert_eq!(MovedBytes::together([takes(3), loads, takes(4)]), Some(loads));
    }
}
