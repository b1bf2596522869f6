//! Answers that clients have not taken, and the requests that wait for that: a bound for each agent, so that no agent
//! holds up the others. No clock, no I/O. Used by the store's core.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{NodeId, Stamp};

use super::ClientKey;
use crate::limits::{ANSWERS_BYTES_MAX, SHORT_ANSWER_BYTES};
use crate::messages::ClientId;
use crate::wire::Request;

/// A request that waits until its agent's clients have taken their answers.
pub(super) type Deferred = (ClientId, Stamp, Request);

/// The answers of one agent's clients.
#[derive(Debug, Default)]
struct AgentAnswers {
    /// Bytes that each client has not taken.
    untaken: BTreeMap<ClientId, usize>,
    total: usize,
    /// The requests of each client that wait: at most those that the agent's relay has under way, whose bytes it
    /// bounds.
    deferred: BTreeMap<ClientId, VecDeque<(Stamp, Request)>>,
    /// Clients with deferred requests, in the order in which they have their turn.
    order: VecDeque<ClientId>,
}

impl AgentAnswers {
    /// Whether there is room for the answer. A client has one long answer at a time, so that one that does not read
    /// leaves room for the others.
    fn takes(&self, client: ClientId, request: &Request) -> bool {
        !request.asks_for_values()
            || (self.total < ANSWERS_BYTES_MAX && !self.untaken.contains_key(&client))
    }

    /// Takes the first request that can be carried out, and lets the client's next one wait for its turn.
    fn take_ready(&mut self) -> Option<Deferred> {
        let is_ready = |client: &ClientId| {
            let first = self.deferred.get(client).and_then(VecDeque::front);
            first.is_some_and(|(_, request)| self.takes(*client, request))
        };
        let at = self.order.iter().position(is_ready)?;
        let client = self.order.remove(at)?;
        let requests = self.deferred.get_mut(&client)?;
        let (stamp, request) = requests.pop_front()?;
        if requests.is_empty() {
            self.deferred.remove(&client);
        } else {
            self.order.push_back(client);
        }
        Some((client, stamp, request))
    }
}

/// The answers of all agents' clients.
#[derive(Debug, Default)]
pub(super) struct Untaken {
    agents: BTreeMap<NodeId, AgentAnswers>,
    /// Agents with deferred requests.
    stalled: BTreeSet<NodeId>,
}

impl Untaken {
    /// Takes a request that must wait; else gives it back, to be carried out now. A client's requests keep their order.
    pub(super) fn defer(
        &mut self,
        key: &ClientKey,
        stamp: Stamp,
        request: Request,
    ) -> Option<Request> {
        let (agent, client) = key;
        let Some(answers) = self.agents.get_mut(agent) else { return Some(request) };
        let deferred = answers.deferred.get_mut(client);
        if let Some(requests) = deferred.filter(|_| !is_planted(Bug::DeferredOvertaken)) {
            requests.push_back((stamp, request));
            return None;
        }
        if answers.takes(*client, &request) {
            return Some(request);
        }
        answers.deferred.insert(*client, VecDeque::from([(stamp, request)]));
        answers.order.push_back(*client);
        self.stalled.insert(agent.clone());
        None
    }

    /// A deferred request that can be carried out now, with its agent.
    pub(super) fn poll_ready(&mut self) -> Option<(NodeId, Deferred)> {
        let (agent, ready) = self.stalled.iter().find_map(|agent| {
            let ready = self.agents.get_mut(agent)?.take_ready()?;
            Some((agent.clone(), ready))
        })?;
        self.tidy(&agent);
        Some((agent, ready))
    }

    /// Notes that an answer is on its way.
    pub(super) fn add(&mut self, (agent, client): &ClientKey, bytes: usize) {
        if bytes > SHORT_ANSWER_BYTES {
            let answers = self.agents.entry(agent.clone()).or_default();
            *answers.untaken.entry(*client).or_default() += bytes;
            answers.total += bytes;
        }
    }

    /// Notes that a client has taken bytes.
    pub(super) fn take(&mut self, (agent, client): &ClientKey, bytes: u64) {
        let Some(answers) = self.agents.get_mut(agent) else { return };
        // A driver's successor does not know the answers of its predecessor.
        let Some(untaken) = answers.untaken.get_mut(client) else { return };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(*untaken);
        *untaken -= bytes;
        answers.total -= bytes;
        if *untaken == 0 {
            answers.untaken.remove(client);
        }
        self.tidy(agent);
    }

    /// Forgets a client.
    pub(super) fn forget(&mut self, (agent, client): &ClientKey) {
        let Some(answers) = self.agents.get_mut(agent) else { return };
        answers.total -= answers.untaken.remove(client).unwrap_or(0);
        if answers.deferred.remove(client).is_some() {
            answers.order.retain(|other| other != client);
        }
        self.tidy(agent);
    }

    /// Bytes that an agent's clients have not taken.
    #[cfg(test)]
    pub(super) fn bytes(&self, agent: &NodeId) -> usize {
        self.agents.get(agent).map_or(0, |answers| answers.total)
    }

    /// Whether no agent is remembered.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    fn tidy(&mut self, agent: &NodeId) {
        let Some(answers) = self.agents.get(agent) else { return };
        if answers.deferred.is_empty() {
            self.stalled.remove(agent);
            if answers.untaken.is_empty() {
                self.agents.remove(agent);
            }
        }
    }
}
