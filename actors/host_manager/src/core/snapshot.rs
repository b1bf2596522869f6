//! What the host manager tells the driver: all hosts as they are now, and the kind of change.

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::{HostName, Time};

use super::discovery::DiscoveryFailure;

/// Whether a host may run workers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HostState {
    /// It may.
    Listed,
    /// It failed, and stays out.
    Blacklisted {
        /// Until then, or for ever.
        until: Option<Time>,
    },
}

/// One host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostEntry {
    /// Its name.
    pub name: HostName,
    /// Its slots.
    pub slots: u32,
    /// Whether it may run workers.
    pub state: HostState,
}

impl HostEntry {
    /// Slots that may be used now: none of a blacklisted host.
    pub const fn usable_slots(&self) -> u32 {
        match self.state {
            HostState::Listed => self.slots,
            HostState::Blacklisted { .. } => 0,
        }
    }
}

/// The kind of a change in the slots that may be used.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum HostUpdate {
    /// None: an unused host, a warning.
    #[default]
    None,
    /// Only more.
    Added,
    /// Only fewer.
    Removed,
    /// Here more, there fewer.
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

/// All hosts as they are at one moment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HostsSnapshot {
    /// The oldest first, blacklisted ones in their places.
    pub hosts: Vec<HostEntry>,
    /// The change since the snapshot before.
    pub update: HostUpdate,
    /// What somebody should mend: failing discovery, malformed lines. Gone when it works again.
    pub warnings: Vec<String>,
}

/// What the core wants done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HostManagerOutput {
    /// Discover hosts, then call `handle_discovery`.
    RunDiscovery {
        /// How long it may take.
        timeout: Duration,
    },
    /// Hosts or warnings changed.
    HostsChanged(HostsSnapshot),
    /// The first discovery failed: the job ends.
    Fatal(DiscoveryFailure),
}
