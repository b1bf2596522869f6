//! [`DialBackoff`]: the wait before the next attempt to connect, without I/O. The dialer uses it.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Waits double from [`DialBackoff::FIRST`] to [`DialBackoff::MOST`]. Each is drawn between half and the whole of that,
/// so that nodes that lost the driver together do not come back together.
#[derive(Debug)]
pub(crate) struct DialBackoff {
    random: ChaCha8Rng,
    next: Duration,
}

impl DialBackoff {
    /// The first wait.
    pub(crate) const FIRST: Duration = Duration::from_millis(50);
    /// The longest wait.
    pub(crate) const MOST: Duration = Duration::from_secs(1);

    /// A back-off whose draws come from the node's seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), next: Self::FIRST }
    }

    /// The next wait.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let wait = self.next.mul_f64(self.random.random_range(0.5..=1.0));
        self.next = (self.next * 2).min(Self::MOST);
        wait
    }

    /// Starts again from the first wait: an attempt succeeded.
    pub(crate) fn reset(&mut self) {
        self.next = Self::FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_second_and_start_over() {
        let mut backoff = DialBackoff::new(1);
        let waits: Vec<_> = (0..12).map(|_| backoff.next_wait()).collect();
        assert!(waits[0] <= DialBackoff::FIRST && waits[0] >= DialBackoff::FIRST / 2);
        assert!(waits[11] <= DialBackoff::MOST && waits[11] >= DialBackoff::MOST / 2);
        backoff.reset();
        assert!(backoff.next_wait() <= DialBackoff::FIRST);
        let mut same = DialBackoff::new(1);
        assert_eq!((0..12).map(|_| same.next_wait()).collect::<Vec<_>>(), waits, "seeded");
    }
}
