//! Wait before a restart: exponential back-off with equal jitter (half of the wait is fixed, half is drawn), as in
//! Amazon's "Exponential Backoff And Jitter" (2015). Used by [`RestartCore`](super::RestartCore), and by the driver for
//! slots whose workers fail.

use std::time::Duration;

use rand::{Rng, RngCore};

/// An exponential back-off.
///
/// Attempt n waits for something from half of `base * 2^n` to all of it, the latter never more than `cap`. So
/// a later attempt never waits for less than an earlier one until the cap is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RestartBackoff {
    /// Longest wait of the first attempt.
    pub base: Duration,
    /// Longest wait of any attempt.
    pub cap: Duration,
}

impl RestartBackoff {
    /// Longest wait of an attempt; the first is number 0.
    pub fn longest(&self, attempt: u32) -> Duration {
        let factor = 2_u32.checked_pow(attempt).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.cap)
    }

    /// The wait of an attempt; the first is number 0.
    pub fn wait(&self, attempt: u32, rng: &mut impl RngCore) -> Duration {
        let nanos = u64::try_from(self.longest(attempt).as_nanos()).unwrap_or(u64::MAX);
        let half = nanos.div_ceil(2);
        Duration::from_nanos(rng.random_range(half..=nanos))
    }
}
