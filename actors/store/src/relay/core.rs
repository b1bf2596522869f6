//! The relay as a state machine: bytes of connections in, requests to the store out, and the way back. No
//! actor, no clock, no I/O. Called by [`actor`](super::actor).

use std::collections::{BTreeMap, VecDeque};

use elastic_protocol::{NodeId, Stamp, WorkerId};

use crate::limits::{CLIENTS_MAX, PENDING_MAX};
use crate::messages::{ClientId, FromStore, ToStore};
use crate::wire::{Decoder, Request};

/// Whose connection it is: which worker's process, in which generation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Owner {
    /// Which worker.
    pub worker: WorkerId,
    /// Its process's generation; the default where it has none.
    pub stamp: Stamp,
}

/// What the relay's core wants done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RelayOutput {
    /// Tell the store.
    ToStore(ToStore),
    /// Give a client something to read.
    Write {
        /// Which.
        client: ClientId,
        /// What.
        bytes: Vec<u8>,
    },
    /// A client may be read from again.
    ReadOn {
        /// Which.
        client: ClientId,
    },
    /// Close a client's connection.
    Close {
        /// Which.
        client: ClientId,
        /// Why, for the log.
        reason: String,
    },
}

#[derive(Debug)]
struct Connection {
    owner: Owner,
    decoder: Decoder,
    /// Requests that the store has not answered.
    pending: VecDeque<Request>,
    /// Whether its reader waits for [`RelayOutput::ReadOn`].
    is_held: bool,
}

/// The connections of one host's workers.
#[derive(Debug, Default)]
pub struct RelayCore {
    last: u64,
    connections: BTreeMap<ClientId, Connection>,
    /// The life of the driver that knows these connections.
    store: Option<NodeId>,
    is_up: bool,
    outputs: VecDeque<RelayOutput>,
}

impl RelayCore {
    /// No connections.
    pub fn new() -> Self {
        Self::default()
    }

    /// What to do next; call until none is left after every input.
    pub fn poll_output(&mut self) -> Option<RelayOutput> {
        self.outputs.pop_front()
    }

    /// A worker's process has connected. None if there are too many connections.
    pub fn handle_connected(&mut self, owner: Owner) -> Option<ClientId> {
        if self.connections.len() >= CLIENTS_MAX {
            return None;
        }
        self.last += 1;
        let client = ClientId(self.last);
        let (decoder, pending) = (Decoder::default(), VecDeque::new());
        self.connections.insert(client, Connection { owner, decoder, pending, is_held: false });
        Some(client)
    }

    /// A connection was read. Says whether to read on; if not, [`RelayOutput::ReadOn`] will.
    pub fn handle_bytes(&mut self, client: ClientId, bytes: &[u8]) -> bool {
        let Some(connection) = self.connections.get_mut(&client) else { return false };
        connection.decoder.feed(bytes);
        self.forward(client);
        let Some(connection) = self.connections.get_mut(&client) else { return false };
        connection.is_held = connection.pending.len() >= PENDING_MAX;
        !connection.is_held
    }

    /// A client closed its connection.
    pub fn handle_closed(&mut self, client: ClientId) {
        if self.connections.remove(&client).is_some() {
            self.tell_gone(client);
        }
    }

    /// The generation of a worker's process has ended: what it still waits for fails at once.
    pub fn handle_generation_ended(&mut self, worker: &WorkerId) {
        self.close_where("its generation is over", |connection| connection.owner.worker == *worker);
    }

    /// The store answered.
    pub fn handle_store(&mut self, from: &NodeId, message: FromStore) {
        if self.store.as_ref() != Some(from) {
            return;
        }
        match message {
            FromStore::Done { client, answer } => {
                let Some(connection) = self.connections.get_mut(&client) else { return };
                connection.pending.pop_front();
                if !answer.is_empty() {
                    self.outputs.push_back(RelayOutput::Write { client, bytes: answer });
                }
                self.forward(client);
                let Some(connection) = self.connections.get_mut(&client) else { return };
                if connection.is_held && connection.pending.len() < PENDING_MAX {
                    connection.is_held = false;
                    self.outputs.push_back(RelayOutput::ReadOn { client });
                }
            }
            FromStore::Close { client, reason } => {
                if self.connections.remove(&client).is_some() {
                    self.outputs.push_back(RelayOutput::Close { client, reason });
                }
            }
        }
    }

    /// A session with a driver began. Another life of it knows nothing of what was asked: it is asked again.
    /// The same life has forgotten these connections, and what it had carried out for them is not known.
    pub fn handle_up(&mut self, driver: NodeId) {
        self.is_up = true;
        if self.store.as_ref() == Some(&driver) {
            self.close_where("the session with the driver was interrupted", |_| true);
            return;
        }
        self.store = Some(driver);
        let open: Vec<(ClientId, Stamp, Vec<Request>)> = self
            .connections
            .iter()
            .map(|(client, it)| (*client, it.owner.stamp, it.pending.iter().cloned().collect()))
            .collect();
        for (client, stamp, requests) in open {
            for request in requests {
                let message = ToStore::Request { client, stamp, request };
                self.outputs.push_back(RelayOutput::ToStore(message));
            }
        }
    }

    /// The session has ended. Connections stay: the driver may come back.
    pub fn handle_lost(&mut self) {
        self.is_up = false;
    }

    /// A message to the store was not taken for want of room, or lost with the session: the client's
    /// connection is of no use any more.
    pub fn handle_undelivered(&mut self, message: &ToStore) {
        if let ToStore::Request { client, .. } = message
            && self.is_up
            && self.connections.remove(client).is_some()
        {
            let reason = "the driver does not keep up with the store's requests".to_owned();
            self.outputs.push_back(RelayOutput::Close { client: *client, reason });
        }
    }

    /// Passes on what a connection has asked for, as far as its bound allows.
    fn forward(&mut self, client: ClientId) {
        let Some(connection) = self.connections.get_mut(&client) else { return };
        while connection.pending.len() < PENDING_MAX {
            match connection.decoder.poll_request() {
                Ok(None) => return,
                Ok(Some(request)) => {
                    connection.pending.push_back(request.clone());
                    if self.is_up {
                        let stamp = connection.owner.stamp;
                        let message = ToStore::Request { client, stamp, request };
                        self.outputs.push_back(RelayOutput::ToStore(message));
                    }
                }
                Err(error) => {
                    let reason = error.to_string();
                    self.connections.remove(&client);
                    self.outputs.push_back(RelayOutput::Close { client, reason });
                    return self.tell_gone(client);
                }
            }
        }
    }

    fn close_where(&mut self, reason: &str, is_over: impl Fn(&Connection) -> bool) {
        let over: Vec<ClientId> = self
            .connections
            .iter()
            .filter(|(_, connection)| is_over(connection))
            .map(|(client, _)| *client)
            .collect();
        for client in over {
            self.connections.remove(&client);
            self.outputs.push_back(RelayOutput::Close { client, reason: reason.to_owned() });
            self.tell_gone(client);
        }
    }

    fn tell_gone(&mut self, client: ClientId) {
        if self.is_up {
            self.outputs.push_back(RelayOutput::ToStore(ToStore::Gone { client }));
        }
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::{HostName, Incarnation, NodeName};

    use super::*;

    const HELLO: [u8; 5] = [0, 0xCE, 0xF7, 0x85, 0x3C];
    /// How many keys are there?
    const COUNT: [u8; 1] = [7];

    fn owner(slot: u32) -> Owner {
        let host = HostName::new("a").expect("a literal");
        Owner {
            worker: WorkerId { host, slot, incarnation: Incarnation(1) },
            stamp: Stamp::default(),
        }
    }

    fn driver(life: u64) -> NodeId {
        NodeId { name: NodeName::Driver, incarnation: Incarnation(life) }
    }

    fn outputs(relay: &mut RelayCore) -> Vec<RelayOutput> {
        std::iter::from_fn(|| relay.poll_output()).collect()
    }

    fn asks(client: ClientId) -> RelayOutput {
        let (stamp, request) = (Stamp::default(), Request::CountKeys);
        RelayOutput::ToStore(ToStore::Request { client, stamp, request })
    }

    fn connected(relay: &mut RelayCore) -> ClientId {
        relay.handle_up(driver(1));
        let client = relay.handle_connected(owner(0)).expect("the first");
        assert!(relay.handle_bytes(client, &HELLO));
        client
    }

    #[test]
    fn requests_go_and_answers_come() {
        let mut relay = RelayCore::new();
        let client = connected(&mut relay);
        assert!(relay.handle_bytes(client, &COUNT));
        assert_eq!(outputs(&mut relay), [asks(client)]);
        let answer = vec![1, 2];
        relay.handle_store(&driver(1), FromStore::Done { client, answer: answer.clone() });
        assert_eq!(outputs(&mut relay), [RelayOutput::Write { client, bytes: answer }]);
        relay.handle_closed(client);
        assert_eq!(outputs(&mut relay), [RelayOutput::ToStore(ToStore::Gone { client })]);
    }

    #[test]
    fn a_client_that_asks_without_reading_is_held_back() {
        let mut relay = RelayCore::new();
        let client = connected(&mut relay);
        assert!(!relay.handle_bytes(client, &[COUNT[0]; PENDING_MAX + 3]));
        assert_eq!(outputs(&mut relay).len(), PENDING_MAX);
        for _ in 0..3 {
            relay.handle_store(&driver(1), FromStore::Done { client, answer: Vec::new() });
            assert_eq!(outputs(&mut relay), [asks(client)]);
        }
        relay.handle_store(&driver(1), FromStore::Done { client, answer: Vec::new() });
        assert_eq!(outputs(&mut relay), [RelayOutput::ReadOn { client }]);
    }

    #[test]
    fn t_6_the_end_of_a_generation_closes_its_connections_at_once() {
        let mut relay = RelayCore::new();
        let client = connected(&mut relay);
        relay.handle_generation_ended(&owner(1).worker);
        assert_eq!(outputs(&mut relay), [], "another worker's");
        relay.handle_generation_ended(&owner(0).worker);
        let told = outputs(&mut relay);
        assert!(matches!(told[..], [RelayOutput::Close { client: it, .. }, _] if it == client));
    }

    #[test]
    fn a_new_life_of_the_driver_is_asked_again() {
        let mut relay = RelayCore::new();
        let client = connected(&mut relay);
        relay.handle_bytes(client, &COUNT);
        outputs(&mut relay);
        relay.handle_lost();
        relay.handle_bytes(client, &COUNT);
        assert_eq!(outputs(&mut relay), []);
        relay.handle_up(driver(2));
        assert_eq!(outputs(&mut relay), [asks(client), asks(client)]);
        relay.handle_lost();
        relay.handle_up(driver(2));
        let told = outputs(&mut relay);
        assert!(matches!(told[0], RelayOutput::Close { .. }), "it has forgotten: {told:?}");
    }

    #[test]
    fn who_speaks_another_protocol_is_turned_away() {
        let mut relay = RelayCore::new();
        relay.handle_up(driver(1));
        let client = relay.handle_connected(owner(0)).expect("the first");
        assert!(!relay.handle_bytes(client, b"GET / HTTP/1.1\r\n"));
        assert!(matches!(outputs(&mut relay)[0], RelayOutput::Close { .. }));
    }
}
