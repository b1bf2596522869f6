//! [`QuicLinks`]: the connections that carry this node's sessions, around the core that decides about them
//! ([`PeersCore`]). The transport, the listener and the dialer share one; the tasks of a connection (`link`)
//! call back into it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use elastic_protocol::{Deadlines, NodeId, NodeName, Time};
use elastic_runtime::session::{
    Ack, SessionError, SessionHello, SessionId, SessionWelcome, Transmit,
};
use elastic_runtime::transport::{Conversation, SendError, TransportSink};
use quinn::{Connection, ConnectionError};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::peers::{
    CloseCode, Detached, HelloRefusal, LinkId, LinkOutput, PeersCore, TransportStage,
};
use crate::quic::closing::{ConnectionClose, close};
use crate::quic::greeting::Greeting;
use crate::quic::link::QuicLink;
use crate::quic::process_identity::ProcessIdentity;

pub(crate) struct QuicLinks {
    local: NodeId,
    origin: Instant,
    sink: TransportSink,
    core: RefCell<PeersCore>,
    /// The connection of each link that the core has attached.
    open: RefCell<BTreeMap<LinkId, QuicLink>>,
    /// This process, where the kernel tells.
    own_process: Option<ProcessIdentity>,
    /// The processes of the agents that are beside this one: the kernel tells whether they are starved.
    beside: RefCell<BTreeMap<NodeId, ProcessBeside>>,
    /// Wakes the one timer task: the core may have an earlier deadline.
    timer: Notify,
    /// Signals that the core is closed; `drain` waits for it.
    closed: Notify,
}

/// The process of a peer, on this machine.
struct ProcessBeside {
    identity: ProcessIdentity,
    /// Whether it was told that the peer is starved, in its present silence.
    is_told: bool,
}

impl QuicLinks {
    pub(crate) fn new(local: NodeId, deadlines: Deadlines, sink: TransportSink) -> Rc<Self> {
        Rc::new(Self {
            local,
            origin: Instant::now(),
            sink,
            // A connection does not report received packets, so it is asked once a beat.
            core: RefCell::new(PeersCore::new(deadlines, deadlines.beat)),
            open: RefCell::default(),
            own_process: ProcessIdentity::own(),
            beside: RefCell::default(),
            timer: Notify::new(),
            closed: Notify::new(),
        })
    }

    pub(crate) fn local(&self) -> &NodeId {
        &self.local
    }

    /// This process, where the kernel tells.
    pub(crate) fn own_process(&self) -> Option<ProcessIdentity> {
        self.own_process
    }

    pub(crate) fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    /// Calls the core, and carries out its outputs.
    fn with<R>(&self, act: impl FnOnce(&mut PeersCore) -> R) -> R {
        let (result, timeout_changed) = {
            let mut core = self.core.borrow_mut();
            let before = core.poll_timeout();
            let result = act(&mut core);
            (result, core.poll_timeout() != before)
        };
        self.carry_out();
        if timeout_changed {
            self.timer.notify_one();
        }
        result
    }

    fn carry_out(&self) {
        loop {
            let Some(output) = self.core.borrow_mut().poll_output() else { return };
            match output {
                LinkOutput::Close { link, code, reason } => {
                    let link = self.open.borrow_mut().remove(&link);
                    if let Some(link) = link {
                        close(&link.connection, code, &reason);
                    }
                }
                LinkOutput::Wake { link, conversation } => {
                    if let Some(link) = self.open.borrow_mut().get_mut(&link) {
                        link.wake(conversation);
                    }
                }
                LinkOutput::Acknowledge { link, at_once } => {
                    if let Some(link) = self.open.borrow().get(&link) {
                        link.acknowledge(at_once);
                    }
                }
            }
        }
    }

    /// Reports events to the node. Called from tasks only, outside of any borrow, because the node may call
    /// `send` in turn.
    pub(crate) fn pump(&self) {
        loop {
            let Some(event) = self.core.borrow_mut().poll_event() else { return };
            (self.sink)(event);
        }
    }

    pub(crate) fn send(
        &self,
        to: &NodeId,
        conversation: Conversation,
        frame: Bytes,
    ) -> Result<(), SendError> {
        self.with(|core| core.send(to, conversation, frame)).map_err(|refused| SendError {
            to: to.clone(),
            frame: refused.frame,
            reason: refused.reason,
        })
    }

    /// Begins to close the session with a peer; the timer task ends it.
    pub(crate) fn close(&self, peer: &NodeId, reason: &str) {
        self.with(|core| core.close(self.now(), peer, reason, None));
    }

    /// Shuts down, and returns once every session is closed: after `grace` at the latest.
    pub(crate) async fn drain(&self, reason: &str, grace: Duration) {
        self.with(|core| core.drain(self.now(), reason, grace));
        while self.core.borrow().stage() != TransportStage::Closed {
            self.closed.notified().await;
        }
    }

    /// Drops all connections at once, without an event to the node.
    pub(crate) fn stop(&self, reason: &str) {
        self.with(|core| core.stop(reason));
    }

    /// Breaks the connection with a peer; the session goes on.
    pub(crate) fn reconnect(&self, peer: &NodeId) {
        let link = self.core.borrow().link(peer);
        if let Some(link) = link
            && let Some(link) = self.open.borrow().get(&link)
        {
            close(&link.connection, CloseCode::Broken, "to be made again");
        }
    }

    /// Registers a peer with which this end will make connections.
    pub(crate) fn add_dialled(&self, peer: &NodeId) {
        self.with(|core| core.add_dialled(self.now(), peer));
    }

    /// Replaces a peer by another node at the same address: the session with the old one is over.
    pub(crate) fn replace_dialled(&self, old: &NodeId, new: &NodeId) {
        self.with(|core| core.replace_dialled(self.now(), old, new));
    }

    /// Whether this end still wants connections with a peer.
    pub(crate) fn is_dialled(&self, peer: &NodeId) -> bool {
        self.core.borrow().is_dialled(peer)
    }

    /// The first message over a connection that this end has made.
    pub(crate) fn hello(&self, peer: &NodeId, fresh: SessionId) -> Option<SessionHello> {
        self.with(|core| core.hello(peer, fresh))
    }

    /// Takes the answer to the hello: the connection now carries the session.
    pub(crate) fn handle_welcome(
        self: &Rc<Self>,
        node: &NodeId,
        connection: &Connection,
        welcome: &SessionWelcome,
    ) -> Result<(), SessionError> {
        self.with(|core| {
            let link = core.handle_welcome(self.now(), node, welcome)?;
            self.start(link, node, connection);
            Ok(())
        })
    }

    /// Takes the hello of another node over a connection that it has made, which now carries the session.
    pub(crate) fn handle_hello(
        self: &Rc<Self>,
        node: &NodeId,
        connection: &Connection,
        greeting: &Greeting,
    ) -> Result<SessionWelcome, HelloRefusal> {
        let welcome = self.with(|core| {
            let (link, welcome) = core.handle_hello(self.now(), node, &greeting.session)?;
            self.start(link, node, connection);
            Ok(welcome)
        })?;
        self.note_process(node, greeting.process);
        Ok(welcome)
    }

    /// Keeps the process of an agent that is beside this one. A worker's session is not served by its main thread.
    fn note_process(&self, node: &NodeId, process: Option<ProcessIdentity>) {
        let is_agent = matches!(node.name, NodeName::Agent(_));
        let is_beside = |identity: &ProcessIdentity| {
            self.own_process.is_some_and(|own| own.is_beside(identity))
        };
        if let Some(identity) = process.filter(|identity| is_agent && is_beside(identity)) {
            let process = ProcessBeside { identity, is_told: false };
            self.beside.borrow_mut().insert(node.clone(), process);
        }
    }

    /// Tells the core which silent agents are starved: their processes wait for this machine's processors or disks.
    fn see_who_is_starved(&self, core: &mut PeersCore, now: Time) {
        self.beside.borrow_mut().retain(|node, process| {
            if !core.is_quiet(now, node) {
                process.is_told = false;
            } else if process.identity.waits_for_its_machine() {
                core.handle_starved(now, node);
                if !std::mem::replace(&mut process.is_told, true) {
                    tracing::warn!(
                        %node,
                        "it is starved: its process waits for a processor or a disk of this machine; its silence does not count"
                    );
                }
            }
            core.session(node).is_some()
        });
    }

    /// Starts a connection's tasks, before any output of the core about it is carried out.
    fn start(self: &Rc<Self>, id: LinkId, node: &NodeId, connection: &Connection) {
        let link = QuicLink::start(self, id, node, connection);
        self.open.borrow_mut().insert(id, link);
    }

    /// The next frame to write.
    pub(crate) fn next_frame(
        &self,
        at: LinkId,
        conversation: Conversation,
    ) -> Result<Option<Transmit>, Detached> {
        self.core.borrow_mut().poll_transmit(at, conversation)
    }

    /// Takes note of a write: acknowledgements ride along.
    pub(crate) fn handle_written(&self, at: LinkId) {
        self.core.borrow_mut().handle_written(at);
        self.carry_out();
    }

    pub(crate) fn next_ack(&self, at: LinkId) -> Result<Option<Ack>, Detached> {
        self.core.borrow_mut().poll_ack(at)
    }

    pub(crate) fn handle_ack(&self, at: LinkId, ack: Ack) -> Result<(), SessionError> {
        self.with(|core| core.handle_ack(at, ack))
    }

    /// Takes an incoming frame, and reports it to the node if it is the next one.
    pub(crate) fn handle_frame(
        &self,
        at: LinkId,
        conversation: Conversation,
        sequence: u64,
        frame: Bytes,
    ) -> Result<(), SessionError> {
        self.core.borrow_mut().handle_frame(at, conversation, sequence, frame)?;
        self.carry_out();
        self.pump();
        Ok(())
    }

    /// Takes note that a connection has ended.
    pub(crate) fn handle_end(&self, at: LinkId, error: &ConnectionError) {
        let link = self.open.borrow_mut().remove(&at);
        if let Some(link) = &link {
            tracing::debug!(peer = %link.peer(), %error, "connection ended");
        }
        self.with(|core| core.handle_link_end(self.now(), at, ConnectionClose::from(error).into()));
        self.pump();
        self.tell_if_closed();
        // Drops the link with its tasks, of which this is one: nothing may be awaited after this.
        drop(link);
    }

    /// Takes note that the host at this address has refused a datagram.
    pub(crate) fn handle_refused(&self, address: SocketAddr) {
        let is_there = |link: &QuicLink| {
            let there = link.connection.remote_address();
            there.port() == address.port() && there.ip().to_canonical() == address.ip()
        };
        let open = self.open.borrow();
        let refused = open.iter().find(|(_, link)| is_there(link));
        if let Some((id, link)) = refused.map(|(id, link)| (*id, link)) {
            tracing::debug!(peer = %link.peer(), "its port is closed");
            drop(open);
            self.with(|core| core.handle_refused(self.now(), id));
        }
    }

    /// The one timer of the transport. Sleeps for good while the core waits for nothing.
    pub(crate) async fn keep_time(self: Rc<Self>) {
        loop {
            let due = self.core.borrow().poll_timeout();
            match due {
                // It does not matter which of the two ended the wait.
                Some(due) if self.now() < due => {
                    let wait = due.since(self.now());
                    drop(tokio::time::timeout(wait, self.timer.notified()).await);
                }
                Some(_) => {
                    // Connections run before the timer, so that received datagrams are seen first.
                    tokio::task::yield_now().await;
                    self.look();
                }
                None => self.timer.notified().await,
            }
        }
    }

    fn look(&self) {
        let now = self.now();
        {
            let mut core = self.core.borrow_mut();
            for (id, link) in &mut *self.open.borrow_mut() {
                if link.was_heard() {
                    core.handle_heard(*id, now);
                }
            }
            self.see_who_is_starved(&mut core, now);
        }
        if let Some(pause) = self.with(|core| core.handle_timeout(now)) {
            let pause_ms = pause.as_millis() as u64;
            tracing::warn!(
                pause_ms,
                "this process stood still; its peers' silence of that time does not count"
            );
        }
        self.pump();
        self.tell_if_closed();
    }

    fn tell_if_closed(&self) {
        if self.core.borrow().stage() == TransportStage::Closed {
            self.closed.notify_one();
        }
    }
}
