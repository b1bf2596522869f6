//! [`Rebalancing`]: slow members carry fewer logical shards (`--on-straggler rebalance`). A part of the core. `stragglers`
//! asks for it, `handlers` does it, `dealing` computes the number of shards of each rank, and `bounds` has the conditions
//! under which it is not done.
//!
//! Results do not depend on the assignment of shards to ranks. So the answer to a slow member costs only a planned reset.
//! The driver deals by the time that each member takes for a shard. A generation of the same members begins at a step, and
//! each member finds its number of shards in the formation. Workers derive nothing from paces: only the driver deals.
//!
//! A member's own pace counts only while it is named as slow, until it is as fast as its peers again. All others count as
//! equally fast, so that noise moves no shard. A pace belongs to a process: the next process of the slot begins as fast as
//! the others.

mod bounds;
mod dealing;
mod handlers;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use elastic_protocol::messages::JobShards;
use elastic_protocol::{Stamp, Time, WorkerId};
use serde::{Deserialize, Serialize};

use self::bounds::NotRebalanced;
use self::dealing::EQUAL_PACE;
use super::replacements::cool_down_times;

/// Least gain of a new deal: steps by the present deal take longer by this many percent than expected by the new one.
const GAIN_PERCENT: u64 = 10;

/// Time over which deals are counted against their bound (`DriverConfig.rebalances_max`).
const DEALS_COUNTED_OVER: Duration = Duration::from_secs(3_600);

/// Highest pace that counts. A slower member has one shard in any job.
const PACE_MAX: u32 = 1_000 * EQUAL_PACE;

/// The paces by which shards are dealt, and the recent deals.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Rebalancing {
    /// Members that take longer for a shard than their peers, with the time in thousandths of theirs.
    #[serde(with = "crate::recording::readable::pairs")]
    paces: BTreeMap<WorkerId, u32>,
    /// The deals of the last hour; at most `rebalances_max`.
    recent: VecDeque<Time>,
    /// Slow members that do not carry fewer shards, with the reason that was told last.
    #[serde(with = "crate::recording::readable::pairs")]
    kept: BTreeMap<WorkerId, NotRebalanced>,
    /// The deal for which the generation is to end.
    wanted: Option<WantedDeal>,
    /// The deal whose effect is not known yet.
    awaited: Option<AwaitedDeal>,
}

/// A deal for which the generation is to end.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct WantedDeal {
    /// The members whose paces have changed.
    pub(crate) workers: Vec<WorkerId>,
    /// The number of shards of each rank.
    pub(crate) counts: Vec<u32>,
}

/// A deal whose effect is not known yet.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct AwaitedDeal {
    deal: WantedDeal,
    /// The generation that it ended.
    stamp: Stamp,
    /// Median of the members' steps before.
    before_us: u64,
    /// Expected median of their steps after it.
    predicted_us: u64,
}

impl Rebalancing {
    /// The deal for which the generation is to end.
    pub(crate) const fn wanted(&self) -> Option<&WantedDeal> {
        self.wanted.as_ref()
    }

    /// The paces of these members, by rank.
    fn paces_of<'a>(&self, members: impl IntoIterator<Item = &'a WorkerId>) -> Vec<u32> {
        let pace = |worker| self.paces.get(worker).copied().unwrap_or(EQUAL_PACE);
        members.into_iter().map(pace).collect()
    }

    /// The deal of a generation of these members.
    fn deal_for(&self, shards: Option<u32>, members: &[WorkerId]) -> JobShards {
        let Some(total) = shards else { return JobShards::Unsaid };
        let paces = self.paces_of(members);
        if paces.iter().all(|pace| *pace == EQUAL_PACE) || paces.len() > total as usize {
            return JobShards::Even(total);
        }
        JobShards::Counted(dealing::deal_by_pace(total, &paces))
    }

    /// Forgets deals of more than an hour ago.
    fn forget_old(&mut self, now: Time) {
        while self.recent.front().is_some_and(|at| now.since(*at) >= DEALS_COUNTED_OVER) {
            self.recent.pop_front();
        }
    }

    /// Checks that deals are bounded, and paces in range.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check(&self, most: u32) -> Result<(), String> {
        if self.recent.len() > most as usize {
            return Err(format!(
                "shards were dealt anew {} times within an hour",
                self.recent.len()
            ));
        }
        match self.paces.iter().find(|(_, pace)| **pace <= EQUAL_PACE || **pace > PACE_MAX) {
            Some((worker, pace)) => {
                Err(format!("{worker} is dealt to as slow, and its pace is {pace}"))
            }
            None => Ok(()),
        }
    }
}

/// The cool-down after this number of deals within an hour.
fn cool_down_after(first: Duration, deals: usize) -> Duration {
    first * cool_down_times(u32::try_from(deals).unwrap_or(u32::MAX))
}
