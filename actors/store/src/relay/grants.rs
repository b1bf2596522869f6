//! Turns among an agent's connections to hold a long request: few at a time, first come, first served. No clock, no
//! I/O. Used by the relay's [`core`](super::core).

use std::collections::{BTreeMap, VecDeque};

use elastic_protocol::Time;

use crate::limits::{GRANTS_MAX, STALLED_AFTER};
use crate::messages::ClientId;

/// The grants, and the connections that wait for one.
#[derive(Debug, Default)]
pub(super) struct Grants {
    /// Connections with a grant, and when each last sent bytes.
    held: BTreeMap<ClientId, Time>,
    queue: VecDeque<ClientId>,
}

impl Grants {
    /// Whether the connection has a grant; else it waits for one from now on.
    pub(super) fn ask(&mut self, now: Time, client: ClientId) -> bool {
        if let Some(at) = self.held.get_mut(&client) {
            *at = now;
            return true;
        }
        if self.queue.contains(&client) {
            return false;
        }
        if self.queue.is_empty() && self.held.len() < GRANTS_MAX {
            self.held.insert(client, now);
            return true;
        }
        self.queue.push_back(client);
        false
    }

    pub(super) fn has(&self, client: ClientId) -> bool {
        self.held.contains_key(&client)
    }

    pub(super) fn is_queued(&self, client: ClientId) -> bool {
        self.queue.contains(&client)
    }

    /// Whether connections wait for their turn.
    pub(super) fn is_contended(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Takes a connection's grant or its place in the queue away. Returns the connections that have a grant now.
    pub(super) fn release(&mut self, now: Time, client: ClientId) -> Vec<ClientId> {
        self.queue.retain(|other| *other != client);
        self.held.remove(&client);
        let mut granted = Vec::new();
        while self.held.len() < GRANTS_MAX
            && let Some(next) = self.queue.pop_front()
        {
            self.held.insert(next, now);
            granted.push(next);
        }
        granted
    }

    /// Notes that a connection goes on: the time in which it could not send is not its own.
    pub(super) fn touch(&mut self, now: Time, client: ClientId) {
        if let Some(at) = self.held.get_mut(&client) {
            *at = now;
        }
    }

    /// The connections with a grant, each with the time at which it counts as stalled; none while nobody waits.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = (ClientId, Time)> {
        let is_contended = self.is_contended();
        self.held
            .iter()
            .filter(move |_| is_contended)
            .map(|(client, at)| (*client, *at + STALLED_AFTER))
    }
}
