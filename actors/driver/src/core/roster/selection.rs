//! Selection of wanted slots if there are more slots than workers: the best claims are kept, and updated as claims come
//! and go. Used by `seating`.

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

/// Rank from which on a claim is one of a slot at rest (`replacements`).
pub(crate) const AT_REST: u8 = 4;

/// The best `cap` claims, and the spare ones. Claims of slots at rest are kept only as far as the others are fewer than
/// `floor`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Selection {
    cap: usize,
    #[serde(default)]
    floor: usize,
    /// Number of claims of slots that are not at rest.
    #[serde(default)]
    firm: usize,
    kept: BTreeSet<SlotClaim>,
    spare: BTreeSet<SlotClaim>,
}

impl SlotClaim {
    pub(crate) const fn is_firm(&self) -> bool {
        self.rank < AT_REST
    }
}

impl Selection {
    pub(crate) const fn new(cap: usize) -> Self {
        Self { cap, floor: 0, firm: 0, kept: BTreeSet::new(), spare: BTreeSet::new() }
    }

    /// A selection without claims, with the same bounds.
    pub(crate) fn emptied(&self) -> Self {
        Self { floor: self.floor, ..Self::new(self.cap) }
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Number of claims of slots that are not at rest, kept or spare.
    pub(crate) const fn firm(&self) -> usize {
        self.firm
    }

    pub(crate) fn is_kept(&self, claim: &SlotClaim) -> bool {
        self.kept.contains(claim)
    }

    /// Sets the number of claims below which slots at rest are used. Returns the claims that this keeps or displaces.
    pub(crate) fn set_floor(&mut self, floor: usize) -> Vec<SlotClaim> {
        self.floor = floor;
        self.balance()
    }

    /// Adds a claim. Returns the claims that it displaces.
    pub(crate) fn insert(&mut self, claim: SlotClaim) -> Vec<SlotClaim> {
        self.firm += usize::from(claim.is_firm());
        let is_before_the_last = self.kept.last().is_some_and(|last| claim < *last);
        if is_before_the_last { &mut self.kept } else { &mut self.spare }.insert(claim);
        self.balance()
    }

    /// Removes a claim. Returns the claims that take its place.
    pub(crate) fn remove(&mut self, claim: &SlotClaim) -> Vec<SlotClaim> {
        if self.kept.remove(claim) || self.spare.remove(claim) {
            self.firm -= usize::from(claim.is_firm());
        }
        self.balance()
    }

    /// Moves claims until as many are kept as should be. Claims at rest come last: those to keep are the first ones.
    fn balance(&mut self) -> Vec<SlotClaim> {
        let all = self.kept.len() + self.spare.len();
        let wanted = self.firm.max(self.floor.min(all)).min(self.cap);
        let mut moved = Vec::new();
        while self.kept.len() > wanted {
            moved.extend(self.kept.pop_last().inspect(|last| {
                self.spare.insert(*last);
            }));
        }
        while self.kept.len() < wanted {
            moved.extend(self.spare.pop_first().inspect(|first| {
                self.kept.insert(*first);
            }));
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_best_are_kept_and_those_at_rest_only_below_the_floor(
            cap in 0_usize..6,
            floor in 0_usize..4,
            changes in vec((any::<bool>(), 0_u8..6, 0_u64..4, 0_u32..2), 0..60),
        ) {
            let mut selection = Selection::new(cap);
            selection.set_floor(floor);
            let mut all = BTreeSet::new();
            for (comes, rank, position, slot) in changes {
                let claim = SlotClaim { rank, seat: SlotPosition { position, slot } };
                let before = selection.kept.clone();
                let mut moved = Vec::new();
                if comes && all.insert(claim) {
                    moved = selection.insert(claim);
                } else if !comes && all.remove(&claim) {
                    moved = selection.remove(&claim);
                }
                let is_kept = |(place, claim): &(usize, SlotClaim)| claim.is_firm() || *place < floor;
                let best = all.iter().copied().take(cap).enumerate().filter(is_kept);
                let best: BTreeSet<SlotClaim> = best.map(|(_, claim)| claim).collect();
                prop_assert_eq!(&selection.kept, &best);
                prop_assert_eq!(selection.spare.len(), all.len() - best.len());
                prop_assert_eq!(selection.firm(), all.iter().filter(|claim| claim.is_firm()).count());
                let changed = before.symmetric_difference(&best).filter(|other| **other != claim);
                for other in changed {
                    prop_assert!(moved.contains(other), "{:?} is not told", other);
                }
            }
        }
    }
}
