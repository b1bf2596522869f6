//! The store as a state machine: requests of clients in, answers out; no actor, no clock, no I/O. Called by
//! [`actor`](crate::actor).
//!
//! The core keeps only the namespace of the newest generation in which a client has asked. A client that asks in an
//! older generation is disconnected (G-2), and so is, at once, a client that waits there when a newer one begins.
//!
//! A process that belongs to no generation shows that the job is elastic in process. From then on there is one namespace for
//! all: in `--mode auto` the first processes were started for a generation by restart, are kept, and go on asking in it.

mod namespace;
#[cfg(test)]
mod tests;
mod untaken;

use std::collections::{BTreeMap, VecDeque};

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{NodeId, Stamp};

use self::namespace::{Namespace, StoreAnswer};
use self::untaken::Untaken;
use crate::limits::CLIENTS_MAX;
use crate::messages::{ClientId, CloseCause, FromStore, ToStore};
use crate::wire::Request;

/// A client: its agent, and its connection there.
pub(crate) type ClientKey = (NodeId, ClientId);

/// The job's store.
#[derive(Debug, Default)]
pub struct StoreCore {
    /// Namespace of the newest generation.
    current: Option<(Stamp, Namespace)>,
    /// Whether the job is elastic in process: the namespace is that of all processes, apart from those of older generations.
    is_in_process: bool,
    /// Clients of each agent, with the generation in which they ask.
    clients: BTreeMap<ClientKey, Stamp>,
    untaken: Untaken,
    outputs: VecDeque<(NodeId, FromStore)>,
}

impl StoreCore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next message, with its agent; call after every input until none is left.
    pub fn poll_output(&mut self) -> Option<(NodeId, FromStore)> {
        self.outputs.pop_front()
    }

    /// Number of known clients.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Handles a message of an agent's relay.
    pub fn handle(&mut self, from: &NodeId, message: ToStore) {
        match message {
            ToStore::Request { client, stamp, request } => {
                let key = (from.clone(), client);
                match self.admit(&key, stamp) {
                    Err(reason) => self.close(key, CloseCause::Refused(reason)),
                    Ok(()) => {
                        if let Some(request) = self.untaken.defer(&key, stamp, request) {
                            self.carry_out(key, stamp, request);
                        }
                    }
                }
            }
            ToStore::Taken { client, bytes } => self.untaken.take(&(from.clone(), client), bytes),
            ToStore::Gone { client } => self.forget(&(from.clone(), client)),
        }
        self.carry_out_deferred();
    }

    /// Forgets the clients of an agent that is out of reach.
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
        self.carry_out_deferred();
    }

    fn carry_out(&mut self, key: ClientKey, stamp: Stamp, request: Request) {
        let Some(namespace) = self.namespace(stamp) else {
            return self.close(key, CloseCause::GenerationOver);
        };
        namespace.handle(&key, request);
        self.collect(stamp);
    }

    fn carry_out_deferred(&mut self) {
        while let Some((agent, (client, stamp, request))) = self.untaken.poll_ready() {
            self.carry_out((agent, client), stamp, request);
        }
    }

    /// Admits a client, and begins its generation if that is new.
    fn admit(&mut self, key: &ClientKey, stamp: Stamp) -> Result<(), String> {
        if !self.clients.contains_key(key) {
            let bound = |client| (key.0.clone(), ClientId(client));
            if self.clients.range(bound(0)..=bound(u64::MAX)).count() >= CLIENTS_MAX {
                return Err(format!("its host has {CLIENTS_MAX} connections already"));
            }
            self.clients.insert(key.clone(), stamp);
        }
        if stamp == Stamp::default() && !is_planted(Bug::NewcomerCountsAsOld) {
            self.is_in_process = true;
            self.current.get_or_insert_default();
        }
        let is_new = self.current.as_ref().is_none_or(|(current, _)| *current < stamp);
        if is_new && !self.is_in_process {
            self.begin(stamp);
        }
        Ok(())
    }

    fn begin(&mut self, stamp: Stamp) {
        let former = self.current.take().filter(|_| is_planted(Bug::FormerKeysRead));
        let keys = former.map_or_else(Namespace::default, |(_, keys)| keys);
        self.current = Some((stamp, keys));
        let over: Vec<ClientKey> = self
            .clients
            .iter()
            .filter(|(_, of)| **of < stamp)
            .map(|(client, _)| client.clone())
            .collect();
        for client in over {
            self.close(client, CloseCause::GenerationOver);
        }
    }

    fn namespace(&mut self, stamp: Stamp) -> Option<&mut Namespace> {
        let is_in_process = self.is_in_process;
        let is_of = |current: Stamp| match is_in_process {
            true => stamp == Stamp::default() || current <= stamp,
            false => current == stamp,
        };
        self.current.as_mut().filter(|(current, _)| is_of(*current)).map(|(_, it)| it)
    }

    /// Puts out the answers of a namespace.
    fn collect(&mut self, stamp: Stamp) {
        while let Some((key, answer)) = self.namespace(stamp).and_then(Namespace::poll_answer) {
            match answer {
                StoreAnswer::Done(answer) => {
                    self.untaken.add(&key, answer.len());
                    let (agent, client) = key;
                    self.outputs.push_back((agent, FromStore::Done { client, answer }));
                }
                StoreAnswer::Refused(reason) => self.close(key, CloseCause::Refused(reason)),
            }
        }
    }

    fn close(&mut self, key: ClientKey, cause: CloseCause) {
        self.forget(&key);
        let (agent, client) = key;
        self.outputs.push_back((agent, FromStore::Close { client, cause }));
    }

    fn forget(&mut self, key: &ClientKey) {
        self.untaken.forget(key);
        if let Some(stamp) = self.clients.remove(key)
            && let Some(namespace) = self.namespace(stamp)
        {
            namespace.forget(key);
        }
    }
}
