//! Moves the bytes of a [`Flow`] over all links at once, and watches for aborts, losses and the deadline while it
//! waits. It sleeps only in `epoll_wait`, and holds no lock. Called by the communicators.

mod parting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};

use super::flow::{Flow, StreamLane};
use super::link::{LinkFault, PeerFrame, StreamLink};
use super::stripes::STREAMS_MOST;
use super::transfer::{TIMED_LEAST, timed};
use crate::abort::AbortHandle;
use crate::attention::until_look;
use crate::clock;
use crate::error::{CollectiveError, WaitDetails};
use crate::split::Origin;
use crate::wire::{ByeCause, FrameHeader, OperationKind, OperationSignature};

/// The token of the abort event; those of links are [`token_of`].
pub(crate) const ABORT_TOKEN: u64 = u64::MAX;
/// Events taken from the kernel at a time.
const EVENTS: usize = 64;
const GRACE_LEAST: Duration = Duration::from_secs(1);
const GRACE_MOST: Duration = Duration::from_secs(30);

/// Number of checks of the paths within their deadline, while the engine waits.
pub(crate) const PATH_LOOKS: u32 = 10;

/// The divisor of the paths' deadline that limits how long the next group waits for a peer behind a silent path, and
/// the silence from which a path is one.
pub(super) const DOUBT_SHARE: u32 = 5;

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) term: u64,
    pub(crate) generation: u64,
    pub(crate) rank: u32,
    /// The number of connections of each pair.
    pub(crate) streams: u32,
    /// The links by rank and stream, without this rank's place.
    pub(crate) links: Vec<StreamLink>,
    pub(crate) epoll: Epoll,
    pub(crate) abort: AbortHandle,
    /// The version of the abort word that is known not to concern this generation.
    pub(crate) abort_seen: Option<u64>,
    pub(crate) operation_deadline: Duration,
    pub(crate) path_deadline: Duration,
    /// The time of the next check of the paths.
    pub(crate) paths_due: Instant,
    /// The number of the next collective.
    pub(crate) sequence: u64,
    /// Whether the operations belong to forming, which numbers them separately.
    pub(crate) agreeing: bool,
    pub(crate) failure: Option<CollectiveError>,
    /// Whether the present operation times the data from other hosts.
    pub(crate) times_transfers: bool,
    pub(crate) hangups: u64,
    /// The origin of the group, from which sub-groups are made. Dropped after the links, whose last bytes may still
    /// be in flight.
    pub(crate) origin: Arc<Origin>,
}

impl Engine {
    /// Runs a collective, or one message.
    pub(crate) fn run<F: Flow>(
        &mut self,
        operation: OperationSignature,
        flow: &mut F,
    ) -> Result<(), CollectiveError> {
        self.usable()?;
        let result = self.run_part(operation, flow);
        self.conclude(operation.kind, result)
    }

    /// Runs a part of a collective; the caller concludes the collective.
    pub(crate) fn run_part<F: Flow>(
        &mut self,
        operation: OperationSignature,
        flow: &mut F,
    ) -> Result<(), CollectiveError> {
        self.begin(operation, flow)?;
        self.progress(operation, flow)?;
        if self.times_transfers {
            self.note_transfers();
        }
        Ok(())
    }

    /// Refuses the call where the communicator has failed before.
    pub(crate) fn usable(&self) -> Result<(), CollectiveError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Ends an operation: after a success the sequence number advances; after an error the communicator has failed.
    pub(crate) fn conclude(
        &mut self,
        kind: OperationKind,
        result: Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let result = result.map_err(|error| self.settle(error));
        match &result {
            Ok(()) if kind == OperationKind::SendReceive => {}
            Ok(()) => self.sequence += 1,
            Err(error) => self.fail(error.clone()),
        }
        result
    }

    fn begin<F: Flow>(
        &mut self,
        operation: OperationSignature,
        flow: &F,
    ) -> Result<(), CollectiveError> {
        self.check_abort()?;
        let (generation, collective) = (self.generation, self.sequence);
        let origin = Arc::clone(&self.origin);
        self.times_transfers = false;
        for link in &mut self.links {
            let lane = link.lane;
            if lane.stream >= flow.streams() {
                link.begin(None, 0, None, 0);
                continue;
            }
            let (sends, receives) = (flow.sends_to(lane), flow.receives_from(lane));
            let (mut to_number, mut from_number) = (collective, collective);
            if operation.kind == OperationKind::SendReceive {
                (to_number, from_number) = (link.messages_sent, link.messages_received);
                link.messages_sent += u64::from(sends);
                link.messages_received += u64::from(receives);
            }
            let header = |sequence: u64, length: u64| {
                let bytes = if operation.kind.lengths_differ() { length } else { operation.bytes };
                FrameHeader {
                    generation,
                    sequence,
                    operation: OperationSignature { bytes, ..operation },
                }
            };
            let ours = sends.then(|| header(to_number, flow.announced_to(lane.rank)));
            let expected = receives.then(|| header(from_number, flow.announced_from(lane.rank)));
            let ready = if receives { flow.ready_from(lane) } else { 0 };
            let is_timed = ready >= TIMED_LEAST && origin.group.host_elsewhere(lane.rank).is_some();
            let ready = if is_timed { ready } else { 0 };
            self.times_transfers |= link.begin(ours, flow.length_to(lane), expected, ready);
        }
        for index in 0..self.links.len() {
            let link = &self.links[index];
            if link.hangup.is_some() || link.news && !link.receiving {
                self.probe(index, operation)?;
            }
        }
        Ok(())
    }

    fn progress<F: Flow>(
        &mut self,
        operation: OperationSignature,
        flow: &mut F,
    ) -> Result<(), CollectiveError> {
        let mut deadline = None;
        loop {
            self.check_abort()?;
            let mut moved = false;
            // All headers are sent before any is read, so that a mismatch seen by one rank is seen by all.
            for index in 0..self.links.len() {
                match self.links[index].push(flow) {
                    Ok(any) => moved |= any,
                    Err(fault) => return Err(self.fault(index, operation, fault)),
                }
            }
            for index in 0..self.links.len() {
                match self.links[index].pull(flow) {
                    Ok(any) => moved |= any,
                    Err(fault) => return Err(self.fault(index, operation, fault)),
                }
            }
            if self.links.iter().all(|link| !link.sending && !link.receiving) {
                return Ok(());
            }
            if !moved {
                let now = clock::now();
                let operation_deadline = self.operation_deadline;
                let mut due = *deadline.get_or_insert_with(|| now + operation_deadline);
                let entered = self.absent().is_empty();
                // If all peers of this rank have entered, and wait themselves, another rank knows the absent one.
                if entered && flow.may_defer() {
                    due += grace(operation_deadline);
                }
                if now >= due {
                    return Err(self.deadline_passed(operation.kind, self.waiting_for(), entered));
                }
                self.look_at_paths(now, operation)?;
                self.attend()?;
                let timeout = due.min(self.paths_due).saturating_duration_since(now);
                self.wait(until_look(timeout, now))?;
                for index in 0..self.links.len() {
                    let link = &self.links[index];
                    if link.has_news() && !link.receiving {
                        self.probe(index, operation)?;
                    }
                }
            }
        }
    }

    /// Notes the bytes that the operation has brought from other hosts, and their rate.
    fn note_transfers(&self) {
        let Origin { group, rates, .. } = &*self.origin;
        for streams in self.peers() {
            let Some(host) = group.host_elsewhere(streams[0].lane.rank) else { continue };
            let received: usize = streams.iter().map(StreamLink::received).sum();
            if received > 0 {
                let timed = timed(streams.iter().map(|link| &link.transfer));
                rates.note(host, received as u64, timed);
            }
        }
    }

    /// Checks for a silent path, every tenth of the path deadline. All links count: others may wait for bytes that an
    /// earlier operation has left to the kernel.
    fn look_at_paths(
        &mut self,
        now: Instant,
        operation: OperationSignature,
    ) -> Result<(), CollectiveError> {
        if now < self.paths_due {
            return Ok(());
        }
        self.paths_due = now + self.path_deadline / PATH_LOOKS;
        let deadline = self.path_deadline;
        let mut links = self.links.iter_mut().enumerate();
        let silent = links.find_map(|(index, link)| Some((index, link.silence(now, deadline)?)));
        silent.map_or(Ok(()), |(index, fault)| Err(self.fault(index, operation, fault)))
    }

    /// The links of each other rank.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &[StreamLink]> {
        self.links.chunk_by(|one, next| one.lane.rank == next.lane.rank)
    }

    /// The ranks that have not entered the operation on any stream.
    fn absent(&self) -> Vec<u32> {
        let is_absent = |streams: &&[StreamLink]| {
            let mut receiving = streams.iter().filter(|link| link.receiving).peekable();
            receiving.peek().is_some() && receiving.all(StreamLink::absent)
        };
        self.peers().filter(is_absent).map(|streams| streams[0].lane.rank).collect()
    }

    /// The ranks that have not entered the operation; where all have, those that have not done their part.
    fn waiting_for(&self) -> Vec<u32> {
        let absent = self.absent();
        if !absent.is_empty() {
            return absent;
        }
        let is_unfinished =
            |streams: &&[StreamLink]| streams.iter().any(|link| link.sending || link.receiving);
        self.peers().filter(is_unfinished).map(|streams| streams[0].lane.rank).collect()
    }

    /// The error of a wait that ends by its deadline.
    pub(crate) fn deadline_passed(
        &self,
        operation: OperationKind,
        waiting_for: Vec<u32>,
        entered: bool,
    ) -> CollectiveError {
        let names = &self.origin.group.host_names;
        let hosts = waiting_for.iter().filter_map(|rank| names.get(*rank as usize).cloned());
        let world = self.origin.group.peers.len();
        let others = world.saturating_sub(waiting_for.len()) as u32;
        let details = Box::new(WaitDetails { hosts: hosts.collect(), entered, others });
        let sequence = self.sequence;
        CollectiveError::DeadlinePassed { operation, sequence, waiting_for, details }
    }

    /// Lets the caller of a blocked operation look up, and end it.
    pub(crate) fn attend(&mut self) -> Result<(), CollectiveError> {
        self.abort.attend(self.term, self.generation);
        self.check_abort()
    }

    pub(crate) fn check_abort(&mut self) -> Result<(), CollectiveError> {
        let version = self.abort.version();
        if self.abort_seen == Some(version) {
            return Ok(());
        }
        match self.abort.aborted(self.term, self.generation) {
            None => {
                self.abort_seen = Some(version);
                Ok(())
            }
            Some(abort) => Err(abort.into()),
        }
    }

    /// Sleeps until an event of a link or of the abort word, at most `timeout`.
    fn wait(&mut self, timeout: Duration) -> Result<(), CollectiveError> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, epoll_timeout(timeout)) {
            Ok(count) => count,
            Err(nix::Error::EINTR) => 0,
            Err(error) => return Err(CollectiveError::System(Arc::new(error.into()))),
        };
        for event in &events[..count] {
            let Some(index) = self.index_of(event.data()) else { continue };
            let (link, flags) = (&mut self.links[index], event.events());
            let gone = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
            if flags.intersects(gone) && link.hangup.is_none() {
                link.hangup = Some(self.hangups);
                self.hangups += 1;
            }
            link.news |= flags.contains(EpollFlags::EPOLLIN);
            link.readable |= flags.intersects(gone | EpollFlags::EPOLLIN);
            link.writable |= flags.intersects(gone | EpollFlags::EPOLLOUT);
        }
        Ok(())
    }

    /// The link of a token; the abort event has none.
    fn index_of(&self, token: u64) -> Option<usize> {
        self.links.binary_search_by_key(&token, |link| token_of(link.lane)).ok()
    }

    /// Checks a link whose peer has closed and from which this operation reads nothing more. A peer that has
    /// completed this collective may leave; one that has not entered it is lost.
    fn probe(
        &mut self,
        index: usize,
        operation: OperationSignature,
    ) -> Result<(), CollectiveError> {
        let link = &mut self.links[index];
        link.news = false;
        match link.probe() {
            Ok(Some(PeerFrame::Farewell(farewell))) => {
                let bye = farewell.bye;
                let message = operation.kind == OperationKind::SendReceive;
                let uninvolved = message && !link.sending;
                let later = self.agreeing || bye.sequence > self.sequence;
                let completed = later && !link.sending;
                if uninvolved && bye.cause == ByeCause::Left || completed || self.will_mismatch(bye)
                {
                    return Ok(());
                }
                Err(self.fault(index, operation, LinkFault::Farewell(Box::new(farewell))))
            }
            Ok(_) => Ok(()),
            Err(fault) => Err(self.fault(index, operation, fault)),
        }
    }
}

/// The token of a link's events: in the order of the links, and below all other tokens.
pub(crate) fn token_of(lane: StreamLane) -> u64 {
    u64::from(lane.rank) * u64::from(STREAMS_MOST) + u64::from(lane.stream)
}

/// The additional time by which a dependent wait outlasts the waits before it. So the absent rank is named by the
/// ranks that wait for it directly, and not a rank that waits for it too.
pub(crate) fn grace(operation_deadline: Duration) -> Duration {
    (operation_deadline / 8).min(GRACE_MOST) + GRACE_LEAST
}

/// The cause in the farewell to the peers, for an error.
pub(crate) fn cause(error: &CollectiveError) -> ByeCause {
    match error {
        CollectiveError::Closed => ByeCause::Left,
        CollectiveError::Aborted { .. } => ByeCause::Aborted,
        CollectiveError::PeerLost { rank, .. } => ByeCause::PeerLost(*rank),
        CollectiveError::Mismatch { rank, .. } => ByeCause::Mismatch(*rank),
        CollectiveError::DeadlinePassed { waiting_for, .. } => {
            waiting_for.first().map_or(ByeCause::Failed, |rank| ByeCause::DeadlinePassed(*rank))
        }
        _ => ByeCause::Failed,
    }
}

/// The timeout for epoll, rounded up, so that a wait does not end just before its deadline and spin.
pub(crate) fn epoll_timeout(timeout: Duration) -> EpollTimeout {
    let milliseconds = timeout.as_micros().div_ceil(1000).min(i32::MAX as u128);
    EpollTimeout::try_from(milliseconds as i32).unwrap_or(EpollTimeout::NONE)
}
