//! `ElasticSampler`: every sample of a data set exactly once an epoch, over any sequence of world sizes.
//! The user's training function draws batches from it; its ledger travels with the commit.
//!
//! The samples of an epoch stand in one order that all ranks agree on: a permutation by seed and epoch, which
//! does not depend on the world size. The finished samples are always a prefix of that order, so the ledger
//! holds one number. A step takes the next `batch size × world size` samples, and each rank its share of them.
//! The last step may have fewer samples. It distributes them evenly (some ranks get one more, or none), so all
//! ranks make equally many steps, and no sample is padded, dropped, or repeated (H-23).
//!
//! With a batch plan (`plan`), a step takes the next `global batch` samples instead, and each logical shard its share of
//! them: then nothing that is computed depends on the world size.

mod ledger;
mod permutation;
mod plan;
#[cfg(test)]
mod property_tests;
mod share;

pub use elastic_collectives::{ReduceOp, ShardDeal, ShardFold, are_siblings, fold_partial};
pub use ledger::{DataPass, SampleLedger, TooManyPasses};
pub use permutation::permutation;
pub use plan::{InvalidBatchPlan, LedgerPlan, shard_seed, shard_seeds};
pub use share::{StepShare, share, share_of_global};
