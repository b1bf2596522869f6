//! [`Takeover`]: the agents and workers of a former driver that a new one waits for. A part of the core; `takeover` acts
//! on it.

use std::collections::{BTreeMap, BTreeSet};

use elastic_protocol::{HostName, Time, WorkerId};
use serde::{Deserialize, Serialize};

/// State of a takeover: the agents and workers that are still awaited.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Takeover {
    since: Time,
    deadline: Time,
    /// Hosts whose agents have not joined yet.
    hosts: BTreeSet<HostName>,
    /// Workers that their agents do not have any more, by host. The agent may yet report how they ended.
    vanished: BTreeMap<HostName, Vec<WorkerId>>,
    /// Number of hosts, and of members on others, that were lost meanwhile.
    #[serde(default)]
    lost: usize,
}

impl Takeover {
    /// Begins to wait for the agents of these hosts.
    pub(crate) const fn new(since: Time, deadline: Time, hosts: BTreeSet<HostName>) -> Self {
        Self { since, deadline, hosts, vanished: BTreeMap::new(), lost: 0 }
    }

    /// Number of hosts whose agents have not joined yet.
    pub(crate) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Time at which the wait began.
    pub(crate) const fn since(&self) -> Time {
        self.since
    }

    /// Notes that an agent is back, without these workers. Their reports are waited for.
    pub(crate) fn agent_is_back(&mut self, host: &HostName, vanished: &[WorkerId]) {
        self.hosts.remove(host);
        match vanished {
            [] => self.vanished.remove(host),
            _ => self.vanished.insert(host.clone(), vanished.to_vec()),
        };
    }

    /// Workers that the agent of a host does not have any more, and whose reports are waited for.
    pub(crate) fn vanished_from(&self, host: &HostName) -> &[WorkerId] {
        self.vanished.get(host).map_or(&[], Vec::as_slice)
    }

    /// Hosts whose agents are back, and whose reports are waited for.
    pub(crate) fn hosts_of_vanished(&self) -> impl Iterator<Item = &HostName> {
        self.vanished.keys()
    }

    /// Ends the wait for reports on a host's vanished workers.
    pub(crate) fn take_vanished(&mut self, host: &HostName) -> Vec<WorkerId> {
        self.vanished.remove(host).unwrap_or_default()
    }

    /// Ends all waits: the hosts that are not back, and the workers on which no report came.
    pub(crate) fn give_up(&mut self) -> (BTreeSet<HostName>, Vec<WorkerId>) {
        let vanished = std::mem::take(&mut self.vanished).into_values().flatten().collect();
        (std::mem::take(&mut self.hosts), vanished)
    }

    /// Whether all agents are back, with their reports.
    pub(crate) fn has_all_agents(&self) -> bool {
        self.hosts.is_empty() && self.vanished.is_empty()
    }

    /// Checks that reports are waited for of agents that are back.
    ///
    /// # Errors
    /// The host that is waited for twice.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.vanished.keys().find(|host| self.hosts.contains(*host)) {
            Some(host) => Err(format!("the takeover waits for {host} and for its reports")),
            None => Ok(()),
        }
    }

    /// Counts hosts or members that are lost.
    pub(crate) const fn count_lost(&mut self, number: usize) {
        self.lost += number;
    }

    /// Number of hosts, and of members on others, that were lost meanwhile.
    pub(crate) const fn lost(&self) -> usize {
        self.lost
    }

    /// End of the wait for all that were there.
    pub(crate) const fn deadline(&self) -> Time {
        self.deadline
    }
}
