//! [`StepTimes`]: the time of a worker's steps, and the part in which it waits for others. Measured by workers, carried
//! by their progress, compared by the driver.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Time of a worker's last steps: medians over the steps that it has finished since its generation began, at most the
/// last [`StepTimes::STEPS_MAX`] measurements. A step is the time between two commits or checks for host updates.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
// Fields that recordings of older versions lack are zero.
#[serde(default)]
pub struct StepTimes {
    /// The whole step, in microseconds.
    pub step_us: u64,
    /// The step without the time in collectives: computation, data, commits; in microseconds.
    pub compute_us: u64,
    /// The time in which the worker was blocked in collectives, waiting for others or for data; in microseconds.
    pub waiting_us: u64,
    /// The part of `compute_us` in which the training thread waited for data, as far as the program lets it be known;
    /// in microseconds.
    pub data_us: u64,
    /// The part of `compute_us` that commits took; in microseconds.
    pub commit_us: u64,
    /// The logical shards that it carries in a step; 0 if its steps are not dealt by shards.
    pub shards: u32,
}

impl StepTimes {
    /// Most measurements over which the medians are taken.
    pub const STEPS_MAX: usize = 32;

    /// Shortest time between two progress messages with step times.
    pub const EVERY: Duration = Duration::from_secs(1);

    /// Microseconds as the milliseconds that `status` shows.
    #[expect(clippy::cast_precision_loss, reason = "2^53 us are 285 years")]
    pub fn shown_ms(us: u64) -> f64 {
        us as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_are_shown_as_milliseconds() {
        assert_eq!(StepTimes::shown_ms(5_250).to_string(), "5.25");
    }
}
