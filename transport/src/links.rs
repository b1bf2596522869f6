//! [`Links`]: every peer of this node, its session, and the connection that carries it now. The transport,
//! the listener and the dialer share one; the tasks of a connection (`link`) call back into it.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use elastic_protocol::{Deadlines, NodeId, Time};
use elastic_runtime::session::{
    Ack, Arrival, Hello, Limits, SessionCore, SessionError, SessionEvent, SessionId, Transmit,
    Welcome,
};
use elastic_runtime::transport::{
    Conversation, LinkEvent, LossReason, SendError, SendErrorReason, TransportEvent, TransportSink,
};
use quinn::{Connection, ConnectionError};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::closing::{CloseCode, Ending, close};
use crate::link::{Link, LinkId};
use crate::liveness::{Liveness, Verdict};
use crate::settings::{CLOSE_GRACE, PEERS_MAX};

/// One peer.
struct Peer {
    core: SessionCore,
    liveness: Liveness,
    link: Option<Link>,
    closing: Option<Closing>,
    /// This end makes the connections, and will go on doing so.
    dialled: bool,
}

struct Closing {
    reason: String,
    at: Time,
}

#[derive(Default)]
struct State {
    peers: BTreeMap<NodeId, Peer>,
    events: VecDeque<TransportEvent>,
    next_serial: u64,
}

pub(crate) struct Links {
    local: NodeId,
    deadlines: Deadlines,
    origin: Instant,
    sink: TransportSink,
    state: RefCell<State>,
    /// Wakes the one timer task: something to close, or a first peer.
    house: Notify,
    /// A session has ended; `shutdown` waits for the last.
    ended: Notify,
}

/// No room for one more peer.
#[derive(Debug, thiserror::Error)]
#[error("{PEERS_MAX} peers are connected already")]
pub(crate) struct TooManyPeers;

impl Peer {
    fn new(deadlines: &Deadlines, now: Time, dialled: bool) -> Self {
        Self {
            core: SessionCore::new(Limits::DEFAULT),
            liveness: Liveness::new(deadlines, now),
            link: None,
            closing: None,
            dialled,
        }
    }

    fn drain(&mut self, node: &NodeId, now: Time, events: &mut VecDeque<TransportEvent>) {
        while let Some(event) = self.core.poll_event() {
            events.push_back(match event {
                SessionEvent::Up => {
                    self.liveness.handle_session(now);
                    link_event(node, LinkEvent::Up)
                }
                SessionEvent::Lost(reason) => {
                    let silent_ms = self.liveness.silent_ms(now);
                    link_event(node, LinkEvent::Lost { reason, silent_ms })
                }
                SessionEvent::Undeliverable { conversation, frame } => {
                    TransportEvent::Undeliverable { to: node.clone(), conversation, frame }
                }
            });
        }
    }

    /// Takes the connection away, telling the other end why.
    fn detach(&mut self, code: CloseCode, reason: &str) {
        if let Some(link) = self.link.take() {
            close(&link.connection, code, reason);
        }
        self.core.handle_disconnect();
    }
}

fn link_event(peer: &NodeId, event: LinkEvent) -> TransportEvent {
    TransportEvent::Link { peer: peer.clone(), event }
}

impl Links {
    pub(crate) fn new(local: NodeId, deadlines: Deadlines, sink: TransportSink) -> Rc<Self> {
        Rc::new(Self {
            local,
            deadlines,
            origin: Instant::now(),
            sink,
            state: RefCell::default(),
            house: Notify::new(),
            ended: Notify::new(),
        })
    }

    pub(crate) fn local(&self) -> &NodeId {
        &self.local
    }

    pub(crate) fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    /// Tells the node what has happened. Called from tasks only, outside of any borrow, as the node may
    /// call `send` from within.
    pub(crate) fn pump(&self) {
        loop {
            let Some(event) = self.state.borrow_mut().events.pop_front() else { return };
            (self.sink)(event);
        }
    }

    pub(crate) fn send(
        &self,
        to: &NodeId,
        conversation: Conversation,
        frame: Bytes,
    ) -> Result<(), SendError> {
        let refused = |frame, reason| SendError { to: to.clone(), frame, reason };
        let mut state = self.state.borrow_mut();
        let Some(peer) = state.peers.get_mut(to).filter(|peer| peer.closing.is_none()) else {
            return Err(refused(frame, SendErrorReason::NoSession));
        };
        peer.core.send(conversation, frame).map_err(|it| refused(it.frame, it.reason))?;
        if let Some(link) = &mut peer.link {
            link.wake(conversation);
        }
        Ok(())
    }

    /// Begins to close the session with a peer; the timer task ends it. A peer that this end connects with
    /// is not tried again, even if no session stands now.
    pub(crate) fn close(&self, peer: &NodeId, reason: &str, grace: Option<Duration>) {
        let at = self.now() + grace.unwrap_or(CLOSE_GRACE);
        if let Some(peer) = self.state.borrow_mut().peers.get_mut(peer) {
            peer.dialled = false;
            peer.closing.get_or_insert_with(|| Closing { reason: reason.to_owned(), at });
            self.house.notify_one();
        }
    }

    /// Closes the session with every peer, and returns once all are closed.
    pub(crate) async fn close_all(&self, reason: &str, grace: Duration) {
        let peers: Vec<NodeId> = self.state.borrow().peers.keys().cloned().collect();
        peers.iter().for_each(|peer| self.close(peer, reason, Some(grace)));
        while !self.state.borrow().peers.is_empty() {
            self.ended.notified().await;
        }
    }

    /// Lets go of everything at once, without a word to the node.
    pub(crate) fn stop(&self, reason: &str) {
        let mut peers = std::mem::take(&mut self.state.borrow_mut().peers);
        peers.values_mut().for_each(|peer| peer.detach(CloseCode::Closed, reason));
    }

    /// Breaks the connection with a peer; the session goes on.
    pub(crate) fn reconnect(&self, peer: &NodeId) {
        if let Some(peer) = self.state.borrow().peers.get(peer)
            && let Some(link) = &peer.link
        {
            close(&link.connection, CloseCode::Broken, "to be made again");
        }
    }

    /// This end will make connections with a peer.
    pub(crate) fn add_dialled(&self, peer: &NodeId) {
        let entry = Peer::new(&self.deadlines, self.now(), true);
        self.state.borrow_mut().peers.insert(peer.clone(), entry);
    }

    /// The node at the other end is another one now: the session with the old one is over.
    pub(crate) fn replace_dialled(&self, old: &NodeId, new: &NodeId) {
        let mut state = self.state.borrow_mut();
        if let Some(mut peer) = state.peers.remove(old) {
            peer.detach(CloseCode::Closed, "another node answers at this address");
            peer.core.end(LossReason::Forgotten);
            peer.drain(old, self.now(), &mut state.events);
        }
        state.peers.insert(new.clone(), Peer::new(&self.deadlines, self.now(), true));
    }

    /// Whether this end still wants connections with a peer.
    pub(crate) fn is_dialled(&self, peer: &NodeId) -> bool {
        self.state.borrow().peers.get(peer).is_some_and(|peer| peer.dialled)
    }

    /// What to say first over a connection that this end has made.
    pub(crate) fn hello(&self, peer: &NodeId, fresh: SessionId) -> Option<Hello> {
        let mut state = self.state.borrow_mut();
        let peer = state.peers.get_mut(peer)?;
        peer.detach(CloseCode::Replaced, "a newer connection takes its place");
        Some(peer.core.hello(fresh))
    }

    /// The answer to it: the connection now carries the session.
    pub(crate) fn handle_welcome(
        self: &Rc<Self>,
        node: &NodeId,
        connection: &Connection,
        welcome: &Welcome,
    ) -> Result<(), SessionError> {
        let mut state = self.state.borrow_mut();
        let State { peers, events, next_serial } = &mut *state;
        let peer = peers.get_mut(node).ok_or(SessionError::UnknownSession)?;
        let greeted = peer.core.handle_welcome(welcome);
        if greeted.is_ok() {
            self.attach(node, peer, connection, events, next_serial);
        }
        peer.drain(node, self.now(), events);
        greeted
    }

    /// A connection that another node has made and greeted: it now carries the session.
    pub(crate) fn handle_hello(
        self: &Rc<Self>,
        node: &NodeId,
        connection: &Connection,
        hello: &Hello,
    ) -> Result<Welcome, TooManyPeers> {
        let mut state = self.state.borrow_mut();
        let State { peers, events, next_serial } = &mut *state;
        if !peers.contains_key(node) && peers.len() >= PEERS_MAX {
            return Err(TooManyPeers);
        }
        let now = self.now();
        let peer =
            peers.entry(node.clone()).or_insert_with(|| Peer::new(&self.deadlines, now, false));
        peer.detach(CloseCode::Replaced, "a newer connection of this node takes its place");
        let welcome = peer.core.handle_hello(hello);
        peer.drain(node, now, events);
        self.attach(node, peer, connection, events, next_serial);
        Ok(welcome)
    }

    fn attach(
        self: &Rc<Self>,
        node: &NodeId,
        peer: &mut Peer,
        connection: &Connection,
        events: &mut VecDeque<TransportEvent>,
        next_serial: &mut u64,
    ) {
        let now = self.now();
        peer.drain(node, now, events);
        if peer.liveness.handle_connection(now).is_some() {
            events.push_back(link_event(node, LinkEvent::Heard));
        }
        let id = LinkId { peer: node.clone(), serial: *next_serial };
        *next_serial += 1;
        let mut link = Link::start(self, id, connection);
        peer.core.waiting().for_each(|conversation| link.wake(conversation));
        peer.link = Some(link);
        self.house.notify_one();
    }

    /// Runs `act` if this connection still carries the session.
    fn with_peer<R>(&self, at: &LinkId, act: impl FnOnce(&mut Peer) -> R) -> Option<R> {
        let mut state = self.state.borrow_mut();
        let peer = state.peers.get_mut(&at.peer)?;
        peer.link.as_ref().filter(|link| link.id.serial == at.serial)?;
        Some(act(peer))
    }

    /// The next frame to write; `Err` when this connection is no longer the one.
    pub(crate) fn next_frame(
        &self,
        at: &LinkId,
        conversation: Conversation,
    ) -> Result<Option<Transmit>, Detached> {
        self.with_peer(at, |peer| peer.core.poll_transmit(conversation)).ok_or(Detached)
    }

    /// Acknowledgements ride along with what is written anyway.
    pub(crate) fn hurry_acks(&self, at: &LinkId) {
        self.with_peer(at, |peer| {
            if peer.core.has_acks()
                && let Some(link) = &peer.link
            {
                link.acks_now.notify_one();
            }
        });
    }

    pub(crate) fn next_ack(&self, at: &LinkId) -> Result<Option<Ack>, Detached> {
        self.with_peer(at, |peer| peer.core.poll_ack()).ok_or(Detached)
    }

    pub(crate) fn handle_ack(&self, at: &LinkId, ack: Ack) -> Result<(), SessionError> {
        let handled = self.with_peer(at, |peer| {
            let was_open = peer.core.is_bulk_window_open();
            peer.core.handle_ack(ack)?;
            if !was_open
                && peer.core.is_bulk_window_open()
                && let Some(link) = &mut peer.link
            {
                peer.core.waiting().for_each(|conversation| link.wake(conversation));
            }
            if peer.closing.is_some() && peer.core.is_flushed() {
                self.house.notify_one();
            }
            Ok(())
        });
        handled.unwrap_or(Ok(()))
    }

    /// A frame arrived: tells the node, if it is the next one.
    pub(crate) fn handle_frame(
        &self,
        at: &LinkId,
        conversation: Conversation,
        sequence: u64,
        frame: Bytes,
    ) -> Result<(), SessionError> {
        let arrival = self.with_peer(at, |peer| {
            let arrival = peer.core.handle_frame(conversation, sequence, frame.len())?;
            if let Some(link) = &peer.link {
                link.acks_due.notify_one();
                if peer.core.is_ack_due(conversation) {
                    link.acks_now.notify_one();
                }
            }
            Ok(arrival)
        });
        if arrival.transpose()? == Some(Arrival::Deliver) {
            let from = at.peer.clone();
            let event = TransportEvent::Frame { from, conversation, frame };
            self.state.borrow_mut().events.push_back(event);
            self.pump();
        }
        Ok(())
    }

    /// The connection has ended.
    pub(crate) fn handle_end(&self, at: &LinkId, error: &ConnectionError) {
        let ending = Ending::from(error);
        let mut state = self.state.borrow_mut();
        let State { peers, events, .. } = &mut *state;
        let Some(peer) = peers.get_mut(&at.peer) else { return };
        if peer.link.as_ref().is_none_or(|link| link.id.serial != at.serial) {
            return;
        }
        tracing::debug!(peer = %at.peer, %error, "connection ended");
        peer.link = None;
        match ending {
            Ending::Closed(reason) => peer.core.end(LossReason::Closed(reason)),
            _ => peer.core.handle_disconnect(),
        }
        peer.drain(&at.peer, self.now(), events);
        drop(state);
        self.house.notify_one();
        self.pump();
    }

    /// The one timer of the transport: liveness, and sessions to close. Sleeps for good while there is no
    /// peer.
    pub(crate) async fn keep_house(self: Rc<Self>) {
        loop {
            let slept_at = self.now();
            let wait = self.next_look(slept_at);
            match wait {
                // Which of the two it was does not matter.
                Some(wait) => drop(tokio::time::timeout(wait, self.house.notified()).await),
                None => self.house.notified().await,
            }
            let now = self.now();
            let planned = wait.unwrap_or(Duration::MAX);
            let pause = now.since(slept_at).saturating_sub(planned);
            let ended = self
                .look(now, if pause > self.deadlines.suspect / 2 { pause } else { Duration::ZERO });
            self.pump();
            if ended {
                self.ended.notify_one();
            }
        }
    }

    fn next_look(&self, now: Time) -> Option<Duration> {
        let state = self.state.borrow();
        let closing = state.peers.values().filter_map(|peer| peer.closing.as_ref());
        let closing = closing.map(|closing| closing.at.since(now)).min();
        let watched = state.peers.values().any(|peer| peer.core.session().is_some());
        let beat = watched.then_some(self.deadlines.beat);
        closing.into_iter().chain(beat).min()
    }

    /// Looks at every peer; whether any was removed.
    fn look(&self, now: Time, pause: Duration) -> bool {
        let mut state = self.state.borrow_mut();
        let State { peers, events, .. } = &mut *state;
        let before = peers.len();
        peers.retain(|node, peer| {
            if let Some(link) = &peer.link {
                let received = link.connection.stats().udp_rx.datagrams;
                if peer.liveness.handle_received(now, received).is_some() {
                    events.push_back(link_event(node, LinkEvent::Heard));
                }
            }
            peer.liveness.forgive(now, pause);
            if peer.core.session().is_some() {
                judge(node, peer, now, events);
            }
            let due = |closing: &Closing| peer.core.is_flushed() || closing.at <= now;
            if peer.closing.as_ref().is_some_and(due)
                && let Some(Closing { reason, .. }) = peer.closing.take()
            {
                peer.detach(CloseCode::Closed, &reason);
                peer.core.end(LossReason::ClosedHere(reason));
            }
            peer.drain(node, now, events);
            peer.dialled || peer.link.is_some() || peer.core.session().is_some()
        });
        peers.len() < before
    }
}

fn judge(node: &NodeId, peer: &mut Peer, now: Time, events: &mut VecDeque<TransportEvent>) {
    let silent_ms = peer.liveness.silent_ms(now);
    match peer.liveness.handle_timeout(now) {
        Some(Verdict::Silent) => {
            events.push_back(link_event(node, LinkEvent::Silent { silent_ms }));
        }
        Some(Verdict::Lost) => {
            peer.detach(CloseCode::Broken, "not heard for too long");
            peer.core.end(LossReason::Silence { silent_ms });
        }
        Some(Verdict::Heard) | None => {}
    }
}

/// Another connection carries the session now, or none does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detached;
