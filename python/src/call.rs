//! `PyCall`: the work of one function under Horovod's names, in one or more parts. It runs once all ranks have
//! made it (`elastic_collectives::negotiation`); `PyGroup` launches it.

use std::sync::{Mutex, PoisonError};

use elastic_collectives::negotiation::{self, CallWork};
use elastic_collectives::{
    CollectiveError, CollectiveResult, Communicator, CommunicatorExt, DataType, Operation, ReduceOp,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::array::{Array, MemorySpace};
use crate::callback;
use crate::communicator::{moved, op_of};
use crate::on_gpu::GroupGpu;
use crate::operation::{self, ArrayOperation, InputArray, distinct};

type CallReduction = (ReduceOp, Vec<(DataType, usize)>);

/// A call that is put together.
#[pyclass(name = "Call", frozen, module = "elastic_node._native")]
pub(crate) struct PyCall {
    kind: String,
    name: Option<String>,
    what: String,
    gpu: Option<GroupGpu>,
    parts: Mutex<CallParts>,
}

#[derive(Default)]
struct CallParts {
    works: Vec<CallWork>,
    reduces: Vec<Option<CallReduction>>,
    /// Callbacks on the collectives' thread: the first when the ranks have agreed, the second when the call is
    /// done.
    observers: Option<[Py<PyAny>; 2]>,
    is_finished: bool,
}

fn tell(observer: Option<&Py<PyAny>>) {
    let Some(observer) = observer else { return };
    callback::attached(|py| {
        if let Err(raised) = observer.call0(py) {
            raised.write_unraisable(py, Some(observer.bind(py)));
        }
    });
}

/// An output whose size is known only when the ranks have exchanged theirs. Python allocates it, on the
/// collectives' thread.
struct Later {
    allocate: Py<PyAny>,
    gpu: Option<GroupGpu>,
}

impl Later {
    /// The output for these numbers of rows, one from each rank.
    fn array(&self, rows: &[usize]) -> Result<Array, CollectiveError> {
        callback::attached(|py| {
            let output = self.allocate.bind(py).call1((rows.to_vec(),))?;
            Array::of(&output, true, self.gpu)
        })
        .unwrap_or_else(|| Err(PyRuntimeError::new_err("the interpreter exits")))
        .map_err(|raised: PyErr| {
            let error = std::io::Error::other(format!("no memory for the result: {raised}"));
            CollectiveError::System(std::sync::Arc::new(error))
        })
    }
}

fn input_beside(input: Array, output: &Array) -> Result<InputArray, CollectiveError> {
    InputArray::beside(input, output, false).map_err(|raised| {
        CollectiveError::System(std::sync::Arc::new(std::io::Error::other(raised.to_string())))
    })
}

fn times(rows: &[usize], elements: usize) -> Vec<usize> {
    rows.iter().map(|rows| rows.saturating_mul(elements)).collect()
}

fn told(rows: &[u64]) -> Vec<usize> {
    rows.iter().map(|rows| usize::try_from(*rows).unwrap_or(usize::MAX)).collect()
}

impl PyCall {
    pub(crate) fn new(
        kind: String,
        name: Option<String>,
        what: String,
        gpu: Option<GroupGpu>,
    ) -> PyCall {
        PyCall { kind, name, what, gpu, parts: Mutex::default() }
    }

    fn add(&self, reduces: Option<CallReduction>, work: CallWork) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.works.push(work);
        parts.reduces.push(reduces);
    }

    fn add_operation(&self, mut operation: ArrayOperation) -> PyResult<()> {
        let place = operation::place_of(&mut operation)?;
        let reduces = match &operation {
            Operation::GroupedAllReduce { buffers, op } if place == MemorySpace::Main => {
                Some((*op, buffers.iter().map(|(array, of)| (*of, array.count())).collect()))
            }
            _ => None,
        };
        self.add(
            reduces,
            Box::new(move |group| operation::run(&mut operation, place, group, || ())),
        );
        Ok(())
    }

    /// The call with all its parts; it can be launched once.
    pub(crate) fn finish(&self) -> PyResult<negotiation::NegotiatedCall> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut parts.is_finished, true) {
            return Err(PyValueError::new_err("a call is launched once"));
        }
        let works = std::mem::take(&mut parts.works);
        let reduces = match parts.reduces.as_mut_slice() {
            [only] => only.take(),
            _ => None,
        };
        let observers = parts.observers.take();
        let work = move |group: &mut dyn Communicator| -> CollectiveResult {
            let [begun, ended] = [0, 1].map(|number| observers.as_ref().map(|both| &both[number]));
            tell(begun);
            let outcome = works.into_iter().try_for_each(|work| work(group));
            tell(ended);
            outcome
        };
        let (kind, name, what) = (self.kind.clone(), self.name.clone(), self.what.clone());
        Ok(negotiation::NegotiatedCall { kind, name, what, reduces, work: Box::new(work) })
    }
}

#[pymethods]
impl PyCall {
    fn all_reduce(&self, arrays: Vec<Bound<'_, PyAny>>, op: &str) -> PyResult<()> {
        let op = op_of(op)?;
        let typed = arrays.iter().map(|object| {
            let array = Array::of(object, true, self.gpu)?;
            let data_type = array.reduced_as(op)?;
            Ok((array, data_type))
        });
        let buffers = distinct(typed.collect::<PyResult<_>>()?)?;
        self.add_operation(Operation::GroupedAllReduce { buffers, op })
    }

    fn broadcast(&self, array: &Bound<'_, PyAny>, root: u32) -> PyResult<()> {
        let data = Array::of(array, true, self.gpu)?;
        let (data_type, _) = data.moved_as();
        self.add_operation(Operation::Broadcast { data, data_type, root })
    }

    /// Equal parts of the reduction, one for each rank.
    fn reduce_scatter(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        op: &str,
    ) -> PyResult<()> {
        let op = op_of(op)?;
        let (input, output) =
            (Array::of(input, false, self.gpu)?, Array::of(output, true, self.gpu)?);
        let data_type = output.reduced_as(op)?;
        let input = InputArray::beside(input, &output, false)?;
        self.add_operation(Operation::ReduceScatter { input, output, data_type, op })
    }

    /// All ranks' rows, of `row_elements` each. `allocate` makes the output for the numbers of rows.
    fn all_gather(
        &self,
        input: &Bound<'_, PyAny>,
        rows: u64,
        row_elements: usize,
        allocate: Py<PyAny>,
    ) -> PyResult<()> {
        let input = Array::of(input, false, self.gpu)?;
        let later = Later { allocate, gpu: self.gpu };
        let work = move |group: &mut dyn Communicator| {
            let mut all = vec![0_u64; group.world_size() as usize];
            group.all_gather(&[rows], &mut all)?;
            let all = told(&all);
            let output = later.array(&all)?;
            let input = input_beside(input, &output)?;
            let ((data_type, parts), place) = (output.moved_as(), output.place());
            let counts = Some(moved(&times(&all, row_elements), parts));
            let mut gather = Operation::AllGather { input, output, counts, data_type };
            operation::run(&mut gather, place, group, || ())
        };
        self.add(None, Box::new(work));
        Ok(())
    }

    /// Rows to and from each rank. `allocate` makes the output for the numbers of rows.
    fn all_to_all(
        &self,
        input: &Bound<'_, PyAny>,
        splits: Vec<u64>,
        row_elements: usize,
        allocate: Py<PyAny>,
    ) -> PyResult<()> {
        let input = Array::of(input, false, self.gpu)?;
        let later = Later { allocate, gpu: self.gpu };
        let work = move |group: &mut dyn Communicator| {
            let mut received = vec![0_u64; splits.len()];
            group.all_to_all(&splits, &mut received)?;
            let (sent, received) = (told(&splits), told(&received));
            let output = later.array(&received)?;
            let input = input_beside(input, &output)?;
            let ((data_type, parts), place) = (output.moved_as(), output.place());
            let counts = |rows: &[usize]| moved(&times(rows, row_elements), parts);
            let counts = Some((counts(&sent), counts(&received)));
            let mut exchange = Operation::AllToAll { input, output, counts, data_type };
            operation::run(&mut exchange, place, group, || ())
        };
        self.add(None, Box::new(work));
        Ok(())
    }

    /// Has these called when the ranks have agreed on it, and when it is done.
    fn observe(&self, begun: Py<PyAny>, ended: Py<PyAny>) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.observers = Some([begun, ended]);
    }

    fn barrier(&self) {
        self.add(None, Box::new(|group| group.barrier()));
    }
}
