//! Inputs and outputs of `StateCore`: the messages between it, the training thread and its shell.

use std::net::SocketAddr;

use elastic_protocol::messages::{
    CheckpointOrder, CheckpointReport, CheckpointSource, CollectivePosition, LinkPace, MovedBytes,
    Placement, ReportedValues, StateDigests, StepTimes, SyncPlan, UndoneTraining, Vote,
    WorkerToDriver,
};
use elastic_protocol::{CommitId, Deadlines, JobId, JobOutcome, JobResult, Stamp, Step, WorkerId};

/// Settings of a State, given at its start.
#[derive(Clone, Debug)]
pub struct StateConfig {
    /// The job that the worker was started for.
    pub job: JobId,
    /// The identity of the worker.
    pub worker: WorkerId,
    /// The process id.
    pub pid: u32,
    /// The address at which other workers reach its collectives.
    pub data_address: SocketAddr,
    /// Deadlines until the driver's `Welcome` brings others.
    pub deadlines: Deadlines,
}

/// Events of the training thread.
///
/// `Formed` and `Synced` report success only. `CollectiveFailed` reports a failed collective; the thread then
/// restores its last commit and reports `AtRest` by itself.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TrainingEvent {
    /// The host has another network address than before: from here on other workers reach this one's collectives
    /// there. Sent just before `AtRest`.
    Moved {
        /// The new address.
        data_address: SocketAddr,
        /// The commit that the thread holds, as in `AtRest`.
        commit: Option<CommitId>,
    },
    /// The thread is in `run`, takes part in no generation, and waits for a command. Sent when it enters `run`,
    /// and whenever a generation has ended at it.
    AtRest {
        /// The commit that the thread holds: live state after an interrupt, the last commit after an abort.
        commit: Option<CommitId>,
        /// Training beyond that commit that was undone.
        undone: UndoneTraining,
    },
    /// The communicator of this generation stands. The thread waits for `Sync` or `End`.
    Formed {
        /// The generation.
        stamp: Stamp,
    },
    /// The thread holds the generation's commit and has entered the user's function.
    Synced {
        /// The generation.
        stamp: Stamp,
        /// The commit, labelled with this generation.
        commit: CommitId,
    },
    /// A collective failed, and not because of the abort word. `AtRest` follows.
    CollectiveFailed {
        /// The generation.
        stamp: Stamp,
        /// The rank whose link broke, if it is known.
        peer: Option<u32>,
        /// The rank that reported that link to this one, if one did.
        told_by: Option<u32>,
        /// The communicator's error.
        error: String,
    },
    /// The thread looked for a checkpoint, since no member held a commit. `Synced` follows.
    Resumed {
        /// The generation.
        stamp: Stamp,
        /// The step of the checkpoint that was loaded; none: training begins from the start.
        step: Option<Step>,
        /// Checkpoints that were passed over or set aside, with the reasons.
        notes: Vec<String>,
        /// Whether the job's last checkpoint is not in its directory.
        is_gone: bool,
    },
    /// The thread noticed a fault that the user should repair. Training goes on.
    Warned {
        /// The warning.
        text: String,
    },
    /// The user's function returned without an error. The state is saved, and the thread waits for a command as
    /// if at rest.
    Returned {
        /// The generation.
        stamp: Stamp,
        /// The commit that the thread holds.
        commit: CommitId,
        /// The last progress note.
        note: String,
        /// The last reported numbers.
        reported: ReportedValues,
    },
    /// There are checkpoints, and this thread, the root's, can load none of them. `Failed` follows.
    NotResumed {
        /// The generation.
        stamp: Stamp,
        /// The reason.
        reason: String,
        /// The way out, if the error has one of its own.
        hint: Option<String>,
    },
    /// The user's function returned an error of its own. The thread waits for `RunExit`.
    Failed {
        /// The generation.
        stamp: Stamp,
        /// The error.
        message: String,
    },
}

/// Commands to the training thread. The thread reads them only where it waits for one.
#[derive(Clone, Debug, PartialEq)]
pub enum TrainingCommand {
    /// At rest: form this generation's communicator. The shell sets the boundary counter to 0 first.
    Form(Box<Placement>),
    /// Formed: take over the generation's commit, tell `Synced`, run the user's function.
    Sync {
        /// The generation.
        stamp: Stamp,
        /// Plan by which the members come to hold the root's commit.
        plan: SyncPlan,
        /// Source of checkpoints to resume from, if no member holds a commit or a checkpoint is later than all commits.
        source: Option<CheckpointSource>,
    },
    /// Held at a boundary: go on.
    Pass,
    /// Held at a boundary: keep live state, return `Interrupted`, come to rest.
    Stop,
    /// Formed, or held at a boundary: the generation is over. Roll back to the last commit, come to rest.
    End,
    /// Returned: save the commit with which training has ended, as this part of a checkpoint.
    SaveLast(Box<CheckpointPart>),
    /// At rest: leave `run`.
    Exit(RunExit),
}

/// Reason for which the training thread leaves `run`. It decides the result of `run`.
#[derive(Clone, Debug, PartialEq)]
pub enum RunExit {
    /// The driver or a signal asked the worker to leave: `Ok` (G-11).
    Left {
        /// The reason.
        reason: String,
    },
    /// The job is over: `Ok`, unless the job failed.
    Finished {
        /// The result of the job.
        result: JobResult,
    },
    /// The user's function failed: its own error.
    Failed,
    /// The driver was gone for longer than [`Deadlines::orphan`]: an error.
    Orphaned {
        /// Time that the driver was gone, in milliseconds.
        gone_ms: u64,
    },
    /// The driver runs another job: an error.
    WrongJob {
        /// The job that this worker was started for.
        ours: JobId,
        /// The driver's job.
        theirs: JobId,
    },
}

impl RunExit {
    /// Whether the job is over, and has succeeded.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Finished { result } if result.outcome == JobOutcome::Succeeded)
    }
}

/// The core's answer to a training thread that asks at a boundary.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BoundaryAnswer {
    /// The thread goes on.
    Pass,
    /// The thread waits. `Pass`, `Stop` or `End` follows as a command.
    Hold,
    /// The thread keeps live state and comes to rest.
    Stop,
    /// The generation is over. The thread rolls back and comes to rest.
    End,
}

/// The part of a checkpoint that a worker writes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CheckpointPart {
    /// The driver's order.
    pub order: CheckpointOrder,
    /// The job.
    pub job: JobId,
    /// The worker's rank.
    pub rank: u32,
    /// The number of parts: that of ranks, or one, which rank 0 writes.
    pub parts: u32,
}

/// Commands about checkpoints, which are carried out beside training.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CheckpointCommand {
    /// Save this worker's part of a commit, once it is made.
    Save(CheckpointPart),
    /// Make the checkpoint of this step whole.
    Seal {
        /// The generation.
        stamp: Stamp,
        /// The step.
        step: Step,
        /// Number of checkpoints to keep.
        keep: u32,
        /// The step of one that is kept beside these.
        spared: Option<Step>,
    },
}

/// Result of a [`CheckpointCommand`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CheckpointOutcome {
    /// The generation.
    pub stamp: Stamp,
    /// The step.
    pub step: Step,
    /// The report for the driver.
    pub report: CheckpointReport,
}

/// Outputs of the core. The shell carries them out in order.
#[derive(Clone, Debug, PartialEq)]
pub enum StateOutput {
    /// Send to the driver.
    ToDriver(WorkerToDriver),
    /// Send to the registry (on the driver's node).
    Vote(Vote),
    /// Give the training thread a command.
    Training(TrainingCommand),
    /// Set the abort word: collectives of this generation and of all earlier ones return at once.
    Abort {
        /// The generation.
        stamp: Stamp,
        /// The reason.
        reason: String,
    },
    /// Store the pause flag. After storing `true`, read the boundary counter and call
    /// [`StateCore::handle_pause_read`](super::StateCore::handle_pause_read): in this order, which with
    /// the training thread's opposite order is Dekker's.
    PauseFlag {
        /// Whether the thread must ask at boundaries.
        on: bool,
    },
    /// Have this done beside training. The outcome comes through
    /// [`StateCore::handle_checkpoint`](super::StateCore::handle_checkpoint).
    Checkpoint(CheckpointCommand),
    /// Read the progress, and call [`StateCore::handle_progress`](super::StateCore::handle_progress).
    SampleProgress,
}

/// Progress of training, as the shell reads it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TrainingProgress {
    /// The step of the last commit.
    pub step: Step,
    /// The note that the program wants shown.
    pub note: String,
    /// The numbers that the program has reported.
    pub reported: ReportedValues,
    /// Position of the training thread among its collectives.
    pub position: CollectivePosition,
    /// Durations of its steps; `None` before some were measured in this generation.
    pub steps: Option<StepTimes>,
    /// Rates at which data comes in from other hosts.
    pub links: Vec<LinkPace>,
    /// Digests of the commits since the progress before.
    pub digests: Option<StateDigests>,
    /// The bytes that it moves in bulk at present.
    pub moved: Option<MovedBytes>,
}
