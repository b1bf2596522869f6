//! The network between the driver and all other nodes. Its connections carry frames in order, late or not at all, and
//! end as QUIC's do. The sessions are the product's own, so that the tested code itself keeps TR-1 to TR-6: each life
//! of the driver and each other node has a [`PeersCore`]. Loss and reordering of packets lie below this model and
//! appear as delay. Part of the simulated world.

mod acknowledgements;
mod connections;
mod delivery;
mod dialling;
mod ends;
mod frame;
mod hearing;
mod refusals;
mod sessions;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use elastic_protocol::{NodeId, Term};
use elastic_runtime::session::{Payload, SessionHello, SessionId, SessionWelcome};
use elastic_runtime::transport::Conversation;
use elastic_transport::peers::{CloseCode, LinkId, PeersCore};

use self::acknowledgements::OwedAck;
pub(super) use self::frame::LinkFrame;
use super::{Happening, World};
use crate::trace::TracePlace;

/// One of a link's two directions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LinkDirection {
    ToDriver,
    ToPeer,
}

/// One of a link's two ends.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum LinkSide {
    Driver,
    Peer,
}

impl LinkSide {
    const fn other(self) -> Self {
        match self {
            Self::Driver => Self::Peer,
            Self::Peer => Self::Driver,
        }
    }

    /// The direction that leads to this end.
    const fn incoming(self) -> LinkDirection {
        match self {
            Self::Driver => LinkDirection::ToDriver,
            Self::Peer => LinkDirection::ToPeer,
        }
    }

    /// The direction that leads away from this end.
    const fn outgoing(self) -> LinkDirection {
        self.other().incoming()
    }
}

impl LinkDirection {
    const fn to(self) -> LinkSide {
        match self {
            Self::ToDriver => LinkSide::Driver,
            Self::ToPeer => LinkSide::Peer,
        }
    }
}

/// The node to which a link belongs.
#[derive(Clone, Copy, Debug)]
pub(super) enum LinkOwner {
    Agent { host: u32, life: u32 },
    Worker { process: u32 },
}

/// Payload of a session.
#[derive(Clone, Debug)]
pub(super) struct Carried {
    frame: Rc<LinkFrame>,
    /// Serial number of the frame on its link. Within a conversation it only grows at an end (TR-1).
    serial: u64,
}

impl Carried {
    pub(super) fn into_frame(self) -> LinkFrame {
        Rc::unwrap_or_clone(self.frame)
    }
}

impl Payload for Carried {
    fn weight(&self) -> usize {
        /// Usual size of a decision. Bounds in bytes are tested with the product's transport.
        const USUAL_BYTES: usize = 256;
        match &*self.frame {
            LinkFrame::Wire(packet) => packet.bytes.len(),
            _ => USUAL_BYTES,
        }
    }
}

/// The sessions of one end.
pub(super) type Peers = PeersCore<Carried>;

/// Anything in flight on a connection.
#[derive(Debug)]
enum Wire {
    Hello(SessionHello),
    Welcome(SessionWelcome),
    Frame { conversation: Conversation, sequence: u64, frame: Carried },
    Close { code: CloseCode, reason: String },
}

#[derive(Debug)]
struct InFlight {
    at: u64,
    wire: Wire,
}

/// One direction's frames.
#[derive(Debug, Default)]
struct DirectionQueue {
    frames: VecDeque<InFlight>,
    last_at: u64,
    /// Frames that were due while the direction was blocked.
    blocked: u32,
}

/// One end of a connection.
#[derive(Debug)]
struct ConnectionEnd {
    /// Whether the connection is still open at this end.
    is_open: bool,
    /// The session's id for this connection, once it carries the session.
    link: Option<LinkId>,
    /// World time at which this end last heard the other; set only during silence.
    deaf_since: Option<u64>,
    /// Distinguishes one silence from another.
    epoch: u32,
    /// Whether an acknowledgement is in flight, or blocked.
    acknowledges: bool,
    ack_is_blocked: bool,
    /// The oldest delivery whose acknowledgement the other end does not have.
    owes: Option<OwedAck>,
}

impl ConnectionEnd {
    const fn new() -> Self {
        Self {
            is_open: true,
            link: None,
            deaf_since: None,
            epoch: 0,
            acknowledges: false,
            ack_is_blocked: false,
            owes: None,
        }
    }
}

/// A connection between a life of the driver and another node.
#[derive(Debug)]
struct SimulatedConnection {
    number: u32,
    /// The life of the driver at the other end.
    life: u32,
    driver: ConnectionEnd,
    peer: ConnectionEnd,
    to_driver: DirectionQueue,
    to_peer: DirectionQueue,
}

impl SimulatedConnection {
    fn new(number: u32, life: u32) -> Self {
        Self {
            number,
            life,
            driver: ConnectionEnd::new(),
            peer: ConnectionEnd::new(),
            to_driver: DirectionQueue::default(),
            to_peer: DirectionQueue::default(),
        }
    }

    fn end(&mut self, end: LinkSide) -> &mut ConnectionEnd {
        match end {
            LinkSide::Driver => &mut self.driver,
            LinkSide::Peer => &mut self.peer,
        }
    }

    const fn peek(&self, end: LinkSide) -> &ConnectionEnd {
        match end {
            LinkSide::Driver => &self.driver,
            LinkSide::Peer => &self.peer,
        }
    }

    fn queue(&mut self, lane: LinkDirection) -> &mut DirectionQueue {
        match lane {
            LinkDirection::ToDriver => &mut self.to_driver,
            LinkDirection::ToPeer => &mut self.to_peer,
        }
    }

    /// Whether both ends have closed.
    fn is_over(&self) -> bool {
        !self.driver.is_open && !self.peer.is_open
    }
}

/// The path between the driver and one life of another node.
#[derive(Debug)]
pub(super) struct SimulatedLink {
    pub(super) owner: LinkOwner,
    pub(super) host: u32,
    pub(super) node: Option<NodeId>,
    pub(super) place: TracePlace,
    /// The job whose driver admitted this node.
    pub(super) job: Option<u32>,
    /// The life of the driver that this node reached last; 0 before the first.
    pub(super) life: u32,
    /// The latest term of a driver that this node has reached.
    pub(super) met: Term,
    /// The latest term of a driver that sent `SessionWelcome` to this node.
    pub(super) welcomed: Term,
    /// Whether the peer's process lives.
    pub(super) is_alive: bool,
    /// The peer's sessions: a single one, with its driver.
    peers: Peers,
    /// The driver that this node dials.
    driver: Option<NodeId>,
    connections: Vec<SimulatedConnection>,
    next_connection: u32,
    next_session: u64,
    next_serial: u64,
    /// Highest serial delivered, by end and by the life of the driver involved.
    delivered: BTreeMap<(LinkSide, u32), u64>,
    dial_token: u32,
    /// Whether the driver cannot hear this node.
    is_unheard: bool,
    /// World time of the last look of the driver's sessions at which it heard this node.
    heard_at_look: u64,
    /// World time at which the driver was last told that the peer's port is closed.
    refused_at: u64,
    /// World time at which the driver last lost the session with this node.
    pub(super) lost_at: Option<u64>,
    /// World time at which such a silence last ended.
    unheard_until: u64,
    /// World time of the next check of the peer's sessions.
    armed: u64,
    /// The life of the driver to which this node has come and that has not said anything since, with the world time.
    unanswered: Option<(u32, u64)>,
}

impl SimulatedLink {
    /// The same link for a node whose job is known from its start.
    pub(super) fn of_job(self, job: u32) -> Self {
        Self { job: Some(job), ..self }
    }

    /// The peer's sessions, to look at.
    pub(super) const fn peers(&self) -> &Peers {
        &self.peers
    }

    /// World time at which the driver last heard this node, as far as its sessions have looked.
    pub(super) const fn heard_at(&self) -> u64 {
        self.heard_at_look
    }

    /// Whether a connection carries the session, as far as the peer knows.
    pub(super) fn is_in_touch(&self) -> bool {
        self.driver.as_ref().is_some_and(|driver| self.peers.link(driver).is_some())
    }

    /// World time at which this node came to a life of the driver that has not said anything since.
    pub(super) fn unanswered_since(&self, life: u32) -> Option<u64> {
        self.unanswered.filter(|(of, _)| *of == life).map(|(_, since)| since)
    }

    /// The connection with a number, if it exists.
    fn connection(&mut self, number: u32) -> Option<&mut SimulatedConnection> {
        self.connections.iter_mut().find(|connection| connection.number == number)
    }

    /// The connection with this id at an end.
    fn connection_of(
        &mut self,
        end: LinkSide,
        life: u32,
        link: LinkId,
    ) -> Option<&mut SimulatedConnection> {
        self.connections.iter_mut().find(|it| it.life == life && it.peek(end).link == Some(link))
    }

    fn fresh_session(&mut self) -> SessionId {
        self.next_session += 1;
        SessionId(self.next_session)
    }
}

impl World {
    pub(super) fn new_link(
        &self,
        owner: LinkOwner,
        host: u32,
        node: Option<NodeId>,
        place: TracePlace,
    ) -> SimulatedLink {
        SimulatedLink {
            owner,
            host,
            node,
            place,
            job: None,
            life: 0,
            met: Term::default(),
            welcomed: Term::default(),
            is_alive: true,
            peers: new_peers(&self.scenario.driver.deadlines),
            driver: None,
            connections: Vec::new(),
            next_connection: 0,
            next_session: 0,
            next_serial: 0,
            delivered: BTreeMap::new(),
            dial_token: 0,
            is_unheard: false,
            heard_at_look: 0,
            refused_at: 0,
            lost_at: None,
            unheard_until: 0,
            armed: u64::MAX,
            unanswered: None,
        }
    }

    /// Records a new link and schedules its owner's first attempt to dial.
    pub(super) fn add_link(&mut self, link: SimulatedLink, dial_at: u64) -> u32 {
        let index = self.links.len() as u32;
        self.links.push(link);
        self.agenda.push(dial_at, Happening::Dial { link: index, token: 0 });
        index
    }
}

/// Sessions that are checked only when their silence is due. The world knows what the network lets through and needs
/// no polling.
pub(super) fn new_peers(deadlines: &elastic_protocol::Deadlines) -> Peers {
    PeersCore::new(*deadlines, deadlines.suspect)
}
