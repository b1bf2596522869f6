//! [`CommitPace`]: the rate of commits of a generation, by its members' reports. Kept in `Checkpoints`, which orders a save
//! so far ahead that no member has made the commit when the order comes.

use std::time::Duration;

use elastic_protocol::{Step, Time};
use serde::{Deserialize, Serialize};

/// Least time between the two reports that are compared.
const COMPARED_AFTER: Duration = Duration::from_secs(1);

/// The last two reports that are far enough apart.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct CommitPace {
    before: Option<(Time, Step)>,
    last: Option<(Time, Step)>,
}

impl CommitPace {
    /// Takes a member's report of this step.
    pub(crate) fn handle_step(&mut self, now: Time, step: Step) {
        let is_next = self.last.is_none_or(|(at, last)| at + COMPARED_AFTER <= now && last < step);
        if is_next {
            self.before = self.last.replace((now, step));
        }
    }

    /// Number of commits in a time by that rate, rounded up; 0 if the rate is not known.
    pub(crate) fn commits_in(&self, time: Duration) -> u64 {
        let (Some((from, first)), Some((to, last))) = (self.before, self.last) else { return 0 };
        let pace = (last.0 - first.0) as f64 / to.since(from).as_secs_f64();
        (pace * time.as_secs_f64()).ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_that_of_the_last_reports_which_lie_a_second_apart() {
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        let mut pace = CommitPace::default();
        assert_eq!(pace.commits_in(Duration::from_secs(10)), 0, "not known");
        for (ms, step) in [(0, 100), (500, 150), (1_000, 300), (1_500, 900)] {
            pace.handle_step(at(ms), Step(step));
        }
        assert_eq!(pace.commits_in(Duration::from_millis(500)), 100);
        assert_eq!(pace.commits_in(Duration::from_millis(1)), 1, "rounded up");
        pace.handle_step(at(3_000), Step(300));
        assert_eq!(pace.commits_in(Duration::from_secs(1)), 200, "no commit, and no other pace");
        pace.handle_step(at(3_000), Step(310));
        assert_eq!(pace.commits_in(Duration::from_secs(1)), 5);
    }
}
