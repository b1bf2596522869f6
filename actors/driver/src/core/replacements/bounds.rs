//! [`NotReplaced`]: conditions under which a member is not replaced although it hangs or is slow. Used by `handlers`.

use std::fmt;

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{HostName, Time, WorkerId};
use serde::{Deserialize, Serialize};

use crate::core::DriverCore;
use crate::core::event::ReplacedFor;
use crate::core::table::SlotId;

/// Reasons why a member is not replaced.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum NotReplaced {
    /// Too few workers would be left, spare slots counted.
    TooFewLeft { left: usize, min_np: u32 },
    /// No member would be left to hold the state.
    NobodyLeft,
    /// The bound of replacements within an hour is reached.
    TooMany { most: u32 },
    /// Too little is known of it and of the others.
    TooFewSamples,
    /// A member of the same rank was replaced on another host: the rank's work is slow.
    SameRank { rank: u32, host: HostName },
}

impl fmt::Display for NotReplaced {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFewLeft { left, min_np } => write!(
                formatter,
                "{left} slots would be left, and --min-np is {min_np}: a spare slot is missing (--max-np below the \
                 number of slots keeps some)"
            ),
            Self::NobodyLeft => formatter.write_str("no other worker would be left"),
            Self::TooMany { most } => {
                write!(formatter, "{most} were replaced within an hour, which is the bound")
            }
            Self::TooFewSamples => {
                formatter.write_str("too few steps of it and of its peers are known to be sure")
            }
            Self::SameRank { rank, host } => write!(
                formatter,
                "rank {rank} was slow on host {host}, too, and was replaced there: the rank's work is slow, not the host"
            ),
        }
    }
}

impl DriverCore {
    /// Checks that the members on these slots may be replaced.
    pub(super) fn may_be_replaced(
        &mut self,
        now: Time,
        worker: &WorkerId,
        slots: &[SlotId],
        why: ReplacedFor,
    ) -> Result<(), NotReplaced> {
        self.replacements.forget_old(now);
        if why == ReplacedFor::Slow && !self.stragglers.is_sure(worker) {
            return Err(NotReplaced::TooFewSamples);
        }
        let most = self.config.replacements_max;
        if self.replacements.recent.len() >= most as usize
            && !is_planted(Bug::ReplacementsUnbounded)
        {
            return Err(NotReplaced::TooMany { most });
        }
        if why == ReplacedFor::Slow
            && let Some(rank) = self.round.rank_of(worker)
        {
            let same = self.replacements.recent.iter().find(|made| {
                made.why == why && made.host != worker.host && made.ranks.contains(&rank)
            });
            if let Some(made) = same {
                return Err(NotReplaced::SameRank { rank, host: made.host.clone() });
            }
        }
        let stays = |worker: &&WorkerId| !slots.contains(&(worker.host.clone(), worker.slot));
        if !self.round.alive().any(|worker| stays(&worker)) {
            return Err(NotReplaced::NobodyLeft);
        }
        self.roster.refresh_seating(now, &self.round);
        let left = self.roster.seating().usable_without(slots);
        let min_np = self.min_np();
        if left < min_np as usize && !is_planted(Bug::ReplacedBelowMin) {
            return Err(NotReplaced::TooFewLeft { left, min_np });
        }
        Ok(())
    }
}
