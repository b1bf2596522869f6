//! Time of a node, for shells: made from tokio's clock, which the simulation pauses and moves. Cores get
//! `now` from here as an argument.

use std::time::{Duration, SystemTime};

use elastic_protocol::Time;
use tokio::time::Instant;

/// A node's clock: nanoseconds since the node started.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    /// A clock whose origin is now.
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// Now.
    pub fn now(&self) -> Time {
        Time::ZERO + self.started.elapsed()
    }

    /// The same moment on tokio's clock.
    pub fn instant(&self, time: Time) -> Instant {
        self.started + Duration::from_nanos(time.0)
    }
}

/// The machine's wall clock: for what people read (logs, reports), never for decisions.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}
