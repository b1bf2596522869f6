//! The relay as a state machine: clients' bytes in, requests to the store out, and the store's answers back to
//! clients. No actor, no clock, no I/O. Called by [`actor`](super::actor).
//!
//! Clients are held back, never dropped, where bytes are not taken: a socket is read only as far as the connection's
//! bounds allow, and only a few connections hold a long request at a time (`Grants`).

use std::collections::{BTreeMap, VecDeque};

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{NodeId, Stamp, Time, WorkerId};

use super::grants::Grants;
use crate::limits::{
    CLIENTS_MAX, CONNECTION_BYTES_MAX, PENDING_MAX, SHORT_ANSWER_BYTES, STALLED_AFTER,
    UNGRANTED_BYTES, WAITS_BYTES_MAX,
};
use crate::messages::{ClientId, CloseCause, FromStore, ToStore};
use crate::wire::{Decoder, Request};

/// Owner of a connection: a worker's process, in its generation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConnectionOwner {
    /// The worker.
    pub worker: WorkerId,
    /// Generation of the worker's process; the default if it has none.
    pub stamp: Stamp,
}

/// Outputs of the relay's core for clients' connections.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RelayOutput {
    /// Write bytes to a client's connection; [`RelayCore::handle_written`] says that the client has taken them.
    Write {
        /// The client.
        client: ClientId,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Read from a client again.
    ReadOn {
        /// The client.
        client: ClientId,
    },
    /// Close a client's connection.
    Close {
        /// The client.
        client: ClientId,
        /// The client's process.
        worker: WorkerId,
        /// The reason, for the log.
        cause: CloseCause,
    },
}

#[derive(Debug)]
struct ClientConnection {
    owner: ConnectionOwner,
    decoder: Decoder,
    /// Requests that the store has not answered, the oldest first. They are sent again to a driver's next life.
    pending: VecDeque<Request>,
    /// Number of pending requests, at the end of the queue, that have not been sent.
    unsent: usize,
    /// Bytes of pending requests that are no waits.
    pending_bytes: usize,
    /// Bytes of pending waits.
    wait_bytes: usize,
    /// Lengths of answers that the client has not taken, the oldest first.
    unwritten: VecDeque<usize>,
    /// Whether its reader waits for [`RelayOutput::ReadOn`].
    is_held: bool,
}

impl ClientConnection {
    fn request_bytes(&self) -> usize {
        self.decoder.buffered() + self.pending_bytes
    }

    /// Whether there is room for a further request.
    fn takes_requests(&self) -> bool {
        self.pending.len() + self.unwritten.len() < PENDING_MAX
            && (self.pending_bytes == 0 || self.request_bytes() <= CONNECTION_BYTES_MAX)
    }

    fn push(&mut self, request: Request) {
        *self.bytes_of(&request) += request.bytes();
        self.pending.push_back(request);
        self.unsent += 1;
    }

    fn pop(&mut self) -> Option<Request> {
        let request = self.pending.pop_front()?;
        *self.bytes_of(&request) -= request.bytes();
        self.unsent = self.unsent.min(self.pending.len());
        Some(request)
    }

    const fn bytes_of(&mut self, request: &Request) -> &mut usize {
        if request.is_wait() { &mut self.wait_bytes } else { &mut self.pending_bytes }
    }
}

/// The connections of one host's workers.
#[derive(Debug, Default)]
pub struct RelayCore {
    last: u64,
    connections: BTreeMap<ClientId, ClientConnection>,
    grants: Grants,
    /// Bytes of all pending waits.
    wait_bytes: usize,
    /// The life of the driver whose store knows these connections.
    store: Option<NodeId>,
    is_up: bool,
    /// Messages to the store that are no requests; they go first.
    notices: VecDeque<ToStore>,
    /// Connections with unsent requests, in the order of those; a connection stands here once for each.
    to_send: VecDeque<ClientId>,
    outputs: VecDeque<RelayOutput>,
}

impl RelayCore {
    /// A relay without connections.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next output; call after every input until none is left.
    pub fn poll_output(&mut self) -> Option<RelayOutput> {
        self.outputs.pop_front()
    }

    /// The next message to the store. Call it while there is room for a message. A request that is not fetched stays
    /// with its connection, which is then not read.
    pub fn poll_message(&mut self) -> Option<ToStore> {
        if !self.is_up {
            return None;
        }
        if let Some(notice) = self.notices.pop_front() {
            return Some(notice);
        }
        while let Some(client) = self.to_send.pop_front() {
            // The connection may have been closed.
            let Some(connection) = self.connections.get_mut(&client) else { continue };
            let Some(at) = connection.pending.len().checked_sub(connection.unsent) else {
                continue;
            };
            let Some(request) = connection.pending.get(at).cloned() else { continue };
            connection.unsent -= 1;
            return Some(ToStore::Request { client, stamp: connection.owner.stamp, request });
        }
        None
    }

    /// The time of the next [`handle_timeout`](Self::handle_timeout), if there is one.
    pub fn poll_timeout(&self) -> Option<Time> {
        let waits = |client: &ClientId| self.is_in_a_request(*client);
        self.grants.deadlines().filter(|(client, _)| waits(client)).map(|(_, at)| at).min()
    }

    /// Bytes of requests that are held, and of answers that clients have not taken.
    pub fn bytes(&self) -> usize {
        let answers = |it: &ClientConnection| it.unwritten.iter().sum::<usize>();
        let requests = self.connections.values().map(|it| it.request_bytes() + answers(it));
        self.wait_bytes + requests.sum::<usize>()
    }

    /// Takes a new connection of a worker's process. None if there are too many connections.
    pub fn handle_connected(&mut self, owner: ConnectionOwner) -> Option<ClientId> {
        if self.connections.len() >= CLIENTS_MAX {
            return None;
        }
        self.last += 1;
        let client = ClientId(self.last);
        let connection = ClientConnection {
            owner,
            decoder: Decoder::default(),
            pending: VecDeque::new(),
            unsent: 0,
            pending_bytes: 0,
            wait_bytes: 0,
            unwritten: VecDeque::new(),
            is_held: false,
        };
        self.connections.insert(client, connection);
        Some(client)
    }

    /// Takes bytes read from a connection. Says whether to read on; if not, [`RelayOutput::ReadOn`] will.
    pub fn handle_bytes(&mut self, now: Time, client: ClientId, bytes: &[u8]) -> bool {
        let Some(connection) = self.connections.get_mut(&client) else { return false };
        connection.decoder.feed(bytes);
        self.grants.touch(now, client);
        connection.is_held = true;
        self.review(now, client);
        // The reader hears of it at once, by the return value.
        let read_on = RelayOutput::ReadOn { client };
        let told = self.outputs.iter().rposition(|output| *output == read_on);
        told.is_some_and(|at| self.outputs.remove(at).is_some())
    }

    /// Notes that a client has taken its oldest answer.
    pub fn handle_written(&mut self, now: Time, client: ClientId) {
        let Some(connection) = self.connections.get_mut(&client) else { return };
        let Some(bytes) = connection.unwritten.pop_front() else { return };
        if bytes > SHORT_ANSWER_BYTES {
            self.notify(ToStore::Taken { client, bytes: bytes as u64 });
        }
        self.review(now, client);
    }

    /// Forgets a client that has closed its connection.
    pub fn handle_closed(&mut self, now: Time, client: ClientId) {
        if self.forget(now, client).is_some() {
            self.notify(ToStore::Gone { client });
        }
    }

    /// Closes the connection of a client that does not do its part.
    pub fn handle_fault(&mut self, now: Time, client: ClientId, reason: String) {
        self.close(now, client, CloseCause::Refused(reason));
    }

    /// Closes the connections of a worker whose generation has ended: its pending requests fail at once.
    pub fn handle_generation_ended(&mut self, now: Time, worker: &WorkerId) {
        let is_over = |it: &ClientConnection| it.owner.worker == *worker;
        self.close_where(now, &CloseCause::GenerationOver, is_over);
    }

    /// Takes a message of the store.
    pub fn handle_store(&mut self, now: Time, from: &NodeId, message: FromStore) {
        if self.store.as_ref() != Some(from) && !is_planted(Bug::FormerAnswerTaken) {
            return;
        }
        match message {
            FromStore::Done { client, answer } => {
                let Some(connection) = self.connections.get_mut(&client) else { return };
                let before = connection.wait_bytes;
                connection.pop();
                self.grants.touch(now, client);
                self.wait_bytes -= before - connection.wait_bytes;
                if !answer.is_empty() {
                    connection.unwritten.push_back(answer.len());
                    self.outputs.push_back(RelayOutput::Write { client, bytes: answer });
                }
                self.review(now, client);
            }
            FromStore::Close { client, cause } => {
                if let Some(worker) = self.forget(now, client) {
                    self.outputs.push_back(RelayOutput::Close { client, worker, cause });
                    // The store has admitted the client again if further requests of it were on their way.
                    if !is_planted(Bug::ClosedClientKept) {
                        self.notify(ToStore::Gone { client });
                    }
                }
            }
        }
    }

    /// Handles the begin of a session with a driver. Another life of the driver does not know the pending requests:
    /// they are sent again. The same life has forgotten these connections. It is not known which requests were
    /// carried out, so the connections are closed.
    pub fn handle_up(&mut self, now: Time, driver: NodeId) {
        self.is_up = true;
        self.notices.clear();
        if self.store.as_ref() == Some(&driver) {
            self.close_where(now, &CloseCause::Interrupted, |_| true);
            return;
        }
        self.store = Some(driver);
        self.to_send.clear();
        for (client, connection) in &mut self.connections {
            let is_sent_again = !is_planted(Bug::RequestsNotSentAgain);
            connection.unsent = if is_sent_again { connection.pending.len() } else { 0 };
            self.to_send.extend(std::iter::repeat_n(*client, connection.unsent));
        }
    }

    /// Handles the end of the session. Connections stay: the driver may come back.
    pub fn handle_lost(&mut self) {
        self.is_up = false;
    }

    /// Closes the connections that stand still in the middle of a request, while others wait for their turn.
    pub fn handle_timeout(&mut self, now: Time) {
        let stalled: Vec<ClientId> = self
            .grants
            .deadlines()
            .filter(|(client, at)| *at <= now && self.is_in_a_request(*client))
            .map(|(client, _)| client)
            .collect();
        for client in stalled {
            let reason = format!(
                "it sent a part of a long request and nothing more for {} s, while others wait",
                STALLED_AFTER.as_secs()
            );
            self.close(now, client, CloseCause::Refused(reason));
        }
    }

    /// Whether the next bytes can come from the client only.
    fn is_in_a_request(&self, client: ClientId) -> bool {
        self.connections.get(&client).is_some_and(|it| !it.is_held && it.pending_bytes == 0)
    }

    /// Passes on a connection's requests, and reads on, as far as the bounds allow.
    fn review(&mut self, now: Time, client: ClientId) {
        let Some(connection) = self.connections.get_mut(&client) else { return };
        while connection.takes_requests() {
            match connection.decoder.poll_request() {
                Ok(None) => break,
                Ok(Some(request)) => {
                    if request.is_wait() {
                        self.wait_bytes += request.bytes();
                    }
                    connection.push(request);
                    self.to_send.push_back(client);
                }
                Err(error) => {
                    return self.close(now, client, CloseCause::Refused(error.to_string()));
                }
            }
        }
        if self.wait_bytes > WAITS_BYTES_MAX && connection.wait_bytes > UNGRANTED_BYTES {
            let reason =
                format!("its host's workers wait for more than {WAITS_BYTES_MAX} bytes of keys");
            return self.close(now, client, CloseCause::Refused(reason));
        }
        let is_long = connection.request_bytes() > UNGRANTED_BYTES;
        let mut may_read = connection.takes_requests();
        if is_long {
            // A connection that has a long request under way lets others have their turn before its next one.
            may_read &= connection.pending_bytes <= UNGRANTED_BYTES || !self.grants.is_contended();
            may_read &= self.grants.has(client) || self.grants.ask(now, client);
        } else if self.grants.has(client) || self.grants.is_queued(client) {
            for granted in self.grants.release(now, client) {
                self.review(now, granted);
            }
        }
        let Some(connection) = self.connections.get_mut(&client) else { return };
        if connection.is_held && may_read {
            connection.is_held = false;
            self.grants.touch(now, client);
            self.outputs.push_back(RelayOutput::ReadOn { client });
        }
    }

    /// Forgets a connection. Returns its process, unless it is forgotten already.
    fn forget(&mut self, now: Time, client: ClientId) -> Option<WorkerId> {
        let connection = self.connections.remove(&client)?;
        self.wait_bytes -= connection.wait_bytes;
        for granted in self.grants.release(now, client) {
            if !is_planted(Bug::TurnNotTaken) {
                self.review(now, granted);
            }
        }
        Some(connection.owner.worker)
    }

    fn close(&mut self, now: Time, client: ClientId, cause: CloseCause) {
        if let Some(worker) = self.forget(now, client) {
            self.outputs.push_back(RelayOutput::Close { client, worker, cause });
            self.notify(ToStore::Gone { client });
        }
    }

    fn close_where(
        &mut self,
        now: Time,
        cause: &CloseCause,
        is_over: impl Fn(&ClientConnection) -> bool,
    ) {
        let over = self.connections.iter().filter(|(_, connection)| is_over(connection));
        for client in over.map(|(client, _)| *client).collect::<Vec<_>>() {
            self.close(now, client, cause.clone());
        }
    }

    /// Notifies the store, unless it is away: with a new session the store forgets all clients of the earlier one.
    fn notify(&mut self, notice: ToStore) {
        if self.is_up {
            self.notices.push_back(notice);
        }
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
