//! [`JournalRecord`]: one entry of a driver's journal, encoded with postcard. The core makes records; `Image` applies them.

use std::fmt;
use std::net::SocketAddr;

use elastic_protocol::messages::Formation;
use elastic_protocol::{
    CommitId, HostName, Incarnation, JobId, JobResult, ProgramSpec, ResetCause, Stamp, Step, Term,
    WorkerId,
};
use serde::{Deserialize, Serialize};

use super::image::{CheckpointImage, DistrustedImage, HostImage, StateLossImage, StopImage};
use crate::core::ReplacedFor;

/// Secrets of the job, made when it began. The bytes are opaque here and never printed.
#[derive(Clone, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct JobSecretsBytes(pub Vec<u8>);

impl fmt::Debug for JobSecretsBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JobSecretsBytes(hidden)")
    }
}

/// One event that the next incarnation of the driver must know.
///
/// New kinds go to the end: a newer version must be able to read the records of an older one.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum JournalRecord {
    /// First record of a journal.
    Job {
        /// The job.
        job: JobId,
        /// The program that it runs.
        #[serde(with = "crate::recording::readable::program")]
        program: ProgramSpec,
        /// The job's secrets.
        #[serde(with = "crate::recording::readable::secrets")]
        secrets: JobSecretsBytes,
    },
    /// Begin of an incarnation of the driver.
    Term {
        /// Number of the incarnation: one more than any before.
        term: Term,
    },
    /// Order to start a worker's process; uses up an incarnation number.
    WorkerStarted {
        /// The worker.
        worker: WorkerId,
    },
    /// A worker attached.
    WorkerAttached {
        /// The worker.
        worker: WorkerId,
        /// Address of the worker's collectives.
        data_address: SocketAddr,
    },
    /// A worker's process is gone.
    WorkerGone {
        /// The worker.
        worker: WorkerId,
    },
    /// Commit that a worker held when it came to rest.
    CommitHeld {
        /// The worker.
        worker: WorkerId,
        /// The commit's generation, step and digest.
        commit: CommitId,
    },
    /// A generation was formed, with this assignment.
    GenerationOpened {
        /// The formation that its members are told, with the full table.
        #[serde(with = "crate::recording::readable::formation")]
        formation: Formation,
    },
    /// Start of training: all members hold the generation's first commit.
    GenerationRunning {
        /// The generation.
        stamp: Stamp,
    },
    /// Order to the members to stop at a boundary.
    StopDecided {
        /// The generation.
        stamp: Stamp,
        /// The boundary to stop at.
        boundary: u64,
        /// The cause of the reset.
        cause: ResetCause,
    },
    /// A generation has ended.
    GenerationEnded {
        /// The generation.
        stamp: Stamp,
        /// The cause of the reset.
        cause: ResetCause,
    },
    /// State of a slot: its failures, and whether it is closed.
    Slot {
        /// The host.
        host: HostName,
        /// The slot's number on the host.
        slot: u32,
        /// Number of failures counted against the slot.
        failures: u32,
        /// Incarnation of the host's agent under which the slot's worker left of its own accord, if it did.
        closed_under: Option<Incarnation>,
    },
    /// The hosts, the oldest first. No host off the list is drained or blacklisted.
    Hosts {
        /// The hosts.
        hosts: Vec<HostImage>,
    },
    /// End of the job.
    Ended {
        /// The job's result.
        result: JobResult,
    },
    /// Order to start a process that lives for one generation (`--mode restart`); uses up an incarnation number.
    ProcessStarted {
        /// The worker.
        worker: WorkerId,
    },
    /// Success of a process that lives for one generation.
    ProcessDone {
        /// The worker.
        worker: WorkerId,
    },
    /// Progress of the training state. Written by older versions; newer ones write `TrainedUntil`.
    Trained {
        /// Highest step that all members of a generation are known to hold.
        committed: Option<Step>,
        /// Training time behind it, in milliseconds.
        trained_ms: u64,
        /// Lost steps in the whole job.
        steps_lost: u64,
    },
    /// Committed steps were lost.
    StateLost {
        /// The loss.
        loss: StateLossImage,
    },
    /// A checkpoint is whole and safe. Written by older versions; newer ones name its directory, too.
    CheckpointSaved {
        /// The checkpoint.
        checkpoint: CheckpointImage,
    },
    /// The cool-down of a slot whose worker was replaced has begun, or is over.
    SlotRests {
        /// The host.
        host: HostName,
        /// The slot's number on the host.
        slot: u32,
        /// Reason for which its worker was replaced; none: the cool-down is over.
        why: Option<ReplacedFor>,
    },
    /// Members of a generation hold other content of an array than the majority of its members.
    ReplicasDistrusted {
        /// The generation.
        stamp: Stamp,
        /// The array, and these members.
        distrusted: DistrustedImage,
    },
    /// Shards are dealt by these paces from now on.
    ShardsRebalanced {
        /// Members that are slower than their peers, with their time for a shard in thousandths of the peers'.
        paces: Vec<(WorkerId, u32)>,
        /// Number of deals of shards in the last hour.
        recent: u32,
    },
    /// The last checkpoint is not in its folder any more, and training goes on without it.
    CheckpointGone,
    /// A checkpoint is whole and safe, saved by the job or loaded: training goes on from it after a loss of all workers.
    CheckpointKept {
        /// The checkpoint.
        checkpoint: CheckpointImage,
        /// The directory of checkpoints that it is in.
        directory: String,
    },
    /// The hosts, and those off the list that may have no workers. Written instead of `Hosts` while there are any of these.
    HostsAndUnlisted {
        /// The hosts, the oldest first.
        hosts: Vec<HostImage>,
        /// Drained or blacklisted hosts off the list, by name.
        unlisted: Vec<HostImage>,
    },
    /// The members' states differ: from now on rank 0 writes each checkpoint alone.
    SavedByRank0,
    /// The operator has asked the job to end, and its end waits for a save or for a takeover.
    StopAsked {
        /// The request.
        stop: StopImage,
    },
    /// Progress of the training state.
    TrainedUntil {
        /// Highest step that all members of a generation are known to hold.
        committed: Option<Step>,
        /// Training time behind it, in milliseconds.
        trained_ms: u64,
        /// Lost steps in the whole job.
        steps_lost: u64,
        /// Wall clock of the record, in milliseconds since 1970; none if the driver's start does not name it.
        at_ms: Option<u64>,
        /// Whether the state has come from a checkpoint of an earlier job.
        is_inherited: bool,
    },
}

impl JournalRecord {
    /// Whether outputs after this record wait until it is stored. They wait for a record that uses up a number, or
    /// that has a decision which a successor must make alike. A successor learns the other facts from agents and workers
    /// if their record is lost.
    pub(crate) const fn is_waited_for(&self) -> bool {
        matches!(
            self,
            Self::Job { .. }
                | Self::Term { .. }
                | Self::WorkerStarted { .. }
                | Self::ProcessStarted { .. }
                | Self::GenerationOpened { .. }
                | Self::StopDecided { .. }
                | Self::Ended { .. }
                | Self::ReplicasDistrusted { .. }
                | Self::SavedByRank0
        )
    }

    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a record has no part that can fail")
    }

    /// Decodes a record; any input is safe.
    ///
    /// # Errors
    /// The bytes are not a record, or bytes follow it.
    pub fn decode(bytes: &[u8]) -> Result<Self, postcard::Error> {
        whole(bytes)
    }
}

/// Decodes a value; an error if bytes follow it.
pub(super) fn whole<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, postcard::Error> {
    match postcard::take_from_bytes(bytes)? {
        (value, []) => Ok(value),
        _ => Err(postcard::Error::DeserializeBadEncoding),
    }
}
