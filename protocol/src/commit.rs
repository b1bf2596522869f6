//! Commits: the order of two snapshots of the training state.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::GenerationId;

/// Number of commits of the training state since the job began. The same on every rank.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct Step(pub u64);

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A snapshot that a worker holds. Ordered by generation, then step, like an entry of a replicated log
/// (Raft §5.4.1): a step that a dead generation reached alone loses against what a later one built on.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct CommitId {
    /// The generation in which it was taken, or last taken over from the root.
    pub generation: GenerationId,
    /// Its step.
    pub step: Step,
    /// XXH3-64 of the serialized state. It is equal on all holders of one commit, and so proves that a sync may be
    /// skipped (G-6).
    pub digest: u64,
}

impl fmt::Display for CommitId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "step {} of generation {}", self.step, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_generation_beats_a_higher_step() {
        let lonely = CommitId { generation: GenerationId(1), step: Step(11), digest: 1 };
        let agreed = CommitId { generation: GenerationId(2), step: Step(10), digest: 2 };
        assert!(agreed > lonely, "G-8");
    }
}
