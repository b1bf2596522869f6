//! `CommitBlock`: a large buffer of a commit, from which the Python side fills its state. The commit's memory is never lent: it is
//! copied once, into memory that the program has already or into new memory. Made by `content`.

use elastic_worker::state::training::RestoredBlock;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::array::Array;
use crate::unlocked::unlocked;

/// A buffer of a commit, which stays in memory as long as this object.
#[pyclass(name = "CommitBlock", frozen, module = "elastic_node._native")]
pub(crate) struct CommitBlock(RestoredBlock);

impl CommitBlock {
    pub(crate) const fn new(block: RestoredBlock) -> Self {
        Self(block)
    }
}

#[pymethods]
impl CommitBlock {
    /// The content in new memory, which may be kept and changed.
    fn copy<'py>(&self, py: Python<'py>) -> Bound<'py, PyByteArray> {
        PyByteArray::new(py, self.0.bytes())
    }

    /// Copies the content into memory that is as long. Other threads of Python run meanwhile.
    fn copy_into(&self, py: Python<'_>, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut target = Array::of(target, true, None)?;
        let (content, target) = (self.0.bytes(), target.bytes_mut());
        if content.len() != target.len() {
            let (found, needed) = (target.len(), content.len());
            let error = format!("{needed} bytes do not fit memory of {found} bytes");
            return Err(PyValueError::new_err(error));
        }
        unlocked(py, || target.copy_from_slice(content));
        Ok(())
    }
}
