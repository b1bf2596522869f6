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
use crate::on_gpu::{self, GroupGpu};
use crate::operation::{Operation, Outcome, Pair};
use crate::unlocked::unlocked;

/// What is called on the collectives' thread when an operation is done, with `None` or the exception.
type Callback = Option<Py<PyAny>>;

/// Ranks that call collectives together.
#[pyclass(frozen, module = "elastic_node._native")]
pub(crate) struct Group {
    communicator: AsyncCommunicator,
    /// Where arrays on the GPU can be reduced, gathered and sent, too.
    gpu: Option<GroupGpu>,
    failure: Failure,
    /// All groups of the generation, which end together.
    family: Arc<Mutex<Vec<AsyncCommunicator>>>,
}

impl Group {
    /// The group of all ranks. What fails in it, or in its sub-groups, is noted in `failure`.
    pub(crate) fn of_all(communicator: AsyncCommunicator, failure: Failure) -> Group {
        Group::in_family(communicator, failure, Arc::default())
    }

    fn in_family(
        communicator: AsyncCommunicator,
        failure: Failure,
        family: Arc<Mutex<Vec<AsyncCommunicator>>>,
    ) -> Group {
        family.lock().unwrap_or_else(PoisonError::into_inner).push(communicator.clone());
        let gpu = communicator.call(on_gpu::of_group);
        Group { communicator, gpu, failure, family }
    }

    /// Leaves it, and its sub-groups, in good order, after all that was launched.
    pub(crate) fn close_all(&self) {
        let family = self.family.lock().unwrap_or_else(PoisonError::into_inner);
        for communicator in family.iter() {
            communicator.call(|group| group.close());
        }
    }

    /// Launches an operation.
    fn launch(
        &self,
        py: Python<'_>,
        mut operation: Operation,
        callback: Callback,
    ) -> PyResult<Handle> {
        let (place, failure) = (operation.place()?, self.failure.clone());
        let run = move |group: &mut dyn Communicator| {
            let result = operation.run(place, group);
            failure.note(&result);
            if let Some(callback) = callback {
                tell(&callback, &result);
            }
            result.map(|()| operation)
        };
        // It may have to wait for room among the launched, whose callbacks need the lock.
        Ok(Handle::new(unlocked(py, || self.communicator.launch(run))))
    }

    /// Launches what gives something back, and waits for it.
    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(&mut dyn Communicator) -> Result<T, CollectiveError> + Send + 'static,
    ) -> PyResult<T> {
        let failure = self.failure.clone();
        let launched = unlocked(py, || {
            self.communicator.launch(move |group| {
                let result = operation(group);
                failure.note(&result);
                result
            })
        });
        wait(py, launched)
    }

    /// The memory of an object, to be read.
    fn read(&self, object: &Bound<'_, PyAny>) -> PyResult<Array> {
        Array::of(object, false, self.gpu)
    }

    /// The memory of an object, to be changed.
    fn changed(&self, object: &Bound<'_, PyAny>) -> PyResult<Array> {
        Array::of(object, true, self.gpu)
    }

    fn pair(&self, input: &Bound<'_, PyAny>, output: &Bound<'_, PyAny>) -> PyResult<Pair> {
        Pair::of(self.read(input)?, self.changed(output)?)
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

    #[pyo3(signature = (arrays, op, callback=None))]
    fn all_reduce(
        &self,
        py: Python<'_>,
        arrays: Vec<Bound<'_, PyAny>>,
        op: &str,
        callback: Callback,
    ) -> PyResult<Handle> {
        let op = op_of(op)?;
        let typed = arrays.iter().map(|object| {
            let array = self.changed(object)?;
            let data_type = array.reduced_as(op)?;
            Ok((array, data_type))
        });
        let arrays = typed.collect::<PyResult<_>>()?;
        self.launch(py, Operation::AllReduce { arrays, op }, callback)
    }

    #[pyo3(signature = (array, root, callback=None))]
    fn broadcast(
        &self,
        array: &Bound<'_, PyAny>,
        root: u32,
        callback: Callback,
    ) -> PyResult<Handle> {
        let operation = Operation::Broadcast { array: self.changed(array)?, root };
        self.launch(array.py(), operation, callback)
    }

    #[pyo3(signature = (input, output, counts=None, callback=None))]
    fn all_gather(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        counts: Option<Vec<usize>>,
        callback: Callback,
    ) -> PyResult<Handle> {
        let arrays = self.pair(input, output)?;
        let (_, parts) = arrays.moved_as();
        let counts = counts.map(|counts| moved(&counts, parts));
        self.launch(input.py(), Operation::AllGather { arrays, counts }, callback)
    }

    #[pyo3(signature = (input, output, op, callback=None))]
    fn reduce_scatter(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        op: &str,
        callback: Callback,
    ) -> PyResult<Handle> {
        let (op, arrays) = (op_of(op)?, self.pair(input, output)?);
        let data_type = arrays.reduced_as(op)?;
        self.launch(input.py(), Operation::ReduceScatter { arrays, data_type, op }, callback)
    }

    #[pyo3(signature = (input, output, input_counts=None, output_counts=None, callback=None))]
    fn all_to_all(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        input_counts: Option<Vec<usize>>,
        output_counts: Option<Vec<usize>>,
        callback: Callback,
    ) -> PyResult<Handle> {
        let arrays = self.pair(input, output)?;
        let (_, parts) = arrays.moved_as();
        let counts = match (input_counts, output_counts) {
            (Some(sent), Some(received)) => Some((moved(&sent, parts), moved(&received, parts))),
            (None, None) => None,
            _ => return Err(PyValueError::new_err("give the counts of both sides, or of none")),
        };
        self.launch(input.py(), Operation::AllToAll { arrays, counts }, callback)
    }

    #[pyo3(signature = (callback=None))]
    fn barrier(&self, py: Python<'_>, callback: Callback) -> PyResult<Handle> {
        self.launch(py, Operation::Barrier, callback)
    }

    #[pyo3(signature = (array, to, callback=None))]
    fn send(&self, array: &Bound<'_, PyAny>, to: u32, callback: Callback) -> PyResult<Handle> {
        self.launch(array.py(), Operation::Send { array: self.read(array)?, to }, callback)
    }

    #[pyo3(signature = (array, from_, callback=None))]
    fn receive(
        &self,
        array: &Bound<'_, PyAny>,
        from_: u32,
        callback: Callback,
    ) -> PyResult<Handle> {
        let operation = Operation::Receive { array: self.changed(array)?, from: from_ };
        self.launch(array.py(), operation, callback)
    }

    /// The bytes of `root`, whose length the others need not know. Blocks.
    fn broadcast_bytes<'py>(
        &self,
        py: Python<'py>,
        mut data: Vec<u8>,
        root: u32,
        maximum_bytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let data = self.call(py, move |group| {
            group.broadcast_vec(&mut data, root, maximum_bytes).map(|()| data)
        });
        Ok(PyBytes::new(py, &data?))
    }

    /// Each rank's bytes, by rank; lengths may differ. Blocks.
    fn all_gather_bytes<'py>(
        &self,
        py: Python<'py>,
        data: Vec<u8>,
        maximum_bytes: usize,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let parts = self.call(py, move |group| all_gather_vec(group, &data, maximum_bytes))?;
        Ok(parts.iter().map(|part| PyBytes::new(py, part)).collect())
    }

    /// Makes sub-groups: one for each `colour`, whose ranks go by `key`. `None` where no colour is given. Blocks.
    fn split(&self, py: Python<'_>, colour: Option<u32>, key: i32) -> PyResult<Option<Group>> {
        let Some(group) = self.call(py, move |group| group.split(colour, key))? else {
            return Ok(None);
        };
        let (failure, family) = (self.failure.clone(), Arc::clone(&self.family));
        Ok(Some(Group::in_family(self.communicator.beside(group), failure, family)))
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
