//! The clock of a simulated node. It has its own origin and rate, different from the world's. Used for every node of
//! the modes *cores* and *actors*.

use elastic_protocol::Time;

const MILLION: u64 = 1_000_000;

/// A node's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeClock {
    origin: u64,
    /// Nanoseconds of this clock in a million of the world's.
    rate: u64,
}

impl NodeClock {
    /// A clock that starts at `origin` (world time) and is `ppm` millionths too fast.
    pub(crate) fn new(origin: u64, ppm: i64) -> Self {
        Self { origin, rate: MILLION.saturating_add_signed(ppm) }
    }

    /// The clock's time at a moment of the world.
    pub(crate) fn local(&self, world: u64) -> Time {
        let passed = world.saturating_sub(self.origin);
        Time(passed / MILLION * self.rate + passed % MILLION * self.rate / MILLION)
    }

    /// The first moment of the world at which the clock shows `time` or later.
    pub(crate) fn world(&self, time: Time) -> u64 {
        let whole = time.0 / self.rate * MILLION;
        let rest = (time.0 % self.rate * MILLION).div_ceil(self.rate);
        let guess = self.origin.saturating_add(whole).saturating_add(rest);
        if self.local(guess) < time { guess + 2 } else { guess }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_never_fires_early() {
        for ppm in [-10_000, -1, 0, 7, 10_000] {
            let clock = NodeClock::new(12_345, ppm);
            for time in [0, 1, 999_999, 1_000_000, 1_000_001, 123_456_789_012] {
                let world = clock.world(Time(time));
                assert!(clock.local(world) >= Time(time), "{ppm} {time}");
                assert!(clock.local(world.saturating_sub(4)) <= Time(time), "{ppm} {time}");
            }
        }
    }
}
