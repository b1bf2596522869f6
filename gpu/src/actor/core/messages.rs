//! Inputs and outputs of the GPU actor's core, which the shell exchanges with it: numbers that stand for
//! communicators and work, outputs, answers, outcomes.

use std::time::Duration;

use elastic_protocol::{Stamp, Time, WorkerId};

use crate::nccl::Features;
use crate::offer::{How, Offer};

/// A communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommId(pub u64);

/// A question of the training thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AskTicket(pub u64);

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuJobId(pub u64);

/// Work for the GPU's thread.
#[derive(Clone, Debug, PartialEq)]
pub enum GpuWork {
    /// Make a meeting point: to grow this communicator, or for a new one.
    Identify(Option<CommId>),
    /// Form a communicator as planned, from `parent` where there is one; its number will be `into`.
    Form {
        /// Its number.
        into: CommId,
        /// The communicator that it is derived from.
        parent: Option<CommId>,
        /// The way to form it: for a shrink, with the parent's ranks that are left out.
        how: How,
        /// The rank in it.
        rank: u32,
        /// Its number of ranks.
        world: u32,
        /// The generation: its abort ends the wait.
        stamp: Stamp,
        /// Deadline.
        due: Time,
    },
    /// Form a spare, by the meeting point of this number.
    FormSpare {
        /// Its number.
        into: CommId,
        /// Number of the spare among those of the generation.
        number: u32,
        /// The rank in it.
        rank: u32,
        /// Its number of ranks.
        world: u32,
        /// Deadline.
        due: Time,
    },
    /// End the operation under way in a communicator.
    Revoke(CommId),
    /// Begin to end it: that goes on beside other work.
    End(CommId),
}

/// Actions for the shell.
#[derive(Clone, Debug, PartialEq)]
pub enum GpuOutput {
    /// Answer the training thread.
    Answer(AskTicket, GpuAnswer),
    /// Give the GPU's thread this work.
    Do(GpuJobId, GpuWork),
    /// Ask it to give this work up: the job still ends by an outcome.
    Cancel(GpuJobId),
    /// The GPU's thread is stuck in this: take another one.
    LeaveBehind(GpuJobId),
    /// Look at the progress of this generation.
    Sample(Stamp),
    /// This generation cannot go on here.
    Fail(Stamp, String),
}

/// Answers to the training thread.
#[derive(Clone, Debug, PartialEq)]
pub enum GpuAnswer {
    /// This member's offer.
    Offer(Offer),
    /// The shell has the meeting point, or why not.
    Identified(Result<(), String>),
    /// The generation's communicator, or why not.
    Formed(Result<CommId, String>),
}

/// End of a piece of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkOutcome {
    /// Done.
    Done,
    /// Failed. The communicator that was to be formed does not exist.
    Failed(String),
}

/// State of a generation's communicator when the training thread left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// No operation is under way.
    InOrder,
    /// Something failed, or was aborted.
    Broken,
}

/// Progress of a generation, as the shell samples it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgressSample {
    /// Time for which the oldest unfinished operation has been under way, and its name.
    pub oldest: Option<(Duration, String)>,
    /// The error that NCCL reported late.
    pub error: Option<String>,
}

/// Settings of the core.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// This worker.
    pub worker: WorkerId,
    /// The capabilities of this NCCL.
    pub features: Features,
    /// Its version, as NCCL counts.
    pub version: u32,
    /// Time after which an operation counts as hung.
    pub operation_deadline: Duration,
}
