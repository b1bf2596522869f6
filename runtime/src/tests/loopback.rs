//! A transport in memory between nodes of one thread: frames wait until the test delivers them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use elastic_protocol::{HostName, Incarnation, NodeId, NodeName};

use crate::NodeHandle;
use crate::transport::{
    Conversation, LinkEvent, LossReason, SendError, SendErrorReason, Transport, TransportEvent,
    TransportSink,
};

type Queued = (NodeId, NodeId, Conversation, Bytes);

#[derive(Default)]
pub(super) struct Hub {
    sinks: RefCell<BTreeMap<NodeId, TransportSink>>,
    pub(super) queue: RefCell<VecDeque<Queued>>,
    pub(super) closed: RefCell<Vec<(NodeId, String)>>,
    up: Cell<bool>,
    pub(super) full: Cell<bool>,
}

struct End {
    local: NodeId,
    hub: Rc<Hub>,
}

impl Transport for End {
    fn local(&self) -> NodeId {
        self.local.clone()
    }

    fn send(&self, to: &NodeId, by: Conversation, frame: Bytes) -> Result<(), SendError> {
        let reason = match (self.hub.up.get(), self.hub.full.get()) {
            (false, _) => SendErrorReason::NoSession,
            (true, true) => SendErrorReason::Full,
            (true, false) => {
                let queued = (self.local.clone(), to.clone(), by, frame);
                self.hub.queue.borrow_mut().push_back(queued);
                return Ok(());
            }
        };
        Err(SendError { to: to.clone(), frame, reason })
    }

    fn close(&self, peer: &NodeId, reason: &str) {
        self.hub.closed.borrow_mut().push((peer.clone(), reason.to_owned()));
    }
}

pub(super) fn node_id(host: &str) -> NodeId {
    let host = HostName::new(host).expect("a test's name");
    NodeId { name: NodeName::Agent(host), incarnation: Incarnation(1) }
}

impl Hub {
    /// Two nodes with a session.
    pub(super) fn pair() -> (Rc<Self>, NodeHandle, NodeHandle) {
        let hub = Rc::new(Self::default());
        let [a, b] = ["a", "b"].map(|host| hub.node(host));
        hub.connect();
        (hub, a, b)
    }

    pub(super) fn node(self: &Rc<Self>, host: &str) -> NodeHandle {
        let node = NodeHandle::new(node_id(host), 7);
        self.sinks.borrow_mut().insert(node.local().clone(), node.sink());
        node.attach(Rc::new(End { local: node.local().clone(), hub: self.clone() }));
        node
    }

    pub(super) fn tell(&self, node: &NodeId, event: TransportEvent) {
        let sink = self.sinks.borrow().get(node).cloned();
        sink.expect("the node is of this hub")(event);
    }

    /// Tells each node of its link with each other.
    fn links(&self, event: &LinkEvent) {
        let nodes: Vec<NodeId> = self.sinks.borrow().keys().cloned().collect();
        for node in &nodes {
            for peer in nodes.iter().filter(|peer| *peer != node) {
                let event = TransportEvent::Link { peer: peer.clone(), event: event.clone() };
                self.tell(node, event);
            }
        }
    }

    pub(super) fn connect(&self) {
        self.up.set(true);
        self.links(&LinkEvent::Up);
    }

    /// Ends all sessions. Undelivered frames go back to their senders.
    pub(super) fn disconnect(&self) {
        self.up.set(false);
        self.links(&LinkEvent::Lost { reason: LossReason::Forgotten, silent_ms: 0 });
        for (from, to, conversation, frame) in self.queue.take() {
            self.tell(&from, TransportEvent::Undeliverable { to, conversation, frame });
        }
    }

    /// Delivers the frames that wait.
    pub(super) fn deliver(&self) {
        for (from, to, conversation, frame) in self.queue.take() {
            self.tell(&to, TransportEvent::Frame { from, conversation, frame });
        }
    }

    /// Delivers until nothing is said any more.
    pub(super) async fn deliver_all(&self) {
        while !self.queue.borrow().is_empty() {
            self.deliver();
            super::settle().await;
        }
    }
}
