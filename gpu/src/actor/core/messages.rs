//! What the core is told, and what it says: numbers that stand for communicators and work, outputs, answers, outcomes.

use std::time::Duration;

use elastic_protocol::{Stamp, Time, WorkerId};

use crate::nccl::Features;
use crate::offer::{How, Offer};

/// A communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommId(pub u64);

/// A question of the training thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// What the GPU's thread does.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Make a meeting point: to grow this communicator, or for a new one.
    Identify(Option<CommId>),
    /// Form a communicator as planned, from `parent` where there is one; its number will be `into`.
    Form {
        /// Its number.
        into: CommId,
        /// What it comes of.
        parent: Option<CommId>,
        /// How, and with which ranks.
        how: How,
        /// The rank in it.
        rank: u32,
        /// Its number of ranks.
        world: u32,
        /// The generation: its abort ends the wait.
        stamp: Stamp,
        /// Until when.
        due: Time,
    },
    /// Form a spare, by the meeting point of this number.
    FormSpare {
        /// Its number.
        into: CommId,
        /// Which of the generation's spares.
        number: u32,
        /// The rank in it.
        rank: u32,
        /// Its number of ranks.
        world: u32,
        /// Until when.
        due: Time,
    },
    /// End what is under way.
    Revoke(CommId),
    /// End it at once.
    End(CommId),
}

/// What the shell must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Answer the training thread.
    Answer(Ticket, Answer),
    /// Give the GPU's thread this work.
    Do(JobId, Work),
    /// Ask it to give this work up: the job still ends by an outcome.
    Cancel(JobId),
    /// The GPU's thread is stuck in this: take another one.
    LeaveBehind(JobId),
    /// Look at the progress of this generation.
    Sample(Stamp),
    /// This generation cannot go on here.
    Fail(Stamp, String),
}

/// What the training thread is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// What this member brings.
    Offer(Offer),
    /// The shell has the meeting point, or why not.
    Identified(Result<(), String>),
    /// The generation's communicator, or why not.
    Formed(Result<CommId, String>),
}

/// How work ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// It failed. What was to be formed is not there.
    Failed(String),
}

/// How a generation ended at the training thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Nothing is under way.
    InOrder,
    /// Something failed, or was aborted.
    Broken,
}

/// How far a generation is, as the shell sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// For how long the oldest operation has been under way, and which it is.
    pub oldest: Option<(Duration, String)>,
    /// What NCCL told late.
    pub error: Option<String>,
}

/// What the core is told at its start.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// Who this is.
    pub worker: WorkerId,
    /// What NCCL can do.
    pub features: Features,
    /// Its version, as NCCL counts.
    pub version: u32,
    /// How long an operation may take.
    pub operation_deadline: Duration,
}
