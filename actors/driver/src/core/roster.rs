//! [`Roster`]: the listed hosts, their agents, slots and workers, and the seating derived from these (see
//! `membership`). A part of the core; only the core's handlers change it.

use std::collections::BTreeMap;

use elastic_host_manager::{HostState, HostsSnapshot};
use elastic_protocol::{HostName, Incarnation, NodeId, Step, WorkerId};

use super::restart::ProcessStage;
use super::seating::{CommitOrder, Seating};
use super::table::{AgentRecord, PeerLink, PendingJoin, SlotId, SlotRecord, Stance, WorkerRecord};
use super::touched::Touched;

/// Hosts, agents, slots, workers.
#[derive(Debug)]
pub(crate) struct Roster {
    /// The listed hosts (copy of the host manager's).
    pub(crate) snapshot: HostsSnapshot,
    pub(crate) agents: Touched<HostName, AgentRecord>,
    pub(crate) pending_joins: BTreeMap<HostName, PendingJoin>,
    pub(crate) slots: Touched<SlotId, SlotRecord>,
    pub(crate) workers: Touched<WorkerId, WorkerRecord>,
    /// View derived from the fields above; see `refresh_seating`.
    pub(crate) seating: Seating,
    /// Last incarnation number given to a worker.
    pub(crate) incarnation: Incarnation,
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
            incarnation: Incarnation::default(),
        }
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

    /// Gives an empty slot a new worker with the next incarnation number.
    pub(crate) fn take_slot(&mut self, slot: &SlotId) -> WorkerId {
        self.incarnation = self.incarnation.next();
        let incarnation = self.incarnation;
        let worker = WorkerId { host: slot.0.clone(), slot: slot.1, incarnation };
        let record = self.slots.get_or_default(slot.clone());
        record.worker = Some(worker.clone());
        record.backoff_until = None;
        worker
    }

    /// Notes a worker as its slot's, unless the slot has a newer one.
    pub(crate) fn hold_slot(&mut self, worker: &WorkerId) {
        let slot = self.slots.get_or_default((worker.host.clone(), worker.slot));
        if slot.worker.as_ref().is_none_or(|held| held.incarnation < worker.incarnation) {
            slot.worker = Some(worker.clone());
        }
    }

    /// Removes the record of a worker whose process is gone.
    pub(crate) fn remove(&mut self, worker: &WorkerId) -> Option<WorkerRecord> {
        let slot = (worker.host.clone(), worker.slot);
        if let Some(slot) = self.slots.get_mut(&slot)
            && slot.worker.as_ref() == Some(worker)
        {
            slot.worker = None;
        }
        self.workers.remove(worker)
    }

    pub(crate) fn commit_order_of(&self, worker: &WorkerId) -> CommitOrder {
        self.workers.get(worker).and_then(WorkerRecord::commit_order)
    }

    /// Highest step at which one of these workers holds a commit.
    pub(crate) fn best_step(&self, workers: &[WorkerId]) -> Option<Step> {
        let held = workers.iter().filter_map(|worker| self.workers.get(worker)?.commit);
        held.map(|commit| commit.step).max()
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

    /// Checks the roster's invariants.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        for ((host, number), slot) in self.slots.iter() {
            let Some(worker) = &slot.worker else { continue };
            if worker.host != *host || worker.slot != *number {
                return Err(format!("slot {host}[{number}] has {worker}, which is of another"));
            }
            if !self.workers.contains_key(worker) {
                return Err(format!("slot {host}[{number}] has {worker}, which is not there"));
            }
        }
        for (host, agent) in self.agents.iter() {
            if agent.node.name != elastic_protocol::NodeName::Agent(host.clone()) {
                return Err(format!("host {host} has the agent {}", agent.node));
            }
        }
        Ok(())
    }
}
