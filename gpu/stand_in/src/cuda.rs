//! CUDA's driver: devices that are names, memory of the heap, streams that are threads.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use crate::faults::{self, Fault, setting};
use crate::stream::{Event, Stream};

const OK: c_uint = 0;
const INVALID_VALUE: c_uint = 1;
const OUT_OF_MEMORY: c_uint = 2;
const INVALID_DEVICE: c_uint = 101;
const NOT_READY: c_uint = 600;

/// The live allocations: lengths by address.
static ALLOCATED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn devices() -> c_int {
    setting("devices", 8) as c_int
}

fn write_text(text: &str, to: *mut c_char, length: c_int) {
    let text = CString::new(text).unwrap_or_default();
    let bytes = text.as_bytes_with_nul();
    assert!(bytes.len() <= length as usize, "the buffer is long enough");
    // SAFETY: the caller gives a buffer of this length.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len()) };
}

fn allocate(bytes: usize) -> *mut u8 {
    let Ok(layout) = Layout::from_size_align(bytes, 256) else { return std::ptr::null_mut() };
    // SAFETY: callers ask for one byte at least.
    let start = unsafe { alloc(layout) };
    if !start.is_null() {
        let mut allocated = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner);
        allocated.insert(start as usize, bytes);
    }
    start
}

fn free(start: usize) -> c_uint {
    let bytes = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner).remove(&start);
    let Some(layout) = bytes.and_then(|bytes| Layout::from_size_align(bytes, 256).ok()) else {
        return INVALID_VALUE;
    };
    // SAFETY: it was allocated with this layout, and is taken off the list once.
    unsafe { dealloc(start as *mut u8, layout) };
    OK
}

/// Number of live allocations, by which tests look for leaks.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_allocations() -> usize {
    ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner).len()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_uint {
    setting("cuda_init", OK)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_uint {
    unsafe { *version = 13_000 };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_uint {
    unsafe { *count = devices() };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_uint {
    if ordinal < 0 || ordinal >= devices() {
        return INVALID_DEVICE;
    }
    unsafe { *device = ordinal };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) -> c_uint {
    write_text("Stand-in GPU", name, length);
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetPCIBusId(bus: *mut c_char, length: c_int, device: c_int) -> c_uint {
    write_text(&format!("0000:{device:02x}:00.0"), bus, length);
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> c_uint {
    unsafe { *bytes = 1 << 30 };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    context: *mut *mut c_void,
    device: c_int,
) -> c_uint {
    unsafe { *context = (device as usize + 1) as *mut c_void };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> c_uint {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(_context: *mut c_void) -> c_uint {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut *mut Stream, _flags: c_uint) -> c_uint {
    unsafe { *stream = Box::into_raw(Box::new(Stream::new())) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: *mut Stream) -> c_uint {
    drop(unsafe { Box::from_raw(stream) });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(
    stream: *mut Stream,
    event: *mut Event,
    _flags: c_uint,
) -> c_uint {
    unsafe { (*event).hold(&*stream) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut *mut Event, _flags: c_uint) -> c_uint {
    unsafe { *event = Box::into_raw(Box::default()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: *mut Event) -> c_uint {
    drop(unsafe { Box::from_raw(event) });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: *mut Event, stream: *mut Stream) -> c_uint {
    unsafe { (*event).record(&*stream) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: *mut Event) -> c_uint {
    if unsafe { (*event).is_passed() } { OK } else { NOT_READY }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_uint {
    let start = allocate(bytes);
    unsafe { *address = start as u64 };
    if start.is_null() { OUT_OF_MEMORY } else { OK }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> c_uint {
    free(address as usize)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(start: *mut *mut c_void, bytes: usize) -> c_uint {
    let allocated = allocate(bytes);
    unsafe { *start = allocated.cast() };
    if allocated.is_null() { OUT_OF_MEMORY } else { OK }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(start: *mut c_void) -> c_uint {
    free(start as usize)
}

fn copy(call: &str, from: usize, to: usize, bytes: usize, stream: *mut Stream) -> c_uint {
    let is_hanging = faults::of(call, None, 0) == Some(Fault::Hang);
    let copy = move || {
        if is_hanging {
            loop {
                std::thread::park();
            }
        }
        // SAFETY: the caller keeps both, as CUDA demands.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) }
    };
    unsafe { (*stream).push(Box::new(copy)) };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: *mut Stream,
) -> c_uint {
    copy("cuMemcpyHtoDAsync", from as usize, to as usize, bytes, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: *mut Stream,
) -> c_uint {
    copy("cuMemcpyDtoHAsync", from as usize, to as usize, bytes, stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(_code: c_uint, text: *mut *const c_char) -> c_uint {
    unsafe { *text = c"CUDA_ERROR_STAND_IN".as_ptr() };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(_code: c_uint, text: *mut *const c_char) -> c_uint {
    unsafe { *text = c"an error of the stand-in".as_ptr() };
    OK
}
