//! [`StepRate`]: steps a second over the last seconds, from a job's statuses. Without I/O; fed by the driver's line and
//! by `status --watch`.

use std::collections::VecDeque;
use std::time::Duration;

/// Time over which steps a second are counted.
const RATE_OVER: Duration = Duration::from_secs(10);

/// The steps of the last seconds.
#[derive(Debug, Default)]
pub(crate) struct StepRate {
    /// The highest step at each time, the oldest first.
    steps: VecDeque<(Duration, u64)>,
}

impl StepRate {
    /// Takes the highest step at a time.
    pub(crate) fn handle_step(&mut self, at: Duration, step: u64) {
        // A job that has lost its state counts from a lower step on.
        if self.steps.back().is_some_and(|(_, last)| *last > step) {
            self.steps.clear();
        }
        self.steps.push_back((at, step));
        // The time reaches back at least so far: of a process that stood still, the steps meanwhile count with their time.
        while self.steps.get(1).is_some_and(|(since, _)| *since + RATE_OVER <= at) {
            self.steps.pop_front();
        }
    }

    /// Steps a second; none while too little was seen.
    pub(crate) fn per_second(&self) -> Option<f64> {
        let ((since, first), (until, last)) = (self.steps.front()?, self.steps.back()?);
        let seconds = until.checked_sub(*since)?.as_secs_f64();
        let steps = u32::try_from(last - first).unwrap_or(u32::MAX);
        (seconds >= 1.0).then(|| f64::from(steps) / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_a_second_begin_anew_where_the_job_does() {
        let mut rate = StepRate::default();
        let at = Duration::from_secs;
        rate.handle_step(at(1), 500);
        rate.handle_step(at(3), 10);
        assert_eq!(rate.per_second(), None);
        rate.handle_step(at(5), 30);
        assert_eq!(rate.per_second(), Some(10.0));
        rate.handle_step(at(15), 330);
        assert_eq!(rate.per_second(), Some(30.0), "of the last ten seconds");
        rate.handle_step(at(75), 2_130);
        rate.handle_step(at(76), 2_160);
        assert_eq!(rate.per_second(), Some(30.0), "over the time in which nothing was seen, too");
    }
}
