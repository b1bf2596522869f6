//! [`DriverSilence`]: the patience of a command that watches a job whose driver does not answer: another one may be
//! started in its place. Without I/O; used by `status --watch`.

use std::time::Duration;

/// Timeout of a driver that does not answer, from the first question without an answer on: as long as agents and idle workers
/// wait for one by default.
pub(super) const ASKED_AGAIN_FOR: Duration = Duration::from_secs(30);

/// The silence of a driver, while there is one.
#[derive(Debug, Default)]
pub(super) struct DriverSilence {
    since: Option<Duration>,
}

/// Consequence of a question without an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Silence {
    /// The driver does not answer any more: to be told once.
    Begins,
    /// It is asked again.
    GoesOn,
    /// Its time is over.
    TooLong,
}

impl DriverSilence {
    /// Handles a question without an answer.
    pub(super) fn handle_no_answer(&mut self, now: Duration) -> Silence {
        let Some(since) = self.since else {
            self.since = Some(now);
            return Silence::Begins;
        };
        match now.saturating_sub(since) < ASKED_AGAIN_FOR {
            true => Silence::GoesOn,
            false => Silence::TooLong,
        }
    }

    /// Handles an answer. Returns how long the driver was silent before, if it was.
    pub(super) fn handle_answer(&mut self, now: Duration) -> Option<Duration> {
        Some(now.saturating_sub(self.since.take()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g_9_a_driver_that_does_not_answer_is_asked_again_for_no_longer_than_its_time() {
        let at = |ms| Duration::from_secs(100) + Duration::from_millis(ms);
        let mut silence = DriverSilence::default();
        assert_eq!(silence.handle_answer(at(0)), None);
        assert_eq!(silence.handle_no_answer(at(500)), Silence::Begins);
        assert_eq!(silence.handle_no_answer(at(30_499)), Silence::GoesOn);
        assert_eq!(silence.handle_answer(at(30_500)), Some(Duration::from_secs(30)));
        assert_eq!(silence.handle_answer(at(31_000)), None, "it is told once");
        assert_eq!(silence.handle_no_answer(at(40_000)), Silence::Begins);
        assert_eq!(silence.handle_no_answer(at(40_000) + ASKED_AGAIN_FOR), Silence::TooLong);
    }
}
