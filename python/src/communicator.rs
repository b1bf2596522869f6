//! `Group`: the collectives among the ranks of a group, on arrays. Every operation is launched; the Python side
//! waits for the handle where it is to block.

use std::sync::{Arc, Mutex, PoisonError};

use elastic_collectives::{
    AsyncCommunicator, CollectiveError, Communicator, CommunicatorExt, DataType, ReduceOp,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::array::Array;
use crate::errors::collective;
use crate::handle::{Failure, Handle, wait};
use crate::unlocked::unlocked;

type Outcome = Result<(), CollectiveError>;

/// Ranks that call collectives together.
#[pyclass(frozen, module = "elastic_node._native")]
pub(crate) struct Group {
    communicator: AsyncCommunicator,
    failure: Failure,
    /// All groups of the generation, which end together.
    family: Arc<Mutex<Vec<AsyncCommunicator>>>,
}

impl Group {
    /// The group of all ranks. What fails in it, or in its sub-groups, is noted in `failure`.
    pub(crate) fn of_all(communicator: AsyncCommunicator, failure: Failure) -> Group {
        let family = Arc::new(Mutex::new(vec![communicator.clone()]));
        Group { communicator, failure, family }
    }

    /// Leaves it, and its sub-groups, in good order, after all that was launched.
    pub(crate) fn close_all(&self) {
        let family = self.family.lock().unwrap_or_else(PoisonError::into_inner);
        for communicator in family.iter() {
            communicator.call(|group| group.close());
        }
    }

    /// Launches an operation on arrays. `callback` is called on the collectives' thread when it is done, with
    /// `None` or the exception.
    fn launch(
        &self,
        py: Python<'_>,
        mut arrays: Vec<Array>,
        callback: Option<Py<PyAny>>,
        operation: impl FnOnce(&mut dyn Communicator, &mut [Array]) -> Outcome + Send + 'static,
    ) -> Handle {
        let failure = self.failure.clone();
        let run = move |group: &mut dyn Communicator| {
            let result = operation(group, &mut arrays);
            failure.note(&result);
            if let Some(callback) = callback {
                tell(&callback, &result);
            }
            result.map(|()| arrays)
        };
        // It may have to wait for room among the launched, whose callbacks need the lock.
        Handle::new(unlocked(py, || self.communicator.launch(run)))
    }
}

/// Calls back with a result.
fn tell(callback: &Py<PyAny>, result: &Outcome) {
    Python::attach(|py| {
        let error = result.as_ref().err().map(|error| collective(error).into_value(py));
        if let Err(raised) = callback.call1(py, (error,)) {
            raised.write_unraisable(py, Some(callback.bind(py)));
        }
    });
}

fn op_of(name: &str) -> PyResult<ReduceOp> {
    ReduceOp::ALL.into_iter().find(|op| op.to_string() == name).ok_or_else(|| {
        PyValueError::new_err(format!("{name:?} is no reduction: sum, mean, min, max or prod"))
    })
}

/// An array that is read and one that is written, of one type of elements. Where they overlap, what is read is
/// copied first.
struct Pair {
    input: Input,
    output: Array,
}

enum Input {
    Shared(Array),
    Copied(Vec<u8>),
}

impl Pair {
    fn of(input: &Bound<'_, PyAny>, output: &Bound<'_, PyAny>) -> PyResult<Pair> {
        let (input, output) = (Array::of(input, false)?, Array::of(output, true)?);
        if !input.is_like(&output) {
            return Err(PyValueError::new_err("input and output have elements of different types"));
        }
        let input = if input.overlaps(&output) {
            Input::Copied(input.bytes().to_vec())
        } else {
            Input::Shared(input)
        };
        Ok(Pair { input, output })
    }
}

impl Input {
    fn bytes(&self) -> &[u8] {
        match self {
            Input::Shared(array) => array.bytes(),
            Input::Copied(bytes) => bytes,
        }
    }
}

/// Counts of elements as counts of what they are moved as.
fn moved(counts: &[usize], parts: usize) -> Vec<usize> {
    counts.iter().map(|count| count.saturating_mul(parts)).collect()
}

#[pymethods]
impl Group {
    #[getter]
    fn rank(&self) -> u32 {
        self.communicator.rank()
    }

    #[getter]
    fn size(&self) -> u32 {
        self.communicator.world_size()
    }

    #[pyo3(signature = (array, op, callback=None))]
    fn all_reduce(
        &self,
        array: &Bound<'_, PyAny>,
        op: &str,
        callback: Option<Py<PyAny>>,
    ) -> PyResult<Handle> {
        let (op, data) = (op_of(op)?, Array::of(array, true)?);
        let data_type = data.reduced_as(op)?;
        Ok(self.launch(array.py(), vec![data], callback, move |group, arrays| {
            arrays
                .iter_mut()
                .try_for_each(|array| group.all_reduce_bytes(array.bytes_mut(), data_type, op))
        }))
    }

    #[pyo3(signature = (arrays, op, callback=None))]
    fn all_reduce_many(
        &self,
        py: Python<'_>,
        arrays: Vec<Bound<'_, PyAny>>,
        op: &str,
        callback: Option<Py<PyAny>>,
    ) -> PyResult<Handle> {
        let op = op_of(op)?;
        let data =
            arrays.iter().map(|array| Array::of(array, true)).collect::<PyResult<Vec<_>>>()?;
        let mut types = Vec::with_capacity(data.len());
        for array in &data {
            types.push(array.reduced_as(op)?);
        }
        Ok(self.launch(py, data, callback, move |group, arrays| {
            // Each type goes by itself, in the order of the types' codes.
            let mut kinds = types.clone();
            kinds.sort_unstable();
            kinds.dedup();
            for kind in kinds {
                let of_kind = arrays.iter_mut().zip(&types).filter(|(_, of)| **of == kind);
                let mut buffers: Vec<&mut [u8]> =
                    of_kind.map(|(array, _)| array.bytes_mut()).collect();
                group.all_reduce_many_bytes(&mut buffers, kind, op)?;
            }
            Ok(())
        }))
    }

    #[pyo3(signature = (array, root, callback=None))]
    fn broadcast(
        &self,
        array: &Bound<'_, PyAny>,
        root: u32,
        callback: Option<Py<PyAny>>,
    ) -> PyResult<Handle> {
        let data = Array::of(array, true)?;
        let (data_type, _) = data.moved_as();
        Ok(self.launch(array.py(), vec![data], callback, move |group, arrays| {
            arrays
                .iter_mut()
                .try_for_each(|array| group.broadcast_bytes(array.bytes_mut(), data_type, root))
        }))
    }

    #[pyo3(signature = (input, output, counts=None, callback=None))]
    fn all_gather(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        counts: Option<Vec<usize>>,
        callback: Option<Py<PyAny>>,
    ) -> PyResult<Handle> {
        let Pair { input: source, output: target } = Pair::of(input, output)?;
        let (data_type, parts) = target.moved_as();
        let counts = counts.map(|counts| moved(&counts, parts));
        Ok(self.launch(input.py(), vec![target], callback, move |group, arrays| {
            arrays.iter_mut().try_for_each(|target| match &counts {
                Some(counts) => {
                    group.all_gather_v_bytes(source.bytes(), target.bytes_mut(), counts, data_type)
                }
                None => group.all_gather_bytes(source.bytes(), target.bytes_mut(), data_type),
            })
        }))
    }

    #[pyo3(signature = (input, output, op, callback=None))]
    fn reduce_scatter(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        op: &str,
        callback: Option<Py<PyAny>>,
    ) -> PyResult<Handle> {
        let op = op_of(op)?;
        let Pair { input: source, output: target } = Pair::of(input, output)?;
        let data_type = target.reduced_as(op)?;
        Ok(self.launch(input.py(), vec![target], callback, move |group, arrays| {
            arrays.iter_mut().try_for_each(|target| {
                group.reduce_scatter_bytes(source.bytes(), target.bytes_mut(), data_type, op)
            })
        }))
    }

    #[pyo3(signature = (input, output, input_counts=None, output_counts=None, callback=None))]
    fn all_to_all(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        input_counts: Option<Vec<usize>>,
        output_counts: Option<Vec<usize>>,
        callback: Option<Py<PyAny>>,
    ) -> PyResult<Handle> {
        let Pair { input: source, output: target } = Pair::of(input, output)?;
        let (data_type, parts) = target.moved_as();
        let counts = match (input_counts, output_counts) {
            (Some(sent), Some(received)) => Some((moved(&sent, parts), moved(&received, parts))),
            (None, None) => None,
            _ => return Err(PyValueError::new_err("give the counts of both sides, or of none")),
        };
        Ok(self.launch(input.py(), vec![target], callback, move |group, arrays| {
            arrays.iter_mut().try_for_each(|target| match &counts {
                Some((sent, received)) => group.all_to_all_v_bytes(
                    source.bytes(),
                    sent,
                    target.bytes_mut(),
                    received,
                    data_type,
                ),
                None => group.all_to_all_bytes(source.bytes(), target.bytes_mut(), data_type),
            })
        }))
    }

    #[pyo3(signature = (callback=None))]
    fn barrier(&self, py: Python<'_>, callback: Option<Py<PyAny>>) -> Handle {
        self.launch(py, Vec::new(), callback, |group, _arrays| group.barrier())
    }

    #[pyo3(signature = (array, to, callback=None))]
    fn send(
        &self,
        array: &Bound<'_, PyAny>,
        to: u32,
        callback: Option<Py<PyAny>>,
    ) -> PyResult<Handle> {
        let data = Array::of(array, false)?;
        let (data_type, _) = data.moved_as();
        Ok(self.launch(array.py(), vec![data], callback, move |group, arrays| {
            arrays.iter().try_for_each(|array| group.send_bytes(array.bytes(), data_type, to))
        }))
    }

    #[pyo3(signature = (array, from_, callback=None))]
    fn receive(
        &self,
        array: &Bound<'_, PyAny>,
        from_: u32,
        callback: Option<Py<PyAny>>,
    ) -> PyResult<Handle> {
        let data = Array::of(array, true)?;
        let (data_type, _) = data.moved_as();
        Ok(self.launch(array.py(), vec![data], callback, move |group, arrays| {
            arrays
                .iter_mut()
                .try_for_each(|array| group.receive_bytes(array.bytes_mut(), data_type, from_))
        }))
    }

    /// The bytes of `root`, whose length the others need not know. Blocks.
    fn broadcast_bytes<'py>(
        &self,
        py: Python<'py>,
        data: Vec<u8>,
        root: u32,
        maximum_bytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let failure = self.failure.clone();
        let launched = unlocked(py, || {
            self.communicator.launch(move |group| {
                let mut data = data;
                let result = group.broadcast_vec(&mut data, root, maximum_bytes);
                failure.note(&result);
                result.map(|()| data)
            })
        });
        Ok(PyBytes::new(py, &wait(py, launched)?))
    }

    /// Each rank's bytes, by rank; lengths may differ. Blocks.
    fn all_gather_bytes<'py>(
        &self,
        py: Python<'py>,
        data: Vec<u8>,
        maximum_bytes: usize,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let failure = self.failure.clone();
        let launched = unlocked(py, || {
            self.communicator.launch(move |group| {
                let result = all_gather_vec(group, &data, maximum_bytes);
                failure.note(&result);
                result
            })
        });
        let parts = wait(py, launched)?;
        Ok(parts.iter().map(|part| PyBytes::new(py, part)).collect())
    }

    /// Makes sub-groups: one for each `colour`, whose ranks go by `key`. `None` where no colour is given. Blocks.
    fn split(&self, py: Python<'_>, colour: Option<u32>, key: i32) -> PyResult<Option<Group>> {
        let failure = self.failure.clone();
        let launched = unlocked(py, || {
            self.communicator.launch(move |group| {
                let result = group.split(colour, key);
                failure.note(&result);
                result
            })
        });
        let Some(group) = wait(py, launched)? else { return Ok(None) };
        let communicator = self.communicator.beside(group);
        let mut family = self.family.lock().unwrap_or_else(PoisonError::into_inner);
        family.push(communicator.clone());
        let (failure, family) = (self.failure.clone(), Arc::clone(&self.family));
        Ok(Some(Group { communicator, failure, family }))
    }

    /// Leaves the group in good order, after all that was launched. Further operations fail.
    fn close(&self, py: Python<'_>) {
        unlocked(py, || self.communicator.call(|group| group.close()));
    }
}

/// Lengths first, then the content.
fn all_gather_vec(
    group: &mut dyn Communicator,
    data: &[u8],
    maximum_bytes: usize,
) -> Result<Vec<Vec<u8>>, CollectiveError> {
    let mut lengths = vec![0_u64; group.world_size() as usize];
    group.all_gather(&[data.len() as u64], &mut lengths)?;
    let counts: Vec<usize> =
        lengths.iter().map(|length| usize::try_from(*length).unwrap_or(usize::MAX)).collect();
    let sum = counts.iter().fold(0_usize, |sum, count| sum.saturating_add(*count));
    if sum > maximum_bytes {
        return Err(CollectiveError::InvalidArgument {
            operation: elastic_collectives::wire::OperationKind::AllGatherV,
            reason: format!(
                "the objects have {sum} bytes, at most {maximum_bytes} are allowed here"
            ),
        });
    }
    let mut all = vec![0; sum];
    group.all_gather_v_bytes(data, &mut all, &counts, DataType::U8)?;
    let mut rest = all.as_slice();
    Ok(counts
        .iter()
        .map(|count| {
            let (part, others) = rest.split_at(*count);
            rest = others;
            part.to_vec()
        })
        .collect())
}
