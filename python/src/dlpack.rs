//! DLPack: the protocol by which tensors of torch, JAX and others expose their memory
//! (<https://dmlc.github.io/dlpack>). This is the unversioned struct, which every producer gives unless another
//! one is asked for. `array` uses it.

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
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const NAME: &CStr = c"dltensor";
const USED: &CStr = c"used_dltensor";

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
    managed: NonNull<Managed>,
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
    /// The exception that the object raised; or its memory is neither in main memory nor on that GPU, or not
    /// contiguous.
    pub(crate) fn of(
        object: &Bound<'_, PyAny>,
        gpu: Option<GroupGpu>,
    ) -> PyResult<Option<(MemorySpace, Borrowed)>> {
        if !object.hasattr("__dlpack__")? {
            return Ok(None);
        }
        let device: (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        let (place, capsule) = match (device, gpu) {
            ((CPU | CUDA_HOST, _), _) => (MemorySpace::Main, object.call_method0("__dlpack__")?),
            ((CUDA, ordinal), Some(gpu)) if ordinal == gpu.ordinal => {
                let arguments = PyDict::new(object.py());
                arguments.set_item("stream", gpu.stream)?;
                (MemorySpace::Gpu, object.call_method("__dlpack__", (), Some(&arguments))?)
            }
            _ => return Err(elsewhere(device, gpu)),
        };
        #[expect(unsafe_code, reason = "the interpreter's interface is C")]
        // SAFETY: the capsule's name says what it holds; renaming it takes the tensor over, as the
        // protocol demands.
        let managed = unsafe {
            if ffi::PyCapsule_IsValid(capsule.as_ptr(), NAME.as_ptr()) == 0 {
                let error = "__dlpack__ gave no capsule of the unversioned protocol";
                return Err(PyTypeError::new_err(error));
            }
            let managed = ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr());
            ffi::PyCapsule_SetName(capsule.as_ptr(), USED.as_ptr());
            managed.cast::<Managed>()
        };
        let Some(managed) = NonNull::new(managed) else {
            return Err(PyTypeError::new_err("__dlpack__ gave an empty capsule"));
        };
        let borrowed = Borrowed { managed };
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
            &self.managed.as_ref().tensor
        }
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

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Without an interpreter, at its end, the memory need not be given back.
        callback::attached(|_py| {
            #[expect(unsafe_code, reason = "the producer's struct")]
            // SAFETY: the capsule was renamed, so the tensor is ours to give back, once.
            unsafe {
                if let Some(deleter) = self.managed.as_ref().deleter {
                    deleter(self.managed.as_ptr());
                }
            }
        });
    }
}
