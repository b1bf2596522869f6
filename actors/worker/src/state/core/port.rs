//! What goes into and comes out of `StateCore`: the words between it, the training thread and its shell.

use std::net::SocketAddr;

use elastic_protocol::messages::{Placement, SyncPlan, Vote, WorkerToDriver};
use elastic_protocol::{CommitId, Deadlines, JobId, JobResult, Stamp, Step, WorkerId};

/// What a State is told once, at its start.
#[derive(Clone, Debug)]
pub struct StateConfig {
    /// The job that the worker was started for.
    pub job: JobId,
    /// Who it is.
    pub worker: WorkerId,
    /// Its process id.
    pub pid: u32,
    /// Where its collectives are reached.
    pub data_address: SocketAddr,
    /// How long waits may last until the driver's `Welcome` says otherwise.
    pub deadlines: Deadlines,
}

/// What the training thread tells.
///
/// `Formed`, `Synced` is told of success only. What goes wrong in a collective is told by
/// `CollectiveFailed`, after which the thread restores its last commit and tells `AtRest` by itself.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TrainingEvent {
    /// It is in `run`, takes part in no generation, and waits for a command. Told on entering `run`, and
    /// whenever a generation has ended at it.
    AtRest {
        /// The commit that it holds: live state after an interrupt, the last commit after an abort.
        commit: Option<CommitId>,
        /// Steps beyond that commit that were undone.
        steps_lost: u64,
    },
    /// The communicator of this generation stands; it waits for `Sync`, or `End`.
    Formed {
        /// The generation.
        stamp: Stamp,
    },
    /// It holds the generation's commit and has entered the user's function.
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
        /// The rank whose link broke, where one is known.
        peer: Option<u32>,
        /// What the communicator said.
        error: String,
    },
    /// The user's function returned without an error; its state is saved, and it waits for a command as
    /// if at rest.
    Returned {
        /// The generation.
        stamp: Stamp,
        /// What it holds.
        commit: CommitId,
        /// The last progress note.
        note: String,
    },
    /// The user's function returned an error of its own; it waits for `Exit`.
    Failed {
        /// The generation.
        stamp: Stamp,
        /// The error.
        message: String,
    },
}

/// What the training thread is told. It reads commands only where it waits for one.
#[derive(Clone, Debug, PartialEq)]
pub enum TrainingCommand {
    /// At rest: form this generation's communicator. The shell sets the boundary counter to 0 first.
    Form(Box<Placement>),
    /// Formed: take over the generation's commit, tell `Synced`, run the user's function.
    Sync {
        /// The generation.
        stamp: Stamp,
        /// How state is shared.
        plan: SyncPlan,
    },
    /// Held at a boundary: go on.
    Pass,
    /// Held at a boundary: keep live state, return `Interrupted`, come to rest.
    Stop,
    /// Formed, or held at a boundary: the generation is over. Roll back to the last commit, come to rest.
    End,
    /// At rest: leave `run`.
    Exit(Exit),
}

/// Why, and so how, the training thread leaves `run`.
#[derive(Clone, Debug, PartialEq)]
pub enum Exit {
    /// The driver, or a signal, asked it to leave: `Ok` (G-11).
    Left {
        /// Why.
        reason: String,
    },
    /// The job is over: `Ok`, unless the job failed.
    Finished {
        /// How.
        result: JobResult,
    },
    /// The user's function failed: its own error.
    Failed,
    /// The driver was gone for longer than [`Deadlines::orphan`]: an error.
    Orphaned {
        /// For how long, in milliseconds.
        gone_ms: u64,
    },
    /// The driver runs another job: an error.
    WrongJob {
        /// The job that this worker was started for.
        ours: JobId,
        /// The driver's.
        theirs: JobId,
    },
}

/// What becomes of the training thread at a boundary where it asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It goes on.
    Pass,
    /// It waits; `Pass`, `Stop` or `End` follows as a command.
    Hold,
    /// It keeps live state and comes to rest.
    Stop,
    /// The generation is over: it rolls back and comes to rest.
    End,
}

/// What the shell must carry out, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send to the driver.
    ToDriver(WorkerToDriver),
    /// Send to the registry (on the driver's node).
    Vote(Vote),
    /// Give the training thread a command.
    Training(TrainingCommand),
    /// Set the abort word: collectives of this generation, and of all before it, return at once.
    Abort {
        /// The generation.
        stamp: Stamp,
        /// Why.
        reason: String,
    },
    /// Store the pause flag. After storing `true`, read the boundary counter and call
    /// [`StateCore::handle_pause_read`](super::StateCore::handle_pause_read): in this order, which with
    /// the training thread's opposite order is Dekker's.
    PauseFlag {
        /// Whether the thread must ask at boundaries.
        on: bool,
    },
    /// Read step and note, and call [`StateCore::handle_progress`](super::StateCore::handle_progress).
    SampleProgress,
}

/// How far training is, as the shell reads it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Progress {
    /// The last commit.
    pub step: Step,
    /// What the program wants shown.
    pub note: String,
}
