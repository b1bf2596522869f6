//! `PySession`: this process's part in its job. The loop of the Python side calls it, always on the training
//! thread.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use elastic_node::{
    AttachOptions, Attachment, Error, Section, State, WhileWaiting, Worker, attach,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::communicator::PyGroup;
use crate::content::Content;
use crate::errors::{ElasticError, forked, raise};
use crate::handle::{GenerationFailure, LOOK_EVERY};
use crate::sampler::{PassTuple, ledger_of};
use crate::unlocked::unlocked;

/// `(rank, size, local rank, local size, cross rank, cross size)`.
type PlaceTuple = (u32, u32, u32, u32, u32, u32);

/// One generation at this worker.
struct EnteredGeneration {
    worker: Worker,
    group: Py<PyGroup>,
    failure: GenerationFailure,
}

/// This process's part in its job; without a driver a world of one.
#[pyclass(name = "Session", unsendable, module = "elastic_node._native")]
pub(crate) struct PySession {
    attachment: Option<Attachment>,
    state: State<Content>,
    /// The Python object that holds the state.
    object: Option<Py<PyAny>>,
    generation: Option<EnteredGeneration>,
    /// Whether training continues from where it was, in the generation that was entered last.
    goes_on: Rc<Cell<bool>>,
    /// The id of the process that has the session. A forked process has the memory, but none of the threads.
    process: u32,
    /// Whether the job has succeeded, and the training function of this process has returned in its last generation.
    has_finished: bool,
}

/// A section of the program; `None` outside of a generation.
#[pyclass(name = "Section", unsendable, module = "elastic_node._native")]
pub(crate) struct PySection(Option<Section>);

#[pymethods]
impl PySection {
    /// Ends it.
    fn end(&mut self) {
        self.0 = None;
    }
}

thread_local! {
    /// Whether a signal's exception, such as KeyboardInterrupt, has ended a wait for the driver.
    static SIGNALLED: Cell<bool> = const { Cell::new(false) };
}

fn check_signals() -> elastic_node::Result<()> {
    Python::attach(|py| py.check_signals()).map_err(|raised| {
        SIGNALLED.set(true);
        Error::user(raised)
    })
}

#[pymethods]
impl PySession {
    /// Keeps it as it is for the rest of this process, which was forked from the worker's.
    #[staticmethod]
    fn abandon(session: Py<PySession>) {
        std::mem::forget(session);
    }

    /// Attaches to the driver that the environment names. Blocks.
    #[new]
    fn new(py: Python<'_>) -> PyResult<PySession> {
        let options = AttachOptions {
            // Python's own handler raises KeyboardInterrupt in the training function.
            watch_interrupt: false,
            while_waiting: Some(WhileWaiting { period: LOOK_EVERY, check: check_signals }),
        };
        let attachment = unlocked(py, || attach(options)).map_err(raise)?;
        let goes_on = Rc::<Cell<bool>>::default();
        let mut state = elastic_node::state(Content::Nothing);
        state.take_blocks();
        let seen = Rc::clone(&goes_on);
        state.on_reset(move |_worker, _content| seen.set(true));
        let attachment = Some(attachment);
        let process = std::process::id();
        let (object, generation, has_finished) = (None, None, false);
        Ok(PySession { attachment, state, object, generation, goes_on, process, has_finished })
    }

    #[getter]
    fn has_driver(&self) -> bool {
        self.attachment.as_ref().is_some_and(Attachment::has_driver)
    }

    #[getter]
    fn in_generation(&self) -> bool {
        self.generation.is_some()
    }

    /// Number of the generation.
    #[getter]
    fn generation(&self) -> Option<u64> {
        self.generation.as_ref().map(|generation| generation.worker.generation())
    }

    /// Commits so far.
    #[getter]
    fn step(&self) -> u64 {
        self.state.step().0
    }

    #[getter]
    fn place(&self) -> Option<PlaceTuple> {
        let worker = &self.generation.as_ref()?.worker;
        Some((
            worker.rank(),
            worker.size(),
            worker.local_rank(),
            worker.local_size(),
            worker.cross_rank(),
            worker.cross_size(),
        ))
    }

    /// The job's logical shards, if the driver was told them; `None` outside of a generation.
    #[getter]
    fn shards(&self) -> Option<u32> {
        self.generation.as_ref()?.worker.job_shards()
    }

    /// The number of shards that the driver has dealt to each rank; empty if they are dealt evenly.
    #[getter]
    fn shard_counts(&self) -> Vec<u32> {
        let generation = self.generation.as_ref();
        generation.map_or(Vec::new(), |it| it.worker.job_shard_counts().to_vec())
    }

    /// This rank carries so many logical shards in each step of this generation.
    fn carry_shards(&self, shards: u32) {
        if let Some(generation) = &self.generation {
            generation.worker.carry_shards(shards);
        }
    }

    #[getter]
    fn group(&self, py: Python<'_>) -> Option<Py<PyGroup>> {
        self.generation.as_ref().map(|generation| generation.group.clone_ref(py))
    }

    /// Keeps the training state in `object` from here on.
    fn keep(&mut self, object: Py<PyAny>, py: Python<'_>) {
        *self.state = Content::Live(object.clone_ref(py));
        self.object = Some(object);
    }

    /// Waits for the next generation, and brings the state's object in step with its members. Returns whether
    /// training goes on there from where it was, rather than begin; `None` when it is over. Blocks.
    fn enter(&mut self, py: Python<'_>) -> PyResult<Option<bool>> {
        self.check_process()?;
        let Some(attachment) = &mut self.attachment else {
            return Err(ElasticError::new_err(
                "this process has left its job, since training has ended: a job has one elastic.run, and no \
                 collectives after it",
            ));
        };
        self.goes_on.set(false);
        let state = &mut self.state;
        match unlocked(py, || attachment.membership().enter(state)) {
            Ok(Some(worker)) => {
                // The group may form meanwhile.
                let applied = self.apply(py);
                // If it does not form, the first call says so.
                let _ = unlocked(py, || worker.wait_for_begin());
                let failure = GenerationFailure::default();
                let communicator = worker.communicator().clone();
                let group = Py::new(py, PyGroup::of_all(communicator, failure.clone()))?;
                self.generation = Some(EnteredGeneration { worker, group, failure });
                applied?;
                Ok(Some(self.goes_on.get()))
            }
            Ok(None) => {
                self.has_finished = attachment.membership().has_finished();
                self.finish(py, Ok(())).map(|()| None)
            }
            Err(error) => self.finish(py, Err(error)).map(|()| None),
        }
    }

    /// Whether the job has succeeded, and the training function of this process has returned in its last generation. A process
    /// that left before, or came too late, holds no trained state.
    #[getter]
    const fn has_finished(&self) -> bool {
        self.has_finished
    }

    /// The training function has ended, with this exception or without one.
    fn conclude(&mut self, py: Python<'_>, raised: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        self.check_process()?;
        let Some(generation) = self.generation.take() else { return Ok(()) };
        let Some(attachment) = &mut self.attachment else { return Ok(()) };
        let EnteredGeneration { worker, group, failure } = generation;
        // A signal has its own exception, which is under way.
        let _ = group.get().drain(py);
        if let Some(error) = failure.take() {
            let _ = worker.failed(error);
        }
        let result = match raised {
            Some(raised) => Err(Error::user(PyErr::from_value(raised))),
            None => Ok(()),
        };
        let (state, group) = (&mut self.state, group.get());
        let concluded = unlocked(py, || {
            let concluded = attachment.membership().conclude(state, &worker, result);
            drop(worker);
            group.close_all();
            concluded
        });
        match concluded {
            Ok(()) => Ok(()),
            Err(error) => self.finish(py, Err(error)),
        }
    }

    /// The places of the program's samplers: part of the next commits, and the `position` of their checkpoints.
    fn note_passes(&mut self, passes: Vec<PassTuple>) {
        self.state.set_ledger(ledger_of(passes));
    }

    /// Saves the state, and lets a planned change of the world take effect.
    fn commit(&mut self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        let generation = current(self.generation.as_ref())?;
        generation.check(py)?;
        let state = &mut self.state;
        unlocked(py, || state.commit(&generation.worker)).map_err(raise)
    }

    /// Saves the state.
    fn save(&mut self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        if let Some(generation) = &self.generation {
            generation.check_queued(py)?;
        }
        let state = &mut self.state;
        unlocked(py, || state.save()).map_err(raise)
    }

    /// Brings the state's object back to the last commit.
    fn restore(&mut self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        let state = &mut self.state;
        unlocked(py, || state.restore()).map_err(raise)?;
        self.apply(py)
    }

    /// Lets a planned change of the world take effect, without a commit.
    fn check_host_updates(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        let generation = current(self.generation.as_ref())?;
        generation.check(py)?;
        unlocked(py, || generation.worker.check_host_updates()).map_err(raise)
    }

    /// Begins a section of the program, which lasts until its `end`. `within` is in seconds.
    #[pyo3(signature = (name, within))]
    fn begin_section(&self, name: &str, within: Option<f64>) -> PyResult<PySection> {
        let within = within.map(Duration::try_from_secs_f64).transpose();
        let within = within.map_err(|error| {
            PyValueError::new_err(format!("within must be a number of seconds from 0 on: {error}"))
        })?;
        let worker = self.generation.as_ref().map(|generation| &generation.worker);
        Ok(PySection(worker.map(|worker| worker.section(name, within))))
    }

    /// Notes that the training thread has waited for data, for so many seconds.
    fn note_data_wait(&self, seconds: f64) {
        if let (Some(generation), Ok(waited)) =
            (&self.generation, Duration::try_from_secs_f64(seconds))
        {
            generation.worker.note_data_wait(waited);
        }
    }

    /// Reports a number by name.
    fn report(&self, name: &str, value: f64) -> PyResult<()> {
        let Some(generation) = &self.generation else { return Ok(()) };
        generation
            .worker
            .report(name, value)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Shows a short text beside this worker in `elastic-node status`.
    fn note(&self, text: &str) {
        if let Some(generation) = &self.generation {
            generation.worker.note(text);
        }
    }
}

impl PySession {
    /// # Errors
    /// This process was forked from the session's. A farewell from here would end the generation for its owner.
    fn check_process(&self) -> PyResult<()> {
        if std::process::id() == self.process { Ok(()) } else { Err(forked()) }
    }

    /// Applies a commit's content to the object.
    fn apply(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(object) = &self.object else { return Ok(()) };
        if matches!(*self.state, Content::Committed { .. }) {
            let live = Content::Live(object.clone_ref(py));
            std::mem::replace(&mut *self.state, live).apply(object.bind(py))?;
        }
        Ok(())
    }

    /// Leaves the job.
    fn finish(&mut self, py: Python<'_>, result: elastic_node::Result<()>) -> PyResult<()> {
        match self.attachment.take() {
            // The driver has not released this process, and will hear of its end from the agent.
            Some(_) if SIGNALLED.get() => result.map_err(raise),
            Some(attachment) => unlocked(py, || attachment.finish(result)).map_err(raise),
            None => result.map_err(raise),
        }
    }
}

impl EnteredGeneration {
    /// Raises an earlier failure of a collective on a GPU, whose caller may not know of it.
    fn check_queued(&self, py: Python<'_>) -> PyResult<()> {
        if self.group.get().stream().is_some() { self.check(py) } else { Ok(()) }
    }

    /// Raises an earlier failure of a collective.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.group.get().drain(py)?;
        match self.failure.take() {
            Some(error) => Err(raise(self.worker.failed(error))),
            None => Ok(()),
        }
    }
}

fn current(generation: Option<&EnteredGeneration>) -> PyResult<&EnteredGeneration> {
    generation.ok_or_else(|| {
        PyRuntimeError::new_err(
            "outside of a generation: call it within the function that elastic_node.elastic.run runs",
        )
    })
}
