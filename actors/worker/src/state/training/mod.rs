//! The blocking side of the State: what the user's thread runs. `run_loop` is called by the Rust API (and
//! by other languages' bindings); its two ports, the actor thread (`Control`) and the collectives
//! (`Fabric`), are given to it, so tests run it with fakes.

mod batches;
pub mod bulk;
mod control;
mod cpu;
mod device;
mod error;
mod group;
mod life;
mod membership;
mod run_loop;
mod snapshot;
mod state;
mod sync;
#[cfg(test)]
mod tests;
mod transfer;
mod worker;

pub use batches::{Batch, Batches, Dataset, Sampler};
pub use control::{Control, Shared, ThreadMessage};
pub use cpu::CpuGroups;
pub use device::{DeviceError, DeviceMemory};
pub use error::{Error, Result};
pub use group::{Group, Pending};
pub use membership::{Fabric, Membership};
pub use run_loop::run_loop;
pub use state::State;
pub use worker::Worker;
