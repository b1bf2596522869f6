//! A GPU and its primary context. Opened by [`crate::Gpu`].

#![expect(unsafe_code, reason = "the CUDA driver is a C library")]

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUcontext, CUdevice};
use serde::Serialize;

use super::api::{Cuda, CudaError, Functions};

/// Facts about a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    /// Its number in this process, after `CUDA_VISIBLE_DEVICES`.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Its place on the PCI bus, which tells it apart from every other GPU of the host.
    pub bus: String,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
}

/// A GPU with its primary context, which programs in this process share.
pub struct Device {
    cuda: Arc<Cuda>,
    handle: CUdevice,
    context: CUcontext,
    facts: DeviceFacts,
}

// SAFETY: a context may be used by any thread that makes it current, as `bind` does before each call.
unsafe impl Send for Device {}
// SAFETY: as above; the driver does its own locking.
unsafe impl Sync for Device {}

impl Device {
    /// Number of GPUs that this process sees.
    ///
    /// # Errors
    ///
    /// An error of the CUDA driver.
    pub fn count(cuda: &Cuda) -> Result<u32, CudaError> {
        let mut count = 0;
        // SAFETY: the count is written to a live variable.
        cuda.check("cuDeviceGetCount", unsafe { (cuda.functions().device_count)(&mut count) })?;
        Ok(count.unsigned_abs())
    }

    /// Facts about a GPU, read without making a context on it.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn facts_of(cuda: &Cuda, ordinal: u32) -> Result<DeviceFacts, CudaError> {
        Device::look_up(cuda, ordinal).map(|(_, facts)| facts)
    }

    fn look_up(cuda: &Cuda, ordinal: u32) -> Result<(CUdevice, DeviceFacts), CudaError> {
        let functions = cuda.functions();
        let (mut handle, mut bytes) = (0, 0);
        let (mut name, mut bus) = ([0 as c_char; 128], [0 as c_char; 32]);
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: each call writes to a live variable of the length that it is told.
        unsafe {
            cuda.check("cuDeviceGet", (functions.device)(&mut handle, number))?;
            let named = (functions.device_name)(name.as_mut_ptr(), length(&name), handle);
            cuda.check("cuDeviceGetName", named)?;
            let placed = (functions.device_bus)(bus.as_mut_ptr(), length(&bus), handle);
            cuda.check("cuDeviceGetPCIBusId", placed)?;
            cuda.check("cuDeviceTotalMem", (functions.device_bytes)(&mut bytes, handle))?;
        }
        let facts =
            DeviceFacts { ordinal, name: text(&name), bus: text(&bus), memory_bytes: bytes as u64 };
        Ok((handle, facts))
    }

    /// Takes a GPU into use.
    ///
    /// # Errors
    ///
    /// An error of the CUDA driver; there may be no GPU of this number.
    pub fn open(cuda: Arc<Cuda>, ordinal: u32) -> Result<Arc<Device>, CudaError> {
        let (handle, facts) = Device::look_up(&cuda, ordinal)?;
        let mut context = ptr::null_mut();
        // SAFETY: the context is written to a live variable.
        let retained = unsafe { (cuda.functions().context_retain)(&mut context, handle) };
        cuda.check("cuDevicePrimaryCtxRetain", retained)?;
        Ok(Arc::new(Device { cuda, handle, context, facts }))
    }

    /// Its facts.
    pub const fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Makes it this thread's GPU, as every call needs; costs tens of nanoseconds where it is already.
    pub(crate) fn bind(&self) -> Result<&Functions, CudaError> {
        let functions = self.cuda.functions();
        // SAFETY: the context is retained as long as this object lives.
        self.check("cuCtxSetCurrent", unsafe { (functions.context_set)(self.context) })?;
        Ok(functions)
    }

    pub(crate) fn check(&self, call: &'static str, code: u32) -> Result<(), CudaError> {
        self.cuda.check(call, code)
    }

    pub(super) fn ready(&self, call: &'static str, code: u32) -> Result<bool, CudaError> {
        self.cuda.ready(call, code)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once by `open`. There is nothing to do where the driver refuses.
        let _ = unsafe { (self.cuda.functions().context_release)(self.handle) };
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Device({} at {})", self.facts.name, self.facts.bus)
    }
}

fn length(buffer: &[c_char]) -> c_int {
    c_int::try_from(buffer.len()).unwrap_or(c_int::MAX)
}

fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|character| character.cast_unsigned()).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}
