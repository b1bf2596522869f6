//! Streams, which carry work out in order, and events, which are marks in them. Used by the lane, by sessions and by
//! [`crate::DeviceState`].

#![expect(unsafe_code, reason = "the CUDA driver is a C library")]

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUstream};

use super::api::CudaError;
use super::device::Device;
use super::memory::{DeviceBuffer, PinnedBuffer};

/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the process's default stream.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`: a mark alone, which is cheaper.
const NO_TIMING: u32 = 2;

/// A queue of a GPU's work.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    raw: CUstream,
}

// SAFETY: the driver lets any thread use a stream.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream of its own.
    ///
    /// # Errors
    ///
    /// An error of the CUDA driver.
    pub fn new(device: &Arc<Device>) -> Result<Stream, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the stream is written to a live variable.
        let created = unsafe { (device.bind()?.stream_create)(&mut raw, NON_BLOCKING) };
        device.check("cuStreamCreate", created)?;
        Ok(Stream { device: Arc::clone(device), raw })
    }

    pub(crate) const fn raw(&self) -> CUstream {
        self.raw
    }

    /// Its handle, a `CUstream`, for callers that queue work to come before or after.
    pub fn handle(&self) -> u64 {
        self.raw as u64
    }

    /// The GPU whose work it carries out.
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Makes later work of this stream wait for `event`. The host does not wait.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn wait_for(&self, event: &CudaEvent) -> Result<(), CudaError> {
        // SAFETY: both live.
        let waits = unsafe { (self.device.bind()?.stream_wait_event)(self.raw, event.raw, 0) };
        self.device.check("cuStreamWaitEvent", waits)
    }

    /// Queues a copy of `from`'s first bytes into `to` at `offset`.
    ///
    /// # Safety
    ///
    /// Neither is freed, nor `from` changed, before the copy is done.
    pub(crate) unsafe fn copy_to_device(
        &self,
        from: &PinnedBuffer,
        bytes: usize,
        to: &DeviceBuffer,
        offset: usize,
    ) -> Result<(), CudaError> {
        assert!(bytes <= from.len() && offset + bytes <= to.len(), "a copy stays in its buffers");
        let address = to.address() + offset as u64;
        let functions = self.device.bind()?;
        // SAFETY: both ranges are allocated, as was just checked, and the caller keeps them.
        let copied =
            unsafe { (functions.copy_to_device)(address, from.pointer(), bytes, self.raw) };
        self.device.check("cuMemcpyHtoDAsync", copied)
    }

    /// Queues a copy of `from`, from `offset` on, into `to`'s first bytes.
    ///
    /// # Safety
    ///
    /// Neither is freed, nor `to` read, before the copy is done.
    pub(crate) unsafe fn copy_to_host(
        &self,
        from: &DeviceBuffer,
        offset: usize,
        to: &PinnedBuffer,
        bytes: usize,
    ) -> Result<(), CudaError> {
        assert!(bytes <= to.len() && offset + bytes <= from.len(), "a copy stays in its buffers");
        let address = from.address() + offset as u64;
        let functions = self.device.bind()?;
        // SAFETY: as above.
        let copied = unsafe { (functions.copy_to_host)(to.pointer(), address, bytes, self.raw) };
        self.device.check("cuMemcpyDtoHAsync", copied)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(functions) = self.device.bind() {
            // SAFETY: created by `new`, destroyed once; what is queued is still carried out.
            let _ = unsafe { (functions.stream_destroy)(self.raw) };
        }
    }
}

/// A mark in a stream.
#[derive(Debug)]
pub struct CudaEvent {
    device: Arc<Device>,
    raw: CUevent,
}

// SAFETY: the driver lets any thread use an event.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// A mark that is in no stream yet, and so counts as passed.
    ///
    /// # Errors
    ///
    /// An error of the CUDA driver.
    pub fn new(device: &Arc<Device>) -> Result<CudaEvent, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the event is written to a live variable.
        let created = unsafe { (device.bind()?.event_create)(&mut raw, NO_TIMING) };
        device.check("cuEventCreate", created)?;
        Ok(CudaEvent { device: Arc::clone(device), raw })
    }

    /// Puts it behind all that is queued in `stream`.
    ///
    /// # Errors
    ///
    /// An error of the CUDA driver.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live.
        let recorded = unsafe { (self.device.bind()?.event_record)(self.raw, stream.raw()) };
        self.device.check("cuEventRecord", recorded)
    }

    /// Whether the stream has passed it. Never waits.
    ///
    /// # Errors
    ///
    /// An error of the CUDA driver, or of the work before the event.
    pub fn is_passed(&self) -> Result<bool, CudaError> {
        // SAFETY: it lives.
        let answer = unsafe { (self.device.bind()?.event_query)(self.raw) };
        self.device.ready("cuEventQuery", answer)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if let Ok(functions) = self.device.bind() {
            // SAFETY: created by `new`, destroyed once.
            let _ = unsafe { (functions.event_destroy)(self.raw) };
        }
    }
}
