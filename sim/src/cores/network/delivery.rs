//! Frames under way: delayed, in order, held up while nothing gets through.

use elastic_protocol::messages::{DriverToAgent, DriverToWorker};
use elastic_runtime::transport::{LinkEvent, LossReason};
use rand::Rng;

use super::super::{Happening, MS, World};
use super::{End, Frame, InFlight, Lane, Link, Owner};
use crate::trace::Kind;

impl World {
    /// Queues a frame; gives it back if there is no session.
    pub(in crate::cores) fn send(
        &mut self,
        link: u32,
        lane: Lane,
        frame: Frame,
    ) -> Result<(), Box<Frame>> {
        let from = match lane {
            Lane::ToDriver => End::Peer,
            Lane::ToPeer => End::Driver,
        };
        let is_former = from == End::Driver && self.links[link as usize].life != self.driver.life;
        let session = self.links[link as usize].end(from).session;
        if session == 0 || is_former {
            return Err(Box::new(frame));
        }
        self.queue(link, lane, session, frame);
        Ok(())
    }

    pub(super) fn queue(&mut self, index: u32, lane: Lane, session: u32, frame: Frame) {
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
    pub(super) fn is_open(&self, link: &Link, lane: Lane) -> bool {
        let host = &self.hosts[link.host as usize];
        match lane {
            Lane::ToDriver => host.cut_to_driver == 0 && self.life_runs(link.life),
            Lane::ToPeer => host.cut_from_driver == 0 && link.is_alive && self.peer_runs(link),
        }
    }

    pub(super) fn peer_runs(&self, link: &Link) -> bool {
        match link.owner {
            Owner::Agent { host, life } => self.hosts[host as usize]
                .agent
                .as_ref()
                .is_some_and(|agent| agent.life == life && agent.stopped == 0),
            Owner::Worker { process } => self.processes[process as usize].stopped == 0,
        }
    }

    pub(in crate::cores) fn handle_deliver(&mut self, index: u32, lane: Lane) {
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
        let Link { owner, life, .. } = self.links[index as usize];
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
            Frame::FromAgent(message) => {
                self.in_life(life, |world| world.driver_hears_agent(index, message));
            }
            Frame::FromWorker(message) => {
                self.in_life(life, |world| world.driver_hears_worker(index, message));
            }
            Frame::Vote(vote) => {
                self.in_life(life, |world| world.registry_hears(index, &vote));
            }
            Frame::ToAgent(message) => {
                if let Owner::Agent { host, life: agent_life } = owner {
                    let welcomes = matches!(message, DriverToAgent::Welcome { .. });
                    self.hears_outdated = self.is_outdated(index, welcomes);
                    self.agent_hears(host, agent_life, message);
                    self.hears_outdated = false;
                }
            }
            Frame::ToWorker(message) => {
                if let Owner::Worker { process } = owner {
                    let welcomes = matches!(message, DriverToWorker::Welcome { .. });
                    self.hears_outdated = self.is_outdated(index, welcomes);
                    let term = self.term_of(life);
                    self.worker_hears(process, term, message);
                    self.hears_outdated = false;
                }
            }
        }
    }

    /// Whether what a driver says to this peer comes after a later driver's `Welcome`: then it must have no effect.
    pub(in crate::cores) fn is_outdated(&mut self, index: u32, welcomes: bool) -> bool {
        let term = self.term_of(self.links[index as usize].life);
        let link = &mut self.links[index as usize];
        if welcomes {
            link.welcomed = link.welcomed.max(term);
        }
        term < link.welcomed
    }

    /// Something has changed that decides whether frames get through, or whether an end hears the other.
    pub(in crate::cores) fn reopen(&mut self, index: u32) {
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
