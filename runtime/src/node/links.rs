//! The current sessions of a node, and the subscribers to their changes.

use std::collections::BTreeMap;

use actix::{Message, Recipient};
use elastic_protocol::NodeId;

use crate::transport::LinkEvent;

/// The link with a peer changed. See [`NodeHandle::subscribe_links`](super::NodeHandle::subscribe_links).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkChanged {
    /// The peer.
    pub peer: NodeId,
    /// The change.
    pub event: LinkEvent,
}

impl Message for LinkChanged {
    type Result = ();
}

/// The state of a session.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkState {
    /// The peer is heard.
    Heard,
    /// The peer has been silent for longer than it should be.
    Silent,
}

#[derive(Default)]
pub(super) struct LinkTable {
    sessions: BTreeMap<NodeId, LinkState>,
    subscribers: Vec<Recipient<LinkChanged>>,
}

impl LinkTable {
    pub(super) fn subscribe(&mut self, subscriber: Recipient<LinkChanged>) {
        for peer in self.sessions.keys() {
            subscriber.do_send(LinkChanged { peer: peer.clone(), event: LinkEvent::Up });
        }
        self.subscribers.retain(Recipient::connected);
        self.subscribers.push(subscriber);
    }

    pub(super) fn changed(&mut self, peer: &NodeId, event: &LinkEvent) {
        match event {
            LinkEvent::Up | LinkEvent::Heard => {
                self.sessions.insert(peer.clone(), LinkState::Heard);
            }
            LinkEvent::Silent { .. } => {
                self.sessions.insert(peer.clone(), LinkState::Silent);
            }
            LinkEvent::Lost { .. } => {
                self.sessions.remove(peer);
            }
        }
        self.subscribers.retain(Recipient::connected);
        for subscriber in &self.subscribers {
            subscriber.do_send(LinkChanged { peer: peer.clone(), event: event.clone() });
        }
    }

    pub(super) fn states(&self) -> Vec<(NodeId, LinkState)> {
        self.sessions.iter().map(|(peer, state)| (peer.clone(), *state)).collect()
    }
}
