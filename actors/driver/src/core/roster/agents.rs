//! Changes of agents: they join, change links, drain, leave. Called by the core's handlers.

use std::net::SocketAddr;

use elastic_protocol::messages::LaneStatus;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{HostName, NodeId, NodeName, Time};

use super::Roster;
use crate::core::table::{AgentRecord, PeerLink, PendingJoin};

impl Roster {
    /// Takes an agent as its host's. Returns whether it is another one than before.
    pub(crate) fn admit(&mut self, now: Time, host: &HostName, join: &PendingJoin) -> bool {
        let known = self.agents.get(host).filter(|known| known.node == join.node);
        let known = known.and_then(|known| known.first_meeting);
        let record = AgentRecord {
            node: join.node.clone(),
            slots: join.slots,
            role: join.role.clone(),
            meeting: join.meeting,
            first_meeting: first_meeting(known, join.meeting),
            hanging: (now, Vec::new()),
            link: PeerLink::Up,
            draining: None,
            dismissed: false,
        };
        let known = self.agents.insert(host.clone(), record);
        known.is_none_or(|known| known.node != join.node)
    }

    /// Keeps the new agent of a host waiting, since the host has another agent.
    pub(crate) fn keep_waiting(&mut self, host: &HostName, join: PendingJoin) {
        self.pending_joins.insert(host.clone(), join);
    }

    /// A host's new agent, if one waits.
    pub(crate) fn pending_join(&self, host: &HostName) -> Option<&PendingJoin> {
        self.pending_joins.get(host)
    }

    /// Ends the wait of a host's new agent.
    pub(crate) fn take_pending_join(&mut self, host: &HostName) -> Option<PendingJoin> {
        self.pending_joins.remove(host)
    }

    /// Ends the wait of all new agents.
    pub(crate) fn take_pending_joins(&mut self) -> impl Iterator<Item = PendingJoin> + use<> {
        std::mem::take(&mut self.pending_joins).into_values()
    }

    /// Whether a host's agent is this node.
    pub(crate) fn is_agent_of(&self, host: &HostName, node: &NodeId) -> bool {
        self.agents.get(host).is_some_and(|agent| agent.node == *node)
    }

    /// Notes the state of the link to a host's agent.
    pub(crate) fn set_agent_link(&mut self, host: &HostName, link: PeerLink) {
        if let Some(agent) = self.agents.get_mut(host) {
            agent.link = link;
        }
    }

    /// Takes an agent's report on its host: the address at which ports are reached, and the lanes that do not answer.
    pub(crate) fn note_host(
        &mut self,
        now: Time,
        host: &HostName,
        meeting: Option<SocketAddr>,
        hanging: Vec<LaneStatus>,
    ) {
        if let Some(agent) = self.agents.get_mut(host) {
            agent.meeting = meeting;
            agent.first_meeting = first_meeting(agent.first_meeting, meeting);
            if !hanging.is_empty() || !is_planted(Bug::LaneNeverAnswers) {
                agent.hanging = (now, hanging);
            }
        }
    }

    /// Notes that an agent wants to leave.
    pub(crate) fn drain(&mut self, host: &HostName, reason: String) {
        if let Some(agent) = self.agents.get_mut(host) {
            agent.draining = Some(reason);
        }
    }

    /// Whether a host's agent wants to leave, and no worker is left on the host.
    pub(crate) fn has_drained(&self, host: &HostName) -> bool {
        let wants = self.agents.get(host).is_some_and(|agent| agent.draining.is_some());
        wants && self.workers_of(host).is_empty()
    }

    /// Notes that an agent is told to leave.
    pub(crate) fn dismiss_agent(&mut self, host: &HostName) {
        if let Some(agent) = self.agents.get_mut(host) {
            agent.dismissed = true;
        }
    }

    /// Notes that all agents are told to leave, and returns them.
    pub(crate) fn dismiss_agents(&mut self) -> Vec<NodeId> {
        let dismiss = |agent: &mut AgentRecord| {
            agent.dismissed = true;
            agent.node.clone()
        };
        self.agents.values_mut().map(dismiss).collect()
    }

    /// Removes the record of an agent that has left.
    pub(crate) fn remove_agent(&mut self, host: &HostName) {
        self.agents.remove(host);
    }

    /// Checks that agents are their hosts', and that a new one waits only for another one that is there.
    pub(super) fn check_agents(&self) -> Result<(), String> {
        for (host, agent) in self.agents.iter() {
            if agent.node.name != NodeName::Agent(host.clone()) {
                return Err(format!("host {host} has the agent {}", agent.node));
            }
        }
        for (host, join) in &self.pending_joins {
            if join.node.name != NodeName::Agent(host.clone()) {
                return Err(format!("host {host} is joined by {}", join.node));
            }
            let known = self.agents.get(host).filter(|agent| agent.link != PeerLink::Down);
            if known.is_none_or(|known| known.node == join.node) {
                return Err(format!(
                    "{} waits for another agent of its host, and none is there",
                    join.node
                ));
            }
        }
        Ok(())
    }
}

/// The first meeting point at the address of this one.
fn first_meeting(known: Option<SocketAddr>, told: Option<SocketAddr>) -> Option<SocketAddr> {
    known.filter(|known| told.is_none_or(|told| told.ip() == known.ip())).or(told)
}
