//! Sessions: dialled, lost, forgotten, closed.

use std::collections::VecDeque;

use elastic_protocol::{Incarnation, NodeId, NodeName};
use elastic_runtime::transport::{LinkEvent, LossReason, TransportEvent};
use rand::Rng;

use super::super::{Happening, MS, NONE, World};
use super::{End, Frame, Lane, Owner};
use crate::trace::Kind;

/// From a failed attempt to reach the driver to the next one.
const REDIAL_NS: (u64, u64) = (50 * MS, 400 * MS);

impl World {
    /// An end gives its session up, for whatever reason.
    pub(in crate::cores) fn lose(&mut self, index: u32, end: End, reason: LossReason) {
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

    /// The sessions of a host's nodes are lost, with what is under way, and made again.
    pub(in crate::cores) fn break_links(&mut self, host: u32) {
        for index in self.links_of(host) {
            self.lose(index, End::Peer, LossReason::Forgotten);
        }
    }

    /// The other end has forgotten the session.
    pub(in crate::cores) fn handle_forget(&mut self, index: u32, end: End, session: u32) {
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

    pub(in crate::cores) fn handle_dial(&mut self, index: u32, token: u32) {
        let link = &self.links[index as usize];
        let is_wanted = link.is_alive && !link.is_closed;
        if !is_wanted || link.dial_token != token || link.peer.session != 0 {
            return;
        }
        let host = &self.hosts[link.host as usize];
        let is_cut = host.cut_to_driver > 0 || host.cut_from_driver > 0 || !self.peer_runs(link);
        let (job, met) = (link.job, link.met);
        let life = if is_cut { None } else { self.life_in_reach(job, met) };
        let Some(life) = life else { return self.dial_again(index) };
        let link = &self.links[index as usize];
        let place = link.place;
        self.record(Kind::Dial, place, (u64::from(token), 0), String::new);
        if self.links[index as usize].node.is_none() {
            self.in_life(life, |world| world.enrol(index));
        }
        self.leave_life(index, life);
        let link = &mut self.links[index as usize];
        link.sessions += 1;
        let session = link.sessions;
        link.offered = session;
        link.driver.session = session;
        link.driver.is_silent = false;
        self.queue(index, Lane::ToPeer, session, Frame::Up);
        self.link_event(index, End::Driver, LinkEvent::Up);
    }

    /// A peer turns to a life of the driver, which may not be the one that had a session with it.
    fn leave_life(&mut self, index: u32, life: u32) {
        let job = self.life(life).map(|driver| driver.job);
        let term = self.term_of(life);
        let link = &mut self.links[index as usize];
        let before = link.life;
        if before == life {
            if link.driver.session != 0 {
                self.lose(index, End::Driver, LossReason::Forgotten);
            }
            return;
        }
        link.life = life;
        link.job = job;
        link.met = link.met.max(term);
        if std::mem::take(&mut link.driver.session) != 0 {
            // The former driver finds out by silence.
            let lost = self.scenario.driver.deadlines.lost.as_nanos() as u64;
            let outlived = Happening::Outlived { link: index, life: before };
            self.agenda.push(self.now + lost, outlived);
        }
        self.update_hearing(index);
    }

    /// A former driver finds that somebody has not been heard for long.
    pub(in crate::cores) fn handle_outlived(&mut self, link: u32, life: u32) {
        if self.links[link as usize].life == life {
            return;
        }
        let silent_ms = self.scenario.driver.deadlines.lost.as_millis() as u64;
        let event = LinkEvent::Lost { reason: LossReason::Silence { silent_ms }, silent_ms };
        self.in_life(life, |world| {
            if world.driver.stopped > 0 {
                return world.driver.frozen.push(Happening::Outlived { link, life });
            }
            world.driver_end_event(link, &event);
        });
    }

    fn driver_end_event(&mut self, index: u32, event: &LinkEvent) {
        if self.hub.is_none() {
            return self.driver_link_event(index, event);
        }
        if let (Some(driver), Some(peer)) = (self.driver.node(), &self.links[index as usize].node) {
            driver.tell(TransportEvent::Link { peer: peer.clone(), event: event.clone() });
        }
    }

    /// Gives an agent its identity on first contact.
    pub(in crate::cores) fn enrol(&mut self, index: u32) -> NodeId {
        let host = self.links[index as usize].host;
        let name = NodeName::Agent(self.hosts[host as usize].name.clone());
        let incarnation = Incarnation::enrolled(self.driver.term, self.agent_links.len() as u64);
        self.agent_links.push(index);
        let node = NodeId { name, incarnation };
        self.links[index as usize].node = Some(node.clone());
        node
    }

    /// Remembers whose link an incarnation's is.
    pub(in crate::cores) fn know(&mut self, job: u32, incarnation: u64, link: u32) {
        let (job, at) = (job as usize, incarnation as usize);
        if self.by_incarnation.len() <= job {
            self.by_incarnation.resize(job + 1, Vec::new());
        }
        let links = &mut self.by_incarnation[job];
        if links.len() <= at {
            links.resize(at + 1, NONE);
        }
        links[at] = link;
    }

    /// The peer's process has ended. With a clean end it has closed the session; otherwise the driver may
    /// be told by the network, or hears nothing any more.
    pub(in crate::cores) fn end_peer(&mut self, index: u32, is_clean: bool, is_told: bool) {
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
    pub(in crate::cores) fn close(&mut self, index: u32, end: End) -> Option<u64> {
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

    pub(super) fn link_event(&mut self, index: u32, end: End, event: LinkEvent) {
        let place = self.links[index as usize].place;
        let code = match event {
            LinkEvent::Up => 0,
            LinkEvent::Silent { .. } => 1,
            LinkEvent::Heard => 2,
            LinkEvent::Lost { .. } => 3,
        };
        self.record(Kind::Link, place, (end as u64, code), || format!("at {end:?}: {event:?}"));
        match end {
            End::Driver => {
                let life = self.links[index as usize].life;
                self.in_life(life, |world| world.driver_end_event(index, &event));
            }
            End::Peer => self.peer_link_event(index, event),
        }
    }

    pub(super) fn peer_link_event(&mut self, index: u32, event: LinkEvent) {
        if self.hub.is_some() {
            return self.tell_node_of_link(index, End::Peer, &event);
        }
        match self.links[index as usize].owner {
            Owner::Agent { host, life } => self.agent_link_event(host, life, &event),
            Owner::Worker { process } => self.worker_link_event(process, &event),
        }
    }
}
