//! Which of the slots that could have a worker are to have one, where there may be more slots than workers:
//! those with the best claims, kept up to date as claims come and go. Used by `seating`.

use std::collections::BTreeSet;

/// A slot's claim to a worker: smaller comes before larger.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Claim {
    /// How firmly the slot is held; 0 is firmest.
    pub(crate) rank: u8,
    /// Its host's place, and its own.
    pub(crate) seat: Seat,
}

/// A slot's place among all: by its host's, the oldest first, then by its number.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Seat {
    pub(crate) position: u64,
    pub(crate) slot: u32,
}

/// The best `cap` claims, and the others.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Selection {
    cap: usize,
    kept: BTreeSet<Claim>,
    spare: BTreeSet<Claim>,
}

impl Selection {
    pub(crate) const fn new(cap: usize) -> Self {
        Self { cap, kept: BTreeSet::new(), spare: BTreeSet::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(crate) fn is_kept(&self, claim: &Claim) -> bool {
        self.kept.contains(claim)
    }

    /// A claim comes; the one that it displaces, if any.
    pub(crate) fn insert(&mut self, claim: Claim) -> Option<Claim> {
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

    /// A claim goes; the one that follows, if any.
    pub(crate) fn remove(&mut self, claim: &Claim) -> Option<Claim> {
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
                let claim = Claim { rank, seat: Seat { position, slot } };
                if comes && all.insert(claim) {
                    selection.insert(claim);
                } else if !comes && all.remove(&claim) {
                    selection.remove(&claim);
                }
                let best: BTreeSet<Claim> = all.iter().copied().take(cap).collect();
                prop_assert_eq!(&selection.kept, &best);
                prop_assert_eq!(selection.spare.len(), all.len() - best.len());
            }
        }
    }
}
