//! `Content`: the training state of a Python program, as the Rust API's `State` holds it. The Python object gives its
//! content (`_capture`) as a header and large buffers, which go into the commit without a copy on the way. The
//! content of a commit returns to the object by `_apply_blocks`. Held by `session`.

use elastic_worker::state::training::named_arrays::{NamedArray, announce, are_wanted};
use elastic_worker::state::training::{RestoredBlock, refuse};
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
    array: Array,
    named: Option<NamedArray>,
}

impl Serialize for NamedBuffer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        announce(self.named.clone());
        serializer.serialize_bytes(self.array.bytes())
    }
}

/// Name, type and shape of an array, and whether each rank has its own; none where the program has no name for it.
type Name = Option<((String, String, Vec<usize>), bool)>;

fn capture<'py>(object: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyBytes>, Vec<NamedBuffer>)> {
    // Names are looked for only where they are written: in the encoding of a checkpoint.
    let method = if are_wanted() { "_capture_named" } else { "_capture" };
    let captured = object.call_method0(method)?;
    let (header, buffers, names): (Bound<'py, PyBytes>, Vec<Bound<'py, PyAny>>, Vec<Name>) =
        if are_wanted() {
            captured.extract()?
        } else {
            let (header, buffers) = captured.extract()?;
            (header, buffers, Vec::new())
        };
    let mut names = names.into_iter();
    let with_name = |buffer: &Bound<'py, PyAny>| {
        let name = names.next().flatten();
        let named = name.and_then(|((name, dtype, shape), is_per_rank)| {
            let array = NamedArray::new(name, &dtype, shape)?;
            Some(NamedArray { is_per_rank, ..array })
        });
        Ok(NamedBuffer { array: Array::of(buffer, false, None)?, named })
    };
    let buffers = buffers.iter().map(with_name).collect::<PyResult<_>>()?;
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
