//! Releases the interpreter's lock while Rust waits; used by every blocking call of this crate.

use pyo3::Python;

/// The value that `detach` moves into its closure. `detach` runs the closure on the calling thread, and asks
/// for `Send` only to keep references to Python objects out; the value has none.
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
