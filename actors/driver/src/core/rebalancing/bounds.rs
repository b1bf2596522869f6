//! [`NotRebalanced`]: conditions under which shards are not dealt anew although a member is slow. Used by `handlers`.

use std::fmt;

use elastic_protocol::Time;
use elastic_protocol::planted::{Bug, is_planted};
use serde::{Deserialize, Serialize};

use super::{GAIN_PERCENT, Rebalancing, cool_down_after};
use crate::core::config::DriverConfig;

/// Reasons why a slow member does not carry fewer shards.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum NotRebalanced {
    /// The driver knows of no shards.
    NoShards,
    /// The program's steps are not dealt by shards.
    NotCarried,
    /// Too little is known of it and of the others.
    TooFewSamples,
    /// The best deal is hardly better.
    NoGain { shards: u32, world: usize },
    /// The bound of deals within an hour is reached.
    TooMany { most: u32 },
    /// One more reset would end the job.
    ResetLimit { limit: u32 },
}

impl fmt::Display for NotRebalanced {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoShards => formatter.write_str(
                "the driver was given no --shards, and only logical shards can go from one rank to another",
            ),
            Self::NotCarried => formatter.write_str(
                "its program does not deal its steps by shards (worker.shards, ShardedSampler, allreduce_shards)",
            ),
            Self::TooFewSamples => {
                formatter.write_str("too few steps of it and of its peers are known to be sure")
            }
            Self::NoGain { shards, world } => write!(
                formatter,
                "no other deal of {shards} shards to {world} ranks makes a step shorter by {GAIN_PERCENT} %: more shards \
                 can be dealt more finely"
            ),
            Self::TooMany { most } => {
                write!(formatter, "they were dealt anew {most} times within an hour, which is the bound")
            }
            Self::ResetLimit { limit } => {
                write!(formatter, "it takes a planned reset, and --reset-limit is {limit}")
            }
        }
    }
}

impl Rebalancing {
    /// Whether shards may be dealt anew by now. An error names the bound that was reached, if one was; without, a cool-down is
    /// under way.
    pub(super) fn may_deal(
        &mut self,
        now: Time,
        config: &DriverConfig,
    ) -> Result<(), Option<NotRebalanced>> {
        self.forget_old(now);
        let most = config.rebalances_max;
        if self.recent.len() >= most as usize {
            return Err(Some(NotRebalanced::TooMany { most }));
        }
        let Some(last) = self.recent.back() else { return Ok(()) };
        let cool_down = cool_down_after(config.rebalance_cool_down, self.recent.len());
        match now.since(*last) < cool_down && !is_planted(Bug::RebalancedWithoutCoolDown) {
            true => Err(None),
            false => Ok(()),
        }
    }
}
