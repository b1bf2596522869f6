//! Selection of wanted slots where there are more slots than workers: the best claims are kept, and updated as claims
//! come and go. Used by `seating`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// A slot's claim to a worker: smaller comes before larger.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) struct SlotClaim {
    /// Firmness of the claim; 0 is firmest.
    pub(crate) rank: u8,
    /// The slot's place.
    pub(crate) seat: SlotPosition,
}

/// A slot's place among all slots: by its host's position, the oldest first, then by its number.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) struct SlotPosition {
    pub(crate) position: u64,
    pub(crate) slot: u32,
}

/// The best `cap` claims, and the spare ones.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Selection {
    cap: usize,
    kept: BTreeSet<SlotClaim>,
    spare: BTreeSet<SlotClaim>,
}

impl Selection {
    pub(crate) const fn new(cap: usize) -> Self {
        Self { cap, kept: BTreeSet::new(), spare: BTreeSet::new() }
    }

    pub(crate) const fn cap(&self) -> usize {
        self.cap
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(crate) fn is_kept(&self, claim: &SlotClaim) -> bool {
        self.kept.contains(claim)
    }

    /// Adds a claim. Returns the claim that it displaces, if any.
    pub(crate) fn insert(&mut self, claim: SlotClaim) -> Option<SlotClaim> {
        if self.kept.len() < self.cap {
            self.kept.insert(claim);
            return None;
        }
        let displaced = self.kept.last().copied().filter(|last| claim < *last);
        let Some(displaced) = displaced else {
            self.spare.insert(claim);
            return None;
        };
        self.kept.remove(&displaced);
        self.spare.insert(displaced);
        self.kept.insert(claim);
        Some(displaced)
    }

    /// Removes a claim. Returns the spare claim that takes its place, if any.
    pub(crate) fn remove(&mut self, claim: &SlotClaim) -> Option<SlotClaim> {
        if !self.kept.remove(claim) {
            self.spare.remove(claim);
            return None;
        }
        let next = self.spare.pop_first()?;
        self.kept.insert(next);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_best_are_kept_however_they_come_and_go(
            cap in 0_usize..6,
            changes in vec((any::<bool>(), 0_u8..3, 0_u64..4, 0_u32..2), 0..60),
        ) {
            let mut selection = Selection::new(cap);
            let mut all = BTreeSet::new();
            for (comes, rank, position, slot) in changes {
                let claim = SlotClaim { rank, seat: SlotPosition { position, slot } };
                if comes && all.insert(claim) {
                    selection.insert(claim);
                } else if !comes && all.remove(&claim) {
                    selection.remove(&claim);
                }
                let best: BTreeSet<SlotClaim> = all.iter().copied().take(cap).collect();
                prop_assert_eq!(&selection.kept, &best);
                prop_assert_eq!(selection.spare.len(), all.len() - best.len());
            }
        }
    }
}
