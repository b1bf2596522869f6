//! [`Timetable`]: the timers, and the time of the next review. A part of the core.

use std::time::Duration;

use elastic_protocol::Time;
use elastic_protocol::planted::{Bug, is_planted};
use serde::{Deserialize, Serialize};

use super::timers::{Timer, Timers};

/// Delay between a change and its review, so that several changes share one.
const REVIEW_DELAY: Duration = Duration::from_millis(2);

/// Timers, and the time of the next review.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Timetable {
    timers: Timers,
    review_at: Option<Time>,
    /// Latest time up to which due timers have been taken.
    passed: Time,
}

impl Timetable {
    /// Asks for a review a moment from now, which compares the wanted state with the actual one.
    pub(crate) fn ask_review(&mut self, now: Time) {
        let at = now + REVIEW_DELAY;
        self.review_at = Some(self.review_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Whether a review will come, for the checks of the core.
    pub(crate) const fn is_review_asked(&self) -> bool {
        self.review_at.is_some()
    }

    /// Whether a review is due. The request is consumed.
    pub(crate) fn take_review(&mut self, now: Time) -> bool {
        let is_due = |at: Time| at <= now || is_planted(Bug::EarlyTimerObeyed);
        self.review_at.take_if(|at| is_due(*at)).is_some()
    }

    pub(crate) fn set(&mut self, at: Time, timer: Timer) {
        self.timers.set(at, timer);
    }

    /// Moves the departure timers that are due to `to`.
    pub(crate) fn put_off_departures(&mut self, due: Time, to: Time) {
        self.timers.put_off_departures(due, to);
    }

    /// Whether a timer should have fired more than `by` ago.
    pub(crate) fn is_late(&self, now: Time, by: Duration) -> bool {
        self.timers.next().is_some_and(|at| at + by < now)
    }

    /// Number of timers that are due.
    pub(crate) fn due(&self, now: Time) -> usize {
        self.timers.due(now)
    }

    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Timer> {
        self.passed = self.passed.max(now);
        self.timers.pop_due(now)
    }

    pub(crate) fn next(&self) -> Option<Time> {
        [self.timers.next(), self.review_at].into_iter().flatten().min()
    }

    /// Whether a wait that ends at `deadline` has its timer (G-9).
    pub(crate) fn covers(&self, deadline: Time, timer: Timer) -> bool {
        deadline <= self.passed || self.timers.has(deadline, timer)
    }
}
