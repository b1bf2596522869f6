//! Sessions between the driver and everybody else, as the transport's contract (TR-1 to TR-6) has them: a
//! conversation in order, silence after `suspect`, loss after `lost`, what was not delivered given back, a new
//! session with a new `Up`. Loss and reordering of packets are below that: here they are delay.

use std::collections::VecDeque;

use elastic_protocol::messages::{
    AgentToDriver, DriverToAgent, DriverToWorker, Vote, WorkerToDriver,
};
use elastic_protocol::{Incarnation, NodeId, NodeName};
use elastic_runtime::transport::{LinkEvent, LossReason};
use rand::Rng;

use super::wire::Packet;
use super::{Happening, MS, NONE, World};
use crate::trace::{Kind, Place};

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
pub(super) enum Frame {
    /// The session stands at the driver; it does at the peer when this arrives.
    Up,
    /// The other end has closed the session.
    Close,
    FromAgent(AgentToDriver),
    FromWorker(WorkerToDriver),
    Vote(Vote),
    ToAgent(DriverToAgent),
    ToWorker(DriverToWorker),
    /// Any of the messages, as an actor has sent it.
    Wire(Packet),
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

/// From a failed attempt to reach the driver to the next one.
const REDIAL_NS: (u64, u64) = (50 * MS, 400 * MS);

impl Link {
    pub(super) fn new(owner: Owner, host: u32, node: Option<NodeId>, place: Place) -> Self {
        Self {
            owner,
            host,
            node,
            place,
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

    /// Queues a frame; gives it back if there is no session.
    pub(super) fn send(&mut self, link: u32, lane: Lane, frame: Frame) -> Result<(), Box<Frame>> {
        let from = match lane {
            Lane::ToDriver => End::Peer,
            Lane::ToPeer => End::Driver,
        };
        let session = self.links[link as usize].end(from).session;
        if session == 0 {
            return Err(Box::new(frame));
        }
        self.queue(link, lane, session, frame);
        Ok(())
    }

    fn queue(&mut self, index: u32, lane: Lane, session: u32, frame: Frame) {
        let link = &self.links[index as usize];
        let host = &self.hosts[link.host as usize];
        let mut delay = self.net.random_range(50_000..=self.scenario.delay_ns) + host.extra_delay;
        if self.scenario.loss > 0 && self.net.random_range(0..self.scenario.loss) == 0 {
            delay += self.net.random_range(20 * MS..300 * MS);
        }
        let now = self.now;
        let link = &mut self.links[index as usize];
        let place = link.place;
        let queue = link.queue(lane);
        let at = (now + delay).max(queue.last_at + 1);
        queue.last_at = at;
        let code = frame.code();
        let words = if self.trace.wants_words() { format!("{frame:?}") } else { String::new() };
        queue.frames.push_back(InFlight { at, session, frame });
        self.agenda.push(at, Happening::Deliver { link: index, lane });
        self.trace.record(now, Kind::Send, place, (code, at), || words);
    }

    /// Whether frames get through in a direction now.
    fn is_open(&self, link: &Link, lane: Lane) -> bool {
        let host = &self.hosts[link.host as usize];
        match lane {
            Lane::ToDriver => host.cut_to_driver == 0 && self.driver.runs(),
            Lane::ToPeer => host.cut_from_driver == 0 && link.is_alive && self.peer_runs(link),
        }
    }

    fn peer_runs(&self, link: &Link) -> bool {
        match link.owner {
            Owner::Agent { host, life } => self.hosts[host as usize]
                .agent
                .as_ref()
                .is_some_and(|agent| agent.life == life && agent.stopped == 0),
            Owner::Worker { process } => self.processes[process as usize].stopped == 0,
        }
    }

    pub(super) fn handle_deliver(&mut self, index: u32, lane: Lane) {
        let is_open = self.is_open(&self.links[index as usize], lane);
        let now = self.now;
        let link = &mut self.links[index as usize];
        let queue = link.queue(lane);
        if queue.frames.front().is_none_or(|front| front.at > now) {
            return;
        }
        if !is_open {
            queue.blocked += 1;
            return;
        }
        let Some(InFlight { session, frame, .. }) = queue.frames.pop_front() else { return };
        let to = match lane {
            Lane::ToDriver => End::Driver,
            Lane::ToPeer => End::Peer,
        };
        let is_offer = matches!(frame, Frame::Up) && link.offered == session;
        let is_current = link.end(to).session == session || is_offer;
        let place = link.place;
        let kind = if is_current { Kind::Deliver } else { Kind::Drop };
        let words = if self.trace.wants_words() { format!("{frame:?}") } else { String::new() };
        self.trace.record(now, kind, place, (frame.code(), u64::from(session)), || words);
        if is_current {
            self.accept(index, to, session, frame);
        }
    }

    fn accept(&mut self, index: u32, to: End, session: u32, frame: Frame) {
        let owner = self.links[index as usize].owner;
        match frame {
            Frame::Up => {
                self.links[index as usize].peer.session = session;
                self.peer_link_event(index, LinkEvent::Up);
            }
            Frame::Close => {
                let reason = LossReason::Closed("it has ended".to_owned());
                self.lose(index, to, reason);
            }
            Frame::Wire(packet) => self.hand_packet(index, to, packet),
            Frame::FromAgent(message) => self.driver_hears_agent(index, message),
            Frame::FromWorker(message) => self.driver_hears_worker(index, message),
            Frame::Vote(vote) => self.registry_hears(index, vote),
            Frame::ToAgent(message) => {
                if let Owner::Agent { host, life } = owner {
                    self.agent_hears(host, life, message);
                }
            }
            Frame::ToWorker(message) => {
                if let Owner::Worker { process } = owner {
                    self.worker_hears(process, message);
                }
            }
        }
    }

    /// Something has changed that decides whether frames get through, or whether an end hears the other.
    pub(super) fn reopen(&mut self, index: u32) {
        for lane in [Lane::ToDriver, Lane::ToPeer] {
            if self.is_open(&self.links[index as usize], lane) {
                let blocked = std::mem::take(&mut self.links[index as usize].queue(lane).blocked);
                for _ in 0..blocked {
                    self.agenda.push(self.now, Happening::Deliver { link: index, lane });
                }
                let end = if lane == Lane::ToDriver { End::Driver } else { End::Peer };
                if let Some(session) = self.links[index as usize].end(end).forget_blocked.take() {
                    self.agenda.push(self.now, Happening::Forget { link: index, end, session });
                }
            }
        }
        self.update_hearing(index);
    }

    pub(super) fn reopen_host(&mut self, host: u32) {
        for index in self.links_of(host) {
            self.reopen(index);
        }
    }

    pub(super) fn reopen_all(&mut self) {
        for host in 0..self.hosts.len() as u32 {
            self.reopen_host(host);
        }
    }

    fn links_of(&self, host: u32) -> Vec<u32> {
        let host = &self.hosts[host as usize];
        let agent = host.agent.as_ref().map(|agent| agent.link);
        let workers = host.processes.iter().map(|process| self.processes[*process as usize].link);
        agent.into_iter().chain(workers).collect()
    }

    pub(super) fn update_hearing(&mut self, index: u32) {
        let link = &self.links[index as usize];
        let host = &self.hosts[link.host as usize];
        let driver_is_deaf = !link.is_alive || host.cut_to_driver > 0 || !self.peer_runs(link);
        let peer_is_deaf = host.cut_from_driver > 0 || !self.driver.runs();
        self.set_deaf(index, End::Driver, driver_is_deaf);
        self.set_deaf(index, End::Peer, peer_is_deaf);
    }

    fn set_deaf(&mut self, index: u32, end: End, is_deaf: bool) {
        let deadlines = self.scenario.driver.deadlines;
        let since_beat = self.net.random_range(0..=deadlines.beat.as_nanos() as u64);
        let heard_at = self.now.saturating_sub(since_beat);
        let state = self.links[index as usize].end(end);
        if state.is_deaf == is_deaf {
            return;
        }
        state.is_deaf = is_deaf;
        state.epoch += 1;
        let epoch = state.epoch;
        if is_deaf {
            state.heard_at = heard_at;
            for (after, is_lost) in [(deadlines.suspect, false), (deadlines.lost, true)] {
                let at = heard_at + after.as_nanos() as u64;
                self.agenda.push(at, Happening::Silence { link: index, end, epoch, is_lost });
            }
        } else if std::mem::take(&mut state.is_silent) && state.session != 0 {
            self.link_event(index, end, LinkEvent::Heard);
        }
    }

    /// Whether the node at an end runs, so that its timers fire; one that does not gets them later.
    fn end_runs(&self, index: u32, end: End) -> bool {
        match end {
            End::Driver => self.driver.runs(),
            End::Peer => {
                let link = &self.links[index as usize];
                link.is_alive && self.peer_runs(link)
            }
        }
    }

    pub(super) fn handle_silence(&mut self, index: u32, end: End, epoch: u32, is_lost: bool) {
        let now = self.now;
        if !self.end_runs(index, end) {
            // A node that stands still notices nothing; if the silence is still on when it runs again, it
            // counts from then.
            let happening = Happening::Silence { link: index, end, epoch, is_lost };
            match (end, self.links[index as usize].owner) {
                (End::Driver, _) => self.driver.frozen.push(happening),
                (End::Peer, Owner::Worker { process }) => {
                    self.freeze(process, happening);
                }
                (End::Peer, Owner::Agent { host, life }) => {
                    if let Some(agent) = self.agent_mut(host, life) {
                        agent.frozen.push(happening);
                    }
                }
            }
            return;
        }
        let state = self.links[index as usize].end(end);
        if state.epoch != epoch || state.session == 0 {
            return;
        }
        let silent_ms = now.saturating_sub(state.heard_at) / MS;
        if is_lost {
            self.lose(index, end, LossReason::Silence { silent_ms });
        } else {
            state.is_silent = true;
            self.link_event(index, end, LinkEvent::Silent { silent_ms });
        }
    }

    /// An end gives its session up, for whatever reason.
    pub(super) fn lose(&mut self, index: u32, end: End, reason: LossReason) {
        let now = self.now;
        let link = &mut self.links[index as usize];
        let state = link.end(end);
        let session = std::mem::take(&mut state.session);
        if session == 0 {
            return;
        }
        state.is_silent = false;
        let silent_ms = if state.is_deaf { now.saturating_sub(state.heard_at) / MS } else { 0 };
        let (lane, other) = match end {
            End::Driver => (Lane::ToPeer, End::Peer),
            End::Peer => (Lane::ToDriver, End::Driver),
        };
        let queue = link.queue(lane);
        queue.blocked = 0;
        let (mut returned, mut rest) = (Vec::new(), VecDeque::new());
        for in_flight in queue.frames.drain(..) {
            if in_flight.session == session {
                returned.push(in_flight.frame);
            } else {
                rest.push_back(in_flight);
            }
        }
        queue.frames = rest;
        self.link_event(index, end, LinkEvent::Lost { reason, silent_ms });
        for frame in returned {
            self.return_frame(index, end, frame);
        }
        let delay = self.net.random_range(50_000..=self.scenario.delay_ns);
        self.agenda.push(now + delay, Happening::Forget { link: index, end: other, session });
        if end == End::Peer {
            self.dial_again(index);
        }
    }

    fn return_frame(&mut self, index: u32, end: End, frame: Frame) {
        let link = &self.links[index as usize];
        let (place, owner) = (link.place, link.owner);
        self.record(Kind::Return, place, (frame.code(), 0), String::new);
        let frame = match frame {
            Frame::Wire(packet) => return self.hand_back(index, end, packet),
            frame => frame,
        };
        if let (End::Peer, Frame::FromAgent(message), Owner::Agent { host, life }) =
            (end, frame, owner)
        {
            self.agent_gets_back(host, life, message);
        }
    }

    /// The other end has forgotten the session.
    pub(super) fn handle_forget(&mut self, index: u32, end: End, session: u32) {
        let lane = match end {
            End::Driver => Lane::ToDriver,
            End::Peer => Lane::ToPeer,
        };
        let is_open = self.is_open(&self.links[index as usize], lane);
        let link = &mut self.links[index as usize];
        if !is_open {
            link.end(end).forget_blocked = Some(session);
            return;
        }
        if link.end(end).session == session {
            self.lose(index, end, LossReason::Forgotten);
        } else if end == End::Peer && link.peer.session == 0 && link.offered == session {
            self.dial_again(index);
        }
    }

    fn dial_again(&mut self, index: u32) {
        let wait = self.net.random_range(REDIAL_NS.0..=REDIAL_NS.1);
        let link = &mut self.links[index as usize];
        link.dial_token += 1;
        let token = link.dial_token;
        self.agenda.push(self.now + wait, Happening::Dial { link: index, token });
    }

    pub(super) fn handle_dial(&mut self, index: u32, token: u32) {
        let link = &self.links[index as usize];
        let is_wanted = link.is_alive && !link.is_closed;
        if !is_wanted || link.dial_token != token || link.peer.session != 0 {
            return;
        }
        let is_reachable = self.is_open(link, Lane::ToDriver) && self.is_open(link, Lane::ToPeer);
        if !is_reachable || self.driver.has_left {
            return self.dial_again(index);
        }
        let place = link.place;
        self.record(Kind::Dial, place, (u64::from(token), 0), String::new);
        if self.links[index as usize].node.is_none() {
            self.enrol(index);
        }
        if self.links[index as usize].driver.session != 0 {
            self.lose(index, End::Driver, LossReason::Forgotten);
        }
        let link = &mut self.links[index as usize];
        link.sessions += 1;
        let session = link.sessions;
        link.offered = session;
        link.driver.session = session;
        link.driver.is_silent = false;
        self.queue(index, Lane::ToPeer, session, Frame::Up);
        self.link_event(index, End::Driver, LinkEvent::Up);
    }

    /// Gives an agent its identity on first contact.
    pub(super) fn enrol(&mut self, index: u32) -> NodeId {
        let host = self.links[index as usize].host;
        let name = NodeName::Agent(self.hosts[host as usize].name.clone());
        let incarnation = Incarnation(self.agent_links.len() as u64);
        self.agent_links.push(index);
        let node = NodeId { name, incarnation };
        self.links[index as usize].node = Some(node.clone());
        node
    }

    /// Remembers whose link an incarnation's is.
    pub(super) fn know(&mut self, incarnation: u64, link: u32) {
        let at = incarnation as usize;
        if self.by_incarnation.len() <= at {
            self.by_incarnation.resize(at + 1, NONE);
        }
        self.by_incarnation[at] = link;
    }

    /// The peer's process has ended. With a clean end it has closed the session; otherwise the driver may
    /// be told by the network, or hears nothing any more.
    pub(super) fn end_peer(&mut self, index: u32, is_clean: bool, is_told: bool) {
        let link = &mut self.links[index as usize];
        link.is_alive = false;
        let is_closed = link.is_closed;
        let session = std::mem::take(&mut link.peer.session);
        if is_clean && session != 0 {
            self.queue(index, Lane::ToDriver, session, Frame::Close);
        } else if is_told && !is_closed {
            let session = self.links[index as usize].driver.session;
            let delay = self.net.random_range(50_000..=self.scenario.delay_ns);
            let forget = Happening::Forget { link: index, end: End::Driver, session };
            self.agenda.push(self.now + delay, forget);
        }
        self.update_hearing(index);
    }

    /// An end closes its session for good: the other one hears of it after what is under way. For how long it
    /// had not heard the other, in milliseconds, if there was a session.
    pub(super) fn close(&mut self, index: u32, end: End) -> Option<u64> {
        let now = self.now;
        let link = &mut self.links[index as usize];
        let state = link.end(end);
        let session = std::mem::take(&mut state.session);
        if session == 0 {
            return None;
        }
        state.is_silent = false;
        let silent_ms = if state.is_deaf { now.saturating_sub(state.heard_at) / MS } else { 0 };
        let lane = match end {
            End::Driver => Lane::ToPeer,
            End::Peer => Lane::ToDriver,
        };
        // Whom the driver closes may come again; who closes itself does not.
        link.is_closed = end == End::Peer;
        let place = link.place;
        self.queue(index, lane, session, Frame::Close);
        self.record(Kind::Link, place, (end as u64, 4), String::new);
        Some(silent_ms)
    }

    fn link_event(&mut self, index: u32, end: End, event: LinkEvent) {
        let place = self.links[index as usize].place;
        let code = match event {
            LinkEvent::Up => 0,
            LinkEvent::Silent { .. } => 1,
            LinkEvent::Heard => 2,
            LinkEvent::Lost { .. } => 3,
        };
        self.record(Kind::Link, place, (end as u64, code), || format!("at {end:?}: {event:?}"));
        match end {
            End::Driver if self.hub.is_some() => self.tell_node_of_link(index, end, &event),
            End::Driver => self.driver_link_event(index, &event),
            End::Peer => self.peer_link_event(index, event),
        }
    }

    fn peer_link_event(&mut self, index: u32, event: LinkEvent) {
        if self.hub.is_some() {
            return self.tell_node_of_link(index, End::Peer, &event);
        }
        match self.links[index as usize].owner {
            Owner::Agent { host, life } => self.agent_link_event(host, life, &event),
            Owner::Worker { process } => self.worker_link_event(process, &event),
        }
    }
}

impl Frame {
    /// What goes into the trace's hash.
    pub(super) fn code(&self) -> u64 {
        match self {
            Self::Wire(packet) => packet.code,
            Self::Up => 1,
            Self::Close => 2,
            Self::FromAgent(message) => {
                0x100
                    + match message {
                        AgentToDriver::Join { .. } => 0,
                        AgentToDriver::Started { .. } => 1,
                        AgentToDriver::StartFailed { .. } => 2,
                        AgentToDriver::Exited { .. } => 3,
                        AgentToDriver::Drain { .. } => 4,
                    }
            }
            Self::FromWorker(message) => {
                0x200
                    + match message {
                        WorkerToDriver::Attach { .. } => 0,
                        WorkerToDriver::Arrived { stamp, .. } => 1 | stamp.generation.0 << 16,
                        WorkerToDriver::Paused { boundary, .. } => 2 | boundary << 16,
                        WorkerToDriver::CollectiveFailed { stamp, .. } => {
                            3 | stamp.generation.0 << 16
                        }
                        WorkerToDriver::Progress { step, .. } => 4 | step.0 << 16,
                        WorkerToDriver::Leaving { .. } => 5,
                    }
            }
            Self::Vote(vote) => 0x300 | vote.stamp.generation.0 << 16,
            Self::ToAgent(message) => {
                0x400
                    + match message {
                        DriverToAgent::Welcome { .. } => 0,
                        DriverToAgent::Refused { .. } => 1,
                        DriverToAgent::Start { worker, .. } => 2 | worker.incarnation.0 << 16,
                        DriverToAgent::Stop { worker, .. } => 3 | worker.incarnation.0 << 16,
                        DriverToAgent::Leave { .. } => 4,
                    }
            }
            Self::ToWorker(message) => {
                0x500
                    + match message {
                        DriverToWorker::Welcome { .. } => 0,
                        DriverToWorker::Assign(placement) => {
                            1 | u64::from(placement.rank) << 16 | placement.stamp.generation.0 << 32
                        }
                        DriverToWorker::Go { stamp } => 2 | stamp.generation.0 << 16,
                        DriverToWorker::Pause { stamp } => 3 | stamp.generation.0 << 16,
                        DriverToWorker::StopAt { boundary, .. } => 4 | boundary << 16,
                        DriverToWorker::Resume { stamp } => 5 | stamp.generation.0 << 16,
                        DriverToWorker::Abort { stamp, .. } => 6 | stamp.generation.0 << 16,
                        DriverToWorker::Leave { .. } => 7,
                        DriverToWorker::Finished { .. } => 8,
                    }
            }
        }
    }
}
