//! Checks of relays and store: each output is compared with the model and with the clients' requests. Part of `world`.

use elastic_protocol::NodeId;
use elastic_store::limits::{
    ANSWERS_BYTES_MAX, CONNECTION_BYTES_MAX, GRANTS_MAX, READ_BYTES, REQUEST_BYTES_MAX,
    SHORT_ANSWER_BYTES, STALLED_AFTER, UNGRANTED_BYTES, WAITS_BYTES_MAX,
};
use elastic_store::messages::{ClientId, CloseCause, FromStore, ToStore};
use elastic_store::relay::core::RelayOutput;

use super::client::StoreClient;
use super::world::StoreWorld;
use crate::decisions::store as words;
use crate::trace::{TraceKind, TracePlace};

impl StoreWorld {
    /// The relay passes a request on: requests go in the order in which the client has asked, each once in a life of the store.
    pub(super) fn check_passed_on(&mut self, host: usize, message: &ToStore) {
        let ToStore::Request { client, stamp, request } = message else { return };
        let Some(it) = self.agents[host].clients.get_mut(client) else {
            return self.violated(format!("h{host} asks for client {}, which is gone", client.0));
        };
        let is_right = it.next_passed_on() == Some(request) && it.stamp == *stamp;
        it.passed_on += 1;
        if !is_right {
            self.violated(format!("h{host} asks for client {} what it has not asked", client.0));
        }
    }

    /// The store takes a message of a relay.
    pub(super) fn store_hears(&mut self, host: usize, message: ToStore) {
        let agent = &mut self.agents[host];
        match &message {
            ToStore::Request { client, stamp, request } => {
                self.model.asked((host as u32, client.0), *stamp, request.clone());
            }
            ToStore::Taken { client, bytes } => {
                if let Some(untaken) = agent.untaken.get_mut(&client.0) {
                    *untaken = untaken.saturating_sub(*bytes as usize);
                }
            }
            ToStore::Gone { client } => {
                agent.untaken.remove(&client.0);
                self.model.forget((host as u32, client.0));
            }
        }
        let node = agent.node.clone();
        self.store.handle(&node, message);
        self.record(TraceKind::Journal, host, (0, 0));
        self.hear_store();
    }

    /// Takes the store's outputs, and compares them with the model.
    pub(super) fn hear_store(&mut self) {
        while let Some((node, message)) = self.store.poll_output() {
            self.put_out(TracePlace::DRIVER, "store", &(&node, &message));
            let Some(host) = self.agents.iter().position(|agent| agent.node == node) else {
                return self.violated(format!("the store answers {node}, which is not known"));
            };
            self.decide(host, || words::from_store(&message));
            let wrong = match &message {
                FromStore::Done { client, answer } => {
                    if answer.len() > SHORT_ANSWER_BYTES {
                        let untaken = self.agents[host].untaken.entry(client.0).or_default();
                        *untaken += answer.len();
                    }
                    self.model.answered((host as u32, client.0), answer)
                }
                FromStore::Close { client, cause } => {
                    self.agents[host].untaken.remove(&client.0);
                    self.model.closed((host as u32, client.0), cause)
                }
            };
            if let Err(wrong) = wrong {
                self.violated(format!("the store at h{host}: {wrong}"));
            }
            let agent = &mut self.agents[host];
            if agent.is_up {
                agent.down.push_back((self.driver.clone(), message));
            }
        }
        if let Err(wrong) = self.model.settle() {
            self.violated(format!("the store: {wrong}"));
        }
        if self.store.clients() != self.model.clients() {
            let (known, real) = (self.store.clients(), self.model.clients());
            self.violated(format!("the store knows {known} clients, and {real} are there"));
        }
        for host in 0..self.agents.len() {
            let untaken: usize = self.agents[host].untaken.values().sum();
            if untaken > ANSWERS_BYTES_MAX + REQUEST_BYTES_MAX {
                self.violated(format!("h{host} has {untaken} bytes of answers on the way"));
            }
        }
    }

    /// A relay takes a message of the store.
    pub(super) fn relay_hears(&mut self, host: usize, from: &NodeId, message: FromStore) {
        let now = self.time();
        let is_of_this_life = *from == self.driver && self.agents[host].is_up;
        let agent = &mut self.agents[host];
        if is_of_this_life {
            match &message {
                FromStore::Done { client, answer } => {
                    if let Some(it) = agent.clients.get_mut(client) {
                        it.done += 1;
                        if !answer.is_empty() {
                            it.due.push_back(answer.clone());
                        }
                    }
                }
                FromStore::Close { client, .. } => {
                    if let Some(it) = agent.clients.get_mut(client) {
                        it.is_refused = true;
                    }
                }
            }
        }
        agent.relay.handle_store(now, from, message);
        self.record(TraceKind::Deliver, host, (0, 1));
        self.hear_relay(host);
    }

    /// A session with the driver begins.
    pub(super) fn begin_session(&mut self, host: usize) {
        let now = self.time();
        let (driver, agent) = (self.driver.clone(), &mut self.agents[host]);
        agent.is_up = true;
        let late: Vec<(NodeId, FromStore)> = agent.down.drain(..).collect();
        let is_same_life = agent.known_driver == driver;
        agent.known_driver = driver.clone();
        for it in agent.clients.values_mut() {
            // The same life may have carried out the requests that were on their way: its connections are closed.
            it.is_refused |= is_same_life;
            it.passed_on = it.done;
        }
        agent.relay.handle_up(now, driver);
        self.record(TraceKind::Link, host, (1, u64::from(is_same_life)));
        self.hear_relay(host);
        if is_same_life && !self.agents[host].clients.is_empty() {
            self.violated(format!("h{host} keeps connections whose requests may be lost"));
        }
        for (from, message) in late {
            self.relay_hears(host, &from, message);
        }
    }

    /// Takes a relay's outputs.
    pub(super) fn hear_relay(&mut self, host: usize) {
        while let Some(output) = self.agents[host].relay.poll_output() {
            self.decide(host, || words::relay(&output));
            self.put_out(TracePlace::agent(host as u32), "relay", &output);
            match output {
                RelayOutput::Write { client, bytes } => {
                    let Some(it) = self.agents[host].clients.get_mut(&client) else { continue };
                    let is_due = it.due.pop_front().is_some_and(|due| due == bytes);
                    it.unread.push_back(bytes);
                    if !is_due {
                        self.violated(format!(
                            "h{host} writes to client {} what the store has not answered it",
                            client.0
                        ));
                    }
                }
                RelayOutput::ReadOn { client } => {
                    if let Some(it) = self.agents[host].clients.get_mut(&client) {
                        it.is_read = true;
                    }
                }
                RelayOutput::Close { client, cause, .. } => {
                    self.client_closed(host, client, &cause)
                }
            }
        }
        let agent = &self.agents[host];
        let each = UNGRANTED_BYTES + READ_BYTES + Self::pending_max() * SHORT_ANSWER_BYTES;
        let bound = GRANTS_MAX * CONNECTION_BYTES_MAX
            + agent.clients.len() * each
            + ANSWERS_BYTES_MAX
            + REQUEST_BYTES_MAX
            + WAITS_BYTES_MAX;
        let bytes = agent.relay.bytes();
        if bytes > bound {
            self.violated(format!("the relay of h{host} holds {bytes} bytes, above {bound}"));
        }
    }

    /// The relay closes a connection: a client that does its part keeps it until its generation is over, or its session is lost.
    fn client_closed(&mut self, host: usize, client: ClientId, cause: &CloseCause) {
        let now = self.time();
        let Some(it) = self.agents[host].clients.remove(&client) else {
            return self.violated(format!("h{host} closes client {} twice", client.0));
        };
        let is_at_fault = |it: &StoreClient| {
            let has_stood = it.stands_still_since.is_some_and(|at| now.since(at) >= STALLED_AFTER);
            !it.is_sound() && (it.has_sent_nonsense() || has_stood)
        };
        if !it.is_refused && !is_at_fault(&it) {
            self.violated(format!(
                "h{host} closes client {} without a reason ({cause}): {}",
                client.0,
                it.waits()
            ));
        }
        self.record(TraceKind::Exit, host, (client.0, 1));
    }
}
