//! The one place of this crate that reads the clock. Deadlines of forming and of operations use it, and the account of
//! waits; no decision but "has the deadline passed" depends on it.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The monotonic time now.
#[expect(
    clippy::disallowed_methods,
    reason = "blocking calls on the training thread own their deadline"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The monotonic time since the first call in this process.
pub(crate) fn since_start() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let now = now();
    now.saturating_duration_since(*START.get_or_init(|| now))
}
