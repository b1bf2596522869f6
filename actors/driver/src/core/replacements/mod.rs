//! [`Replacements`]: members that are replaced since they hang or are slow (`--on-hang replace`, `--on-straggler
//! replace`). A part of the core. `stragglers` and `hangs` ask for it, `handlers` does it, and `bounds` has the conditions
//! under which it is not done.
//!
//! The slot of a replaced member rests for a cool-down. Slots at rest are used last of all, and only if there would be
//! fewer workers than `--min-np` (`roster::selection`). So a slow member trains on until its replacement has come, and
//! leaves by a planned end (G-11). A member that hangs cannot come to a step, and is stopped.

mod bounds;
mod handlers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use elastic_protocol::{HostName, Stamp, Time, WorkerId};
use serde::{Deserialize, Serialize};

use self::bounds::NotReplaced;
use super::event::ReplacedFor;

/// Largest ratio of a slot's cool-down to its first one.
const COOL_DOWN_TIMES_MAX: u32 = 12;

/// Time over which replacements are counted against their bound (`DriverConfig.replacements_max`).
const COUNTED_OVER: Duration = Duration::from_secs(3_600);

/// Members that were replaced lately, and members that should be replaced and are not.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Replacements {
    /// The replacements of the last hour; at most `replacements_max`.
    recent: VecDeque<MadeReplacement>,
    /// Members that are not replaced, with the reason that was told last.
    #[serde(with = "crate::recording::readable::pairs")]
    kept: BTreeMap<WorkerId, NotReplaced>,
    /// The replacement whose effect is not known yet.
    awaited: Option<AwaitedEffect>,
}

/// A replacement of the last hour.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct MadeReplacement {
    at: Time,
    host: HostName,
    why: ReplacedFor,
    /// The ranks that the replaced members had.
    ranks: Vec<u32>,
}

/// A replacement whose effect is not known yet.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct AwaitedEffect {
    worker: WorkerId,
    /// The generation that it was a member of.
    stamp: Stamp,
    members: BTreeSet<WorkerId>,
    /// Median of the members' steps before; none if the job stood still.
    step_us: Option<u64>,
}

impl Replacements {
    /// Forgets replacements of more than an hour ago.
    fn forget_old(&mut self, now: Time) {
        while self.recent.front().is_some_and(|made| now.since(made.at) >= COUNTED_OVER) {
            self.recent.pop_front();
        }
    }

    /// Checks that replacements are bounded.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check(&self, most: u32) -> Result<(), String> {
        match self.recent.len() {
            many if many > most as usize => Err(format!("{many} replacements within an hour")),
            _ => Ok(()),
        }
    }
}

/// Ratio of a cool-down to the first one, after this number of rests of a slot, or of deals of shards.
pub(super) fn cool_down_times(rests: u32) -> u32 {
    (1 << rests.saturating_sub(1).min(16)).min(COOL_DOWN_TIMES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cool_down_of_a_slot_is_twice_as_long_and_they_are_bounded() {
        let times: Vec<u32> = (1..7).map(cool_down_times).collect();
        assert_eq!(times, [1, 2, 4, 8, 12, 12]);
        assert_eq!(cool_down_times(u32::MAX), COOL_DOWN_TIMES_MAX);
    }
}
