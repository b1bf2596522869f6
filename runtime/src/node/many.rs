//! One message to many nodes, encoded once. The driver's shell uses it for the members of a generation.

use elastic_protocol::codec::encode;
use elastic_protocol::{ActorName, NodeId, WireMessage};

use super::NodeHandle;
use crate::envelope::{Header, frame};
use crate::failure::UndeliveredReason;
use crate::transport::Conversation;

impl NodeHandle {
    /// Sends one message to the actors of this name on these nodes, in their order and in
    /// [`Conversation::Control`], as [`ActorRef::tell`](crate::ActorRef::tell) does for one. The transport gets
    /// the same bytes for each. Returns the nodes that are not told, and why.
    pub fn tell_all<M: WireMessage + Clone>(
        &self,
        nodes: impl IntoIterator<Item = NodeId>,
        name: ActorName,
        message: &M,
    ) -> Vec<(NodeId, UndeliveredReason)> {
        let header = Header::Tell { actor: name, kind: M::KIND, returns: 0 };
        let frame = match encode(message) {
            Ok(body) if body.len() <= Header::BODY_BYTES_MAX => Ok(frame(&header, &body)),
            Ok(_) => Err(UndeliveredReason::TooLarge),
            Err(error) => Err(UndeliveredReason::from(&error)),
        };
        let transport = self.inner.transport.borrow().clone();
        let tell = |node: &NodeId| -> Result<(), UndeliveredReason> {
            if node == self.local() {
                let told = self.inner.tell_here(name, node.clone(), message.clone());
                return told.map_err(|(_message, reason)| reason);
            }
            let transport = transport.as_ref().ok_or(UndeliveredReason::NoSession)?;
            let sent = transport.send(node, Conversation::Control, frame.clone()?);
            sent.map_err(|error| error.reason.into())
        };
        let told = nodes.into_iter().map(|node| (tell(&node), node));
        told.filter_map(|(told, node)| told.err().map(|reason| (node, reason))).collect()
    }
}
