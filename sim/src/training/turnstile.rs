//! [`Turnstile`]: passes the turn between a training thread and the scheduler. A training thread is a thread of the system. At
//! most one of them, or the scheduler, runs at a moment, so that a run is one order of steps, which the scheduler draws. Used
//! by `seat` and `nodes`.

use std::panic::resume_unwind;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Real time within which a thread must come back to the scheduler. Longer means that it blocks where nobody wakes it, or turns in
/// a circle.
const TURN_MAX: Duration = Duration::from_secs(20);

/// End of a training thread.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum SimulatedThreadEnd {
    /// `run_loop` returned without an error.
    Returned,
    /// `run_loop` returned this error.
    Failed(String),
    /// The thread panicked with this text.
    Panicked(String),
    /// The process was killed.
    Killed,
}

/// Place at which a training thread stands still.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum ThreadHalt {
    /// It has not begun, or has paused between two steps of its own: it goes on whenever it has the turn.
    Between,
    /// It waits for a command.
    Command,
    /// It waits for the members of its group.
    Group,
    /// It has ended.
    Ended(SimulatedThreadEnd),
}

/// Panic payload that unwinds the thread of a killed process.
pub(super) struct Killed;

#[derive(Debug)]
struct TurnState {
    is_threads: bool,
    is_killed: bool,
    halt: ThreadHalt,
}

/// The turn of one thread.
#[derive(Debug)]
pub(super) struct Turnstile {
    state: Mutex<TurnState>,
    changed: Condvar,
}

impl Turnstile {
    pub(super) fn new() -> Self {
        let state = TurnState { is_threads: false, is_killed: false, halt: ThreadHalt::Between };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Scheduler: lets the thread run until it halts. None: it does not come back.
    pub(super) fn give(&self) -> Option<ThreadHalt> {
        let mut state = self.lock();
        state.is_threads = true;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(state, TURN_MAX, |state| state.is_threads);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        (!timeout.timed_out()).then(|| state.halt.clone())
    }

    /// Scheduler: the place at which the thread stands still.
    pub(super) fn halt(&self) -> ThreadHalt {
        self.lock().halt.clone()
    }

    /// Scheduler: the process is killed. Its thread unwinds at its next turn.
    pub(super) fn kill(&self) {
        self.lock().is_killed = true;
    }

    /// Whether the process was killed.
    pub(super) fn is_killed(&self) -> bool {
        self.lock().is_killed
    }

    /// Thread: waits for its first turn.
    pub(super) fn begin(&self) {
        let state = self.lock();
        self.wait(state);
    }

    /// Thread: stands still until it has the turn again. Unwinds if the process was killed meanwhile.
    pub(super) fn halt_at(&self, halt: ThreadHalt) {
        let mut state = self.lock();
        (state.halt, state.is_threads) = (halt, false);
        self.changed.notify_all();
        self.wait(state);
    }

    fn wait(&self, state: MutexGuard<'_, TurnState>) {
        let waited = self.changed.wait_while(state, |state| !state.is_threads);
        let is_killed = waited.unwrap_or_else(PoisonError::into_inner).is_killed;
        if is_killed && !std::thread::panicking() {
            resume_unwind(Box::new(Killed));
        }
    }

    /// Thread: it ends.
    pub(super) fn end(&self, end: SimulatedThreadEnd) {
        let mut state = self.lock();
        (state.halt, state.is_threads) = (ThreadHalt::Ended(end), false);
        self.changed.notify_all();
    }
}
