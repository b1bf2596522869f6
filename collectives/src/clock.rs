//! The one place of this crate that reads the clock. Deadlines of forming and of operations use it;
//! nothing else does, and no decision but "has the deadline passed" depends on it.

use std::time::Instant;

/// The monotonic time now.
#[expect(
    clippy::disallowed_methods,
    reason = "blocking calls on the training thread own their deadline"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
