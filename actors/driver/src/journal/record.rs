//! [`Record`]: one line of a driver's journal, encoded with postcard.

use std::fmt;
use std::net::SocketAddr;

use elastic_protocol::messages::Formation;
use elastic_protocol::{
    CommitId, HostName, Incarnation, JobId, JobResult, ProgramSpec, ResetCause, Stamp, Term,
    WorkerId,
};
use serde::{Deserialize, Serialize};

use super::image::HostImage;

/// What was made when the job began and must never be seen: opaque here, never printed.
#[derive(Clone, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct JobSecretsBytes(pub Vec<u8>);

impl fmt::Debug for JobSecretsBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JobSecretsBytes(hidden)")
    }
}

/// Something that the next incarnation of the driver must know.
///
/// New kinds go to the end: what an older version has written must be read by a newer one.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Record {
    /// The first record of all.
    Job {
        /// Which job.
        job: JobId,
        /// What it runs.
        program: ProgramSpec,
        /// Its secrets.
        secrets: JobSecretsBytes,
    },
    /// An incarnation of the driver begins.
    Term {
        /// Its number: one more than any before.
        term: Term,
    },
    /// A worker's process is to be started: its incarnation is given out.
    WorkerStarted {
        /// Whom.
        worker: WorkerId,
    },
    /// A worker attached.
    WorkerAttached {
        /// Who.
        worker: WorkerId,
        /// Where its collectives are reached.
        data_address: SocketAddr,
    },
    /// A worker's process is gone.
    WorkerGone {
        /// Whose.
        worker: WorkerId,
    },
    /// What a worker held when it came to rest.
    CommitHeld {
        /// Who.
        worker: WorkerId,
        /// Step and digest.
        commit: CommitId,
    },
    /// A generation was formed, with this assignment.
    GenerationOpened {
        /// What its members are told; the table is a full one.
        formation: Formation,
    },
    /// All of its members hold its first commit, and train.
    GenerationRunning {
        /// Which.
        stamp: Stamp,
    },
    /// Its members are told to stop at a boundary.
    StopDecided {
        /// Which.
        stamp: Stamp,
        /// Where.
        boundary: u64,
        /// Why.
        cause: ResetCause,
    },
    /// A generation has ended.
    GenerationEnded {
        /// Which.
        stamp: Stamp,
        /// Why.
        cause: ResetCause,
    },
    /// What is held against a slot.
    Slot {
        /// Of which host.
        host: HostName,
        /// Which.
        slot: u32,
        /// Failures that are held against it.
        failures: u32,
        /// Its worker left of its own accord under this agent of the host.
        closed_under: Option<Incarnation>,
    },
    /// The hosts, the oldest first.
    Hosts {
        /// Them.
        hosts: Vec<HostImage>,
    },
    /// The job is over.
    Ended {
        /// How.
        result: JobResult,
    },
    /// A process that lives for one generation is to be started (`--mode restart`): its incarnation is given out.
    ProcessStarted {
        /// Whose.
        worker: WorkerId,
    },
    /// A process that lives for one generation has ended well.
    ProcessDone {
        /// Whose.
        worker: WorkerId,
    },
}

impl Record {
    /// Whether what follows it waits until it is stored: it gives out a number, or decides what a successor
    /// must know to decide alike. The rest a successor finds out from agents and workers if it is lost.
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
        )
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a record has no part that can fail")
    }

    /// From its bytes; any input is safe.
    ///
    /// # Errors
    /// Not a record, or something follows it.
    pub fn decode(bytes: &[u8]) -> Result<Self, postcard::Error> {
        whole(bytes)
    }
}

/// Decodes something that nothing may follow.
pub(super) fn whole<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, postcard::Error> {
    match postcard::take_from_bytes(bytes)? {
        (value, []) => Ok(value),
        _ => Err(postcard::Error::DeserializeBadEncoding),
    }
}
