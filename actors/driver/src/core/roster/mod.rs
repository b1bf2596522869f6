//! [`Roster`]: the listed hosts, their agents, slots and workers, and the seating derived from these. A part of the
//! core. Handlers read its records, and change them by the methods of `agents`, `slots` and `workers`, which remember
//! the changed hosts for the seating.

mod agents;
mod seating;
mod selection;
mod slots;
mod touched;
mod wanted;
mod workers;

use std::collections::{BTreeMap, BTreeSet};

use elastic_host_manager::{HostEntry, HostState, HostsSnapshot};
use elastic_protocol::{CommitId, HostName, Incarnation, NodeId, Time, WorkerId};
use serde::{Deserialize, Serialize};

pub(crate) use self::seating::CommitOrder;
use self::seating::Seating;
use self::touched::Touched;
pub(crate) use self::workers::{AttachedAs, WorkerDeparture};
use super::restart::ProcessStage;
use super::table::{AgentRecord, PeerLink, PendingJoin, SlotId, SlotRecord, Stance, WorkerRecord};

/// The hosts, agents, slots and workers of the job.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Roster {
    /// The listed hosts (copy of the host manager's).
    snapshot: HostsSnapshot,
    agents: Touched<HostName, AgentRecord>,
    pending_joins: BTreeMap<HostName, PendingJoin>,
    slots: Touched<SlotId, SlotRecord>,
    workers: Touched<WorkerId, WorkerRecord>,
    /// View derived from the fields above; see `refresh_seating`.
    seating: Seating,
    /// Time of the last refresh.
    refreshed_at: Time,
    /// Last incarnation number given to a worker.
    incarnation: Incarnation,
    /// Whether the program could be started on some host, under this driver.
    program_starts: bool,
    /// Slots on whose hosts the program cannot be started.
    programless: BTreeSet<SlotId>,
    /// Slots whose last process was refused, since its library is of another release than this driver.
    #[serde(default)]
    other_releases: BTreeSet<SlotId>,
    /// The last failure for which each listed host was reported to the host manager.
    blames: BTreeMap<HostName, String>,
    /// Hosts whose last health check has failed.
    #[serde(default)]
    unfit: BTreeSet<HostName>,
}

impl Roster {
    /// Without hosts and workers. At most `workers_max` workers are wanted at once.
    pub(crate) fn new(workers_max: usize) -> Self {
        Self {
            snapshot: HostsSnapshot::default(),
            agents: Touched::default(),
            pending_joins: BTreeMap::new(),
            slots: Touched::default(),
            workers: Touched::default(),
            seating: Seating::new(workers_max),
            refreshed_at: Time::ZERO,
            incarnation: Incarnation::default(),
            program_starts: false,
            programless: BTreeSet::new(),
            other_releases: BTreeSet::new(),
            unfit: BTreeSet::new(),
            blames: BTreeMap::new(),
        }
    }

    /// Takes the new list of hosts.
    pub(crate) fn set_hosts(&mut self, snapshot: HostsSnapshot) {
        self.seating.set_list(&snapshot.hosts);
        self.blames.retain(|host, _| snapshot.hosts.iter().any(|entry| entry.name == *host));
        self.snapshot = snapshot;
    }

    /// Notes the failure for which a listed host is reported to the host manager.
    pub(crate) fn blame(&mut self, host: &HostName, reason: &str) {
        if self.snapshot.hosts.iter().any(|entry| entry.name == *host) {
            self.blames.insert(host.clone(), reason.to_owned());
        }
    }

    /// The last failure for which a host was reported.
    pub(crate) fn blame_of(&self, host: &HostName) -> Option<&str> {
        self.blames.get(host).map(String::as_str)
    }

    /// The listed hosts, the oldest first.
    pub(crate) fn hosts(&self) -> &[HostEntry] {
        &self.snapshot.hosts
    }

    /// Hosts off the list that are drained or blacklisted, by name.
    pub(crate) fn unlisted(&self) -> &[HostEntry] {
        &self.snapshot.unlisted
    }

    /// Whether a host is not listed any more, or the operator has taken it out. Not if it is blacklisted: its workers take no
    /// part.
    pub(crate) fn is_taken_out(&self, host: &HostName) -> bool {
        let state_in = |entries: &[HostEntry]| {
            entries.iter().find(|entry| entry.name == *host).map(|entry| entry.state)
        };
        match self.seating.listing(host) {
            None => matches!(state_in(self.unlisted()), None | Some(HostState::Drained)),
            Some(listing) => {
                listing.slots == 0 && state_in(self.hosts()) == Some(HostState::Drained)
            }
        }
    }

    /// Warnings of the host manager about the list.
    pub(crate) fn host_warnings(&self) -> &[String] {
        &self.snapshot.warnings
    }

    /// The agent of a host.
    pub(crate) fn agent(&self, host: &HostName) -> Option<&AgentRecord> {
        self.agents.get(host)
    }

    /// All agents, by host.
    pub(crate) fn agents(&self) -> impl Iterator<Item = (&HostName, &AgentRecord)> {
        self.agents.iter()
    }

    /// New agents that wait until the known one of their host is lost, by host.
    pub(crate) fn pending_joins(&self) -> impl Iterator<Item = (&HostName, &PendingJoin)> {
        self.pending_joins.iter()
    }

    /// The history of a slot; none if it never had a worker.
    pub(crate) fn slot(&self, slot: &SlotId) -> Option<&SlotRecord> {
        self.slots.get(slot)
    }

    /// All slots that ever had a worker.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (&SlotId, &SlotRecord)> {
        self.slots.iter()
    }

    /// The record of a worker.
    pub(crate) fn worker(&self, worker: &WorkerId) -> Option<&WorkerRecord> {
        self.workers.get(worker)
    }

    /// All workers on record, by host and slot.
    pub(crate) fn workers(&self) -> impl Iterator<Item = (&WorkerId, &WorkerRecord)> {
        self.workers.iter()
    }

    pub(crate) fn has_worker(&self, worker: &WorkerId) -> bool {
        self.workers.contains_key(worker)
    }

    pub(crate) fn worker_ids(&self) -> impl Iterator<Item = &WorkerId> {
        self.workers.keys()
    }

    /// The view of the slots as of the last refresh.
    pub(crate) const fn seating(&self) -> &Seating {
        &self.seating
    }

    /// Number of workers below which slots at rest are used, too.
    pub(crate) fn keep_at_least(&mut self, workers: usize) {
        self.seating.set_floor(workers);
    }

    pub(crate) fn workers_of(&self, host: &HostName) -> Vec<WorkerId> {
        self.records_of(host).map(|(worker, _)| worker.clone()).collect()
    }

    pub(crate) fn records_of(
        &self,
        host: &HostName,
    ) -> impl Iterator<Item = (&WorkerId, &WorkerRecord)> {
        let bound = |slot, incarnation| WorkerId {
            host: host.clone(),
            slot,
            incarnation: Incarnation(incarnation),
        };
        self.workers.range(bound(0, 0)..=bound(u32::MAX, u64::MAX))
    }

    /// Whether a host's agent has a session and is not silent.
    pub(crate) fn is_host_heard(&self, host: &HostName) -> bool {
        self.agents.get(host).is_some_and(|agent| agent.link == PeerLink::Up)
    }

    /// The agent that can reach a worker's process.
    pub(crate) fn agent_of(&self, worker: &WorkerId) -> Option<NodeId> {
        let agent = self.agents.get(&worker.host)?;
        (agent.link != PeerLink::Down).then(|| agent.node.clone())
    }

    /// The role that a host's agent said its workers have.
    pub(crate) fn role_of(&self, host: &HostName) -> &str {
        self.agents.get(host).map_or("default", |agent| agent.role.as_str())
    }

    pub(crate) fn commit_order_of(&self, worker: &WorkerId) -> CommitOrder {
        self.workers.get(worker).and_then(WorkerRecord::commit_order)
    }

    /// The latest commit that these workers hold. An older generation's commit of a higher step does not count.
    pub(crate) fn best_commit(&self, workers: &[WorkerId]) -> Option<CommitId> {
        workers.iter().filter_map(|worker| self.workers.get(worker)?.commit).max()
    }

    /// Whether a process that lives for one generation has been told to end, and has not ended.
    pub(crate) fn is_ending(&self, worker: &WorkerId) -> bool {
        self.workers.get(worker).is_some_and(|record| {
            record.stage == Some(ProcessStage::Running) && record.stance == Stance::Leaving
        })
    }

    /// Whether a worker's process has ended well, and its generation goes on.
    pub(crate) fn is_done(&self, worker: &WorkerId) -> bool {
        self.workers.get(worker).is_some_and(|record| record.stage == Some(ProcessStage::Done))
    }

    /// Whether a worker takes messages. A process that lives for one generation takes none; its agent is told in its
    /// place.
    pub(crate) fn listens(&self, worker: &WorkerId) -> bool {
        self.workers.get(worker).is_none_or(|record| record.stage.is_none())
    }

    /// Whether every known host is blacklisted for good, so that waiting is in vain (H-11).
    pub(crate) fn every_host_is_out(&self) -> bool {
        let hosts = &self.snapshot.hosts;
        let is_out = |state: &HostState| *state == HostState::Blacklisted { until: None };
        !hosts.is_empty() && hosts.iter().all(|entry| is_out(&entry.state))
    }

    /// Checks the roster's invariants, apart from those of its seating.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_slots()?;
        self.check_workers()?;
        self.check_agents()
    }

    /// Breaks the part's invariants, for tests of its check.
    #[cfg(test)]
    pub(crate) fn corrupt(
        &mut self,
        change: impl FnOnce(&mut Touched<WorkerId, WorkerRecord>, &mut Touched<SlotId, SlotRecord>),
    ) {
        change(&mut self.workers, &mut self.slots);
    }
}
