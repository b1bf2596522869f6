//! Decisions of the registry: about a vote, and about a generation. Read by the driver.

use elastic_protocol::job::WorkerFailure;
use elastic_protocol::{NodeId, ResetCause, Stamp, Time, WorkerId};
use serde::{Deserialize, Serialize};

use super::incident::BudgetSpent;
use super::member::MemberVotes;

/// Verdicts on a generation. Each is given at most once a generation, those about one worker at most once per worker.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum GenerationVerdict {
    /// The barrier is open: every member is READY and none has ended.
    AllReady {
        /// The generation.
        stamp: Stamp,
    },
    /// Every member holds the root's commit. Comes after `AllReady`.
    AllSynced {
        /// The generation.
        stamp: Stamp,
        /// Times of the members' votes, by rank.
        #[serde(default)]
        votes: Vec<MemberVotes>,
    },
    /// A member failed. `Broken` follows if it is the first loss.
    Failed {
        /// The generation.
        stamp: Stamp,
        /// The member, its exit status and its error.
        failure: WorkerFailure,
    },
    /// A member finished. Its result stands, even if its process fails later.
    Succeeded {
        /// The generation.
        stamp: Stamp,
        /// The worker.
        worker: WorkerId,
    },
    /// The generation ends (one-for-all), with the first loss or accusation: all members roll back.
    Broken {
        /// The generation.
        stamp: Stamp,
        /// The cause of the end.
        cause: ResetCause,
        /// Time of the first sign of the cause.
        evidence: Time,
        /// Set if no reset is left: the job ends with the generation.
        spent: Option<BudgetSpent>,
    },
    /// Replaces a provisional `PeerBroken` once the peer's fate is known.
    CauseKnown {
        /// The generation.
        stamp: Stamp,
        /// The peer's fate.
        cause: ResetCause,
    },
    /// Every member that is not lost has finished: the job is done (H-21). Comes after the last `Succeeded`.
    AllSucceeded {
        /// The generation.
        stamp: Stamp,
    },
    /// Every member's program failed, none by accident: trying again would fail again (H-10). Comes after the last
    /// `Failed`.
    AllFailed {
        /// The generation.
        stamp: Stamp,
        /// The first failure: the first real cause.
        first: WorkerFailure,
    },
}

impl GenerationVerdict {
    /// The generation that the verdict is about.
    pub const fn stamp(&self) -> Stamp {
        match self {
            Self::AllReady { stamp }
            | Self::AllSynced { stamp, .. }
            | Self::Failed { stamp, .. }
            | Self::Broken { stamp, .. }
            | Self::CauseKnown { stamp, .. }
            | Self::Succeeded { stamp, .. }
            | Self::AllSucceeded { stamp }
            | Self::AllFailed { stamp, .. } => *stamp,
        }
    }
}

/// Treatment of a vote.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum VoteDecision {
    /// The vote is of a member of the open generation.
    Taken(VoteEffect),
    /// The vote is not, and was counted as dropped.
    Dropped(DropReason),
}

/// Effect of a member's vote.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum VoteEffect {
    /// The member's state changed.
    Recorded,
    /// The member had voted this, or more, already.
    Repeated,
    /// The member's result stands already.
    Ignored(IgnoreReason),
}

/// Reason why a member's vote changes nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum IgnoreReason {
    /// The member finished; the later end of its process does not undo that.
    #[error("it has succeeded, and its success stands")]
    SuccessStands,
    /// The member failed; no later vote undoes that.
    #[error("it has failed, and its failure stands")]
    FailureStands,
}

/// Reason why a vote was dropped.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DropReason {
    /// The vote is about a generation before the newest (G-2).
    #[error("it is about the older generation {}.{}, the newest is {}.{}",
        vote.term, vote.generation, newest.term, newest.generation)]
    OlderGeneration {
        /// The generation of the vote.
        vote: Stamp,
        /// The newest that was opened.
        newest: Stamp,
    },
    /// The vote is about a generation that was never opened.
    #[error("it is about generation {}.{}, which was not opened; the newest is {}.{}",
        vote.term, vote.generation, newest.term, newest.generation)]
    NewerGeneration {
        /// The generation of the vote.
        vote: Stamp,
        /// The newest that was opened.
        newest: Stamp,
    },
    /// The vote was cast before any generation was opened.
    #[error("generation {}.{} is not open", stamp.term, stamp.generation)]
    NotOpen {
        /// The generation of the vote.
        stamp: Stamp,
    },
    /// The vote is of a worker that takes no part in the generation.
    #[error("{worker} is no member of the generation")]
    NotAMember {
        /// The worker.
        worker: WorkerId,
    },
    /// The vote is of another incarnation on a member's slot (G-3).
    #[error("the slot's member is {member}, another incarnation")]
    OtherIncarnation {
        /// The member.
        member: WorkerId,
    },
    /// The sender has no right to vote for this worker.
    #[error("{from} may not vote for another worker")]
    NotTheSender {
        /// The sender.
        from: NodeId,
    },
}

/// Reason why a generation was not opened.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OpenError {
    /// The generation is not newer: term and generation only grow (G-2).
    #[error("generation {}.{} is not newer than {}.{}",
        stamp.term, stamp.generation, newest.term, newest.generation)]
    NotNewer {
        /// The generation that was to be opened.
        stamp: Stamp,
        /// The newest that was opened.
        newest: Stamp,
    },
    /// The generation has no members, and could never end.
    #[error("generation {}.{} has no members", stamp.term, stamp.generation)]
    NoMembers {
        /// The generation that was to be opened.
        stamp: Stamp,
    },
    /// A worker has two ranks; it must have one (G-3).
    #[error("{worker} has two ranks in generation {}.{}", stamp.term, stamp.generation)]
    TwoRanks {
        /// The generation that was to be opened.
        stamp: Stamp,
        /// The worker.
        worker: WorkerId,
    },
}
