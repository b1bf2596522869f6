//! The batch plan, as far as it must not change: global batch and logical shards. The ledger keeps it, so that a commit is
//! never continued by another plan. Used by `training`'s shards, by Python's and by the simulation.

use std::iter;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;
use serde::{Deserialize, Serialize};

/// Part of the key that keeps the random streams of shards apart from the orders of epochs, which have the same seed.
const STREAMS: u64 = 0x7368_6172_6473;

/// The batch plan with which a pass by shards began. It is kept in the ledger, and so in each commit and in a
/// checkpoint's manifest.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LedgerPlan {
    /// Logical shards.
    pub shards: u32,
    /// Samples of a step, of all shards together.
    pub global_batch: u64,
}

/// A batch plan that cannot be carried out here.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidBatchPlan {
    /// Neither the program nor the driver says how many shards there are.
    #[error(
        "the batch plan has no number of shards: give it one in the program, or --shards to the driver"
    )]
    NoShards,
    /// The driver and the program say different numbers.
    #[error(
        "the program's batch plan has {program} shards and the driver's --shards is {driver}: give one of them alone, or the same"
    )]
    TwoNumbers {
        /// The program's.
        program: u32,
        /// The driver's.
        driver: u32,
    },
    /// Some ranks would have no shard.
    #[error(
        "a world of {world} cannot carry {shards} shards: a worker without a shard has nothing to do; cap the world by --max-np {shards}, or by --shards {shards}"
    )]
    WorldAboveShards {
        /// Workers.
        world: u32,
        /// Logical shards.
        shards: u32,
    },
    /// Some shards would have no sample in any step.
    #[error(
        "a global batch of {global_batch} has fewer samples than there are shards, {shards}: give it a larger batch"
    )]
    BatchBelowShards {
        /// Samples of a step.
        global_batch: u64,
        /// Logical shards.
        shards: u32,
    },
    /// The commit was made with another plan, so going on would give other results than either.
    #[error(
        "the state was trained with {} shards of a global batch of {}, and the batch plan is now {} shards of {}: go back to the former plan, or give the pass another name and begin its epoch anew",
        held.shards, held.global_batch, given.shards, given.global_batch
    )]
    OtherPlan {
        /// The commit's.
        held: LedgerPlan,
        /// The program's.
        given: LedgerPlan,
    },
}

impl LedgerPlan {
    /// The plan of a program with this global batch, in a world of this size.
    ///
    /// # Errors
    /// [`InvalidBatchPlan`] names the problem and the remedy.
    pub fn new(
        global_batch: u64,
        program: Option<u32>,
        driver: Option<u32>,
        world: u32,
    ) -> Result<Self, InvalidBatchPlan> {
        let shards = match (program, driver) {
            (Some(program), Some(driver)) if program != driver => {
                return Err(InvalidBatchPlan::TwoNumbers { program, driver });
            }
            (program, driver) => program.or(driver).unwrap_or_default(),
        };
        if shards == 0 {
            return Err(InvalidBatchPlan::NoShards);
        }
        if world > shards {
            return Err(InvalidBatchPlan::WorldAboveShards { world, shards });
        }
        if global_batch < u64::from(shards) {
            return Err(InvalidBatchPlan::BatchBelowShards { global_batch, shards });
        }
        Ok(Self { shards, global_batch })
    }
}

/// The seed of a shard's random stream in the step that begins at `place` of an epoch: a function of these numbers alone, the
/// same on every machine and in every world (the first 64 bits of ChaCha8 at `shard`, keyed by `seed` and `place`, in the
/// epoch's stream).
pub fn shard_seed(seed: u64, epoch: u64, place: u64, shard: u32) -> u64 {
    streams_from(seed, epoch, place, shard).next_u64()
}

/// The seeds of a shard and of those after it, without end, in the step that begins at `place` of an epoch: each is as
/// [`shard_seed`] gives it.
pub fn shard_seeds(seed: u64, epoch: u64, place: u64, first: u32) -> impl Iterator<Item = u64> {
    let mut random = streams_from(seed, epoch, place, first);
    iter::repeat_with(move || random.next_u64())
}

/// The random numbers that are the seeds of a step's shards, from `shard` on.
fn streams_from(seed: u64, epoch: u64, place: u64, shard: u32) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&place.to_le_bytes());
    key[16..24].copy_from_slice(&STREAMS.to_le_bytes());
    let mut random = ChaCha8Rng::from_seed(key);
    random.set_stream(epoch);
    random.set_word_pos(u128::from(shard) * 2);
    random
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn c_2_each_shard_and_step_has_a_random_stream_of_its_own() {
        let mut seeds = BTreeSet::new();
        for seed in 0..3 {
            for epoch in 0..3 {
                for place in 0..20 {
                    let each: Vec<u64> =
                        (0..8).map(|shard| shard_seed(seed, epoch, place, shard)).collect();
                    for first in 0..8 {
                        let after = shard_seeds(seed, epoch, place, first);
                        assert!(after.zip(first..8).all(|(it, at)| it == each[at as usize]));
                    }
                    seeds.extend(each);
                }
            }
        }
        assert_eq!(seeds.len(), 3 * 3 * 20 * 8);
        assert_eq!(shard_seed(1, 2, 3, 4), SEED_ONCE_GIVEN, "a stream once given stays");
    }

    const SEED_ONCE_GIVEN: u64 = 8_985_197_322_725_431_058;

    #[test]
    fn a_plan_that_cannot_be_carried_out_is_refused_with_the_way_out() {
        let plan = |batch, program, driver, world| {
            LedgerPlan::new(batch, program, driver, world).map_err(|error| error.to_string())
        };
        assert_eq!(plan(64, Some(8), None, 3), Ok(LedgerPlan { shards: 8, global_batch: 64 }));
        assert_eq!(plan(64, None, Some(8), 8), Ok(LedgerPlan { shards: 8, global_batch: 64 }));
        assert!(plan(64, None, None, 1).is_err_and(|error| error.contains("--shards")));
        assert!(
            plan(64, Some(8), Some(4), 1)
                .is_err_and(|error| error.contains("driver's --shards is 4"))
        );
        assert!(plan(64, Some(8), None, 9).is_err_and(|error| error.contains("--max-np 8")));
        assert!(plan(7, Some(8), None, 1).is_err_and(|error| error.contains("larger batch")));
    }
}
