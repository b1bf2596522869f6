//! The collectives of GPU hosts: CUDA and NCCL, loaded at run time, and the actor that owns them in a worker. Called by
//! the Rust API (`src/api`), which puts it between the worker's run loop and the CPU's collectives, and by
//! `elastic-node doctor`.
//!
//! - [`Gpu`] is a worker's GPU with its libraries, or the one line that says why there is none.
//! - [`GpuActor`] owns the communicators: it forms, revokes, ends and watches them.
//! - [`GpuGroups`] forms a generation's group, an [`NcclGroup`], beside the CPU group of the same members.
//! - [`DeviceState`] is training state on the GPU, committed beside the next step.
//! - [`cuda`] and [`nccl`] are the libraries, safely; [`load`] finds them.
//!
//! Three threads take part: the training thread calls collectives, the actor thread decides, and the GPU's thread
//! makes the calls that may block. A call that never returns costs a thread, which is left behind, not the worker.

pub mod actor;
pub mod cuda;
mod device_state;
mod fabric;
mod gpu;
mod group;
mod lane;
pub mod load;
pub mod nccl;
mod offer;
mod session;
mod settings;

pub use actor::{GpuActor, GpuConfig, GpuPort, GpuRequest};
pub use device_state::{CommitCost, DeviceState};
pub use fabric::{GpuGroups, GroupConfig, GroupGeneration};
pub use gpu::{Gpu, NoGpu, SEVERAL_RANKS_PER_GPU, describe_error};
pub use group::{DeviceOperation, NcclGroup, roll_call_deadline};
pub use lane::{LANE_BYTES, StagingLane};
pub use offer::{FormPlan, Health, How, MalformedOffer, Offer, Parent, Spare, plan};
pub use session::{NcclSession, UNDER_WAY_MAX};
pub use settings::{BACKEND, Backend, InvalidSetting, SCOPE, SPARES, Scope, Settings};
