//! Memory of a GPU, and page-locked memory of the host for copies at full speed. Used by the lane, by groups and by
//! [`crate::DeviceState`].

#![expect(unsafe_code, reason = "the CUDA driver is a C library")]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use super::api::CudaError;
use super::device::Device;

/// Memory of a GPU.
#[derive(Debug)]
pub struct DeviceBuffer {
    device: Arc<Device>,
    address: CUdeviceptr,
    bytes: usize,
}

impl DeviceBuffer {
    /// Allocates. Its content is unspecified.
    ///
    /// # Errors
    ///
    /// The GPU's memory is full.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<DeviceBuffer, CudaError> {
        let mut address = 0;
        // SAFETY: the address is written to a live variable. Nothing can be allocated of no bytes.
        let allocated = unsafe { (device.bind()?.memory_allocate)(&mut address, bytes.max(1)) };
        device.check("cuMemAlloc", allocated)?;
        Ok(DeviceBuffer { device: Arc::clone(device), address, bytes })
    }

    /// Its length, in bytes.
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Its address on the GPU, for kernels of the program's own.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The GPU that it is on.
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if let Ok(functions) = self.device.bind() {
            // SAFETY: allocated by `new`, and freed once; the driver waits for work that uses it.
            let _ = unsafe { (functions.memory_free)(self.address) };
        }
    }
}

/// Page-locked memory of the host.
#[derive(Debug)]
pub struct PinnedBuffer {
    device: Arc<Device>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its memory, as a `Box` does.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared references only read.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Allocates zeroes.
    ///
    /// # Errors
    ///
    /// The host has not so much memory to lock.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<PinnedBuffer, CudaError> {
        let mut start: *mut c_void = ptr::null_mut();
        // SAFETY: the address is written to a live variable.
        let allocated = unsafe { (device.bind()?.host_allocate)(&mut start, bytes.max(1)) };
        device.check("cuMemAllocHost", allocated)?;
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            let text = "it gave no memory".to_owned();
            return Err(CudaError { call: "cuMemAllocHost", code: 0, text });
        };
        // SAFETY: so many bytes were allocated.
        unsafe { start.as_ptr().write_bytes(0, bytes.max(1)) };
        Ok(PinnedBuffer { device: Arc::clone(device), start, bytes })
    }

    /// Its length, in bytes.
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Its content.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `bytes` of them were allocated and written; copies into it hold it exclusively.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// Its content, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this is the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    pub(super) fn pointer(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if let Ok(functions) = self.device.bind() {
            // SAFETY: allocated by `new`, and freed once.
            let _ = unsafe { (functions.host_free)(self.pointer()) };
        }
    }
}
