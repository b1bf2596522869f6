//! Messages between a worker's State and the driver.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::DataPlane;
use crate::assignment::{Assignment, AssignmentDelta};
use crate::commit::{CommitId, Step};
use crate::deadlines::Deadlines;
use crate::ids::{JobId, Stamp, Term};
use crate::job::{JobResult, ResetCause};
use crate::messages::{
    CheckpointOrder, CheckpointReport, CheckpointSource, CollectivePosition, LinkPace, MovedBytes,
    ReportedValues, StateDigests, StepTimes,
};

/// Training beyond the last commit that an abort has undone.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct UndoneTraining {
    /// Steps that were completed.
    pub steps: u64,
    /// Duration, from the commit or the begin of training to the abort, in milliseconds.
    pub ms: u64,
}

impl UndoneTraining {
    /// The most of two members' steps, and of their time.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        Self { steps: self.steps.max(other.steps), ms: self.ms.max(other.ms) }
    }
}

/// Messages from a worker to the driver. Votes go to the registry as [`Vote`](super::Vote).
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum WorkerToDriver {
    /// First message on every new connection. Sent again when the worker's data address has changed.
    Attach {
        /// Its process id.
        pid: u32,
        /// The address of its collectives.
        data_address: SocketAddr,
        /// The generation that the worker is in, or the last one that ended here; the default before the first.
        stamp: Stamp,
        /// Whether the worker still takes part in that generation: it re-attaches, and nothing has ended here.
        active: bool,
        /// The commit that the worker holds.
        commit: Option<CommitId>,
    },
    /// The generation has ended here: the training thread is at rest and waits for the next one. Before the
    /// first generation: the worker is ready to take part.
    Arrived {
        /// The generation that ended; the default before the first.
        stamp: Stamp,
        /// The commit that the worker holds now: live state after an interrupt, the last commit after an abort.
        commit: Option<CommitId>,
        /// Training beyond that commit, undone by an abort.
        undone: UndoneTraining,
    },
    /// The answer to `Pause`, and a promise: the worker has passed no boundary beyond this one. It will pass at
    /// most the next one before it hears `StopAt` or `Resume`.
    Paused {
        /// The generation.
        stamp: Stamp,
        /// Boundaries (commits and checks for host updates) that the worker has passed in this generation.
        boundary: u64,
    },
    /// A collective failed here (G-12): the driver ends the generation.
    CollectiveFailed {
        /// The generation.
        stamp: Stamp,
        /// The rank whose link broke, if one is known. The worker's own rank if its system refused a resource that a
        /// communicator needs.
        peer: Option<u32>,
        /// The rank that reported that link to this worker; none if this worker has seen it break itself.
        told_by: Option<u32>,
        /// The communicator's error.
        error: String,
    },
    /// The worker's progress; sent after a change, at most once a beat.
    Progress {
        /// The generation.
        stamp: Stamp,
        /// Its last commit.
        step: Step,
        /// Text that the program wants shown; at most [`WorkerToDriver::NOTE_BYTES_MAX`]
        /// bytes.
        note: String,
        /// The numbers that the program reports, each as it was last.
        reported: ReportedValues,
        /// Times of its steps; with one message in [`StepTimes::EVERY`] at most, absent from the others.
        steps: Option<StepTimes>,
        /// Rates of incoming data from other hosts; beside step times only, at most [`LinkPace::LINKS_MAX`].
        links: Vec<LinkPace>,
        /// Digests of the commits since the message before.
        digests: Option<StateDigests>,
    },
    /// The training thread has stood still for [`WorkerToDriver::STILL_BEATS`] beats, or goes on after that. Sent again on
    /// every new connection while it stands still.
    Standstill {
        /// The generation.
        stamp: Stamp,
        /// Its position; `None` when it goes on.
        position: Option<CollectivePosition>,
        /// Duration of the standstill so far, or in all if it has ended, in milliseconds.
        for_ms: u64,
    },
    /// The worker wants to leave (SIGTERM, spot notice) after its current step.
    Leaving {
        /// The reason.
        reason: String,
    },
    /// A report on the step that the worker was told to save. Sent again on every new connection while the generation
    /// lasts.
    Checkpoint {
        /// The generation.
        stamp: Stamp,
        /// The step.
        step: Step,
        /// The report.
        report: CheckpointReport,
    },
    /// No member held a commit, and the root cannot load the checkpoint that training is to begin from, or any:
    /// training cannot begin, even with another root.
    NotResumed {
        /// The generation.
        stamp: Stamp,
        /// The reason; at most [`CheckpointReport::TEXT_BYTES_MAX`] bytes.
        reason: String,
        /// The way out, if the error has one of its own; as long at most.
        hint: Option<String>,
    },
    /// The root has looked for a checkpoint, since no member held a commit.
    Resumed {
        /// The generation.
        stamp: Stamp,
        /// The step of the checkpoint that it has loaded; none: training begins from the start.
        step: Option<Step>,
        /// Checkpoints that were passed over or set aside, each with the reason; at most
        /// [`CheckpointReport::TEXTS_MAX`].
        notes: Vec<String>,
        /// Whether the job's last checkpoint is not in its directory. It may be there, and damaged: then it was passed over.
        #[serde(default)]
        is_gone: bool,
    },
    /// A condition of this worker that an operator should mend. Each is sent once.
    Warning {
        /// The warning; at most [`WorkerToDriver::WARNING_BYTES_MAX`] bytes.
        text: String,
    },
    /// The delta of the assignment does not fit the table that the worker holds: the worker asks for the full
    /// table.
    TableWanted {
        /// The generation.
        stamp: Stamp,
    },
    /// The bytes that the worker moves in bulk; sent after a change, at most once a beat, and only while it does so for longer
    /// than that.
    Moves {
        /// The generation.
        stamp: Stamp,
        /// The bytes.
        bytes: MovedBytes,
    },
}

impl WorkerToDriver {
    /// Number of beats for which a training thread stands still before the driver is told.
    pub const STILL_BEATS: u32 = 5;

    /// Longest progress note, in bytes.
    pub const NOTE_BYTES_MAX: usize = 256;

    /// Longest warning, in bytes.
    pub const WARNING_BYTES_MAX: usize = 512;

    /// Most warnings of one worker process.
    pub const WARNINGS_MAX: usize = 16;
}

/// The key of a generation's collectives. Known to the generation's members only, and never printed.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
pub struct GroupKey(pub [u8; 32]);

impl fmt::Debug for GroupKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("GroupKey(..)")
    }
}

/// Plan by which all members of a new generation get the same state.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum SyncPlan {
    /// Every member proved the same step and digest (G-6): no state is sent.
    Skip,
    /// Every member takes over this rank's commit, or before the first commit its initial state.
    FromRoot {
        /// The root (G-8).
        root: u32,
    },
}

/// The logical shards of a job (`--shards`), and the number that each rank of a generation carries. Its first two kinds
/// are encoded as an `Option<u32>`, which older journals have here.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum JobShards {
    /// The driver does not know them: the program sets them, or has none.
    #[default]
    Unsaid,
    /// This number of shards, dealt evenly.
    Even(u32),
    /// Numbers of shards, by rank (`--on-straggler rebalance`).
    Counted(Vec<u32>),
}

impl JobShards {
    /// The number of shards, if the driver knows it.
    pub fn total(&self) -> Option<u32> {
        match self {
            Self::Unsaid => None,
            Self::Even(total) => Some(*total),
            Self::Counted(counts) => Some(counts.iter().sum()),
        }
    }

    /// The number of shards of each rank; empty if they are dealt evenly.
    pub fn counts(&self) -> &[u32] {
        match self {
            Self::Counted(counts) => counts,
            Self::Unsaid | Self::Even(_) => &[],
        }
    }
}

/// The form in which a member receives the table of a generation.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum FormationTable {
    /// The whole table.
    Full(Arc<Assignment>),
    /// A change of the member's last table. A member that holds another table asks for the full one with
    /// [`WorkerToDriver::TableWanted`].
    Delta(Arc<AssignmentDelta>),
}

/// The driver's description of a new generation. Equal for all members that get the same [`FormationTable`], so it is
/// encoded once. A member finds its rank in the table.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Formation {
    /// The generation.
    pub stamp: Stamp,
    /// Its table.
    pub table: FormationTable,
    /// Plan by which all members get the same state.
    pub sync: SyncPlan,
    /// The step at which the generation begins.
    pub step: Step,
    /// Key of its collectives.
    pub key: GroupKey,
    /// Whether the collectives encrypt data between hosts.
    pub encrypts: bool,
    /// The paths that carry the data of collectives.
    pub data_plane: DataPlane,
    /// The job's logical shards, and how they are dealt.
    pub shards: JobShards,
}

/// A [`Formation`] as one member sees it: all that the member needs to take part.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Placement {
    /// The generation.
    pub stamp: Stamp,
    /// Its table.
    pub assignment: Arc<Assignment>,
    /// The member's own rank.
    pub rank: u32,
    /// Plan by which all members get the same state.
    pub sync: SyncPlan,
    /// The step at which the generation begins.
    pub step: Step,
    /// Key of its collectives.
    pub key: GroupKey,
    /// Whether the collectives encrypt data between hosts.
    pub encrypts: bool,
    /// The paths that carry the data of collectives.
    pub data_plane: DataPlane,
    /// The job's logical shards, and how they are dealt.
    pub shards: JobShards,
}

/// Messages from the driver to a worker.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum DriverToWorker {
    /// The answer to `Attach`.
    Welcome {
        /// The job's id.
        job: JobId,
        /// The driver's term.
        term: Term,
        /// The limits on waits.
        deadlines: Deadlines,
    },
    /// Form this generation's communicator, then vote READY.
    Assign(Formation),
    /// All members are READY: sync, vote SYNCED, train.
    Go {
        /// The generation.
        stamp: Stamp,
        /// Source of the state for the root; `None` if a member holds a commit, or the job has no checkpoints.
        source: Option<CheckpointSource>,
    },
    /// An interrupt is wanted: answer `Paused`.
    Pause {
        /// The generation.
        stamp: Stamp,
    },
    /// Stop at this boundary, keeping live state, and arrive.
    StopAt {
        /// The generation.
        stamp: Stamp,
        /// The boundary; no member has passed a later one.
        boundary: u64,
    },
    /// The change behind the interrupt was undone: go on (H-19).
    Resume {
        /// The generation.
        stamp: Stamp,
    },
    /// Save a commit, which is yet to be made, beside training.
    SaveCheckpoint(CheckpointOrder),
    /// Rank 0: all parts of this step are safe. Make the checkpoint whole, then remove all but the newest.
    SealCheckpoint {
        /// The generation.
        stamp: Stamp,
        /// The step.
        step: Step,
        /// Number of checkpoints to keep.
        keep: u32,
        /// The step of a checkpoint that is kept beside these: the one that the command names with `--resume`.
        spared: Option<Step>,
    },
    /// The generation is over: roll back to the last commit, and arrive.
    Abort {
        /// The generation.
        stamp: Stamp,
        /// The cause.
        cause: ResetCause,
    },
    /// The worker takes part no more: end cleanly with code 0 (G-11).
    Leave {
        /// The reason.
        reason: String,
    },
    /// The job is over.
    Finished {
        /// The job's result.
        result: JobResult,
    },
}
