//! Counts the messages that the node drops: by peer while its session stands, then in sum. The counts therefore do not
//! grow with the number of peers that come and go.

use std::collections::BTreeMap;

use elastic_protocol::NodeId;

use crate::failure::DeliveryRefusal;

/// Something that was dropped.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum NodeFault {
    /// A frame from a peer was not handed to an actor.
    Refused(DeliveryRefusal),
    /// An answer came to a question that no one waits for any more, or that was asked of another.
    StrayAnswer,
    /// An undeliverable message came back, and no sender took it back.
    StrayReturn,
    /// A refusal could not be sent: the outbox was full. The asker's deadline will pass.
    RefusalNotSent,
}

/// Numbers of faults.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FaultCounts {
    /// Counts of peers with a current session.
    pub by_peer: BTreeMap<NodeId, BTreeMap<NodeFault, u64>>,
    /// Sums over all sessions that have ended.
    pub ended: BTreeMap<NodeFault, u64>,
}

impl FaultCounts {
    /// Number of times that this happened, with all peers.
    pub fn total(&self, fault: NodeFault) -> u64 {
        let now: u64 = self.by_peer.values().filter_map(|counts| counts.get(&fault)).sum();
        now + self.ended.get(&fault).copied().unwrap_or(0)
    }
}

#[derive(Default)]
pub(super) struct FaultTally {
    counts: FaultCounts,
}

impl FaultTally {
    /// Counts a fault; whether it is the first of its kind with this peer in this session, and so should
    /// be logged.
    pub(super) fn count(&mut self, peer: &NodeId, fault: NodeFault) -> bool {
        let count = self.counts.by_peer.entry(peer.clone()).or_default().entry(fault).or_insert(0);
        *count = count.saturating_add(1);
        *count == 1
    }

    /// Adds a peer's counts to the sum: its session has ended.
    pub(super) fn ended(&mut self, peer: &NodeId) {
        for (fault, count) in self.counts.by_peer.remove(peer).unwrap_or_default() {
            let sum = self.counts.ended.entry(fault).or_insert(0);
            *sum = sum.saturating_add(count);
        }
    }

    pub(super) fn counts(&self) -> FaultCounts {
        self.counts.clone()
    }
}
