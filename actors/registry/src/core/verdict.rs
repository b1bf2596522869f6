//! What the registry decides: about a vote, and about a generation. Read by the driver.

use elastic_protocol::job::WorkerFailure;
use elastic_protocol::{NodeId, Stamp, WorkerId};

/// What the votes of a generation come to. Each is given at most once a generation, those about one
/// worker at most once per worker.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The barrier is open: every member is READY and none has ended.
    AllReady {
        /// The generation.
        stamp: Stamp,
    },
    /// Every member holds the root's commit. Comes after `AllReady`.
    AllSynced {
        /// The generation.
        stamp: Stamp,
    },
    /// A member failed or was lost: the generation ends (one-for-all).
    Failed {
        /// The generation.
        stamp: Stamp,
        /// Who, and how.
        failure: WorkerFailure,
    },
    /// A member finished. Its result stands, whatever its process does later.
    Succeeded {
        /// The generation.
        stamp: Stamp,
        /// Who.
        worker: WorkerId,
    },
    /// Every member finished: the job is done. Comes after the last `Succeeded`.
    AllSucceeded {
        /// The generation.
        stamp: Stamp,
    },
    /// Every member failed. Comes after the last `Failed`.
    AllFailed {
        /// The generation.
        stamp: Stamp,
        /// The first of them: the first real cause.
        first: WorkerFailure,
    },
}

impl Verdict {
    /// The generation that it is about.
    pub const fn stamp(&self) -> Stamp {
        match self {
            Self::AllReady { stamp }
            | Self::AllSynced { stamp }
            | Self::Failed { stamp, .. }
            | Self::Succeeded { stamp, .. }
            | Self::AllSucceeded { stamp }
            | Self::AllFailed { stamp, .. } => *stamp,
        }
    }
}

/// What became of a vote.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum VoteDecision {
    /// It is of a member of the open generation.
    Taken(Decision),
    /// It is not, and was counted.
    Dropped(DropReason),
}

/// What a member's vote changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Decision {
    /// The member's state changed.
    Recorded,
    /// It had said so, or more, already.
    Repeated,
    /// Its result stands already.
    Ignored(IgnoreReason),
}

/// Why a member's vote changes nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum IgnoreReason {
    /// It finished; how its process ends afterwards does not undo that.
    #[error("it has succeeded, and its success stands")]
    SuccessStands,
    /// It failed; nothing it says later undoes that.
    #[error("it has failed, and its failure stands")]
    FailureStands,
}

/// Why a vote was dropped.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DropReason {
    /// About a generation before the newest (G-2).
    #[error("it is about the older generation {}.{}, the newest is {}.{}",
        vote.term, vote.generation, newest.term, newest.generation)]
    OlderGeneration {
        /// The vote's.
        vote: Stamp,
        /// The newest that was opened.
        newest: Stamp,
    },
    /// About a generation that was never opened.
    #[error("it is about generation {}.{}, which was not opened; the newest is {}.{}",
        vote.term, vote.generation, newest.term, newest.generation)]
    NewerGeneration {
        /// The vote's.
        vote: Stamp,
        /// The newest that was opened.
        newest: Stamp,
    },
    /// About the newest generation, which was closed, or before any was opened.
    #[error("generation {}.{} is not open", stamp.term, stamp.generation)]
    Closed {
        /// The vote's.
        stamp: Stamp,
    },
    /// Of a worker that takes no part in the generation.
    #[error("{worker} is no member of the generation")]
    NotAMember {
        /// Who.
        worker: WorkerId,
    },
    /// Of another life of the process on a member's slot (G-3).
    #[error("the slot's member is {member}, another incarnation")]
    OtherIncarnation {
        /// The member.
        member: WorkerId,
    },
    /// Sent by a node that has no right to vote for this worker.
    #[error("{from} may not vote for another worker")]
    NotTheSender {
        /// Who sent it.
        from: NodeId,
    },
}

/// Why a generation was not opened.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OpenError {
    /// Term and generation only grow (G-2).
    #[error("generation {}.{} is not newer than {}.{}",
        stamp.term, stamp.generation, newest.term, newest.generation)]
    NotNewer {
        /// The one that was to be opened.
        stamp: Stamp,
        /// The newest that was opened.
        newest: Stamp,
    },
    /// A generation without members could never end.
    #[error("generation {}.{} has no members", stamp.term, stamp.generation)]
    NoMembers {
        /// The one that was to be opened.
        stamp: Stamp,
    },
    /// A worker has one rank (G-3).
    #[error("{worker} has two ranks in generation {}.{}", stamp.term, stamp.generation)]
    TwoRanks {
        /// The one that was to be opened.
        stamp: Stamp,
        /// Who.
        worker: WorkerId,
    },
}
