//! Elastic Node: distributed training that goes on while machines come and go.
//!
//! This is the Rust API of a training program. Start the program with `elastic-node run` (or under
//! `elastic-node --role driver` on several machines); by itself it is a world of one.
//!
//! ```
//! use elastic_node::ReduceOp;
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Training {
//!     weight: f32,
//!     epoch: u64,
//! }
//!
//! fn main() -> elastic_node::Result<()> {
//!     let data: Vec<f32> = (0..100).map(|number| number as f32 / 100.0).collect();
//!     let state = elastic_node::state(Training { weight: 0.0, epoch: 0 });
//!     elastic_node::run(state, |worker, state| {
//!         while state.epoch < 3 {
//!             for batch in worker.sampler(&data, 8, state.epoch) {
//!                 let slope: f32 = batch.iter().map(|x| 2.0 * x * (state.weight - 3.0) * x).sum();
//!                 let mut gradient = [slope / batch.len().max(1) as f32 * batch.weight()];
//!                 worker.all_reduce(&mut gradient, ReduceOp::Mean)?; // `?` carries aborts and interrupts
//!                 state.weight -= 0.5 * gradient[0];
//!                 state.commit(worker)?;
//!             }
//!             state.epoch += 1;
//!         }
//!         Ok(())
//!     })
//! }
//! ```
//!
//! - [`state`] wraps everything that must survive; [`State::commit`] saves it, and is where a planned change of
//!   the world takes effect.
//! - [`Worker`] has ranks, the collectives of [`Group`], and [`Worker::sampler`], which gives every sample out once an
//!   epoch. [`Worker::shards`] does so by a [`BatchPlan`], with the same bits in a world of any size.
//!   [`Worker::report`] publishes a named number, such as the loss, in the status, the metrics and the dashboard.
//! - [`gpu`] has arrays on the GPU that are part of the state, where there is one.
//! - [`run`] is the loop: sync, train, restore on abort, keep on interrupt.

mod api;

/// State and collectives on the worker's GPU.
pub mod gpu {
    pub use elastic_gpu::cuda::{DeviceBuffer, Stream};
    pub use elastic_gpu::nccl::Region;
    pub use elastic_gpu::{CommitCost, DeviceOperation, NcclGroup};

    pub use crate::api::device::{DeviceArray, LocalGpu, local_gpu, with_nccl};
}

pub use api::{AttachOptions, Attachment, WhileWaiting, attach, run, state};
pub use elastic_collectives::{
    CollectiveError, Communicator, CommunicatorExt, DataType, Element, HostOperation, Operation,
    ReduceOp, ShardDeal, ShardFold, wire::OperationKind,
};
pub use elastic_protocol::messages::InvalidReport;
pub use elastic_worker::state::sampler::{InvalidBatchPlan, TooManyPasses};
pub use elastic_worker::state::training::{
    Batch, BatchPlan, Batches, DataShard, Dataset, DeviceError, DeviceMemory, Error, Group,
    Pending, Result, Sampler, Section, ShapedArray, ShardedStep, ShardedSteps, State, Worker, bulk,
    per_rank, shaped,
};
