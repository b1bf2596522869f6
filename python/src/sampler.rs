//! The order and the shares of an epoch's samples, from the Rust API's sampler; called by `_sampler.py`. Also the
//! positions of a program's samplers, for the Rust API's ledger; called by `session`.

use elastic_worker::state::sampler::{self, DataPass, LedgerPlan, SampleLedger};
use pyo3::prelude::*;

/// A sampler's pass through its data: name, number of samples, seed of the order, batch plan as `(shards, global batch)`, epoch,
/// and samples of it that are done.
pub(crate) type PassTuple = (String, u64, Option<u64>, Option<(u32, u64)>, u64, u64);

/// The ledger with these passes.
pub(crate) fn ledger_of(passes: Vec<PassTuple>) -> SampleLedger {
    let mut ledger = SampleLedger::default();
    for (name, length, seed, plan, epoch, consumed) in passes {
        let plan = plan.map(|(shards, global_batch)| LedgerPlan { shards, global_batch });
        ledger.advance(&DataPass { name, length, seed, plan }, epoch, consumed);
    }
    ledger
}

/// The order of `length` samples in an epoch: the same on every machine.
#[pyfunction]
pub(crate) fn permutation(length: u64, seed: u64, epoch: u64) -> Vec<u64> {
    sampler::permutation(length, seed, epoch)
}

/// One rank's part of the step that follows `consumed` samples of `length`, as
/// `(first, end, end of the step, weight)`, or `None` at the end of the epoch.
#[pyfunction]
pub(crate) fn share(
    consumed: u64,
    length: u64,
    batch: u64,
    world: u32,
    rank: u32,
) -> Option<(u64, u64, u64, f32)> {
    let share = sampler::share(consumed, length, batch, world, rank)?;
    Some((share.local.start, share.local.end, share.global.end, share.weight(world)))
}
