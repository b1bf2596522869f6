//! The simulated implementation of runtime's transport trait. Frames go into the world's network, which keeps TR-1 to
//! TR-6. The network hands frames and link events to the node. Used by `node` and `boot`.

use bytes::Bytes;
use elastic_protocol::NodeId;
use elastic_runtime::transport::{Conversation, SendError, SendErrorReason, Transport};

use super::hub::Port;
use crate::cores::World;

/// The end of a link at which a node is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    /// A driver, which has a link with every node.
    Driver {
        /// The life of the driver.
        life: u32,
    },
    /// Another node, with a single link to the driver.
    Peer {
        /// The link's number in the world.
        link: u32,
    },
}

/// A node's transport.
pub(super) struct SimTransport {
    local: NodeId,
    side: Side,
    port: Port,
}

impl SimTransport {
    pub(super) fn new(local: NodeId, side: Side, port: Port) -> Self {
        Self { local, side, port }
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
        let close = |world: &mut World| world.node_closes(self.side, peer, reason);
        self.port.call(|world| world.at_side(self.side, close));
    }
}
