//! Python's exceptions for the errors of Rust code; raised by all of this crate.

use std::cell::RefCell;

use elastic_node::Error;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    elastic_node,
    CollectiveError,
    PyRuntimeError,
    "A collective did not come to its end: a worker was lost, or the generation was aborted.\n\n\
     Under elastic_node.elastic.run the state goes back to the last commit, and training goes on in the next \
     generation. What Horovod calls HorovodInternalError."
);
create_exception!(
    elastic_node,
    HostsUpdatedInterrupt,
    PyRuntimeError,
    "The world changes as planned, at this commit on every rank. Live state is kept.\n\n\
     Let it pass through the training function: elastic_node.elastic.run goes on in the next generation."
);
create_exception!(
    elastic_node,
    ElasticError,
    PyRuntimeError,
    "This process cannot take part in its job, or not any more; the message says why."
);

thread_local! {
    /// An exception of Python inside Rust code whose errors cannot carry it.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Keeps an exception until [`raise`] is asked about the error that it led to.
pub(crate) fn keep(error: PyErr) {
    RAISED.with_borrow_mut(|slot| *slot = Some(error));
}

/// The exception for a call in a process that was forked from a worker.
pub(crate) fn forked() -> PyErr {
    CollectiveError::new_err(
        "this process was forked from a worker, and has no part in its job: call collectives in the worker itself, or \
         start the process with multiprocessing's \"spawn\"",
    )
}

/// The exception for an error of the Rust API.
pub(crate) fn raise(error: Error) -> PyErr {
    match error {
        Error::Aborted { .. } => CollectiveError::new_err(error.chain()),
        Error::Interrupted { .. } => HostsUpdatedInterrupt::new_err(error.chain()),
        Error::Collective(source) => collective(&source),
        Error::Refused { .. } => RAISED
            .with_borrow_mut(Option::take)
            .unwrap_or_else(|| ElasticError::new_err(error.chain())),
        Error::User(source) => match source.downcast::<PyErr>() {
            Ok(raised) => *raised,
            Err(source) => ElasticError::new_err(source.to_string()),
        },
        error => ElasticError::new_err(error.chain()),
    }
}

/// The exception for an error of a collective.
pub(crate) fn collective(error: &elastic_collectives::CollectiveError) -> PyErr {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let text = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
    match error {
        elastic_collectives::CollectiveError::InvalidArgument { .. } => PyValueError::new_err(text),
        elastic_collectives::CollectiveError::DeadlinePassed { .. } => {
            CollectiveError::new_err(format!("a timeout has passed: {text}"))
        }
        _ => CollectiveError::new_err(text),
    }
}
