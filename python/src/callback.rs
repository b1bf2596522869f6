//! Entry of this crate's own threads into the interpreter: for callbacks of operations, and to release memory that
//! they have used. Entry ends when the interpreter exits. CPython ends a thread that takes the lock during
//! finalization by unwinding its stack, which aborts the process in C++ and in Rust.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

use crate::unlocked::unlocked;

/// Maximum time that the exit of the interpreter waits for callbacks in progress.
const EXIT_WAIT: Duration = Duration::from_secs(5);

struct InterpreterGate {
    is_closed: bool,
    inside: usize,
}

static GATE: Mutex<InterpreterGate> = Mutex::new(InterpreterGate { is_closed: false, inside: 0 });
static LEFT: Condvar = Condvar::new();

/// Leaves the gate on drop, also where a callback panics.
struct Pass;

impl Pass {
    fn enter() -> Option<Pass> {
        let mut gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
        if gate.is_closed {
            return None;
        }
        gate.inside += 1;
        Some(Pass)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
        gate.inside -= 1;
        LEFT.notify_all();
    }
}

/// Calls `callback` with the interpreter's lock; `None` once the interpreter exits.
pub(crate) fn attached<R>(callback: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    let _pass = Pass::enter()?;
    Python::try_attach(callback)
}

/// Ends the entry of other threads, and waits for those that are inside, at most 5 s. `elastic_node` calls it last
/// at the interpreter's exit.
#[pyfunction]
pub(crate) fn end_callbacks(py: Python<'_>) {
    unlocked(py, || {
        let mut gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
        gate.is_closed = true;
        let waited = LEFT.wait_timeout_while(gate, EXIT_WAIT, |gate| gate.inside > 0);
        drop(waited);
    });
}
