//! Batch plans and the tree of logical shards, from the Rust API; called by `_shards.py`.

use elastic_worker::state::sampler::{LedgerPlan, ShardDeal, shard_seed, share_of_global};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The number of shards of a plan with this global batch, of which the program and the driver may each say it.
///
/// # Errors
/// `ValueError`: the plan cannot be carried out in a world of this size.
#[pyfunction]
pub(crate) fn plan_shards(
    global_batch: u64,
    program: Option<u32>,
    driver: Option<u32>,
    world: u32,
) -> PyResult<u32> {
    let plan = LedgerPlan::new(global_batch, program, driver, world);
    plan.map(|plan| plan.shards).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// One shard's part of the step that follows `consumed` samples of `length`, as
/// `(first, end, end of the step, weight)`, or `None` at the end of the epoch.
#[pyfunction]
pub(crate) fn shard_share(
    consumed: u64,
    length: u64,
    global_batch: u64,
    shards: u32,
    shard: u32,
) -> Option<(u64, u64, u64, f32)> {
    let share = share_of_global(consumed, length, global_batch, shards, shard)?;
    Some((share.local.start, share.local.end, share.global.end, share.weight(shards)))
}

/// The seed of a shard's random stream in the step that begins at `place` of an epoch.
#[pyfunction]
pub(crate) fn shard_stream(seed: u64, epoch: u64, place: u64, shard: u32) -> u64 {
    shard_seed(seed, epoch, place, shard)
}

/// The deal of a job's logical shards to the ranks.
#[pyclass(name = "ShardDeal", frozen)]
pub(crate) struct PyShardDeal(ShardDeal);

#[pymethods]
impl PyShardDeal {
    /// By the driver's number of shards for each rank, or evenly if it gave none for these shards and this world.
    #[new]
    #[pyo3(signature = (shards, world, counts = Vec::new()))]
    fn new(shards: u32, world: u32, counts: Vec<u32>) -> Self {
        PyShardDeal(ShardDeal::of_job(shards, world, &counts))
    }

    #[getter]
    fn shards(&self) -> u32 {
        self.0.shards()
    }

    #[getter]
    fn world(&self) -> u32 {
        self.0.world()
    }

    /// The first shard of a rank, and the end of its shards.
    fn of(&self, rank: u32) -> (u32, u32) {
        let own = self.0.of(rank);
        (own.start, own.end)
    }

    /// The nodes of the tree that a rank combines by itself, as `(first shard, end)`, in order.
    fn nodes_of(&self, rank: u32) -> Vec<(u32, u32)> {
        self.0.nodes_of(rank).into_iter().map(|node| (node.start, node.end)).collect()
    }
}

/// Whether two nodes beside each other are the two parts of a node of the tree over `total` shards.
#[pyfunction]
pub(crate) fn are_shard_siblings(total: u32, left: (u32, u32), right: (u32, u32)) -> bool {
    elastic_worker::state::sampler::are_siblings(total, (&(left.0..left.1), &(right.0..right.1)))
}
