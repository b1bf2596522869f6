//! [`StateDigests`]: digests of the arrays of a worker's commits. Made by workers, carried by their progress, compared by the
//! driver, which finds replicas that differ.

use serde::{Deserialize, Serialize};

/// The digest of a part of an array in one commit. The choice of the part follows from the step, the array's name and
/// the size of the state: it is the same on all ranks of one step.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct TensorDigest {
    /// The commit's step.
    pub step: u64,
    /// The array: XXH3-64 of its name.
    pub tensor: u64,
    /// XXH3-64 of the part's bytes, which depends on the array's length and on the place of the part, too.
    pub digest: u64,
    /// Whether the part is another one than in the commit before, as far as the worker knows.
    pub changed: bool,
}

/// Upper half of the numbers of samplers' passes, which stand among the digests of arrays: one of 2^32 arrays has it by chance.
const PASS_MARK: u64 = 0x7061_7373;

impl TensorDigest {
    /// The number of a sampler's pass, or of a way through it, whose words have this hash. All ranks must go through a pass in
    /// the same way, and it is no array.
    pub const fn pass_id(hash: u64) -> u64 {
        PASS_MARK << 32 | hash & u32::MAX as u64
    }

    /// Whether a digest's `tensor` is the number of a sampler's pass. The `digest` is then the number of the way through it; both
    /// have names in words, which each rank sends.
    pub const fn is_pass_id(tensor: u64) -> bool {
        tensor >> 32 == PASS_MARK
    }
}

/// The name of an array.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TensorName {
    /// XXH3-64 of the name.
    pub id: u64,
    /// The name, as the program names it; at most [`StateDigests::NAME_BYTES_MAX`] bytes.
    pub tensor: String,
}

/// Digests of the commits of a range of steps.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct StateDigests {
    /// The step after which it begins.
    pub since: u64,
    /// Its last step. An array without a digest in a step of the range was not due there, or this worker does not have it.
    pub through: u64,
    /// The digests, by step; at most [`StateDigests::DIGESTS_MAX`].
    pub digests: Vec<TensorDigest>,
    /// The names of arrays that are among them, from rank 0 only, and those of passes, from each rank; at most
    /// [`StateDigests::NAMES_MAX`].
    pub names: Vec<TensorName>,
}

impl StateDigests {
    /// Most digests of one message. If commits are so fast that there are more, the oldest are left out.
    pub const DIGESTS_MAX: usize = 512;

    /// Most names of one message.
    pub const NAMES_MAX: usize = 128;

    /// Longest name, in bytes; a longer one is cut.
    pub const NAME_BYTES_MAX: usize = 256;

    /// Nothing yet, of commits after this step.
    pub const fn after(step: u64) -> Self {
        Self { since: step, through: step, digests: Vec::new(), names: Vec::new() }
    }

    /// Whether it is about no step.
    pub const fn is_empty(&self) -> bool {
        self.since == self.through
    }

    /// Adds later digests. After a gap, only the later part is kept: a range has no holes.
    pub fn extend(&mut self, later: Self) {
        if later.through <= self.through {
            return;
        }
        if later.since != self.through {
            *self = later;
        } else {
            self.through = later.through;
            self.digests.extend(later.digests);
            for name in later.names {
                let is_known = self.names.iter().any(|known| known.id == name.id);
                if !is_known && self.names.len() < Self::NAMES_MAX {
                    self.names.push(name);
                }
            }
        }
        if let Some(over) = self.digests.len().checked_sub(Self::DIGESTS_MAX).filter(|it| *it > 0) {
            // Whole steps only.
            self.since = self.digests[over - 1].step;
            self.digests.retain(|digest| digest.step > self.since);
        }
    }

    /// Takes all digests and names out. Later ones follow from there.
    pub fn take(&mut self) -> Option<Self> {
        let rest = Self::after(self.through);
        let taken = std::mem::replace(self, rest);
        (!taken.is_empty()).then_some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(step: u64, tensors: u64) -> StateDigests {
        let digest = |tensor| TensorDigest { step, tensor, digest: 7, changed: true };
        let names = (0..tensors).map(|id| TensorName { id, tensor: format!("array {id}") });
        let (digests, names) = ((0..tensors).map(digest).collect(), names.collect());
        StateDigests { since: step - 1, through: step, digests, names }
    }

    #[test]
    fn a_range_has_no_holes_and_names_each_array_once() {
        let mut all = StateDigests::after(4);
        all.extend(of(5, 2));
        all.extend(of(6, 2));
        assert_eq!((all.since, all.through, all.digests.len(), all.names.len()), (4, 6, 4, 2));
        all.extend(of(6, 2));
        assert_eq!(all.digests.len(), 4, "no step twice");
        all.extend(of(9, 1));
        assert_eq!((all.since, all.through, all.digests.len()), (8, 9, 1));
        let taken = all.take().expect("there is something");
        assert_eq!((taken.since, taken.through), (8, 9));
        assert_eq!((all.since, all.take()), (9, None));
    }

    #[test]
    fn what_is_too_much_leaves_the_oldest_steps_out_whole() {
        let mut all = StateDigests::after(0);
        for step in 1..=40 {
            all.extend(of(step, 15));
        }
        assert!(all.digests.len() <= StateDigests::DIGESTS_MAX);
        assert_eq!((all.since, all.through), (6, 40), "600 digests, 15 a step");
        assert!(all.digests.iter().all(|digest| digest.step > 6));
    }
}
