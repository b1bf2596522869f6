//! Questions to other nodes that wait for their answer.

use std::collections::BTreeMap;

use elastic_protocol::NodeId;
use elastic_protocol::messages::CodecError;

use crate::failure::Refusal;

/// Questions to other nodes that may wait for an answer at once. 1,024 nodes asked once each at the same
/// time; an entry takes about 150 bytes.
pub const ASKS_MAX: usize = 1024;

/// What becomes of a question.
pub(crate) enum Resolution<'a> {
    /// The answer, encoded.
    Answered(&'a [u8]),
    /// The other node did not hand it to the actor.
    Refused(Refusal),
    /// Taken, and dropped.
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
    /// A number for a question; `None` if too many wait already.
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

    /// Takes a question out; `None` if nobody waits, or it was asked of another node.
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

    /// The questions to a peer that were asked up to now, in order.
    pub(crate) fn of_peer(&self, peer: &NodeId) -> Vec<u64> {
        let asked = self.pending.iter().filter(|(_, (asked, _))| asked == peer);
        asked.map(|(request, _)| *request).collect()
    }
}
