//! `Content`: the training state of a Python program, as the Rust API's `State` holds it. The Python object gives its
//! content (`_capture`) as a header and large buffers, which go into the commit without a copy on the way. The
//! content of a commit returns to the object by `_apply_blocks`. Held by `session`.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use elastic_worker::state::training::named_arrays::{NamedArray, announce, are_wanted};
use elastic_worker::state::training::{
    DeviceError, LateBlock, RestoredBlock, announce_late, refuse,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::{ByteBuf, Bytes};

use crate::array::Array;
use crate::commit_block::CommitBlock;
use crate::errors::keep;

/// The state.
pub(crate) enum Content {
    /// The program keeps no state.
    Nothing,
    /// The state is in this object.
    Live(Py<PyAny>),
    /// The state is that of a commit, which the object has not been given yet.
    Committed { header: ByteBuf, buffers: Vec<RestoredBlock> },
}

type Encoded = (ByteBuf, Vec<RestoredBlock>);

impl Content {
    /// Applies a commit's content to the object.
    pub(crate) fn apply(self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let Content::Committed { header, buffers } = self else { return Ok(()) };
        let py = object.py();
        let list = PyList::empty(py);
        for buffer in buffers {
            list.append(Py::new(py, CommitBlock::new(buffer))?)?;
        }
        object.call_method1("_apply_blocks", (PyBytes::new(py, &header), list))?;
        Ok(())
    }
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Content::Nothing => (Bytes::new(&[]), Vec::<&Bytes>::new()).serialize(serializer),
            Content::Committed { header, buffers } => (header, buffers).serialize(serializer),
            Content::Live(object) => Python::attach(|py| {
                let captured = capture(object.bind(py)).map_err(|error| {
                    // Postcard's error has no text: other ranks and the job's end are told by `refuse`.
                    refuse(error.to_string());
                    keep(error);
                    S::Error::custom("the Python state refuses")
                })?;
                let (header, buffers) = &captured;
                (Bytes::new(header.as_bytes()), buffers).serialize(serializer)
            }),
        }
    }
}

/// A large array of the state. Encoded as a block of bytes; in a checkpoint it has the program's name for it.
struct NamedBuffer {
    array: Arc<Mutex<Array>>,
    /// The copies from a GPU to the array, if it does not have its bytes yet.
    copies: Option<Arc<DeviceCopies>>,
    named: Option<NamedArray>,
}

impl Serialize for NamedBuffer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        announce(self.named.clone());
        let array = self.array.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copies) = &self.copies {
            let late = LateArray { array: Arc::clone(&self.array), copies: Arc::clone(copies) };
            announce_late(array.bytes(), Box::new(late));
        }
        serializer.serialize_bytes(array.bytes())
    }
}

/// Copies from a GPU to main memory that go on beside the program.
#[derive(Debug)]
struct DeviceCopies {
    /// Waits for the copies.
    wait: Py<PyAny>,
    waited: OnceLock<Result<(), String>>,
}

impl DeviceCopies {
    fn wait(&self) -> Result<(), String> {
        let wait = || {
            let called = Python::try_attach(|py| self.wait.call0(py).map(drop));
            called.unwrap_or(Ok(())).map_err(|error| error.to_string())
        };
        self.waited.get_or_init(wait).clone()
    }
}

/// An array in main memory whose bytes come from a GPU.
struct LateArray {
    array: Arc<Mutex<Array>>,
    copies: Arc<DeviceCopies>,
}

impl std::fmt::Debug for LateArray {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LateArray").field("copies", &self.copies).finish_non_exhaustive()
    }
}

impl LateBlock for LateArray {
    fn copy_into(&self, into: &mut [u8]) -> Result<(), DeviceError> {
        self.copies.wait()?;
        let array = self.array.lock().unwrap_or_else(PoisonError::into_inner);
        into.copy_from_slice(array.bytes());
        Ok(())
    }
}

/// Name, type and shape of an array, and whether each rank has its own; none where the program has no name for it.
type Name = Option<((String, String, Vec<usize>), bool)>;

/// Result of `State._capture_begun`: the header; the arrays; their names, none if they are not wanted; the numbers of the
/// arrays that are still being copied; and the function that waits for them.
type Captured<'py> =
    (Bound<'py, PyBytes>, Vec<Bound<'py, PyAny>>, Vec<Name>, Vec<usize>, Option<Py<PyAny>>);

fn capture<'py>(object: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyBytes>, Vec<NamedBuffer>)> {
    // Names are looked for only where they are written: in the encoding of a checkpoint.
    let captured = object.call_method1("_capture_begun", (are_wanted(),))?;
    let (header, buffers, names, late, wait): Captured<'py> = captured.extract()?;
    let copies = wait.map(|wait| Arc::new(DeviceCopies { wait, waited: OnceLock::new() }));
    let mut names = names.into_iter();
    let with_name = |(number, buffer): (usize, &Bound<'py, PyAny>)| {
        let name = names.next().flatten();
        let named = name.and_then(|((name, dtype, shape), is_per_rank)| {
            let array = NamedArray::new(name, &dtype, shape)?;
            Some(NamedArray { is_per_rank, ..array })
        });
        let array = Arc::new(Mutex::new(Array::of(buffer, false, None)?));
        let copies = copies.clone().filter(|_| late.binary_search(&number).is_ok());
        Ok(NamedBuffer { array, copies, named })
    };
    let buffers = buffers.iter().enumerate().map(with_name).collect::<PyResult<_>>()?;
    Ok((header, buffers))
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        let (header, buffers) = Encoded::deserialize(deserializer)?;
        if header.is_empty() {
            return Ok(Content::Nothing);
        }
        Ok(Content::Committed { header, buffers })
    }
}
