//! What became of an arrival, a departure, a failure. Read by the driver, which tells the host why.

use elastic_protocol::{HostName, Time};

use super::limits::{HOSTS_MAX, SLOTS_MAX};

/// What became of a host that joined.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum JoinDecision {
    /// It is in the list, with the slots that it said.
    Taken,
    /// It was in the list before anybody joined; the list's slots count.
    Expected {
        /// How many.
        slots: u32,
    },
    /// It is not in the list, and does not get in by joining.
    Refused(JoinRefusal),
}

/// Why a host that joined is not taken.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JoinRefusal {
    /// Hosts are fixed or discovered, and it is not among them (now).
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
        /// How many.
        slots: u32,
    },
    /// There are [`HOSTS_MAX`] already.
    #[error("host {name} would be one more than {HOSTS_MAX} hosts")]
    TooManyHosts {
        /// Its name.
        name: HostName,
    },
}

/// What became of a host that left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LeaveDecision {
    /// It was taken out of the list.
    Removed,
    /// Hosts are fixed or discovered: it stays in the list, and may join again.
    StaysListed,
    /// It was not in the list.
    NotListed,
}

/// What became of a failure.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FailureDecision {
    /// The host is out.
    Blacklisted {
        /// Until then, or for ever.
        until: Option<Time>,
        /// Why, as it was given.
        reason: String,
    },
    /// It was out already, and its stay does not grow.
    OutAlready {
        /// Until then, or for ever.
        until: Option<Time>,
    },
}
