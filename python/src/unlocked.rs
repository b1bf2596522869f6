//! Giving up the interpreter's lock while Rust waits.

use pyo3::Python;

/// What `detach` takes along. It runs its closure on the calling thread, and asks for `Send` only to keep
/// references to Python objects out; those are not among what is put in here.
struct SameThread<T>(T);

#[expect(unsafe_code, reason = "`Python::detach` does not leave this thread")]
// SAFETY: see above; the value is moved into a closure that runs, and ends, on this thread.
unsafe impl<T> Send for SameThread<T> {}

impl<T> SameThread<T> {
    fn into_inner(self) -> T {
        self.0
    }
}

/// Runs `wait` without the interpreter's lock. It must not touch Python objects without taking the lock again.
pub(crate) fn unlocked<R>(py: Python<'_>, wait: impl FnOnce() -> R) -> R {
    let wait = SameThread(wait);
    py.detach(move || SameThread(wait.into_inner()())).into_inner()
}
