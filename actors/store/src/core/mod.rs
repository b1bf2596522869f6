//! The store as a state machine: requests of clients in, answers out; no actor, no clock, no I/O. Called by
//! [`actor`](crate::actor).
//!
//! It keeps the namespace of the newest generation that anybody asked in. Who asks in an older one is turned
//! away (G-2), and so is, at once, whoever waits there when a newer one begins.

mod namespace;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use elastic_protocol::{NodeId, Stamp};

use self::namespace::{Answer, Namespace};
use crate::limits::CLIENTS_MAX;
use crate::messages::{ClientId, FromStore, ToStore};

/// A client: which connection of which agent.
pub(crate) type ClientKey = (NodeId, ClientId);

/// The job's store.
#[derive(Debug, Default)]
pub struct StoreCore {
    /// Of processes that belong to no generation: in-process workers find their peers otherwise.
    loose: Namespace,
    /// Of the newest generation.
    current: Option<(Stamp, Namespace)>,
    /// Clients of each agent, with the generation that they ask in.
    clients: BTreeMap<ClientKey, Stamp>,
    outputs: VecDeque<(NodeId, FromStore)>,
}

impl StoreCore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// What to tell which agent; call until none is left after every input.
    pub fn poll_output(&mut self) -> Option<(NodeId, FromStore)> {
        self.outputs.pop_front()
    }

    /// How many clients are known.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// An agent's relay said something.
    pub fn handle(&mut self, from: &NodeId, message: ToStore) {
        match message {
            ToStore::Request { client, stamp, request } => {
                let key = (from.clone(), client);
                if let Err(reason) = self.admit(&key, stamp) {
                    return self.close(key, reason);
                }
                let Some(namespace) = self.namespace(stamp) else {
                    return self.close(key, OVER.to_owned());
                };
                namespace.handle(&key, request);
                self.collect(stamp);
            }
            ToStore::Gone { client } => self.forget(&(from.clone(), client)),
        }
    }

    /// An agent is out of reach: its clients are gone.
    pub fn handle_lost(&mut self, agent: &NodeId) {
        let bound = |client| (agent.clone(), ClientId(client));
        let gone: Vec<ClientKey> = self
            .clients
            .range(bound(0)..=bound(u64::MAX))
            .map(|(client, _)| client.clone())
            .collect();
        for client in gone {
            self.forget(&client);
        }
    }

    /// Takes a client in, and begins its generation if that is new.
    fn admit(&mut self, key: &ClientKey, stamp: Stamp) -> Result<(), String> {
        if !self.clients.contains_key(key) {
            let bound = |client| (key.0.clone(), ClientId(client));
            if self.clients.range(bound(0)..=bound(u64::MAX)).count() >= CLIENTS_MAX {
                return Err(format!("its host has {CLIENTS_MAX} connections already"));
            }
            self.clients.insert(key.clone(), stamp);
        }
        let is_new = stamp != Stamp::default()
            && self.current.as_ref().is_none_or(|(current, _)| *current < stamp);
        if is_new {
            self.begin(stamp);
        }
        Ok(())
    }

    fn begin(&mut self, stamp: Stamp) {
        self.current = Some((stamp, Namespace::default()));
        let over: Vec<ClientKey> = self
            .clients
            .iter()
            .filter(|(_, of)| **of != Stamp::default() && **of < stamp)
            .map(|(client, _)| client.clone())
            .collect();
        for client in over {
            self.close(client, OVER.to_owned());
        }
    }

    fn namespace(&mut self, stamp: Stamp) -> Option<&mut Namespace> {
        if stamp == Stamp::default() {
            return Some(&mut self.loose);
        }
        self.current.as_mut().filter(|(current, _)| *current == stamp).map(|(_, it)| it)
    }

    /// Puts out what a namespace has answered.
    fn collect(&mut self, stamp: Stamp) {
        while let Some((key, answer)) = self.namespace(stamp).and_then(Namespace::poll_answer) {
            match answer {
                Answer::Done(answer) => {
                    let (agent, client) = key;
                    self.outputs.push_back((agent, FromStore::Done { client, answer }));
                }
                Answer::Refused(reason) => self.close(key, reason),
            }
        }
    }

    fn close(&mut self, key: ClientKey, reason: String) {
        self.forget(&key);
        let (agent, client) = key;
        self.outputs.push_back((agent, FromStore::Close { client, reason }));
    }

    fn forget(&mut self, key: &ClientKey) {
        if let Some(stamp) = self.clients.remove(key)
            && let Some(namespace) = self.namespace(stamp)
        {
            namespace.forget(key);
        }
    }
}

/// Why a client of an older generation is turned away.
const OVER: &str = "its generation is over";
