//! `CommitBlock`: a large buffer of a commit, from which the Python side fills its state. The commit's memory is never lent: it is
//! copied once, into memory that the program has already or into new memory. After a resume it may be in the files of the checkpoint
//! only, and is read from there in the same way. Made by `content`.

use elastic_worker::state::training::{Error, RestoredBlock};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::array::Array;
use crate::errors::raise;
use crate::unlocked::unlocked;

/// A buffer of a commit, which stays in memory, or in the checkpoint's files, as long as this object.
#[pyclass(name = "CommitBlock", frozen, module = "elastic_node._native")]
pub(crate) struct CommitBlock(RestoredBlock);

impl CommitBlock {
    pub(crate) const fn new(block: RestoredBlock) -> Self {
        Self(block)
    }

    fn read_into(&self, memory: &mut [u8]) -> PyResult<()> {
        self.0.copy_into(memory).map_err(|error| raise(Error::Checkpoint(error)))
    }
}

#[pymethods]
impl CommitBlock {
    /// The content in new memory, which may be kept and changed.
    fn copy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        PyByteArray::new_with(py, self.0.length(), |memory| self.read_into(memory))
    }

    /// Copies the content into memory that is as long. Other threads of Python run meanwhile.
    fn copy_into(&self, py: Python<'_>, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut target = Array::of(target, true, None)?;
        let target = target.bytes_mut();
        if self.0.length() != target.len() {
            let (found, needed) = (target.len(), self.0.length());
            let error = format!("{needed} bytes do not fit memory of {found} bytes");
            return Err(PyValueError::new_err(error));
        }
        unlocked(py, || self.read_into(target))
    }
}
