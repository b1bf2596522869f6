//! Between a worker's State and the driver.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::assignment::{Assignment, AssignmentDelta};
use crate::commit::{CommitId, Step};
use crate::deadlines::Deadlines;
use crate::ids::{JobId, Stamp, Term};
use crate::job::{JobResult, ResetCause};

/// What a worker tells the driver. Votes go to the registry as [`Vote`](super::Vote).
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum WorkerToDriver {
    /// First word on every new connection.
    Attach {
        /// Its process id.
        pid: u32,
        /// Where its collectives are reached.
        data_address: SocketAddr,
        /// The generation it is in, or that ended last at it; the default before the first.
        stamp: Stamp,
        /// Whether it still takes part in that generation (it re-attaches; nothing ended at it).
        active: bool,
        /// The commit that it holds.
        commit: Option<CommitId>,
    },
    /// The generation has ended here; its training thread is at rest and waits for the next one. In the
    /// first generation's place: it is ready to take part.
    Arrived {
        /// The generation that ended; the default before the first.
        stamp: Stamp,
        /// The commit that it holds now: live state after an interrupt, the last commit after an abort.
        commit: Option<CommitId>,
        /// Steps beyond that commit that are undone by an abort.
        steps_lost: u64,
    },
    /// The answer to `Pause`: it has passed no boundary beyond this one, and will pass only the next
    /// before it hears `StopAt` or `Resume`.
    Paused {
        /// The generation.
        stamp: Stamp,
        /// Boundaries (commits and checks for host updates) that it has passed in this generation.
        boundary: u64,
    },
    /// A collective failed here (G-12): the driver ends the generation.
    CollectiveFailed {
        /// The generation.
        stamp: Stamp,
        /// The rank whose link broke, where one is known.
        peer: Option<u32>,
        /// What the communicator said.
        error: String,
    },
    /// How far it is; sent when it changed, at most once a beat.
    Progress {
        /// The generation.
        stamp: Stamp,
        /// Its last commit.
        step: Step,
        /// Whatever the program wants shown, such as its loss; at most
        /// [`WorkerToDriver::NOTE_BYTES_MAX`] bytes.
        note: String,
    },
    /// It wants to leave (SIGTERM, spot notice) after the step that it is in.
    Leaving {
        /// Why.
        reason: String,
    },
    /// The delta that it was assigned with is not for the table that it holds: it is to be told the full one.
    TableWanted {
        /// The generation.
        stamp: Stamp,
    },
}

impl WorkerToDriver {
    /// How long a progress note may be.
    pub const NOTE_BYTES_MAX: usize = 256;
}

/// The key of a generation's collectives: known to its members only, never printed.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
pub struct GroupKey(pub [u8; 32]);

impl fmt::Debug for GroupKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("GroupKey(..)")
    }
}

/// How the members of a new generation come to hold the same state.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum SyncPlan {
    /// Every member proved the same step and digest (G-6): nothing is sent.
    Skip,
    /// Every member takes over what this rank holds: its commit, or before the first its initial state.
    FromRoot {
        /// The root (G-8).
        root: u32,
    },
}

/// How a member comes to the table of a generation.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Table {
    /// By itself.
    Full(Arc<Assignment>),
    /// From the table that it was told of last. Whoever holds another one asks for the full table with
    /// [`WorkerToDriver::TableWanted`].
    Delta(Arc<AssignmentDelta>),
}

/// What carries the data of a generation's collectives.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum DataPlane {
    /// Shared memory within a host, TCP between hosts.
    #[default]
    Auto,
    /// TCP alone.
    Tcp,
    /// QUIC alone.
    Quic,
    /// Shared memory within a host, QUIC between hosts.
    ShmQuic,
}

/// What the members of a new generation are told: the same for all who get the same [`Table`], so that it is
/// encoded once. A member finds its rank in the table.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Formation {
    /// The generation.
    pub stamp: Stamp,
    /// Who takes part.
    pub table: Table,
    /// How state is shared.
    pub sync: SyncPlan,
    /// The step at which the generation begins.
    pub step: Step,
    /// Key of its collectives.
    pub key: GroupKey,
    /// Whether they encrypt data between hosts.
    pub encrypts: bool,
    /// What carries the data.
    pub data_plane: DataPlane,
}

/// A [`Formation`] as one member has it: everything that it needs to take part.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Placement {
    /// The generation.
    pub stamp: Stamp,
    /// Its table.
    pub assignment: Arc<Assignment>,
    /// The member's own rank.
    pub rank: u32,
    /// How state is shared.
    pub sync: SyncPlan,
    /// The step at which the generation begins.
    pub step: Step,
    /// Key of its collectives.
    pub key: GroupKey,
    /// Whether they encrypt data between hosts.
    pub encrypts: bool,
    /// What carries the data.
    pub data_plane: DataPlane,
}

/// What the driver tells a worker.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum DriverToWorker {
    /// The answer to `Attach`.
    Welcome {
        /// Which job this is.
        job: JobId,
        /// The driver's term.
        term: Term,
        /// How long waits may last.
        deadlines: Deadlines,
    },
    /// Form this generation's communicator, then vote READY.
    Assign(Formation),
    /// All are READY: sync, vote SYNCED, train.
    Go {
        /// The generation.
        stamp: Stamp,
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
        /// The boundary: beyond none that a member has passed.
        boundary: u64,
    },
    /// The change that asked for the interrupt was undone: go on (H-19).
    Resume {
        /// The generation.
        stamp: Stamp,
    },
    /// The generation is over: roll back to the last commit, and arrive.
    Abort {
        /// The generation.
        stamp: Stamp,
        /// Why.
        cause: ResetCause,
    },
    /// It takes part no more: end cleanly with code 0 (G-11).
    Leave {
        /// Why.
        reason: String,
    },
    /// The job is over.
    Finished {
        /// How.
        result: JobResult,
    },
}
