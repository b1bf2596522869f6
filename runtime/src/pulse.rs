//! The watchdog word: the actors' thread writes down when it last ran, and other threads read it. The thread that
//! renews the driver's lease and the one that hears signals ask it whether the actors live.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Interval at which the actors' thread should tick.
pub const TICK_EVERY: Duration = Duration::from_millis(100);

/// Time at which the actors' thread last ran, by a clock of the caller's choice. Clones share one word.
#[derive(Clone, Debug)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// A pulse as if the actors had last run at `at`. `at` may lie ahead, to give the actors time to start.
    pub fn new(at: Duration) -> Self {
        Self(Arc::new(AtomicU64::new(nanoseconds(at))))
    }

    /// Notes that the actors run now.
    pub fn tick(&self, now: Duration) {
        self.0.store(nanoseconds(now), Ordering::Release);
    }

    /// Time at which the actors last ran.
    pub fn last(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Acquire))
    }

    /// Time since the actors last ran.
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.last())
    }
}

fn nanoseconds(moment: Duration) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_how_long_the_actors_have_not_run() {
        let at = Duration::from_secs;
        let pulse = Pulse::new(at(10));
        assert_eq!(pulse.age(at(9)), Duration::ZERO);
        pulse.tick(at(3));
        assert_eq!((pulse.last(), pulse.age(at(9))), (at(3), at(6)));
        pulse.clone().tick(at(12));
        assert_eq!(pulse.age(at(15)), at(3));
    }
}
