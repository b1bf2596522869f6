//! Questions to other nodes that wait for their answer.

use std::collections::BTreeMap;

use elastic_protocol::NodeId;
use elastic_protocol::codec::CodecError;

use crate::failure::DeliveryRefusal;

/// Most questions to other nodes that may wait for an answer at once: one to each of 1,024 nodes. An entry
/// takes about 150 bytes.
pub const ASKS_MAX: usize = 1024;

/// Outcomes of a pending question.
pub(crate) enum Resolution<'a> {
    /// The answer, encoded.
    Answered(&'a [u8]),
    /// The other node did not hand the question to the actor.
    Refused(DeliveryRefusal),
    /// The actor took the question and dropped it.
    Unanswered,
    /// The transport gave the frame back: the question, encoded.
    HandedBack(&'a [u8]),
    /// The session ended.
    Lost,
}

/// Passes the resolution to the asker.
pub(crate) type Resolve = Box<dyn FnOnce(Resolution<'_>) -> Result<(), CodecError>>;

#[derive(Default)]
pub(crate) struct AskTable {
    pending: BTreeMap<u64, (NodeId, Resolve)>,
    last: u64,
}

impl AskTable {
    /// The number of a new question; `None` if too many wait already.
    pub(crate) fn next(&mut self) -> Option<u64> {
        if self.pending.len() >= ASKS_MAX {
            return None;
        }
        self.last += 1;
        Some(self.last)
    }

    pub(crate) fn insert(&mut self, request: u64, peer: NodeId, resolve: Resolve) {
        self.pending.insert(request, (peer, resolve));
    }

    /// Removes a question; `None` if no asker waits for it, or another node was asked.
    pub(crate) fn take(&mut self, request: u64, peer: &NodeId) -> Option<Resolve> {
        if self.pending.get(&request).is_none_or(|(asked, _)| asked != peer) {
            return None;
        }
        self.pending.remove(&request).map(|(_, resolve)| resolve)
    }

    /// Forgets a question whose asker gave up.
    pub(crate) fn forget(&mut self, request: u64) {
        self.pending.remove(&request);
    }

    /// The questions to a peer up to now, in order.
    pub(crate) fn of_peer(&self, peer: &NodeId) -> Vec<u64> {
        let asked = self.pending.iter().filter(|(_, (asked, _))| asked == peer);
        asked.map(|(request, _)| *request).collect()
    }
}
