//! Copies between the host's memory and a GPU's: a stream, and buffers that are used again. The training thread has
//! one such lane for all generations.

#![expect(unsafe_code, reason = "copies to and from a GPU go on behind the call that queues them")]

use std::sync::{Arc, Mutex, PoisonError};

use crate::cuda::{CudaError, CudaEvent, Device, DeviceBuffer, PinnedBuffer, Stream};

/// Bytes of each buffer: larger data goes piece by piece.
pub const LANE_BYTES: usize = 16 << 20;

/// A stream with the buffers through which data of the host passes.
#[derive(Debug)]
pub struct StagingLane {
    stream: Stream,
    host: PinnedBuffer,
    device: DeviceBuffer,
    idle: CudaEvent,
}

impl StagingLane {
    /// A lane of its own.
    ///
    /// # Errors
    ///
    /// CUDA refused, most often for want of memory.
    pub fn new(device: &Arc<Device>) -> Result<StagingLane, CudaError> {
        Ok(StagingLane {
            stream: Stream::new(device)?,
            host: PinnedBuffer::new(device, LANE_BYTES)?,
            device: DeviceBuffer::new(device, LANE_BYTES)?,
            idle: CudaEvent::new(device)?,
        })
    }

    /// Its stream.
    pub const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Its memory on the GPU.
    pub const fn device(&self) -> &DeviceBuffer {
        &self.device
    }

    /// The host's side of it, while nothing is under way.
    pub fn host(&mut self) -> &mut [u8] {
        self.host.as_mut_slice()
    }

    /// Queues the first bytes of the host's side for the GPU.
    pub(crate) fn up(&self, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: both buffers live as long as the stream, and `host` waits until nothing is under way.
        unsafe { self.stream.copy_to_device(&self.host, bytes, &self.device, 0) }
    }

    /// Queues bytes of the GPU's side for the host's first ones, and marks the end of all.
    pub(crate) fn down(&self, offset: usize, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: as above.
        unsafe { self.stream.copy_to_host(&self.device, offset, &self.host, bytes) }?;
        self.idle.record(&self.stream)
    }

    /// Whether everything that was queued has passed.
    pub(crate) fn is_idle(&self) -> Result<bool, CudaError> {
        self.idle.is_passed()
    }

    /// Marks the end of what is queued.
    pub(crate) fn mark(&self) -> Result<(), CudaError> {
        self.idle.record(&self.stream)
    }
}

/// Holder of the lane while no group has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct StagingLaneHome(Arc<Mutex<Option<StagingLane>>>);

impl StagingLaneHome {
    pub(crate) fn take(&self) -> Option<StagingLane> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn give_back(&self, lane: StagingLane) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(lane);
    }
}
