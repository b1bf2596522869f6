//! CUDA's driver, as far as collectives need it: devices, streams, events and memory. Called by `nccl`, by the
//! actor, and by [`crate::DeviceState`].

mod api;
mod device;
mod memory;
mod stream;

pub use api::{Cuda, CudaError};
pub use device::{Device, DeviceFacts};
pub use memory::{DeviceBuffer, PinnedBuffer};
pub use stream::{CudaEvent, Stream};
