//! Python's buffer protocol, from 3.9 on. `array` uses it.
//!
//! The stable interface has the protocol only since 3.11, where it froze `Py_buffer` as it had been since 3.0.
//! So it is declared here: the symbols and the layout are the same in every interpreter that loads this module.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};

use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;

use crate::callback;

#[repr(C)]
struct RawBuffer {
    data: *mut c_void,
    object: *mut PyObject,
    length: Py_ssize_t,
    item_size: Py_ssize_t,
    read_only: c_int,
    dimensions: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

#[expect(unsafe_code, reason = "the interpreter's interface is C")]
unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut RawBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut RawBuffer);
    fn PyObject_CheckBuffer(object: *mut PyObject) -> c_int;
}

const WRITABLE: c_int = 0x0001;
const FORMAT: c_int = 0x0004;
const C_CONTIGUOUS: c_int = 0x0020 | 0x0010 | 0x0008;

/// An object's memory, held until it is dropped.
pub(crate) struct Buffer {
    raw: Box<RawBuffer>,
}

#[expect(unsafe_code, reason = "a buffer is not bound to a thread")]
// SAFETY: its fields are read only; it is released under the interpreter's lock.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Takes the memory of an object that has the protocol; `None` for other objects.
    ///
    /// # Errors
    /// The exception that the object raised: it is not contiguous, or not writable.
    pub(crate) fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Option<Buffer>> {
        let mut raw = Box::new(RawBuffer {
            data: null_mut(),
            object: null_mut(),
            length: 0,
            item_size: 0,
            read_only: 0,
            dimensions: 0,
            format: null_mut(),
            shape: null_mut(),
            strides: null_mut(),
            suboffsets: null_mut(),
            internal: null_mut(),
        });
        let flags = C_CONTIGUOUS | FORMAT | if writable { WRITABLE } else { 0 };
        #[expect(unsafe_code, reason = "the interpreter's interface is C")]
        // SAFETY: the object is alive, the lock is held, and the view has the interpreter's layout.
        let result = unsafe {
            if PyObject_CheckBuffer(object.as_ptr()) == 0 {
                return Ok(None);
            }
            PyObject_GetBuffer(object.as_ptr(), &raw mut *raw, flags)
        };
        if result != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Some(Buffer { raw }))
    }

    pub(crate) fn address(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.raw.data.cast())
    }

    pub(crate) fn length_bytes(&self) -> usize {
        usize::try_from(self.raw.length).unwrap_or(0)
    }

    pub(crate) fn item_bytes(&self) -> usize {
        usize::try_from(self.raw.item_size).unwrap_or(0)
    }

    /// The format of one item, in the notation of Python's `struct`; bytes if the object gives none.
    pub(crate) fn format(&self) -> &str {
        if self.raw.format.is_null() {
            return "B";
        }
        #[expect(unsafe_code, reason = "the interpreter's interface is C")]
        // SAFETY: the interpreter gives a string that lives as long as the view.
        let format = unsafe { std::ffi::CStr::from_ptr(self.raw.format) };
        format.to_str().unwrap_or("")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Without an interpreter, at its end, the memory need not be given back.
        callback::attached(|_py| {
            #[expect(unsafe_code, reason = "the interpreter's interface is C")]
            // SAFETY: the view was filled by `PyObject_GetBuffer`, and is released once.
            unsafe {
                PyBuffer_Release(&raw mut *self.raw);
            }
        });
    }
}
