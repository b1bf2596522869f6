//! The simulated implementation of runtime's transport trait: frames go into the world's network, which keeps
//! TR-1 to TR-6 and hands them, and what happens to the links, to the node's sink.

use bytes::Bytes;
use elastic_protocol::NodeId;
use elastic_runtime::transport::{
    Conversation, LinkEvent, LossReason, SendError, SendErrorReason, Transport, TransportEvent,
    TransportSink,
};

use super::hub::Port;
use crate::cores::World;

/// Which end of a link a node is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    /// A driver, which has a link with everybody.
    Driver {
        /// Which life of it.
        life: u32,
    },
    /// Somebody else, with one link: to the driver.
    Peer {
        /// Its number in the world.
        link: u32,
    },
}

/// A node's transport.
pub(super) struct SimTransport {
    local: NodeId,
    side: Side,
    port: Port,
    sink: TransportSink,
}

impl SimTransport {
    pub(super) fn new(local: NodeId, side: Side, port: Port, sink: TransportSink) -> Self {
        Self { local, side, port, sink }
    }
}

impl Transport for SimTransport {
    fn local(&self) -> NodeId {
        self.local.clone()
    }

    fn send(&self, to: &NodeId, conversation: Conversation, frame: Bytes) -> Result<(), SendError> {
        let send = |world: &mut World| world.node_sends(self.side, to, conversation, &frame);
        let sent = self.port.call(|world| world.at_side(self.side, send));
        let refused = match sent.flatten() {
            Some(Ok(())) => return Ok(()),
            Some(Err(reason)) => reason,
            None => SendErrorReason::NoSession,
        };
        Err(SendError { to: to.clone(), frame, reason: refused })
    }

    fn close(&self, peer: &NodeId, reason: &str) {
        let close = |world: &mut World| world.node_closes(self.side, peer);
        let closed = self.port.call(|world| world.at_side(self.side, close));
        if let Some(silent_ms) = closed.flatten().flatten() {
            let reason = LossReason::ClosedHere(reason.to_owned());
            let event = LinkEvent::Lost { reason, silent_ms };
            (self.sink)(TransportEvent::Link { peer: peer.clone(), event });
        }
    }
}
