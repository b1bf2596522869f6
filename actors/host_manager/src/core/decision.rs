//! Results of an arrival, a departure, a failure. Read by the driver, which tells the host why.

use elastic_protocol::{HostName, Time};
use serde::Serialize;

use super::limits::{HOSTS_MAX, SLOTS_MAX};

/// Result of a host's arrival.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum JoinDecision {
    /// Accepted into the list, with the slots that it offered.
    Taken,
    /// Already in the list before any agent joined; the list's slots count.
    Expected {
        /// The number of slots.
        slots: u32,
    },
    /// Refused: the host is not in the list, or cannot be added to it.
    Refused(JoinRefusal),
}

/// Reasons for refusing a host that joined.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JoinRefusal {
    /// Hosts are fixed or discovered, and this one is not among them (now).
    #[error(
        "host {name} is not among the job's hosts: add it to the list or to what the discovery \
             script prints, or give the agent the listed name with --host"
    )]
    NotListed {
        /// Its name.
        name: HostName,
    },
    /// No slots, or more than [`SLOTS_MAX`].
    #[error("host {name} offers {slots} slots: give 1 to {SLOTS_MAX}")]
    Slots {
        /// Its name.
        name: HostName,
        /// The number of slots.
        slots: u32,
    },
    /// There are [`HOSTS_MAX`] already.
    #[error("host {name} would be one more than {HOSTS_MAX} hosts")]
    TooManyHosts {
        /// Its name.
        name: HostName,
    },
}

/// Result of a host's departure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LeaveDecision {
    /// Removed from the list.
    Removed,
    /// Hosts are fixed or discovered: the host stays in the list, and may join again.
    StaysListed,
    /// The host was not in the list.
    NotListed,
}

/// Result of the operator's request to take a host out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DrainDecision {
    /// The host gets no workers from now on; those that it has leave in order.
    Drained,
    /// It was taken out before.
    OutAlready,
    /// No such host is listed.
    NotListed,
    /// [`PENALTIES_MAX`](super::limits::PENALTIES_MAX) hosts are taken out already.
    TooMany,
}

/// Result of the operator's request to let a host in again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReadmitDecision {
    /// It may have workers again: it was drained or blacklisted.
    Readmitted,
    /// It was neither drained nor blacklisted.
    NotOut,
}

/// Reason for which a host is to be blacklisted.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub enum HostFault {
    /// The host itself has failed. Without a cooldown it stays out.
    Failed,
    /// It and another host do not reach each other, and it may be the other one's fault. It is tried again in any case.
    Unreached,
}

/// Result of a worker's failure on a host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FailureDecision {
    /// The host is now blacklisted.
    Blacklisted {
        /// The end of its stay; `None`: for ever.
        until: Option<Time>,
        /// The reason, as it was given.
        reason: String,
    },
    /// The host was blacklisted already; its stay does not grow.
    OutAlready {
        /// The end of its stay; `None`: for ever.
        until: Option<Time>,
    },
}
