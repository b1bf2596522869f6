//! Sessions between the driver and everybody else, as the transport's contract (TR-1 to TR-6) has them: a
//! conversation in order, silence after `suspect`, loss after `lost`, what was not delivered given back, a new
//! session with a new `Up`. Loss and reordering of packets are below that: here they are delay.

mod delivery;
mod frame;
mod hearing;
mod sessions;

use std::collections::VecDeque;

use elastic_protocol::{NodeId, Term};

pub(super) use self::frame::Frame;
use super::{Happening, World};
use crate::trace::Place;

/// One of a link's two directions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Lane {
    ToDriver,
    ToPeer,
}

/// One of a link's two ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum End {
    Driver,
    Peer,
}

/// Whose link it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    Agent { host: u32, life: u32 },
    Worker { process: u32 },
}

#[derive(Debug)]
struct InFlight {
    at: u64,
    session: u32,
    frame: Frame,
}

/// One direction's frames.
#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<InFlight>,
    last_at: u64,
    /// Frames whose time came while nothing got through.
    blocked: u32,
}

/// What one end knows of the session.
#[derive(Debug, Default)]
pub(super) struct EndState {
    /// 0: none.
    pub(super) session: u32,
    pub(super) is_silent: bool,
    is_deaf: bool,
    /// Tells the timers of one silence from those of another.
    epoch: u32,
    heard_at: u64,
    /// A notice that the session is over could not get through.
    forget_blocked: Option<u32>,
}

/// The way between the driver and one life of another node.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) owner: Owner,
    pub(super) host: u32,
    pub(super) node: Option<NodeId>,
    pub(super) place: Place,
    /// The job whose driver let it in.
    pub(super) job: Option<u32>,
    /// The life of the driver that it reached last; 0: none yet.
    pub(super) life: u32,
    /// The latest term of a driver that it has reached.
    pub(super) met: Term,
    /// The latest term of a driver that has said `Welcome` to it.
    pub(super) welcomed: Term,
    /// Whether the peer's process lives.
    pub(super) is_alive: bool,
    /// Whether an end has closed it for good.
    is_closed: bool,
    sessions: u32,
    /// The session that was offered to the peer last.
    offered: u32,
    dial_token: u32,
    pub(super) driver: EndState,
    pub(super) peer: EndState,
    to_driver: Queue,
    to_peer: Queue,
}

impl Link {
    pub(super) fn new(owner: Owner, host: u32, node: Option<NodeId>, place: Place) -> Self {
        Self {
            owner,
            host,
            node,
            place,
            job: None,
            life: 0,
            met: Term::default(),
            welcomed: Term::default(),
            is_alive: true,
            is_closed: false,
            sessions: 0,
            offered: 0,
            dial_token: 0,
            driver: EndState::default(),
            peer: EndState::default(),
            to_driver: Queue::default(),
            to_peer: Queue::default(),
        }
    }

    /// The same, of somebody whose job is known from its start.
    pub(super) fn of_job(self, job: u32) -> Self {
        Self { job: Some(job), ..self }
    }

    fn end(&mut self, end: End) -> &mut EndState {
        match end {
            End::Driver => &mut self.driver,
            End::Peer => &mut self.peer,
        }
    }

    /// Frames that are under way.
    pub(super) fn queued(&self, lane: Lane) -> usize {
        match lane {
            Lane::ToDriver => self.to_driver.frames.len(),
            Lane::ToPeer => self.to_peer.frames.len(),
        }
    }

    fn queue(&mut self, lane: Lane) -> &mut Queue {
        match lane {
            Lane::ToDriver => &mut self.to_driver,
            Lane::ToPeer => &mut self.to_peer,
        }
    }
}

impl World {
    /// Puts a new link on record and lets its owner dial after a while.
    pub(super) fn add_link(&mut self, link: Link, dial_at: u64) -> u32 {
        let index = self.links.len() as u32;
        self.links.push(link);
        self.agenda.push(dial_at, Happening::Dial { link: index, token: 0 });
        self.update_hearing(index);
        index
    }
}
