//! `PyGroup`: the collectives among the ranks of a group, on arrays. Every operation is launched; the Python side
//! waits for its handle if the operation is to block.

use std::sync::{Arc, Mutex, PoisonError};

use elastic_collectives::negotiation::{self, Negotiation};
use elastic_collectives::{
    AsyncCommunicator, CollectiveError, CollectiveResult, Communicator, CommunicatorExt, Launched,
    Operation, ReduceOp, attentive,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::array::Array;
use crate::call::PyCall;
use crate::callback;
use crate::errors::{self, collective};
use crate::handle::{self, Finished, GenerationFailure, LOOK_EVERY, PyHandle, SIGNALLED};
use crate::on_gpu::{self, GroupGpu};
use crate::operation::{self, ArrayOperation, InputArray, distinct};
use crate::unlocked::unlocked;

/// Whether the launcher of a call waits for it at once.
#[derive(Clone, Copy)]
enum CallerWaits {
    AtOnce,
    Later,
}

/// The function that is called on the collectives' thread when an operation is done, with `None` or the
/// exception.
type Callback = Option<Py<PyAny>>;

/// A group of a generation, and the negotiation among its ranks.
type FamilyMember = (AsyncCommunicator, Arc<Negotiation>);

/// Ranks that call collectives together.
///
/// An operation that is launched by itself runs in the order of launch, which is the same on all ranks; a `PyCall`
/// runs once all ranks have made it.
#[pyclass(name = "Group", frozen, module = "elastic_node._native")]
pub(crate) struct PyGroup {
    pub(crate) communicator: AsyncCommunicator,
    negotiation: Arc<Negotiation>,
    /// The GPU on which arrays can be reduced, gathered and sent, too; `None` for main memory only.
    gpu: Option<GroupGpu>,
    pub(crate) failure: GenerationFailure,
    /// Whether data is encrypted on its way to another host.
    pub(crate) encrypts: bool,
    /// All groups of the generation; they end together.
    family: Arc<Mutex<Vec<FamilyMember>>>,
    /// The id of the process that has the group. A forked process has the memory, but none of the threads.
    process: u32,
}

/// A forked process leaves the group as it is: a farewell from there would end it for its owner.
impl Drop for PyGroup {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            std::mem::forget((self.communicator.clone(), Arc::clone(&self.family)));
        }
    }
}

impl PyGroup {
    /// The group of all ranks. Failures in it, or in its sub-groups, are noted in `failure`.
    pub(crate) fn of_all(communicator: AsyncCommunicator, failure: GenerationFailure) -> PyGroup {
        PyGroup::in_family(communicator, failure, Arc::default())
    }

    fn in_family(
        communicator: AsyncCommunicator,
        failure: GenerationFailure,
        family: Arc<Mutex<Vec<FamilyMember>>>,
    ) -> PyGroup {
        let negotiation = Arc::new(Negotiation::new(communicator.world_size()));
        let member = (communicator.clone(), Arc::clone(&negotiation));
        family.lock().unwrap_or_else(PoisonError::into_inner).push(member);
        let gpu = communicator.call(on_gpu::of_group);
        let encrypts = communicator.call(|group| group.encrypts());
        let process = std::process::id();
        PyGroup { communicator, negotiation, gpu, failure, encrypts, family, process }
    }

    /// Waits for the operations on a GPU that were launched and not waited for. A caller that has ordered its own
    /// work behind one of them does not know yet whether it went well.
    ///
    /// # Errors
    /// A signal, such as Ctrl-C, ended the wait.
    pub(crate) fn drain(&self, py: Python<'_>) -> PyResult<()> {
        match self.gpu {
            Some(_) => handle::wait(py, self.communicator.launch(|_group| Ok(()))),
            None => Ok(()),
        }
    }

    /// Leaves the group and its sub-groups in order, after all launched operations.
    pub(crate) fn close_all(&self) {
        let family = self.family.lock().unwrap_or_else(PoisonError::into_inner);
        for (communicator, negotiation) in family.iter() {
            negotiation.close();
            communicator.call(|group| group.close());
        }
    }

    /// Launches an operation.
    fn launch(
        &self,
        py: Python<'_>,
        mut operation: ArrayOperation,
        callback: Callback,
    ) -> PyResult<PyHandle> {
        self.check_process()?;
        let (place, failure) = (operation::place_of(&mut operation)?, self.failure.clone());
        // A caller with a callback, such as torch, waits for its future in code of its own, so the operation itself
        // counts.
        let counted = callback.is_some().then(|| self.communicator.clone());
        let run = move |group: &mut dyn Communicator| {
            let waiting = counted.as_ref().map(AsyncCommunicator::waiting);
            let queued = || callback.as_ref().into_iter().for_each(tell_queued);
            let result = operation::run(&mut operation, place, group, queued);
            drop(waiting);
            failure.note(&result);
            if let Some(callback) = callback {
                tell(&callback, &result);
            }
            result.map(|()| Finished::Operation(operation))
        };
        // The launch may have to wait for room, and the callbacks of earlier operations need the lock.
        Ok(PyHandle::new(unlocked(py, || self.communicator.launch(run))))
    }

    /// # Errors
    /// This process was forked from the owner of the group.
    fn check_process(&self) -> PyResult<()> {
        if std::process::id() == self.process {
            return Ok(());
        }
        Err(errors::forked())
    }

    /// Submits a call, and launches the rounds that complete it.
    fn negotiate(
        &self,
        py: Python<'_>,
        call: negotiation::NegotiatedCall,
        waits: CallerWaits,
    ) -> PyResult<PyHandle> {
        self.check_process()?;
        while !self.negotiation.has_room() {
            unlocked(py, || self.negotiation.wait_for_room(LOOK_EVERY));
            py.check_signals()?;
        }
        let ticket = self
            .negotiation
            .submit(call)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.settle(py, ticket, waits)
    }

    fn settle(
        &self,
        py: Python<'_>,
        ticket: negotiation::CallTicket,
        waits: CallerWaits,
    ) -> PyResult<PyHandle> {
        let (negotiation, failure) = (Arc::clone(&self.negotiation), self.failure.clone());
        let run = move |group: &mut dyn Communicator| {
            let settled = negotiation.run(ticket, group);
            failure.note(&settled);
            settled.map(Finished::Call)
        };
        let launched = match waits {
            CallerWaits::Later => unlocked(py, || self.communicator.launch_unbounded(run)),
            CallerWaits::AtOnce => {
                self.negotiation.wait_begins(ticket);
                self.run_here(py, run)?
            }
        };
        if !launched.test() {
            // The call may wait behind earlier ones whose rounds carry it out.
            let (early, failure) = (launched.early(), self.failure.clone());
            let observer = move |settled| {
                failure.note(&settled);
                early.set(settled.map(Finished::Call));
            };
            self.negotiation.observe(ticket, Box::new(observer));
        }
        Ok(PyHandle::of_call(launched, Arc::clone(&self.negotiation), ticket))
    }

    /// Runs an operation on this thread, unless others are in flight, and lets signals through.
    ///
    /// # Errors
    /// The exception that a signal raised, as Ctrl-C does. It has ended the generation at this rank.
    fn run_here<T: Send + 'static>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut dyn Communicator) -> Result<T, CollectiveError> + Send + 'static,
    ) -> PyResult<Launched<T>> {
        let raised = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&raised);
        let look = move || {
            let error = callback::attached(|py| py.check_signals())?.err()?;
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            Some(SIGNALLED.to_owned())
        };
        let launched =
            unlocked(py, || attentive(LOOK_EVERY, look, || self.communicator.launch_or_run(run)));
        match raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(launched),
        }
    }

    /// Runs a call that has a result, and waits for it.
    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        kind: &str,
        what: String,
        waits: CallerWaits,
        operation: impl FnOnce(&mut dyn Communicator) -> Result<T, CollectiveError> + Send + 'static,
    ) -> PyResult<T> {
        let slot = Arc::new(Mutex::new(None));
        let filled = Arc::clone(&slot);
        let work = move |group: &mut dyn Communicator| {
            let value = operation(group)?;
            *filled.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            Ok(())
        };
        let (kind, work) = (kind.to_owned(), Box::new(work));
        let call = negotiation::NegotiatedCall { kind, name: None, what, reduces: None, work };
        self.negotiate(py, call, waits)?.wait(py)?;
        let value = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        value.ok_or_else(|| errors::CollectiveError::new_err("the call ended without a result"))
    }

    /// The memory of an object, to be read.
    fn read(&self, object: &Bound<'_, PyAny>) -> PyResult<Array> {
        Array::of(object, false, self.gpu)
    }

    /// The memory of an object, to be changed.
    fn changed(&self, object: &Bound<'_, PyAny>) -> PyResult<Array> {
        Array::of(object, true, self.gpu)
    }

    fn pair(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
    ) -> PyResult<(InputArray, Array)> {
        let output = self.changed(output)?;
        Ok((InputArray::beside(self.read(input)?, &output, false)?, output))
    }
}

/// Tells an observer that wants to know (it has a method `queued`) that its operation is on the group's stream.
fn tell_queued(observer: &Py<PyAny>) {
    callback::attached(|py| {
        let observer = observer.bind(py);
        let told = match observer.getattr_opt("queued") {
            Ok(Some(queued)) => queued.call0().map(drop),
            Ok(None) => Ok(()),
            Err(raised) => Err(raised),
        };
        if let Err(raised) = told {
            raised.write_unraisable(py, Some(observer));
        }
    });
}

/// Calls `observer` with a result.
fn tell(observer: &Py<PyAny>, result: &CollectiveResult) {
    callback::attached(|py| {
        let error = result.as_ref().err().map(|error| collective(error).into_value(py));
        if let Err(raised) = observer.call1(py, (error,)) {
            raised.write_unraisable(py, Some(observer.bind(py)));
        }
    });
}

pub(crate) fn op_of(name: &str) -> PyResult<ReduceOp> {
    ReduceOp::ALL.into_iter().find(|op| op.to_string() == name).ok_or_else(|| {
        PyValueError::new_err(format!("{name:?} is no reduction: sum, mean, min, max or prod"))
    })
}

/// Converts counts of elements to counts of the type in which they are moved.
pub(crate) fn moved(counts: &[usize], parts: usize) -> Vec<usize> {
    counts.iter().map(|count| count.saturating_mul(parts)).collect()
}

#[pymethods]
impl PyGroup {
    #[getter]
    fn rank(&self) -> u32 {
        self.communicator.rank()
    }

    #[getter]
    fn size(&self) -> u32 {
        self.communicator.world_size()
    }

    /// The GPU that arrays may be on, and the handle of the stream on which operations on them are queued.
    #[getter]
    pub(crate) fn stream(&self) -> Option<(i32, u64)> {
        self.gpu.map(|gpu| (gpu.ordinal, gpu.stream))
    }

    /// The reason why the group was aborted, if it was.
    #[getter]
    fn aborted(&self) -> Option<String> {
        let (term, generation) = self.communicator.stamp();
        let abort = self.communicator.abort_handle()?.aborted(term, generation)?;
        Some(abort.reason.to_string())
    }

    #[pyo3(signature = (arrays, op, callback=None))]
    fn all_reduce(
        &self,
        py: Python<'_>,
        arrays: Vec<Bound<'_, PyAny>>,
        op: &str,
        callback: Callback,
    ) -> PyResult<PyHandle> {
        let op = op_of(op)?;
        let typed = arrays.iter().map(|object| {
            let array = self.changed(object)?;
            let data_type = array.reduced_as(op)?;
            Ok((array, data_type))
        });
        let buffers = distinct(typed.collect::<PyResult<_>>()?)?;
        self.launch(py, Operation::GroupedAllReduce { buffers, op }, callback)
    }

    /// The reduction at `root`; the other ranks' arrays stay as they are.
    #[pyo3(signature = (array, op, root, callback=None))]
    fn reduce(
        &self,
        array: &Bound<'_, PyAny>,
        op: &str,
        root: u32,
        callback: Callback,
    ) -> PyResult<PyHandle> {
        let (op, data) = (op_of(op)?, self.changed(array)?);
        let data_type = data.reduced_as(op)?;
        self.launch(array.py(), Operation::Reduce { data, data_type, op, root }, callback)
    }

    #[pyo3(signature = (array, root, callback=None))]
    fn broadcast(
        &self,
        array: &Bound<'_, PyAny>,
        root: u32,
        callback: Callback,
    ) -> PyResult<PyHandle> {
        let data = self.changed(array)?;
        let (data_type, _) = data.moved_as();
        self.launch(array.py(), Operation::Broadcast { data, data_type, root }, callback)
    }

    /// Every rank's input, by rank, in the output of `root`; the other ranks give no output.
    #[pyo3(signature = (input, output, root, callback=None))]
    fn gather(
        &self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        root: u32,
        callback: Callback,
    ) -> PyResult<PyHandle> {
        let py = input.py();
        let (input, output) = match output {
            Some(output) => {
                self.pair(input, output).map(|(input, output)| (input, Some(output)))?
            }
            None => (InputArray::alone(self.read(input)?), None),
        };
        let (data_type, _) = input.array().moved_as();
        self.launch(py, Operation::Gather { input, output, data_type, root }, callback)
    }

    /// Part r of the input of `root` in the output of rank r; the other ranks give no input.
    #[pyo3(signature = (input, output, root, callback=None))]
    fn scatter(
        &self,
        input: Option<&Bound<'_, PyAny>>,
        output: &Bound<'_, PyAny>,
        root: u32,
        callback: Callback,
    ) -> PyResult<PyHandle> {
        let py = output.py();
        let (input, output) = match input {
            Some(input) => self.pair(input, output).map(|(input, output)| (Some(input), output))?,
            None => (None, self.changed(output)?),
        };
        let (data_type, _) = output.moved_as();
        self.launch(py, Operation::Scatter { input, output, data_type, root }, callback)
    }

    #[pyo3(signature = (input, output, counts=None, callback=None))]
    fn all_gather(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        counts: Option<Vec<usize>>,
        callback: Callback,
    ) -> PyResult<PyHandle> {
        let py = input.py();
        let (input, output) = (self.read(input)?, self.changed(output)?);
        let (data_type, parts) = output.moved_as();
        let counts = counts.map(|counts| moved(&counts, parts));
        let rank = self.rank() as usize;
        let before = match &counts {
            Some(counts) => {
                let elements =
                    counts.iter().take(rank).fold(0_usize, |sum, count| sum.saturating_add(*count));
                elements.saturating_mul(data_type.size_bytes())
            }
            None => rank.saturating_mul(input.length_bytes()),
        };
        let is_own_part = input.start() == output.start().saturating_add(before);
        let input = InputArray::beside(input, &output, is_own_part)?;
        self.launch(py, Operation::AllGather { input, output, counts, data_type }, callback)
    }

    #[pyo3(signature = (input, output, op, callback=None))]
    fn reduce_scatter(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        op: &str,
        callback: Callback,
    ) -> PyResult<PyHandle> {
        let (py, op) = (input.py(), op_of(op)?);
        let (input, output) = (self.read(input)?, self.changed(output)?);
        let data_type = output.reduced_as(op)?;
        let before = (self.rank() as usize).saturating_mul(output.length_bytes());
        let is_own_part = output.start() == input.start().saturating_add(before);
        let input = InputArray::beside(input, &output, is_own_part)?;
        self.launch(py, Operation::ReduceScatter { input, output, data_type, op }, callback)
    }

    #[pyo3(signature = (input, output, input_counts=None, output_counts=None, callback=None))]
    fn all_to_all(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        input_counts: Option<Vec<usize>>,
        output_counts: Option<Vec<usize>>,
        callback: Callback,
    ) -> PyResult<PyHandle> {
        let py = input.py();
        let (input, output) = self.pair(input, output)?;
        let (data_type, parts) = output.moved_as();
        let counts = match (input_counts, output_counts) {
            (Some(sent), Some(received)) => Some((moved(&sent, parts), moved(&received, parts))),
            (None, None) => None,
            _ => return Err(PyValueError::new_err("give the counts of both sides, or of none")),
        };
        self.launch(py, Operation::AllToAll { input, output, counts, data_type }, callback)
    }

    #[pyo3(signature = (callback=None))]
    fn barrier(&self, py: Python<'_>, callback: Callback) -> PyResult<PyHandle> {
        self.launch(py, Operation::Barrier, callback)
    }

    #[pyo3(signature = (array, to, callback=None))]
    fn send(&self, array: &Bound<'_, PyAny>, to: u32, callback: Callback) -> PyResult<PyHandle> {
        let data = InputArray::alone(self.read(array)?);
        let (data_type, _) = data.array().moved_as();
        self.launch(array.py(), Operation::Send { data, data_type, to }, callback)
    }

    #[pyo3(signature = (array, from_, callback=None))]
    fn recv(&self, array: &Bound<'_, PyAny>, from_: u32, callback: Callback) -> PyResult<PyHandle> {
        let data = self.changed(array)?;
        let (data_type, _) = data.moved_as();
        self.launch(array.py(), Operation::Recv { data, data_type, from: from_ }, callback)
    }

    /// Begins a call, to which parts are added before `launch`. `what` has all that must be the same on all ranks.
    #[pyo3(signature = (kind, name, what))]
    fn begin(&self, kind: String, name: Option<String>, what: String) -> PyCall {
        PyCall::new(kind, name, what, self.gpu)
    }

    /// Launches a call. It runs once all ranks have made it.
    fn launch_call(&self, py: Python<'_>, call: &PyCall) -> PyResult<PyHandle> {
        self.negotiate(py, call.finish()?, CallerWaits::Later)
    }

    /// As `launch_call`, for a caller that waits at once: the call runs on this thread, unless others are in flight.
    fn run_call(&self, py: Python<'_>, call: &PyCall) -> PyResult<PyHandle> {
        self.negotiate(py, call.finish()?, CallerWaits::AtOnce)
    }

    /// Says that this rank has no more data: others' sums and averages count it as zeros, until all ranks have joined.
    fn join(&self, py: Python<'_>) -> PyResult<PyHandle> {
        self.check_process()?;
        self.settle(py, self.negotiation.join(), CallerWaits::AtOnce)
    }

    /// The bytes of `root`, whose length the others need not know. Blocks.
    fn broadcast_bytes<'py>(
        &self,
        py: Python<'py>,
        mut data: Vec<u8>,
        root: u32,
        maximum_bytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let what = format!("from rank {root}");
        let data = self.call(py, "broadcast_object", what, CallerWaits::AtOnce, move |group| {
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
        let parts =
            self.call(py, "allgather_object", String::new(), CallerWaits::AtOnce, move |group| {
                all_gather_vec(group, &data, maximum_bytes)
            })?;
        Ok(parts.iter().map(|part| PyBytes::new(py, part)).collect())
    }

    /// Makes sub-groups: one for each `colour`, whose ranks go by `key`. `None` where no colour is given. Blocks.
    fn split(&self, py: Python<'_>, colour: Option<u32>, key: i32) -> PyResult<Option<PyGroup>> {
        let split = move |group: &mut dyn Communicator| group.split(colour, key);
        // Sub-groups form beside this thread: forming lets no signals through.
        let group = self.call(py, "split", String::new(), CallerWaits::Later, split)?;
        let Some((group, colour)) = group.zip(colour) else { return Ok(None) };
        let (failure, family) = (self.failure.clone(), Arc::clone(&self.family));
        // Ranks may make calls of several groups in different orders, too.
        let communicator = match self.gpu {
            Some(_) => self.communicator.beside(group, colour),
            None => self.communicator.apart(group, colour),
        };
        Ok(Some(PyGroup::in_family(communicator, failure, family)))
    }

    /// Leaves the group in good order, after all that was launched. Further operations fail.
    fn close(&self, py: Python<'_>) {
        if self.check_process().is_err() {
            return;
        }
        self.negotiation.close();
        unlocked(py, || self.communicator.call(|group| group.close()));
    }
}

/// Gathers the lengths, and then the content.
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
    group.all_gather_v(data, &mut all, &counts)?;
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
