//! Computes the number of shards of each rank from the time that it takes for one. Used by `handlers`, and for each new
//! generation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The time that a member takes for a shard, in thousandths of its peers' time, if it is as fast as they are.
pub(super) const EQUAL_PACE: u32 = 1_000;

/// Numbers of shards with which all ranks together are done first; `paces` has the time of each rank for a shard. Each rank has
/// at least one shard, so `paces` is at most as long as there are shards. With equal paces the shards are dealt evenly, as ranks
/// do by themselves: a lower rank has at most one more than a higher one.
pub(super) fn deal_by_pace(shards: u32, paces: &[u32]) -> Vec<u32> {
    let mut counts = vec![1_u32; paces.len()];
    // Time at which each rank would be done with one shard more. If each shard goes to the rank that would be done first,
    // the longest time is as short as it can be.
    let done = |count: u32, pace: u32| u64::from(count + 1) * u64::from(pace);
    let mut next: BinaryHeap<Reverse<(u64, usize)>> =
        paces.iter().enumerate().map(|(rank, pace)| Reverse((done(1, *pace), rank))).collect();
    let left = u64::from(shards).saturating_sub(paces.len() as u64);
    for _ in 0..left {
        let Some(Reverse((_, rank))) = next.pop() else { break };
        counts[rank] += 1;
        next.push(Reverse((done(counts[rank], paces[rank]), rank)));
    }
    counts
}

/// The time of a step by such a deal, in thousandths of a usual member's time for one shard: that of the slowest rank.
pub(super) fn longest(counts: &[u32], paces: &[u32]) -> u64 {
    let times = counts.iter().zip(paces).map(|(count, pace)| u64::from(*count) * u64::from(*pace));
    times.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// The least time of the slowest rank over all deals.
    fn least(shards: u32, paces: &[u32]) -> u64 {
        let Some((pace, others)) = paces.split_first() else { return 0 };
        if others.is_empty() {
            return u64::from(shards) * u64::from(*pace);
        }
        let most = shards - others.len() as u32;
        let of =
            |count: u32| (u64::from(count) * u64::from(*pace)).max(least(shards - count, others));
        (1..=most).map(of).min().unwrap_or_default()
    }

    #[test]
    fn who_is_slow_carries_less_and_the_slowest_rank_is_done_as_early_as_can_be() {
        assert_eq!(deal_by_pace(8, &[2_000, 1_000, 1_000]), [2, 3, 3]);
        assert_eq!(deal_by_pace(8, &[1_000, 3_000, 1_000]), [4, 1, 3]);
        assert_eq!(deal_by_pace(3, &[9_000, 1_000, 1_000]), [1, 1, 1], "each has one");
        let mut random = ChaCha8Rng::seed_from_u64(18);
        for _ in 0..500 {
            let world = random.random_range(1..5_usize);
            let shards = world as u32 + random.random_range(0..12);
            let paces: Vec<u32> = (0..world)
                .map(|_| if random.random() { 1_000 } else { random.random_range(900..6_000) })
                .collect();
            let counts = deal_by_pace(shards, &paces);
            assert_eq!(counts.iter().sum::<u32>(), shards, "{paces:?}");
            assert!(counts.iter().all(|count| *count > 0), "{paces:?}: {counts:?}");
            assert_eq!(longest(&counts, &paces), least(shards, &paces), "{paces:?}: {counts:?}");
            for (one, other) in (0..world).flat_map(|one| (0..world).map(move |other| (one, other)))
            {
                let is_faster = paces[one] < paces[other];
                assert!(!is_faster || counts[one] >= counts[other], "{paces:?}: {counts:?}");
            }
        }
    }

    #[test]
    fn equal_ranks_are_dealt_to_evenly() {
        for world in 1..=20_u32 {
            for shards in world..=40 {
                let (each, rest) = (shards / world, shards % world);
                let even: Vec<u32> = (0..world).map(|rank| each + u32::from(rank < rest)).collect();
                assert_eq!(deal_by_pace(shards, &vec![EQUAL_PACE; world as usize]), even);
            }
        }
    }
}
