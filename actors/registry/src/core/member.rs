//! One member's state in a generation: its progress, and its result. Used by the registry's core.
//!
//! The two are kept apart because the agent's report of a process's end may overtake earlier votes of the worker: a
//! SYNCED that arrives behind the SUCCESS still counts.

use elastic_protocol::{ExitStatus, Time};
use serde::{Deserialize, Serialize};

use super::verdict::{IgnoreReason, VoteDecision, VoteEffect};

/// Progress of a member.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum MemberProgress {
    /// The member has not voted.
    Waiting,
    /// The member's communicator stands.
    Ready,
    /// The member holds the root's commit and trains.
    Synced,
}

/// Result of a member. The first result stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MemberResult {
    /// The member finished.
    Succeeded,
    /// The member failed, or was lost.
    Failed {
        /// Exit status of its process; none if the process has not ended.
        status: Option<ExitStatus>,
        /// The member's error, the last lines of its stderr, or the reason why it was given up.
        message: String,
    },
}

/// A member's state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MemberState {
    /// The member's rank.
    pub rank: u32,
    /// The member's progress.
    pub progress: MemberProgress,
    /// The member's result; none while it has none.
    pub result: Option<MemberResult>,
    /// Whether the member is lost.
    pub is_lost: bool,
    pub(super) result_told: bool,
    pub(super) votes: MemberVotes,
}

/// Times of a member's votes, as the registry took them.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MemberVotes {
    /// READY; until then, the opening of the generation.
    pub ready_at: Time,
    /// SYNCED; until then, the time of READY.
    pub synced_at: Time,
}

impl MemberState {
    pub(super) const fn new(rank: u32, now: Time) -> Self {
        Self {
            rank,
            progress: MemberProgress::Waiting,
            result: None,
            is_lost: false,
            result_told: false,
            votes: MemberVotes { ready_at: now, synced_at: now },
        }
    }

    pub(super) const fn is_succeeded(&self) -> bool {
        matches!(self.result, Some(MemberResult::Succeeded))
    }

    pub(super) const fn is_failed(&self) -> bool {
        matches!(self.result, Some(MemberResult::Failed { .. }))
    }

    /// Raises the progress. SYNCED stands for READY too: a worker cannot sync without a communicator.
    pub(super) fn advance(&mut self, now: Time, progress: MemberProgress) -> VoteDecision {
        if self.is_failed() {
            return VoteDecision::Taken(VoteEffect::Ignored(IgnoreReason::FailureStands));
        }
        if progress <= self.progress {
            return VoteDecision::Taken(VoteEffect::Repeated);
        }
        if self.progress < MemberProgress::Ready {
            self.votes.ready_at = now;
        }
        self.votes.synced_at = now;
        self.progress = progress;
        VoteDecision::Taken(VoteEffect::Recorded)
    }

    pub(super) fn succeed(&mut self) -> VoteDecision {
        VoteDecision::Taken(match &self.result {
            Some(MemberResult::Succeeded) => VoteEffect::Repeated,
            Some(MemberResult::Failed { .. }) => VoteEffect::Ignored(IgnoreReason::FailureStands),
            None => {
                self.result = Some(MemberResult::Succeeded);
                VoteEffect::Recorded
            }
        })
    }

    pub(super) fn fail(&mut self, status: Option<ExitStatus>, message: &str) -> VoteDecision {
        VoteDecision::Taken(match &mut self.result {
            Some(MemberResult::Succeeded) => VoteEffect::Ignored(IgnoreReason::SuccessStands),
            // The worker's own error comes first, its exit status later: together they are the cause.
            Some(MemberResult::Failed { status: known @ None, .. }) if status.is_some() => {
                *known = status;
                VoteEffect::Repeated
            }
            Some(MemberResult::Failed { .. }) => VoteEffect::Repeated,
            None => {
                self.result = Some(MemberResult::Failed { status, message: message.to_owned() });
                VoteEffect::Recorded
            }
        })
    }
}
