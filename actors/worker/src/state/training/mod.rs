//! The blocking side of the State, which runs on the user's thread. The Rust API (and other languages'
//! bindings) call `run_loop`. Its two ports, the actor thread (`TrainingControl`) and the collectives (`Fabric`), are
//! passed in, so tests run it with fakes.

mod batches;
mod beginning;
pub mod bulk;
mod checkpoint;
mod control;
mod cpu;
mod device;
mod digests;
mod drawn;
mod error;
mod fields;
mod group;
mod late;
mod launched;
mod life;
mod membership;
pub mod per_rank;
mod positional;
mod refused;
mod restored;
mod run_loop;
mod section;
pub mod shaped;
mod shards;
mod snapshot;
mod state;
mod steps;
mod sync;
#[cfg(test)]
mod tests;
mod transfer;
mod undone;
mod walked;
mod worker;

pub use batches::{Batch, Batches, Dataset, Sampler};
pub use checkpoint::CheckpointDesk;
pub use checkpoint::tensors as named_arrays;
pub use control::{ControlShared, StoreOf, StorePort, ThreadMessage, TrainingControl};
pub use cpu::{CpuGroups, NewIp};
pub use device::{DeviceError, DeviceMemory};
pub use error::{Error, Result};
pub use group::{Group, Pending};
pub use late::{LateBlock, announce_late};
pub use membership::{Fabric, GroupDeadlines, Membership};
pub use refused::refuse;
pub use restored::RestoredBlock;
pub use run_loop::run_loop;
pub use section::Section;
pub use shaped::ShapedArray;
pub use shards::{BatchPlan, DataShard, ShardedStep, ShardedSteps};
pub use state::State;
pub use steps::{StepSamples, WaitReading};
pub use worker::Worker;
