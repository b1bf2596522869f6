//! How an engine fails: the faults of its links, what other members say as they leave, and the words that it leaves with.
//! Called by the engine as it progresses.

use std::sync::Arc;
use std::time::Duration;

use super::{DOUBT_SHARE, Engine, cause};
use crate::clock;
use crate::error::{CollectiveError, PeerLoss};
use crate::split::Origin;
use crate::tcp::farewell::Farewell;
use crate::tcp::link::{Leave, LinkFault, PeerFrame, StreamLink};
use crate::tcp::path::{silent, told_alike};
use crate::wire::{Bye, ByeCause, FrameHeader, OperationKind, OperationSignature};

/// Longest wait of a rank that fails in the middle of a payload for room to send its farewell.
const FAREWELL_PATIENCE: Duration = Duration::from_millis(10);
/// Longest wait of a rank that is told of an abort for its own abort, which has the reason.
const ABORT_PATIENCE: Duration = Duration::from_millis(20);

impl Engine {
    /// The error on which all ranks agree: that of the generation's abort, where there is one.
    pub(super) fn settle(&mut self, error: CollectiveError) -> CollectiveError {
        let told = matches!(error, CollectiveError::PeerLost { source: PeerLoss::Aborted, .. });
        let deadline = clock::now() + if told { ABORT_PATIENCE } else { Duration::ZERO };
        loop {
            if let Err(abort) = self.check_abort() {
                return abort;
            }
            let left = deadline.saturating_duration_since(clock::now());
            if left.is_zero() || self.wait(left).is_err() {
                return error;
            }
        }
    }

    /// Whether the mismatch that a peer reports is about to show here too, in a header in flight.
    pub(super) fn will_mismatch(&self, bye: Bye) -> bool {
        let ByeCause::Mismatch(rank) = bye.cause else { return false };
        let differs =
            |link: &StreamLink| (rank == self.rank || link.lane.rank == rank) && link.absent();
        self.links.iter().any(|link| differs(link) && link.hangup.is_none())
    }

    /// The error that follows from a link's fault.
    pub(super) fn fault(
        &mut self,
        index: usize,
        operation: OperationSignature,
        fault: LinkFault,
    ) -> CollectiveError {
        let rank = self.links[index].lane.rank;
        // A mismatch explains why others give up, and may be unread behind the ends of their streams.
        let shown = self.links.iter_mut().find_map(|link| Some((link.lane.rank, link.mismatch()?)));
        let (rank, fault) = shown.unwrap_or((rank, fault));
        let silence = self.links[index].silent_for(clock::now());
        let fault = match fault {
            LinkFault::Closed | LinkFault::Connection(_) if self.links[index].is_timed_out() => {
                LinkFault::Connection(silent(self.path_deadline))
            }
            // The peer has seen the silence first, and has given the connection up.
            LinkFault::Closed | LinkFault::Connection(_) if silence >= self.path_deadline / 2 => {
                LinkFault::Connection(silent(silence))
            }
            fault => fault,
        };
        let source = match fault {
            LinkFault::Mismatch { ours, theirs } => {
                return CollectiveError::mismatch(rank, ours, theirs);
            }
            LinkFault::Malformed(source) => return CollectiveError::Protocol { rank, source },
            LinkFault::Farewell(farewell) => {
                return self.told(rank, operation, &farewell, self.absent());
            }
            LinkFault::Closed => PeerLoss::Closed,
            LinkFault::Connection(error) => {
                PeerLoss::Connection(Arc::new(told_alike(error, self.path_deadline)))
            }
        };
        // Other links may explain the fault: a survivor that gave up because of another rank says so, perhaps in the
        // middle of a payload. Of ends without a farewell the first counts.
        if self.wait(Duration::ZERO).is_ok() {
            self.links.iter_mut().for_each(StreamLink::drain);
            if let Some((by, told)) = self.heard() {
                return self.told(by, operation, &told, self.absent());
            }
            let unfinished =
                self.links.iter().filter(|link| link.receiving || link.lane.rank == rank);
            let first = unfinished.filter(|link| link.hangup.is_some()).min_by_key(|l| l.hangup);
            if let Some(first) = first.filter(|first| first.lane.rank != rank) {
                return CollectiveError::PeerLost {
                    rank: first.lane.rank,
                    source: PeerLoss::Closed,
                };
            }
        }
        CollectiveError::PeerLost { rank, source }
    }

    /// A farewell on one of the links, from before the end of this operation, and its sender.
    fn heard(&mut self) -> Option<(u32, Farewell)> {
        let sequence = self.sequence;
        self.links.iter_mut().find_map(|link| {
            let told = link.told_in_payload().or_else(|| match link.probe() {
                Ok(Some(PeerFrame::Farewell(told))) if link.has_news() => Some(told),
                _ => None,
            });
            told.filter(|told| told.bye.sequence <= sequence).map(|told| (link.lane.rank, told))
        })
    }

    /// Checks the links without waiting, for an operation that does not use them: whether one of the ranks still
    /// `awaited` is gone. A rank that left on purpose has said farewell.
    pub(crate) fn watch(
        &mut self,
        operation: OperationSignature,
        awaited: impl Fn(u32) -> bool,
    ) -> Result<(), CollectiveError> {
        self.wait(Duration::ZERO)?;
        let told = |link: &StreamLink| link.has_news() && awaited(link.lane.rank);
        for index in 0..self.links.len() {
            let link = &mut self.links[index];
            if !told(link) {
                continue;
            }
            link.news = false;
            match link.probe() {
                Ok(Some(PeerFrame::Farewell(farewell))) => {
                    let ranks = self.peers().map(|streams| streams[0].lane.rank);
                    let waiting_for = ranks.filter(|rank| awaited(*rank)).collect();
                    let rank = self.links[index].lane.rank;
                    return Err(self.told(rank, operation, &farewell, waiting_for));
                }
                // Messages may be unread before the end of the stream, but nothing more comes.
                Ok(_) if link.hangup.is_some() => {
                    return Err(self.fault(index, operation, LinkFault::Closed));
                }
                Ok(_) => {}
                Err(fault) => return Err(self.fault(index, operation, fault)),
            }
        }
        Ok(())
    }

    /// Checks the links without waiting: the error that follows from a farewell there, if there is one.
    pub(crate) fn explain(&mut self, operation: OperationSignature) -> Option<CollectiveError> {
        self.wait(Duration::ZERO).ok()?;
        let (by, told) = self.heard()?;
        Some(self.told(by, operation, &told, vec![by]))
    }

    /// The error that follows from the frame that `by` has sent.
    fn told(
        &self,
        by: u32,
        operation: OperationSignature,
        farewell: &Farewell,
        waiting_for: Vec<u32>,
    ) -> CollectiveError {
        let (ByeCause::Mismatch(rank), Some([theirs, seen])) =
            (farewell.bye.cause, farewell.evidence)
        else {
            return self.farewell(by, operation.kind, farewell.bye, waiting_for);
        };
        let (generation, sequence) = (self.generation, self.sequence);
        let ours = FrameHeader { generation, sequence, operation };
        let differs = theirs != ours && !operation.kind.lengths_differ();
        let (rank, theirs) = if differs || rank == self.rank { (by, theirs) } else { (rank, seen) };
        CollectiveError::mismatch(rank, ours, theirs)
    }

    /// The error that follows from the farewell of `by` while this rank waits for `waiting_for`.
    pub(crate) fn farewell(
        &self,
        by: u32,
        operation: OperationKind,
        bye: Bye,
        mut waiting_for: Vec<u32>,
    ) -> CollectiveError {
        let (rank, source) = match bye.cause {
            ByeCause::Left => (by, PeerLoss::Left),
            ByeCause::Aborted => (by, PeerLoss::Aborted),
            // A peer that gave this rank up as lost says so; then that peer is the one lost here.
            ByeCause::PeerLost(rank) if rank == self.rank => (by, PeerLoss::Failed),
            ByeCause::PeerLost(rank) => (rank, PeerLoss::Reported { by }),
            // The peer's deadline ends this rank's wait for the same rank a little early.
            ByeCause::DeadlinePassed(rank) if rank != self.rank => {
                waiting_for.retain(|other| *other != by && *other != rank);
                waiting_for.push(rank);
                waiting_for.sort_unstable();
                return self.deadline_passed(operation, waiting_for, false);
            }
            ByeCause::DeadlinePassed(_) | ByeCause::Mismatch(_) | ByeCause::Failed => {
                (by, PeerLoss::Failed)
            }
        };
        CollectiveError::PeerLost { rank, source }
    }

    /// Ends the communicator: all further calls return `error`, and the peers are told at once.
    pub(crate) fn fail(&mut self, error: CollectiveError) {
        if self.failure.is_some() {
            return;
        }
        let cause = cause(&error);
        if !matches!(error, CollectiveError::Closed) {
            tracing::debug!(generation = self.generation, rank = self.rank, %error, "collective failed");
        }
        let bye = Bye { generation: self.generation, sequence: self.sequence, cause };
        let evidence = match &error {
            CollectiveError::Mismatch { ours, theirs, .. } => Some([**ours, **theirs]),
            _ => None,
        };
        let farewell = Farewell { bye, evidence };
        self.doubt_silent_paths();
        self.links.iter_mut().for_each(|link| link.part(&farewell));
        self.finish_parting();
        let Origin { group, part, standing, .. } = &*self.origin;
        for link in &mut self.links {
            match link.leave() {
                Leave::Standing(left) => {
                    let peer = group.peers[link.lane.rank as usize];
                    standing.put(*part, peer, link.lane.stream, left);
                }
                Leave::Ending(socket) => standing.keep(socket),
                Leave::Nothing => {}
            }
        }
        self.failure = Some(error);
    }

    /// Remembers the peers to which the path is silent, whichever fault has ended the generation first.
    fn doubt_silent_paths(&mut self) {
        let (now, least) = (clock::now(), self.path_deadline / DOUBT_SHARE);
        let Origin { group, standing, .. } = &*self.origin;
        for link in &mut self.links {
            if link.silence(now, least).is_some() {
                standing.doubt(group.peers[link.lane.rank as usize]);
            }
        }
    }

    /// Waits a little for room where a farewell has to be sent in the middle of a payload. Peers that have failed too
    /// make room for it, as this rank does for theirs.
    fn finish_parting(&mut self) {
        let deadline = clock::now() + FAREWELL_PATIENCE;
        loop {
            let mut done = true;
            for link in &mut self.links {
                done &= link.finish_parting();
            }
            let left = deadline.saturating_duration_since(clock::now());
            if done || left.is_zero() || self.wait(left).is_err() {
                return;
            }
            self.links.iter_mut().for_each(StreamLink::drain);
        }
    }
}
