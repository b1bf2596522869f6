//! What digests of one array in one step say, of all members: the same, different, or nothing. Used by `divergence`.

use std::collections::BTreeMap;

use elastic_protocol::messages::TensorDigest;
use elastic_protocol::planted::{Bug, is_planted};
use serde::{Deserialize, Serialize};

/// A member's digest of an array.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) struct RankDigest {
    pub(super) tensor: u64,
    pub(super) rank: u32,
    digest: u64,
    changed: bool,
}

/// What the digests of one array say.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum ArrayVerdict {
    /// All hold the same; `changed`: and the step has changed it on all of them.
    Same { changed: bool },
    /// They differ. `agreeing` ranks, no more than any others, hold what `outvoted` do not; with a majority these are wrong, else
    /// nobody knows.
    Differ { outvoted: Vec<u32>, agreeing: u32 },
    /// These ranks have no such array.
    Lacking { ranks: Vec<u32> },
}

impl RankDigest {
    pub(super) const fn new(rank: u32, digest: TensorDigest) -> Self {
        let TensorDigest { tensor, digest, changed, .. } = digest;
        Self { tensor, rank, digest, changed }
    }
}

/// Judges the digests of one array, one of each rank that has told one.
pub(super) fn judge(digests: &[RankDigest], members: u32) -> ArrayVerdict {
    let mut groups: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for digest in digests {
        groups.entry(digest.digest).or_default().push(digest.rank);
    }
    let has_told = |rank: &u32| digests.iter().any(|digest| digest.rank == *rank);
    let ranks: Vec<u32> = (0..members).filter(|rank| !has_told(rank)).collect();
    if !ranks.is_empty() {
        return ArrayVerdict::Lacking { ranks };
    }
    // Of groups of one size, the one with the lowest rank; it matters only where there is no majority.
    let largest = groups.values().max_by_key(|ranks| (ranks.len(), std::cmp::Reverse(ranks[0])));
    let Some(largest) = largest else { return ArrayVerdict::Lacking { ranks: Vec::new() } };
    if groups.len() == 1 {
        return ArrayVerdict::Same { changed: digests.iter().all(|digest| digest.changed) };
    }
    let agreeing = u32::try_from(largest.len()).unwrap_or(u32::MAX);
    let is_majority = agreeing * 2 > members;
    let is_wrong = |rank: &u32| match is_planted(Bug::MajorityIsWrong) {
        true => largest.contains(rank),
        // Without a majority, each of them may be wrong.
        false => !is_majority || !largest.contains(rank),
    };
    ArrayVerdict::Differ { outvoted: (0..members).filter(is_wrong).collect(), agreeing }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(digests: &[u64], members: u32) -> ArrayVerdict {
        let of = |(rank, digest): (usize, &u64)| {
            let digest = TensorDigest { step: 1, tensor: 5, digest: *digest, changed: rank > 0 };
            RankDigest::new(rank as u32, digest)
        };
        judge(&digests.iter().enumerate().map(of).collect::<Vec<_>>(), members)
    }

    #[test]
    fn c_6_the_majority_is_right() {
        let differ = |outvoted: &[u32], agreeing| ArrayVerdict::Differ {
            outvoted: outvoted.to_vec(),
            agreeing,
        };
        assert_eq!(verdict(&[7, 7, 7], 3), ArrayVerdict::Same { changed: false });
        assert_eq!(verdict(&[7, 9, 7], 3), differ(&[1], 2));
        assert_eq!(verdict(&[9, 7, 8, 7, 7], 5), differ(&[0, 2], 3));
    }

    #[test]
    fn c_6_without_a_majority_nobody_is_right() {
        let differ = |members: u32, agreeing| ArrayVerdict::Differ {
            outvoted: (0..members).collect(),
            agreeing,
        };
        assert_eq!(verdict(&[7, 9], 2), differ(2, 1));
        assert_eq!(verdict(&[7, 9, 9, 7], 4), differ(4, 2));
        assert_eq!(verdict(&[1, 2, 3], 3), differ(3, 1));
    }

    #[test]
    fn an_array_that_a_rank_does_not_have_is_not_judged() {
        assert_eq!(verdict(&[7, 9], 3), ArrayVerdict::Lacking { ranks: vec![2] });
    }
}
