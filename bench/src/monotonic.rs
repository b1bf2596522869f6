//! The machine's monotonic clock, which all its processes share. Used by benchmarks with several processes.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds on `CLOCK_MONOTONIC`.
///
/// # Errors
/// The operating system's error.
pub(crate) fn now_ns() -> nix::Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
    Ok(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or_default())
}
