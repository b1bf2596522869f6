//! Compares the members' digests of one array in one step. Called by `handlers`, once all members have sent theirs.

use std::collections::{BTreeMap, BTreeSet};

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

/// Result of a comparison of one array's digests.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum ArrayVerdict {
    /// All members hold the same content. `changed`: the step has changed the array on all of them.
    Same { changed: bool },
    /// Members hold different content. `agreeing` is the size of the largest group with the same content. If that is a
    /// majority, `outvoted` are the ranks outside of it. Otherwise the right content is unknown, and `outvoted` are all ranks.
    Differ { outvoted: Vec<u32>, agreeing: u32 },
    /// These ranks have sent no digest of the array.
    Lacking { ranks: Vec<u32> },
}

impl RankDigest {
    pub(super) const fn new(rank: u32, digest: TensorDigest) -> Self {
        let TensorDigest { tensor, digest, changed, .. } = digest;
        Self { tensor, rank, digest, changed }
    }

    /// Whether it is about a sampler's pass.
    pub(super) const fn is_pass(&self) -> bool {
        TensorDigest::is_pass_id(self.tensor)
    }
}

/// The ways in which the members go through a sampler's pass, each with its ranks, if they go through it apart: all of them have
/// drawn from it, and not one way is common to all. A member that has drawn from it in several ways has sent a digest of each.
pub(super) fn ways_apart(
    digests: &[RankDigest],
    members: u32,
) -> Option<Vec<(u64, BTreeSet<u32>)>> {
    let mut ways: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    for digest in digests {
        ways.entry(digest.digest).or_default().insert(digest.rank);
    }
    let ranks: BTreeSet<u32> = ways.values().flatten().copied().collect();
    let is_common = |ranks: &BTreeSet<u32>| ranks.len() >= members as usize;
    let have_one = match is_planted(Bug::FurtherWayIsApart) {
        true => ways.values().all(is_common),
        false => ways.values().any(is_common),
    };
    if !is_common(&ranks) || have_one || is_planted(Bug::PassesNotCompared) {
        return None;
    }
    let mut ways: Vec<_> = ways.into_iter().collect();
    ways.sort_by_key(|(_, ranks)| ranks.first().copied());
    Some(ways)
}

/// Compares the digests of one array, at most one of each rank.
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
    // Of groups of equal size, the one with the lowest rank. The choice matters only without a majority.
    let largest = groups.values().max_by_key(|ranks| (ranks.len(), std::cmp::Reverse(ranks[0])));
    let Some(largest) = largest else { return ArrayVerdict::Lacking { ranks: Vec::new() } };
    if groups.len() == 1 {
        return ArrayVerdict::Same { changed: digests.iter().all(|digest| digest.changed) };
    }
    let agreeing = u32::try_from(largest.len()).unwrap_or(u32::MAX);
    let is_majority = agreeing * 2 > members;
    let is_wrong = |rank: &u32| match is_planted(Bug::MajorityIsWrong) {
        true => largest.contains(rank),
        // Without a majority, each rank may be wrong.
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
    fn h_23_ranks_go_through_a_pass_apart_if_all_draw_from_it_and_no_way_is_common_to_all() {
        let apart = |ways: &[(u32, u64)]| {
            let told = |digest| TensorDigest { step: 1, tensor: 5, digest, changed: true };
            let of = |(rank, way): &(u32, u64)| RankDigest::new(*rank, told(*way));
            ways_apart(&ways.iter().map(of).collect::<Vec<_>>(), 3)
        };
        assert_eq!(apart(&[(0, 7), (1, 7), (2, 7)]), None);
        assert_eq!(apart(&[(0, 7), (0, 8)]), None, "a pass of rank 0 only");
        assert_eq!(apart(&[(0, 7), (0, 8), (1, 7), (2, 7)]), None, "and one more of rank 0");
        let ways = apart(&[(0, 9), (1, 7), (2, 9)]).expect("rank 1 goes its own way");
        assert_eq!(ways, [(9, BTreeSet::from([0, 2])), (7, BTreeSet::from([1]))]);
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
