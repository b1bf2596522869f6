//! The host manager's message to the driver: all hosts as they are now, and the kind of change.

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::{HostName, Time};
use serde::{Deserialize, Serialize};

use super::discovery::DiscoveryFailure;

/// Whether a host may run workers.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum HostState {
    /// The host may run workers.
    Listed,
    /// The host failed, and gets no workers.
    Blacklisted {
        /// The end of its stay; `None`: for ever.
        until: Option<Time>,
    },
    /// The operator has taken the host out, and it gets no workers until it is let in again.
    Drained,
}

/// A host of the snapshot.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HostEntry {
    /// Its name.
    pub name: HostName,
    /// Its slots.
    pub slots: u32,
    /// Whether it may run workers.
    pub state: HostState,
}

impl HostEntry {
    /// The number of slots that may be used now; 0 for a blacklisted or drained host.
    pub const fn usable_slots(&self) -> u32 {
        match self.state {
            HostState::Listed => self.slots,
            HostState::Blacklisted { .. } | HostState::Drained => 0,
        }
    }
}

/// The kind of a change in the slots that may be used.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum HostUpdate {
    /// No change in usable slots: only an unused host or a warning changed.
    #[default]
    None,
    /// Slots were added only.
    Added,
    /// Slots were removed only.
    Removed,
    /// Some hosts have more slots, others fewer.
    Mixed,
}

impl HostUpdate {
    /// The change from one list to another: more slots, or a host's return, adds; fewer removes (H-18).
    pub fn between(before: &[HostEntry], after: &[HostEntry]) -> Self {
        let usable = |hosts: &[HostEntry]| -> BTreeMap<HostName, u32> {
            hosts.iter().map(|host| (host.name.clone(), host.usable_slots())).collect()
        };
        let (before, after) = (usable(before), usable(after));
        let has_more = |here: &BTreeMap<HostName, u32>, there: &BTreeMap<HostName, u32>| {
            here.iter().any(|(name, slots)| *slots > there.get(name).copied().unwrap_or(0))
        };
        match (has_more(&after, &before), has_more(&before, &after)) {
            (false, false) => Self::None,
            (true, false) => Self::Added,
            (false, true) => Self::Removed,
            (true, true) => Self::Mixed,
        }
    }
}

/// All hosts at one moment.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct HostsSnapshot {
    /// The oldest first, blacklisted and drained ones in their places.
    pub hosts: Vec<HostEntry>,
    /// Hosts off the list that get no workers if they return, by name: drained or blacklisted, with 0 slots. The next driver
    /// must know them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unlisted: Vec<HostEntry>,
    /// The change since the snapshot before.
    pub update: HostUpdate,
    /// Warnings for the operator, such as failing discovery and malformed lines; cleared when discovery works again.
    pub warnings: Vec<String>,
}

/// Outputs of the core.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HostManagerOutput {
    /// Discover hosts, then call `handle_discovery`.
    RunDiscovery {
        /// Timeout of the discovery.
        timeout: Duration,
    },
    /// Hosts or warnings changed.
    HostsChanged(HostsSnapshot),
    /// The first discovery failed: the job ends.
    Fatal(DiscoveryFailure),
}
