//! How long others may wait for a member before it counts as hanging. Used by `hangs`.
//!
//! What is usual is learnt from waits that ended by themselves: a rank that saves a checkpoint or evaluates alone makes
//! the others wait at each epoch. What a process does decides how soon a wait is called a hang: a stopped process does
//! not go on by itself, one that computes mostly does.

use std::collections::VecDeque;
use std::time::Duration;

use elastic_protocol::messages::{ProcessActivity, ProcessSight};
use elastic_protocol::planted::{Bug, is_planted};
use serde::{Deserialize, Serialize};

/// Waits for a process that does not go on by itself.
const FLOOR_STOPPED: Duration = Duration::from_secs(1);
/// Waits for a process that sleeps.
const FLOOR_WAITING: Duration = Duration::from_secs(10);
/// Waits for a process that computes or moves data, or of which nothing is known.
const FLOOR_WORKING: Duration = Duration::from_secs(60);
/// Waits for a process that has not committed yet: it may import, compile, or read its data for the first time.
const FLOOR_COLD: Duration = Duration::from_secs(120);

/// How many times the longest usual wait a wait may last.
const FACTOR: u32 = 3;
/// Waits that are remembered. More are not needed: a period of checkpoints or evaluations has fewer.
const USUAL_MAX: usize = 64;

/// The last waits that ended by themselves.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct UsualWaits(VecDeque<Duration>);

impl UsualWaits {
    /// Learns how long a wait lasted that ended by itself.
    pub(crate) fn learn(&mut self, waited: Duration) {
        if self.0.len() == USUAL_MAX {
            self.0.pop_front();
        }
        self.0.push_back(waited);
    }

    /// How long others may wait for a member whose process was seen so, or not at all, and that has committed or not.
    /// `cap` is the operator's bound.
    pub(crate) fn limit(
        &self,
        sight: Option<&ProcessSight>,
        has_committed: bool,
        cap: Option<Duration>,
    ) -> Duration {
        let floor = match sight.map(|sight| sight.activity) {
            Some(ProcessActivity::Stopped | ProcessActivity::Frozen | ProcessActivity::Ended) => {
                return cap.map_or(FLOOR_STOPPED, |cap| cap.min(FLOOR_STOPPED));
            }
            _ if is_planted(Bug::EveryWaitIsAHang) => return FLOOR_STOPPED,
            _ if !has_committed => FLOOR_COLD,
            Some(ProcessActivity::Waiting | ProcessActivity::Uninterruptible) => FLOOR_WAITING,
            Some(ProcessActivity::Working) | None => FLOOR_WORKING,
        };
        let longest = self.0.iter().max().copied().unwrap_or_default();
        let limit = floor.max(longest.saturating_mul(FACTOR));
        cap.map_or(limit, |cap| cap.min(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(activity: ProcessActivity) -> ProcessSight {
        ProcessSight {
            activity,
            watched_ms: 200,
            cpu_ms: 0,
            moved_bytes: 0,
            waits_in: None,
            findings: Vec::new(),
            stack: String::new(),
        }
    }

    #[test]
    fn what_a_process_does_decides_how_long_it_may_be_awaited() {
        let usual = UsualWaits::default();
        let limit =
            |activity, has_committed| usual.limit(Some(&sight(activity)), has_committed, None);
        assert_eq!(limit(ProcessActivity::Stopped, false), FLOOR_STOPPED);
        assert_eq!(limit(ProcessActivity::Frozen, true), FLOOR_STOPPED);
        assert_eq!(limit(ProcessActivity::Waiting, true), FLOOR_WAITING);
        assert_eq!(limit(ProcessActivity::Uninterruptible, true), FLOOR_WAITING);
        assert_eq!(limit(ProcessActivity::Working, true), FLOOR_WORKING);
        assert_eq!(limit(ProcessActivity::Waiting, false), FLOOR_COLD);
        assert_eq!(usual.limit(None, true, None), FLOOR_WORKING);
    }

    #[test]
    fn a_wait_that_has_ended_by_itself_makes_longer_ones_usual_until_it_is_long_ago() {
        let mut usual = UsualWaits::default();
        let saves = sight(ProcessActivity::Waiting);
        usual.learn(Duration::from_secs(40));
        assert_eq!(usual.limit(Some(&saves), true, None), Duration::from_secs(120));
        let stopped = sight(ProcessActivity::Stopped);
        assert_eq!(usual.limit(Some(&stopped), true, None), FLOOR_STOPPED, "it is never usual");
        for _later in 0..USUAL_MAX {
            usual.learn(Duration::from_millis(600));
        }
        assert_eq!(usual.limit(Some(&saves), true, None), FLOOR_WAITING);
    }

    #[test]
    fn the_operators_bound_is_never_exceeded() {
        let mut usual = UsualWaits::default();
        usual.learn(Duration::from_secs(40));
        let cap = Some(Duration::from_secs(5));
        assert_eq!(usual.limit(None, false, cap), Duration::from_secs(5));
        let cap = Some(Duration::from_millis(500));
        let stopped = sight(ProcessActivity::Stopped);
        assert_eq!(usual.limit(Some(&stopped), true, cap), Duration::from_millis(500));
    }
}
