//! Delivery of frames in flight: delayed, in order, held back while the direction is blocked. Part of the simulated network.

use std::rc::Rc;

use elastic_protocol::Time;
use elastic_protocol::messages::{DriverToAgent, DriverToWorker, WorkerToDriver};
use elastic_runtime::session::RefusedFrame;
use elastic_runtime::transport::{Conversation, SendErrorReason};
use elastic_transport::peers::{CloseCode, LinkEnd};

use super::super::{Happening, World};
use super::{Carried, InFlight, LinkDirection, LinkFrame, LinkOwner, LinkSide, Wire};
use crate::decisions::words;
use crate::trace::TraceKind;

impl World {
    /// World time as the sessions' clock.
    pub(super) fn local_now(&self) -> Time {
        Time(self.now)
    }

    /// Gives a frame to the session. Returns it if there is no session or too much is queued.
    pub(in crate::cores) fn send(
        &mut self,
        link: u32,
        lane: LinkDirection,
        frame: LinkFrame,
    ) -> Result<(), Box<RefusedFrame<Carried>>> {
        let conversation = match &frame {
            LinkFrame::Wire(packet) => packet.conversation,
            _ => Conversation::Control,
        };
        let from = lane.to().other();
        self.note_said(link, &frame);
        let entry = &self.links[link as usize];
        let to = match from {
            LinkSide::Driver => entry.node.clone(),
            LinkSide::Peer => entry.driver.clone(),
        };
        let entry = &mut self.links[link as usize];
        if from == LinkSide::Driver {
            entry.unanswered = None;
        }
        entry.next_serial += 1;
        let frame = Carried { frame: Rc::new(frame), serial: entry.next_serial };
        let Some(to) = to else {
            return Err(Box::new(RefusedFrame { frame, reason: SendErrorReason::NoSession }));
        };
        let sent = self.peers(link, from).send(&to, conversation, frame);
        self.serve(link, from);
        sent.map_err(Box::new)
    }

    /// Notes a frame that a node sends. An encoded message is noted where it is decoded.
    pub(in crate::cores) fn note_said(&mut self, link: u32, frame: &LinkFrame) {
        let checked = self.check_report(link, frame);
        self.demand(checked);
        if !self.trace.decisions.is_wanted() {
            return;
        }
        let place = self.links[link as usize].place;
        match frame {
            LinkFrame::FromAgent(message) => self.decide(place, || words::from_agent(message)),
            LinkFrame::FromWorker(message) => self.decide(place, || words::from_worker(message)),
            LinkFrame::Vote(vote) => self.decide(place, || words::vote(vote)),
            LinkFrame::ToAgent(message) => {
                self.driver_decides(|| {
                    format!("to {}: {}", place.label(), words::to_agent(message))
                });
            }
            LinkFrame::ToWorker(message) => {
                self.driver_decides(|| {
                    format!("to {}: {}", place.label(), words::to_worker(message))
                });
            }
            LinkFrame::Wire(_) => {}
        }
    }

    pub(in crate::cores) fn handle_deliver(
        &mut self,
        index: u32,
        number: u32,
        lane: LinkDirection,
    ) {
        let Some(connection) = self.links[index as usize].connection(number) else { return };
        let life = connection.life;
        let is_open = self.is_open(&self.links[index as usize], life, lane);
        let now = self.now;
        let link = &mut self.links[index as usize];
        let place = link.place;
        let Some(connection) = link.connection(number) else { return };
        let queue = connection.queue(lane);
        if queue.frames.front().is_none_or(|front| front.at > now) {
            return;
        }
        if !is_open {
            queue.blocked += 1;
            return;
        }
        let Some(InFlight { wire, .. }) = queue.frames.pop_front() else { return };
        let is_current = connection.end(lane.to()).is_open;
        let kind = if is_current { TraceKind::Deliver } else { TraceKind::Drop };
        let words = if self.trace.wants_words() { format!("{wire:?}") } else { String::new() };
        self.trace.record(now, kind, place, (wire.code(), u64::from(number)), || words);
        if !is_current {
            return;
        }
        match lane.to() {
            LinkSide::Driver => {
                self.in_life(life, |world| world.take(index, number, LinkSide::Driver, wire));
            }
            LinkSide::Peer => self.take(index, number, LinkSide::Peer, wire),
        }
    }

    fn take(&mut self, index: u32, number: u32, end: LinkSide, wire: Wire) {
        match wire {
            Wire::Hello(hello) => self.greet(index, number, &hello),
            Wire::Welcome(welcome) => self.welcome(index, number, &welcome),
            Wire::Frame { conversation, sequence, frame } => {
                let connection = self.links[index as usize].connection(number);
                let Some(link) = connection.and_then(|connection| connection.end(end).link) else {
                    return;
                };
                let handled =
                    self.peers(index, end).handle_frame(link, conversation, sequence, frame);
                if let Err(error) = handled {
                    self.fail_safety(format!("TR-1: {error}"));
                }
                self.note_delivered(index, number, end, (conversation, sequence));
            }
            Wire::Close { code, reason } => {
                let how = match code {
                    CloseCode::Closed => LinkEnd::Closed(reason),
                    _ => LinkEnd::Broken,
                };
                return self.lose_connection(index, number, end, how);
            }
        }
        self.pump(index, end);
    }

    /// Delivers a frame to the node that it is for.
    pub(super) fn accept(&mut self, index: u32, to: LinkSide, frame: Rc<LinkFrame>) {
        let link = &self.links[index as usize];
        let (owner, life) = (link.owner, link.life);
        match Rc::unwrap_or_clone(frame) {
            LinkFrame::Wire(packet) => self.hand_packet(index, to, packet),
            LinkFrame::FromAgent(message) => self.driver_hears_agent(index, message),
            LinkFrame::FromWorker(message) => {
                if let WorkerToDriver::Attach { .. } = message {
                    self.links[index as usize].unanswered = Some((life, self.now));
                }
                self.driver_hears_worker(index, message);
            }
            LinkFrame::Vote(vote) => self.registry_hears(index, &vote),
            LinkFrame::ToAgent(message) => {
                if let LinkOwner::Agent { host, life: agent_life } = owner {
                    let welcomes = matches!(message, DriverToAgent::Welcome { .. });
                    self.hears_outdated = self.is_outdated(index, welcomes);
                    let term = self.term_of(life);
                    self.agent_hears((host, agent_life), term, message);
                    self.hears_outdated = false;
                }
            }
            LinkFrame::ToWorker(message) => {
                if let LinkOwner::Worker { process } = owner {
                    let welcomes = matches!(message, DriverToWorker::Welcome { .. });
                    self.hears_outdated = self.is_outdated(index, welcomes);
                    let term = self.term_of(life);
                    self.worker_hears(process, term, message);
                    self.hears_outdated = false;
                }
            }
        }
    }

    /// Whether a driver's message to this peer comes after a later driver's `SessionWelcome`: it must have no effect then.
    pub(in crate::cores) fn is_outdated(&mut self, index: u32, welcomes: bool) -> bool {
        let term = self.term_of(self.links[index as usize].life);
        let link = &mut self.links[index as usize];
        if welcomes {
            link.welcomed = link.welcomed.max(term);
        }
        term < link.welcomed
    }

    /// Reacts to a change that decides whether frames get through, or whether an end hears the other.
    pub(in crate::cores) fn reopen(&mut self, index: u32) {
        let connections: Vec<(u32, u32)> = self.links[index as usize]
            .connections
            .iter()
            .map(|connection| (connection.number, connection.life))
            .collect();
        for (number, life) in connections {
            for lane in [LinkDirection::ToDriver, LinkDirection::ToPeer] {
                if !self.is_open(&self.links[index as usize], life, lane) {
                    continue;
                }
                let Some(connection) = self.links[index as usize].connection(number) else {
                    continue;
                };
                let blocked = std::mem::take(&mut connection.queue(lane).blocked);
                let from = lane.to().other();
                let acknowledges = std::mem::take(&mut connection.end(from).ack_is_blocked);
                for _ in 0..blocked {
                    let happening = Happening::Deliver { link: index, connection: number, lane };
                    self.agenda.push(self.now, happening);
                }
                if acknowledges {
                    let (link, connection, end) = (index, number, from);
                    self.agenda.push(self.now, Happening::Acknowledge { link, connection, end });
                }
            }
        }
        self.update_hearing(index);
    }

    pub(in crate::cores) fn reopen_host(&mut self, host: u32) {
        for index in self.links_of(host) {
            self.reopen(index);
        }
    }

    pub(in crate::cores) fn reopen_all(&mut self) {
        for host in 0..self.hosts.len() as u32 {
            self.reopen_host(host);
        }
    }

    pub(super) fn links_of(&self, host: u32) -> Vec<u32> {
        let host = &self.hosts[host as usize];
        let agent = host.agent.as_ref().map(|agent| agent.link);
        let workers = host.processes.iter().map(|process| self.processes[*process as usize].link);
        agent.into_iter().chain(workers).collect()
    }
}
