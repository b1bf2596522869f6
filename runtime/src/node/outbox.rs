//! The node's own actions outside the transport's call: answers and refusals, sessions to
//! close, questions to give up. A task of the node's own carries it out, so that the transport is never
//! entered from within its own call.

use std::rc::Weak;

use bytes::Bytes;
use elastic_protocol::NodeId;
use tokio::sync::mpsc;

use super::{Node, Resolution};
use crate::transport::Conversation;

/// Questions from other nodes that may wait for an answer at once, each with a reserved place for it:
/// 1,024 nodes with one each. Past it a question is refused.
pub const QUESTIONS_MAX: usize = 1024;

/// Commands that may wait: an answer for each question, and as many others (refusals past the bound,
/// sessions to close, sessions that ended).
pub(super) const COMMANDS_MAX: usize = 2 * QUESTIONS_MAX;

pub(crate) enum NodeCommand {
    Answer { to: NodeId, frame: Bytes },
    Close { peer: NodeId, reason: String },
    GiveUp { peer: NodeId, requests: Vec<u64> },
}

pub(crate) struct NodeOutbox {
    node: Weak<Node>,
    commands: mpsc::Receiver<NodeCommand>,
}

impl NodeOutbox {
    pub(super) const fn new(node: Weak<Node>, commands: mpsc::Receiver<NodeCommand>) -> Self {
        Self { node, commands }
    }

    pub(super) async fn run(mut self) {
        while let Some(command) = self.commands.recv().await {
            let Some(node) = self.node.upgrade() else { return };
            node.carry_out(command);
        }
    }
}

impl Node {
    fn carry_out(&self, command: NodeCommand) {
        let transport = self.transport.borrow().clone();
        match command {
            NodeCommand::Answer { to, frame } => {
                let Some(transport) = transport else { return };
                if let Err(error) = transport.send(&to, Conversation::Control, frame) {
                    tracing::debug!(peer = %to, reason = %error.reason, "an answer was not sent");
                }
            }
            NodeCommand::Close { peer, reason } => {
                if let Some(transport) = transport {
                    transport.close(&peer, &reason);
                }
            }
            NodeCommand::GiveUp { peer, requests } => self.give_up(&peer, requests),
        }
    }

    /// Resolves questions whose session has ended, unless the transport handed them back meanwhile.
    pub(super) fn give_up(&self, peer: &NodeId, requests: Vec<u64>) {
        for request in requests {
            let resolve = self.asks.borrow_mut().take(request, peer);
            if let Some(resolve) = resolve {
                // Only an answer can be malformed.
                let _ = resolve(Resolution::Lost);
            }
        }
    }
}
