//! The table of the CUDA driver's functions, and their errors. The other modules of `cuda` call through it.

#![expect(unsafe_code, reason = "the CUDA driver is a C library")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;

use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUstream};
use thiserror::Error;

use crate::load::{LibrarySearch, LoadError, WantedLibrary, table};

table! {
    /// The functions of `libcuda`. Results are read as numbers, since a newer driver may have codes that an
    /// enumeration of today lacks.
    Functions {
        required {
            init = "cuInit": fn(c_uint) -> c_uint;
            driver_version = "cuDriverGetVersion": fn(*mut c_int) -> c_uint;
            device_count = "cuDeviceGetCount": fn(*mut c_int) -> c_uint;
            device = "cuDeviceGet": fn(*mut CUdevice, c_int) -> c_uint;
            device_name = "cuDeviceGetName": fn(*mut c_char, c_int, CUdevice) -> c_uint;
            device_bytes = "cuDeviceTotalMem_v2": fn(*mut usize, CUdevice) -> c_uint;
            device_bus = "cuDeviceGetPCIBusId": fn(*mut c_char, c_int, CUdevice) -> c_uint;
            context_retain = "cuDevicePrimaryCtxRetain": fn(*mut CUcontext, CUdevice) -> c_uint;
            context_release = "cuDevicePrimaryCtxRelease_v2": fn(CUdevice) -> c_uint;
            context_set = "cuCtxSetCurrent": fn(CUcontext) -> c_uint;
            stream_create = "cuStreamCreate": fn(*mut CUstream, c_uint) -> c_uint;
            stream_destroy = "cuStreamDestroy_v2": fn(CUstream) -> c_uint;
            stream_wait_event = "cuStreamWaitEvent": fn(CUstream, CUevent, c_uint) -> c_uint;
            event_create = "cuEventCreate": fn(*mut CUevent, c_uint) -> c_uint;
            event_destroy = "cuEventDestroy_v2": fn(CUevent) -> c_uint;
            event_record = "cuEventRecord": fn(CUevent, CUstream) -> c_uint;
            event_query = "cuEventQuery": fn(CUevent) -> c_uint;
            memory_allocate = "cuMemAlloc_v2": fn(*mut CUdeviceptr, usize) -> c_uint;
            memory_free = "cuMemFree_v2": fn(CUdeviceptr) -> c_uint;
            host_allocate = "cuMemAllocHost_v2": fn(*mut *mut c_void, usize) -> c_uint;
            host_free = "cuMemFreeHost": fn(*mut c_void) -> c_uint;
            copy_to_device = "cuMemcpyHtoDAsync_v2": fn(CUdeviceptr, *const c_void, usize, CUstream) -> c_uint;
            copy_to_host = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, CUdeviceptr, usize, CUstream) -> c_uint;
            error_name = "cuGetErrorName": fn(c_uint, *mut *const c_char) -> c_uint;
            error_text = "cuGetErrorString": fn(c_uint, *mut *const c_char) -> c_uint;
        }
        optional {}
    }
}

/// `CUDA_ERROR_NOT_READY`: no error, but an answer.
const NOT_READY: c_uint = 600;

/// An error of the CUDA driver.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("CUDA's {call} failed: {text} ({code})")]
pub struct CudaError {
    /// The call that failed.
    pub call: &'static str,
    /// The driver's code.
    pub code: u32,
    /// Its name and text.
    pub text: String,
}

/// The CUDA driver, opened and initialised.
pub struct Cuda {
    functions: Functions,
    file: PathBuf,
    how: &'static str,
    version: i32,
}

impl Cuda {
    /// Finds and opens the driver. `None`: this machine has none.
    ///
    /// # Errors
    ///
    /// It is there and cannot be used; the error names its file.
    pub fn open(search: &LibrarySearch) -> Result<Option<Cuda>, LoadError> {
        let Some(found) = search.open(WantedLibrary::Driver)? else { return Ok(None) };
        let functions = Functions::read(&found.library)?;
        let file = found.library.file_of("cuInit");
        let mut cuda = Cuda { functions, file, how: found.how, version: 0 };
        // SAFETY: `cuInit` takes no flags; the version is written to a live variable.
        let started = unsafe {
            let initialised = cuda.check("cuInit", (cuda.functions.init)(0));
            let version = (cuda.functions.driver_version)(&mut cuda.version);
            initialised.and(cuda.check("cuDriverGetVersion", version))
        };
        match started {
            Ok(()) => Ok(Some(cuda)),
            Err(error) => Err(LoadError::Unusable { file: cuda.file, reason: error.to_string() }),
        }
    }

    /// The driver's file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The way in which it was found, in words for the user.
    pub const fn how(&self) -> &'static str {
        self.how
    }

    /// The newest CUDA that it serves, such as `13.2`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    pub(super) const fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Turns a code into an error.
    pub(super) fn check(&self, call: &'static str, code: c_uint) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let describe = |function: unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint| {
            let mut text = ptr::null();
            // SAFETY: the driver writes a pointer to a string of its own, or leaves it null.
            let known = unsafe { function(code, &mut text) };
            // SAFETY: as above; such strings live as long as the library, which is never closed.
            (known == 0 && !text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
        };
        let name = describe(self.functions.error_name).unwrap_or(c"an unknown error");
        let text = describe(self.functions.error_text).unwrap_or(c"no description");
        let text = format!("{}, {}", name.to_string_lossy(), text.to_string_lossy());
        Err(CudaError { call, code, text })
    }

    /// As [`Cuda::check`], where "not ready" is an answer: whether it is ready.
    pub(super) fn ready(&self, call: &'static str, code: c_uint) -> Result<bool, CudaError> {
        if code == NOT_READY {
            return Ok(false);
        }
        self.check(call, code).map(|()| true)
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Cuda({} of {})", self.version(), self.file.display())
    }
}
