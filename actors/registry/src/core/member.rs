//! One member's state in a generation: how far it came, and how it ended. Used by the registry's core.
//!
//! The two are kept apart because a process's end, which its agent reports, may overtake what the worker
//! itself said before: a SYNCED that arrives behind the SUCCESS still counts.

use elastic_protocol::{ExitStatus, Time};

use super::verdict::{Decision, IgnoreReason, VoteDecision};

/// How far a member came.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Progress {
    /// It has not voted.
    Waiting,
    /// Its communicator stands.
    Ready,
    /// It holds the root's commit and trains.
    Synced,
}

/// How a member ended. The first result stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MemberResult {
    /// It finished.
    Succeeded,
    /// It failed, or was lost.
    Failed {
        /// How its process ended, if it did.
        status: Option<ExitStatus>,
        /// Its error, the last lines of its stderr, or why it was given up.
        message: String,
    },
}

/// A member's state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MemberState {
    /// Its rank.
    pub rank: u32,
    /// How far it came.
    pub progress: Progress,
    /// How it ended, if it did.
    pub result: Option<MemberResult>,
    /// When that changed last; at first, when the generation was opened.
    pub since: Time,
    pub(super) result_told: bool,
}

impl MemberState {
    pub(super) const fn new(rank: u32, now: Time) -> Self {
        Self { rank, progress: Progress::Waiting, result: None, since: now, result_told: false }
    }

    pub(super) const fn is_succeeded(&self) -> bool {
        matches!(self.result, Some(MemberResult::Succeeded))
    }

    pub(super) const fn is_failed(&self) -> bool {
        matches!(self.result, Some(MemberResult::Failed { .. }))
    }

    /// SYNCED stands for READY too: nobody can sync without a communicator.
    pub(super) fn advance(&mut self, now: Time, progress: Progress) -> VoteDecision {
        if self.is_failed() {
            return VoteDecision::Taken(Decision::Ignored(IgnoreReason::FailureStands));
        }
        if progress <= self.progress {
            return VoteDecision::Taken(Decision::Repeated);
        }
        self.progress = progress;
        self.since = now;
        VoteDecision::Taken(Decision::Recorded)
    }

    pub(super) fn succeed(&mut self, now: Time) -> VoteDecision {
        VoteDecision::Taken(match &self.result {
            Some(MemberResult::Succeeded) => Decision::Repeated,
            Some(MemberResult::Failed { .. }) => Decision::Ignored(IgnoreReason::FailureStands),
            None => {
                self.result = Some(MemberResult::Succeeded);
                self.since = now;
                Decision::Recorded
            }
        })
    }

    pub(super) fn fail(
        &mut self,
        now: Time,
        status: Option<ExitStatus>,
        message: &str,
    ) -> VoteDecision {
        VoteDecision::Taken(match &mut self.result {
            Some(MemberResult::Succeeded) => Decision::Ignored(IgnoreReason::SuccessStands),
            // The worker's own error comes first, its exit status later: together they are the cause.
            Some(MemberResult::Failed { status: known @ None, .. }) if status.is_some() => {
                *known = status;
                Decision::Repeated
            }
            Some(MemberResult::Failed { .. }) => Decision::Repeated,
            None => {
                self.result = Some(MemberResult::Failed { status, message: message.to_owned() });
                self.since = now;
                Decision::Recorded
            }
        })
    }
}
