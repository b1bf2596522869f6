//! [`PeersCore`]: all peers of a node, their sessions, and the connections that carry them. Called by `quic`,
//! and by the simulated network in its place.

mod check;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use elastic_protocol::{Deadlines, NodeId, Time};
use elastic_runtime::session::{
    Ack, Arrival, Payload, RefusedFrame, SessionError, SessionHello, SessionId, SessionWelcome,
    Transmit,
};
use elastic_runtime::transport::{Conversation, LossReason, SendErrorReason, TransportEvent};

use super::limits::{CLOSE_GRACE, PEERS_MAX, pause_min};
use super::link::{CloseCode, Detached, HelloRefusal, LinkEnd, LinkId};
use super::peer::{Closing, Peer, Said};

/// Outputs of the core: actions on connections.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LinkOutput {
    /// Close a connection: it carries no session any more.
    Close {
        /// The connection.
        link: LinkId,
        /// The reason, as a code for the other end.
        code: CloseCode,
        /// The reason, in words.
        reason: String,
    },
    /// Frames wait: see [`PeersCore::poll_transmit`].
    Wake {
        /// The connection.
        link: LinkId,
        /// The conversation.
        conversation: Conversation,
    },
    /// Acknowledgements wait: see [`PeersCore::poll_ack`].
    Acknowledge {
        /// The connection.
        link: LinkId,
        /// Whether to send them at once; otherwise they may wait a little for further ones.
        at_once: bool,
    },
}

/// The life of a node's transport.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TransportStage {
    /// Open: peers come and go.
    Open,
    /// Shutting down: hellos are refused, and queued frames may still leave.
    Draining {
        /// The deadline of this stage, at which it ends even if peers are left.
        until: Time,
    },
    /// Closed: no peer is left, and none is taken.
    Closed,
}

/// All peers of a node.
#[derive(Debug)]
pub struct PeersCore<P = Bytes> {
    deadlines: Deadlines,
    /// Period after which the shell reports which connections were heard, and calls `handle_timeout`.
    look_every: Duration,
    stage: TransportStage,
    peers: BTreeMap<NodeId, Peer<P>>,
    /// The peer of each connection that carries a session.
    links: BTreeMap<LinkId, NodeId>,
    next_link: u64,
    /// Time of the next regular look; `None` while there is no session.
    look_at: Option<Time>,
    /// Earliest end of a closing session, or earlier; `None` if none closes.
    closing_at: Option<Time>,
    /// Whether something can be ended before its deadline.
    is_hurried: bool,
    outputs: VecDeque<LinkOutput>,
    events: VecDeque<TransportEvent<P>>,
}

impl<P: Payload> PeersCore<P> {
    /// A core without peers.
    pub fn new(deadlines: Deadlines, look_every: Duration) -> Self {
        Self {
            deadlines,
            look_every,
            stage: TransportStage::Open,
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            next_link: 0,
            look_at: None,
            closing_at: None,
            is_hurried: false,
            outputs: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The stage of this transport's life.
    pub fn stage(&self) -> TransportStage {
        self.stage
    }

    /// Number of current peers.
    pub fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// The current session with a peer.
    pub fn session(&self, peer: &NodeId) -> Option<SessionId> {
        self.peers.get(peer)?.session.session()
    }

    /// The connection that carries the session with a peer.
    pub fn link(&self, peer: &NodeId) -> Option<LinkId> {
        self.peers.get(peer)?.link
    }

    /// Whether this end still wants connections with a peer.
    pub fn is_dialled(&self, peer: &NodeId) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.dialled)
    }

    /// The next action on a connection.
    pub fn poll_output(&mut self) -> Option<LinkOutput> {
        self.outputs.pop_front()
    }

    /// The next event for the node.
    pub fn poll_event(&mut self) -> Option<TransportEvent<P>> {
        self.events.pop_front()
    }

    /// Acts on a peer, and removes the peer if nothing is left of it.
    fn with<R>(
        &mut self,
        node: &NodeId,
        act: impl FnOnce(&mut Peer<P>, &mut Said<'_, P>) -> R,
    ) -> Option<R> {
        let peer = self.peers.get_mut(node)?;
        let before = peer.link;
        let mut said = Said { node, outputs: &mut self.outputs, events: &mut self.events };
        let result = act(peer, &mut said);
        let (link, is_over) = (peer.link, peer.is_over());
        if link != before {
            before.map(|link| self.links.remove(&link));
            link.map(|link| self.links.insert(link, node.clone()));
        }
        if is_over {
            self.peers.remove(node);
            self.end_if_empty();
        }
        Some(result)
    }

    fn end_if_empty(&mut self) {
        if matches!(self.stage, TransportStage::Draining { .. }) && self.peers.is_empty() {
            self.stage = TransportStage::Closed;
        }
    }

    fn new_link(&mut self) -> LinkId {
        self.next_link += 1;
        LinkId(self.next_link)
    }

    fn begin_looks(&mut self, now: Time) {
        self.look_at.get_or_insert(now + self.look_every);
    }

    /// Queues a frame.
    ///
    /// # Errors
    /// [`RefusedFrame`] gives it back.
    pub fn send(
        &mut self,
        to: &NodeId,
        conversation: Conversation,
        frame: P,
    ) -> Result<(), RefusedFrame<P>> {
        let Some(peer) = self.peers.get_mut(to).filter(|peer| peer.closing.is_none()) else {
            return Err(RefusedFrame { frame, reason: SendErrorReason::NoSession });
        };
        peer.session.send(conversation, frame)?;
        if let Some(link) = peer.link {
            self.outputs.push_back(LinkOutput::Wake { link, conversation });
        }
        Ok(())
    }

    /// Registers a peer with which this end will make connections.
    pub fn add_dialled(&mut self, now: Time, peer: &NodeId) {
        if self.stage == TransportStage::Open {
            self.peers.insert(peer.clone(), Peer::new(&self.deadlines, now, true));
        }
    }

    /// Replaces a peer by another node at the same address: the session with the old one is over.
    pub fn replace_dialled(&mut self, now: Time, old: &NodeId, new: &NodeId) {
        self.with(old, |peer, said| {
            peer.dialled = false;
            peer.detach(CloseCode::Closed, "another node answers at this address", said);
            peer.session.end(LossReason::Forgotten);
            peer.drain(now, said);
        });
        self.add_dialled(now, new);
    }

    /// Whether a peer has been silent for so long that it may soon count as silent.
    pub fn is_quiet(&self, now: Time, peer: &NodeId) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.liveness.is_quiet(now))
    }

    /// Takes note that a peer's process is on this machine, and waits for a processor or a disk: the kernel has said so just now, before
    /// [`Self::handle_timeout`].
    pub fn handle_starved(&mut self, now: Time, peer: &NodeId) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.liveness.handle_starved(now);
        }
    }

    /// The first message over a connection that this end has made.
    pub fn hello(&mut self, peer: &NodeId, fresh: SessionId) -> Option<SessionHello> {
        self.with(peer, |peer, said| {
            peer.detach(CloseCode::Replaced, "a newer connection takes its place", said);
            peer.session.hello(fresh)
        })
    }

    /// Takes the answer to the hello: the connection now carries the session.
    ///
    /// # Errors
    /// [`SessionError`]: the connection is of no use.
    pub fn handle_welcome(
        &mut self,
        now: Time,
        node: &NodeId,
        welcome: &SessionWelcome,
    ) -> Result<LinkId, SessionError> {
        let link = self.new_link();
        let greeted = self.with(node, |peer, said| {
            let greeted = peer.session.handle_welcome(welcome);
            if greeted.is_ok() {
                peer.attach(now, link, said);
            }
            peer.drain(now, said);
            greeted.map(|()| peer.has_nothing_to_wait_for())
        });
        self.is_hurried |= greeted.unwrap_or(Err(SessionError::UnknownSession))?;
        self.begin_looks(now);
        Ok(link)
    }

    /// Takes the hello of another node over a connection that it has made, which now carries the session.
    ///
    /// # Errors
    /// [`HelloRefusal`].
    pub fn handle_hello(
        &mut self,
        now: Time,
        node: &NodeId,
        hello: &SessionHello,
    ) -> Result<(LinkId, SessionWelcome), HelloRefusal> {
        if self.stage != TransportStage::Open {
            return Err(HelloRefusal::Draining);
        }
        if !self.peers.contains_key(node) {
            if self.peers.len() >= PEERS_MAX {
                return Err(HelloRefusal::TooManyPeers { limit: PEERS_MAX });
            }
            self.peers.insert(node.clone(), Peer::new(&self.deadlines, now, false));
        }
        let link = self.new_link();
        let limit = PEERS_MAX;
        let welcome = self.with(node, |peer, said| {
            if !peer.session.is_resumed_by(hello) {
                // The peer's node has given up the session that was closing: end it here too.
                peer.finish_closing(now, said);
            }
            peer.detach(
                CloseCode::Replaced,
                "a newer connection of this node takes its place",
                said,
            );
            let welcome = peer.session.handle_hello(hello);
            peer.attach(now, link, said);
            (welcome, peer.has_nothing_to_wait_for())
        });
        let (welcome, is_hurried) = welcome.ok_or(HelloRefusal::TooManyPeers { limit })?;
        self.is_hurried |= is_hurried;
        self.begin_looks(now);
        Ok((link, welcome))
    }

    fn with_link<R>(
        &mut self,
        link: LinkId,
        act: impl FnOnce(&mut Peer<P>, &mut Said<'_, P>) -> R,
    ) -> Result<R, Detached> {
        let node = self.links.get(&link).ok_or(Detached)?;
        let peer = self.peers.get_mut(node).ok_or(Detached)?;
        let mut said = Said { node, outputs: &mut self.outputs, events: &mut self.events };
        Ok(act(peer, &mut said))
    }

    /// The next frame to write.
    ///
    /// # Errors
    /// [`Detached`]: this connection carries no session any more.
    pub fn poll_transmit(
        &mut self,
        link: LinkId,
        conversation: Conversation,
    ) -> Result<Option<Transmit<P>>, Detached> {
        self.with_link(link, |peer, _| peer.session.poll_transmit(conversation))
    }

    /// The next acknowledgement to write.
    ///
    /// # Errors
    /// [`Detached`].
    pub fn poll_ack(&mut self, link: LinkId) -> Result<Option<Ack>, Detached> {
        self.with_link(link, |peer, _| peer.session.poll_ack())
    }

    /// Takes note of a write: acknowledgements ride along.
    pub fn handle_written(&mut self, link: LinkId) {
        let _detached = self.with_link(link, |peer, said| {
            if peer.session.has_acks() {
                said.outputs.push_back(LinkOutput::Acknowledge { link, at_once: true });
            }
        });
    }

    /// Takes an incoming acknowledgement.
    ///
    /// # Errors
    /// [`SessionError`]: the connection is of no use any more.
    pub fn handle_ack(&mut self, link: LinkId, ack: Ack) -> Result<(), SessionError> {
        let handled = self.with_link(link, |peer, said| {
            let was_open = peer.session.is_bulk_window_open();
            peer.session.handle_ack(ack)?;
            if !was_open && peer.session.is_bulk_window_open() {
                let wake = |conversation| LinkOutput::Wake { link, conversation };
                said.outputs.extend(peer.session.waiting().map(wake));
            }
            Ok(peer.has_nothing_to_wait_for())
        });
        let Ok(handled) = handled else { return Ok(()) };
        self.is_hurried |= handled?;
        Ok(())
    }

    /// Takes an incoming frame, and reports it to the node if it is the next one.
    ///
    /// # Errors
    /// [`SessionError`]: the connection is of no use any more.
    pub fn handle_frame(
        &mut self,
        link: LinkId,
        conversation: Conversation,
        sequence: u64,
        frame: P,
    ) -> Result<(), SessionError> {
        let handled = self.with_link(link, |peer, said| {
            let arrival = peer.session.handle_frame(conversation, sequence, frame.weight())?;
            let at_once = peer.session.is_ack_due(conversation);
            said.outputs.push_back(LinkOutput::Acknowledge { link, at_once });
            if arrival == Arrival::Deliver {
                let from = said.node.clone();
                said.events.push_back(TransportEvent::Frame { from, conversation, frame });
            }
            Ok(())
        });
        handled.unwrap_or(Ok(()))
    }

    /// Takes note that a connection was heard at this moment.
    pub fn handle_heard(&mut self, link: LinkId, at: Time) {
        let _detached = self.with_link(link, |peer, said| peer.handle_heard(at, said));
    }

    /// Takes note that the host at the other end of a connection has refused a packet: the peer's port is closed.
    pub fn handle_refused(&mut self, now: Time, link: LinkId) {
        let handled = self.with_link(link, |peer, _| {
            peer.liveness.handle_refused(now);
            peer.judged_at()
        });
        if let Ok(Some(at)) = handled {
            self.look_at = self.look_at.map(|earlier| earlier.min(at));
        }
    }

    /// Takes note that a connection has ended by itself.
    pub fn handle_link_end(&mut self, now: Time, link: LinkId, end: LinkEnd) {
        let Some(node) = self.links.get(&link).cloned() else { return };
        self.with(&node, |peer, said| {
            peer.link = None;
            match end {
                LinkEnd::Closed(reason) => peer.session.end(LossReason::Closed(reason)),
                LinkEnd::Broken => peer.session.handle_disconnect(),
            }
            peer.drain(now, said);
        });
    }

    /// Begins to close the session with a peer. It ends when all queued frames are acknowledged, or after
    /// `grace`. A peer that this end connects with is not tried again, even if there is no session now.
    pub fn close(&mut self, now: Time, peer: &NodeId, reason: &str, grace: Option<Duration>) {
        let at = now + grace.unwrap_or(CLOSE_GRACE);
        self.with(peer, |peer, _| {
            peer.dialled = false;
            peer.closing.get_or_insert_with(|| Closing { reason: reason.to_owned(), at });
        });
        self.closing_at = Some(self.closing_at.map_or(at, |earlier| earlier.min(at)));
        self.is_hurried = true;
    }

    /// Shuts down: closes the session with every peer and takes no further peer. The transport is closed after
    /// `grace` at the latest.
    pub fn drain(&mut self, now: Time, reason: &str, grace: Duration) {
        if self.stage != TransportStage::Open {
            return;
        }
        let until = now + grace;
        self.stage = TransportStage::Draining { until };
        let nodes: Vec<NodeId> = self.peers.keys().cloned().collect();
        for node in nodes {
            self.close(now, &node, reason, Some(grace));
        }
        self.end_if_empty();
    }

    /// Drops all peers and connections at once, without an event to the node.
    pub fn stop(&mut self, reason: &str) {
        for (link, _) in std::mem::take(&mut self.links) {
            let (code, reason) = (CloseCode::Closed, reason.to_owned());
            self.outputs.push_back(LinkOutput::Close { link, code, reason });
        }
        self.peers.clear();
        self.events.clear();
        self.stage = TransportStage::Closed;
    }

    /// Time at which [`Self::handle_timeout`] must be called; may have passed.
    pub fn poll_timeout(&self) -> Option<Time> {
        let hurried = self.is_hurried.then_some(Time::ZERO);
        let until = match self.stage {
            TransportStage::Draining { until } => Some(until),
            TransportStage::Open | TransportStage::Closed => None,
        };
        [hurried, until, self.closing_at, self.look_at].into_iter().flatten().min()
    }

    /// Judges every peer. The shell has reported before which connections were heard ([`Self::handle_heard`]).
    /// Returns the length of a preceding pause of this process, if there was one.
    pub fn handle_timeout(&mut self, now: Time) -> Option<Duration> {
        self.is_hurried = false;
        let pause = self.excuse_pause(now);
        let is_due = |(node, peer): (&NodeId, &Peer<P>)| peer.is_due(now).then(|| node.clone());
        let due: Vec<NodeId> = self.peers.iter().filter_map(is_due).collect();
        for node in due {
            self.with(&node, |peer, said| peer.handle_timeout(now, said));
        }
        if matches!(self.stage, TransportStage::Draining { until } if until <= now) {
            self.finish_drain(now);
        }
        self.plan_looks(now);
        pause
    }

    /// Ends the shutdown: its time is over.
    fn finish_drain(&mut self, now: Time) {
        let nodes: Vec<NodeId> = self.peers.keys().cloned().collect();
        for node in nodes {
            self.with(&node, |peer, said| peer.finish_closing(now, said));
        }
        debug_assert!(self.peers.is_empty(), "each was dialled no more, and closed");
        self.stage = TransportStage::Closed;
    }

    fn plan_looks(&mut self, now: Time) {
        let mut judged = self.peers.values().filter_map(Peer::judged_at).peekable();
        self.look_at = match judged.peek() {
            None => None,
            Some(_) => judged.chain([now + self.look_every]).min(),
        };
        let closing = self.peers.values().filter_map(|peer| peer.closing.as_ref());
        self.closing_at = closing.map(|closing| closing.at).min();
    }

    /// Excuses the silence of peers during a pause: a look that comes late means that this process was paused
    /// and not listening.
    fn excuse_pause(&mut self, now: Time) -> Option<Duration> {
        let pause = now.since(self.look_at?);
        if pause <= pause_min(&self.deadlines) {
            return None;
        }
        let breaks = pause >= self.deadlines.breaking_pause();
        let grace = if breaks { self.deadlines.return_grace() } else { Duration::ZERO };
        for peer in self.peers.values_mut() {
            peer.liveness.handle_pause(now, pause, grace);
        }
        Some(pause)
    }
}
