//! DLPack: the protocol by which tensors of torch, JAX and others expose their memory
//! (<https://dmlc.github.io/dlpack>). Producers are asked for the struct of version 1, which says whether the memory may
//! be written to; those that know none give the unversioned one. `array` uses it.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array::MemorySpace;
use crate::callback;
use crate::on_gpu::GroupGpu;

#[repr(C)]
struct DlpackDevice {
    kind: i32,
    id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ElementType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: DlpackDevice,
    dimensions: i32,
    element: ElementType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Unversioned {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// The struct that a producer gave.
#[derive(Clone, Copy)]
enum Managed {
    Unversioned(NonNull<Unversioned>),
    Versioned(NonNull<Versioned>),
}

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;

/// The version that producers are asked for. Minor versions add nothing that is used here.
const VERSION: (u32, u32) = (1, 0);

/// The flag of memory that must not be written to.
const READ_ONLY: u64 = 1;
/// The flag of memory that is a copy, which the producer does not look at again.
const IS_COPIED: u64 = 2;

/// The names of capsules: as they are given, and once their tensor is taken over.
const UNVERSIONED: [&CStr; 2] = [c"dltensor", c"used_dltensor"];
const VERSIONED: [&CStr; 2] = [c"dltensor_versioned", c"used_dltensor_versioned"];

/// The error for memory of an unsupported device, with advice.
fn elsewhere((kind, id): (i32, i32), gpu: Option<GroupGpu>) -> PyErr {
    let reason = match (kind, gpu) {
        (CUDA, None) => format!(
            "the tensor is on GPU {id}, and the collectives of this group are the CPU's (`elastic-node doctor` says \
             what they would need): copy it with .cpu()"
        ),
        (CUDA, Some(gpu)) => format!(
            "the tensor is on GPU {id}, and this worker's collectives are on GPU {}: move it there",
            gpu.ordinal
        ),
        _ => format!(
            "the tensor is on a device of DLPack kind {kind}, which collectives do not take: copy it with .cpu()"
        ),
    };
    PyBufferError::new_err(reason)
}

/// A tensor that its producer has lent; given back when dropped.
pub(crate) struct Borrowed {
    managed: Managed,
}

#[expect(unsafe_code, reason = "a tensor is not bound to a thread")]
// SAFETY: its fields are read only; it is given back under the interpreter's lock.
unsafe impl Send for Borrowed {}

impl Borrowed {
    /// Borrows the memory of an object that has `__dlpack__`, for a group that works on this GPU, if it works
    /// on any; `None` for other objects. The work that the producer has queued on a GPU comes before all that
    /// is queued on the group's stream from here on.
    ///
    /// # Errors
    /// The exception that the object raised; or its memory is neither in main memory nor on that GPU, not
    /// contiguous, or not writable where that is needed.
    pub(crate) fn of(
        object: &Bound<'_, PyAny>,
        writable: bool,
        gpu: Option<GroupGpu>,
    ) -> PyResult<Option<(MemorySpace, Borrowed)>> {
        if !object.hasattr("__dlpack__")? {
            return Ok(None);
        }
        let device: (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        let (place, stream) = match (device, gpu) {
            ((CPU | CUDA_HOST, _), _) => (MemorySpace::Main, None),
            ((CUDA, ordinal), Some(gpu)) if ordinal == gpu.ordinal => {
                (MemorySpace::Gpu, Some(gpu.stream))
            }
            _ => return Err(elsewhere(device, gpu)),
        };
        let arguments = PyDict::new(object.py());
        if let Some(stream) = stream {
            arguments.set_item("stream", stream)?;
        }
        let older = arguments.copy()?;
        arguments.set_item("max_version", VERSION)?;
        let capsule = match object.call_method("__dlpack__", (), Some(&arguments)) {
            // Producers of before version 1 do not take the argument.
            Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => {
                object.call_method("__dlpack__", (), Some(&older))?
            }
            given => given?,
        };
        let borrowed = Borrowed { managed: Managed::take(&capsule)? };
        if writable {
            borrowed.check_writable(object)?;
        }
        let DlpackDevice { kind, id } = borrowed.tensor().device;
        if (kind, id) != device {
            return Err(PyTypeError::new_err("__dlpack__ gave a tensor of another device"));
        }
        if !borrowed.is_contiguous() {
            let error = "the tensor is not contiguous: give its .contiguous() copy";
            return Err(PyBufferError::new_err(error));
        }
        Ok(Some((place, borrowed)))
    }

    fn tensor(&self) -> &Tensor {
        #[expect(unsafe_code, reason = "the producer's struct")]
        // SAFETY: the producer keeps the struct until its deleter is called, which `drop` does.
        unsafe {
            match &self.managed {
                Managed::Unversioned(managed) => &managed.as_ref().tensor,
                Managed::Versioned(managed) => &managed.as_ref().tensor,
            }
        }
    }

    /// The producer's flags for the memory; none in the unversioned struct.
    fn flags(&self) -> u64 {
        match self.managed {
            Managed::Unversioned(_) => 0,
            #[expect(unsafe_code, reason = "the producer's struct")]
            // SAFETY: as for `tensor`.
            Managed::Versioned(managed) => unsafe { managed.as_ref().flags },
        }
    }

    /// # Errors
    /// `BufferError`: data written to the memory would not be seen in the object, or the memory must not be written
    /// to.
    fn check_writable(&self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let what = match self.flags() {
            flags if flags & READ_ONLY != 0 => "is read-only",
            flags if flags & IS_COPIED != 0 => "gave a copy of its memory",
            _ => return Ok(()),
        };
        Err(PyBufferError::new_err(format!(
            "the {} {what} (its DLPack flags say so), and a collective in place would write to it: take the function without \
             the underscore, or give a writable copy",
            object.get_type().name()?
        )))
    }

    fn extents(&self, pointer: *const i64) -> &[i64] {
        let count = usize::try_from(self.tensor().dimensions).unwrap_or(0);
        if pointer.is_null() || count == 0 {
            return &[];
        }
        #[expect(unsafe_code, reason = "the producer's struct")]
        // SAFETY: the protocol says that shape and strides have one entry for each dimension.
        unsafe {
            std::slice::from_raw_parts(pointer, count)
        }
    }

    fn is_contiguous(&self) -> bool {
        let (shape, strides) = (self.extents(self.tensor().shape), self.tensor().strides);
        if strides.is_null() || shape.contains(&0) {
            return true;
        }
        let mut due = 1;
        shape.iter().zip(self.extents(strides)).rev().all(|(extent, stride)| {
            let fits = *extent == 1 || *stride == due;
            due *= extent;
            fits
        })
    }

    pub(crate) fn element(&self) -> ElementType {
        self.tensor().element
    }

    pub(crate) fn count(&self) -> usize {
        let extents = self.extents(self.tensor().shape).iter();
        extents.map(|extent| usize::try_from(*extent).unwrap_or(0)).product()
    }

    pub(crate) fn address(&self) -> Option<NonNull<u8>> {
        let tensor = self.tensor();
        let offset = usize::try_from(tensor.byte_offset).ok()?;
        NonNull::new(tensor.data.cast::<u8>().wrapping_add(offset))
    }
}

impl Managed {
    /// Takes the tensor over from a capsule, which the caller gives back.
    ///
    /// # Errors
    /// `TypeError`: it is no capsule of either protocol. `BufferError`: its version is another one.
    fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Managed> {
        if let Some(pointer) = taken(capsule, VERSIONED)? {
            let managed = Managed::Versioned(pointer.cast());
            #[expect(unsafe_code, reason = "the producer's struct")]
            // SAFETY: version and deleter are where they are in each version.
            let (major, minor) = unsafe {
                let versioned = pointer.cast::<Versioned>();
                (versioned.as_ref().major, versioned.as_ref().minor)
            };
            if major == VERSION.0 {
                return Ok(managed);
            }
            managed.give_back();
            let error = format!(
                "__dlpack__ gave a tensor of DLPack {major}.{minor}, although {}.{} was asked for",
                VERSION.0, VERSION.1
            );
            return Err(PyBufferError::new_err(error));
        }
        taken(capsule, UNVERSIONED)?
            .map(|pointer| Managed::Unversioned(pointer.cast()))
            .ok_or_else(|| PyTypeError::new_err("__dlpack__ gave no capsule of DLPack"))
    }

    /// Calls the producer's deleter. Once, and under the interpreter's lock.
    fn give_back(self) {
        #[expect(unsafe_code, reason = "the producer's struct")]
        // SAFETY: `take` has renamed the capsule, so the tensor is ours to give back.
        unsafe {
            match self {
                Managed::Unversioned(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
                Managed::Versioned(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
            }
        }
    }
}

/// The pointer in a capsule of the first name, which gets the second one; `None` for another capsule or object.
///
/// # Errors
/// `TypeError`: it is empty.
fn taken(
    capsule: &Bound<'_, PyAny>,
    [name, used]: [&CStr; 2],
) -> PyResult<Option<NonNull<c_void>>> {
    #[expect(unsafe_code, reason = "the interpreter's interface is C")]
    // SAFETY: the capsule's name says what it holds; renaming it takes the tensor over, as the protocol demands.
    let pointer = unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 0 {
            return Ok(None);
        }
        let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr());
        ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr());
        pointer
    };
    let error = || PyTypeError::new_err("__dlpack__ gave an empty capsule");
    Ok(Some(NonNull::new(pointer).ok_or_else(error)?))
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Without an interpreter, at its end, the memory need not be given back.
        callback::attached(|_py| self.managed.give_back());
    }
}
