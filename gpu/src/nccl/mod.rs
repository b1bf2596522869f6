//! The safe interface to NCCL: the library ([`Nccl`]) and a communicator ([`Comm`]) that any thread may abort.

mod api;
mod bounded;
mod comm;
mod operations;
mod patience;

pub use api::{Features, Nccl, NcclError, UniqueId, Version};
pub use bounded::{Bounded, Stuck};
pub use comm::{Comm, CommEnding, Maker};
pub use operations::{Operations, Region};
pub use patience::{CommError, GpuPatience};
