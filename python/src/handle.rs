//! `PyHandle`: a launched operation, for the Python side to wait on. Made by `communicator`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use elastic_collectives::negotiation::{CallTicket, Negotiation, Settled};
use elastic_collectives::{CollectiveError, Launched};
use pyo3::prelude::*;

use crate::errors;
use crate::operation::ArrayOperation;
use crate::unlocked::unlocked;

/// Interval at which a wait looks for signals, such as Ctrl-C.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The reason of an abort by a signal.
pub(crate) const SIGNALLED: &str = "a signal ended the wait for a collective";

/// The first failure of any operation of a generation; it becomes the cause of the generation's end.
#[derive(Clone, Default)]
pub(crate) struct GenerationFailure(Arc<Mutex<Option<CollectiveError>>>);

impl GenerationFailure {
    /// Notes the result of an operation, if it failed.
    pub(crate) fn note<T>(&self, result: &Result<T, CollectiveError>) {
        if let Err(error) = result
            && !matches!(error, CollectiveError::InvalidArgument { .. })
        {
            let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            slot.get_or_insert_with(|| error.clone());
        }
    }

    /// Takes the failure.
    pub(crate) fn take(&self) -> Option<CollectiveError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Waits without the interpreter's lock, and lets signals through. A signal that raises, as Ctrl-C does, ends
/// the generation at this rank. So the operation releases its memory before the exception goes on.
pub(crate) fn wait<T: Send>(py: Python<'_>, launched: Launched<T>) -> PyResult<T> {
    while !unlocked(py, || launched.wait_for(LOOK_EVERY)) {
        if let Err(raised) = py.check_signals() {
            launched.abort(SIGNALLED);
            let _ = unlocked(py, || launched.wait());
            return Err(raised);
        }
    }
    launched.wait().map_err(|error| errors::collective(&error))
}

/// The end of a launched operation.
pub(crate) enum Finished {
    /// The operation; its memory is given back by the thread that waits.
    Operation(#[expect(dead_code, reason = "dropping it gives the memory back")] ArrayOperation),
    /// A call on which the ranks agreed, or which they refused.
    Call(Settled),
}

/// An operation that runs beside this thread. Leave its arrays alone until it is done.
#[pyclass(name = "Handle", frozen, module = "elastic_node._native")]
pub(crate) struct PyHandle {
    launched: Mutex<Option<Launched<Finished>>>,
    negotiated: Option<(Arc<Negotiation>, CallTicket)>,
}

impl PyHandle {
    /// A handle of an operation that runs in the order of launch.
    pub(crate) fn new(launched: Launched<Finished>) -> PyHandle {
        PyHandle { launched: Mutex::new(Some(launched)), negotiated: None }
    }

    /// A handle of a call that runs once all ranks have made it.
    pub(crate) fn of_call(
        launched: Launched<Finished>,
        negotiation: Arc<Negotiation>,
        ticket: CallTicket,
    ) -> PyHandle {
        let negotiated = Some((negotiation, ticket));
        PyHandle { launched: Mutex::new(Some(launched)), negotiated }
    }
}

#[pymethods]
impl PyHandle {
    /// Waits until it is done; of a join, the last rank that has joined. A second call returns at once.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        let launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(launched) = launched else { return Ok(None) };
        if let Some((negotiation, ticket)) = &self.negotiated {
            negotiation.wait_begins(*ticket);
        }
        match wait(py, launched)? {
            Finished::Call(Settled::Refused(why)) => Err(errors::CollectiveError::new_err(why)),
            Finished::Call(Settled::Joined { last }) => Ok(Some(last)),
            Finished::Operation(_) | Finished::Call(Settled::Done) => Ok(None),
        }
    }

    /// Whether it is done, well or not: `wait` returns at once then.
    fn done(&self) -> bool {
        let launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        launched.as_ref().is_none_or(Launched::test)
    }
}
