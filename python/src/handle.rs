//! `Handle`: an operation that was launched.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use elastic_collectives::{CollectiveError, Launched};
use pyo3::prelude::*;

use crate::errors;
use crate::operation::Operation;
use crate::unlocked::unlocked;

/// How often a wait looks for signals, such as Ctrl-C.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The first failure of any operation of a generation: what its end is put down to.
#[derive(Clone, Default)]
pub(crate) struct Failure(Arc<Mutex<Option<CollectiveError>>>);

impl Failure {
    /// Notes what an operation came to.
    pub(crate) fn note<T>(&self, result: &Result<T, CollectiveError>) {
        if let Err(error) = result
            && !matches!(error, CollectiveError::InvalidArgument { .. })
        {
            let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            slot.get_or_insert_with(|| error.clone());
        }
    }

    /// Takes it.
    pub(crate) fn take(&self) -> Option<CollectiveError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Waits without the interpreter's lock, and lets signals through. One that raises, as Ctrl-C does, ends the
/// generation at this rank, so that the operation lets go of its memory before the exception goes on.
pub(crate) fn wait<T: Send>(py: Python<'_>, launched: Launched<T>) -> PyResult<T> {
    while !unlocked(py, || launched.wait_for(LOOK_EVERY)) {
        if let Err(raised) = py.check_signals() {
            launched.abort("a signal ended the wait for a collective");
            let _ = unlocked(py, || launched.wait());
            return Err(raised);
        }
    }
    launched.wait().map_err(|error| errors::collective(&error))
}

/// An operation that runs beside this thread. Leave its arrays alone until it is done.
#[pyclass(frozen, module = "elastic_node._native")]
pub(crate) struct Handle {
    launched: Mutex<Option<Launched<Operation>>>,
}

impl Handle {
    pub(crate) fn new(launched: Launched<Operation>) -> Handle {
        Handle { launched: Mutex::new(Some(launched)) }
    }
}

#[pymethods]
impl Handle {
    /// Waits until it is done. A second call returns at once.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner).take();
        match launched {
            Some(launched) => wait(py, launched).map(drop),
            None => Ok(()),
        }
    }

    /// Whether it is done, well or not: `wait` returns at once then.
    fn done(&self) -> bool {
        let launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        launched.as_ref().is_none_or(Launched::test)
    }
}
