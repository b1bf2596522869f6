//! Dialling and greeting: half-open connections, answers that never come, drivers that were replaced. Part of the
//! simulated network.

use elastic_protocol::{Incarnation, NodeId, NodeName};
use elastic_runtime::session::{SessionHello, SessionWelcome};
use elastic_transport::peers::CloseCode;
use rand::Rng;

use super::super::{Happening, MS, NONE, World};
use super::{LinkDirection, LinkSide, Wire};
use crate::actors::DriverNode;
use crate::trace::TraceKind;

/// Range of the delay between two attempts to reach the driver.
const REDIAL_NS: (u64, u64) = (50 * MS, 400 * MS);

/// Longest wait for the answer to a hello: the same as the product's handshake timeout.
const GREETING_NS: u64 = 5_000 * MS;

impl World {
    /// Schedules another attempt of a peer without a connection.
    pub(super) fn dial_again(&mut self, index: u32) {
        let wait = self.net.random_range(REDIAL_NS.0..=REDIAL_NS.1);
        let link = &mut self.links[index as usize];
        if !link.is_alive {
            return;
        }
        link.dial_token += 1;
        let token = link.dial_token;
        self.agenda.push(self.now + wait, Happening::Dial { link: index, token });
    }

    pub(in crate::cores) fn handle_dial(&mut self, index: u32, token: u32) {
        let link = &self.links[index as usize];
        let is_wanted = link.driver.as_ref().is_none_or(|driver| link.peers.is_dialled(driver));
        let is_greeting =
            |it: &super::SimulatedConnection| it.peer.is_open && it.peer.link.is_none();
        let is_busy = link.is_in_touch() || link.connections.iter().any(is_greeting);
        if !link.is_alive || !is_wanted || link.dial_token != token || is_busy {
            return;
        }
        let host = &self.hosts[link.host as usize];
        let is_cut = host.cut_to_driver > 0 || host.cut_from_driver > 0 || !self.peer_runs(link);
        let (job, met) = (link.job, link.met);
        let life = if is_cut { None } else { self.life_in_reach(job, met) };
        let Some(life) = life else { return self.dial_again(index) };
        let place = self.links[index as usize].place;
        self.record(TraceKind::Dial, place, (u64::from(token), 0), String::new);
        if self.links[index as usize].node.is_none() {
            self.in_life(life, |world| world.enrol(index));
        }
        self.turn_to(index, life);
        let number = self.begin_connection(index, life);
        let now = self.now;
        let link = &mut self.links[index as usize];
        let fresh = link.fresh_session();
        let hello = link.driver.clone().and_then(|driver| link.peers.hello(&driver, fresh));
        self.pump(index, LinkSide::Peer);
        if let Some(hello) = hello {
            self.queue(index, number, LinkDirection::ToDriver, Wire::Hello(hello));
            let due = Happening::GreetingDue { link: index, connection: number };
            self.agenda.push(now + GREETING_NS, due);
        }
    }

    /// Turns a peer to a life of the driver, perhaps another than that of its session.
    fn turn_to(&mut self, index: u32, life: u32) {
        let now = self.local_now();
        let job = self.life(life).map(|driver| driver.job);
        let term = self.term_of(life);
        let driver = DriverNode::id(term);
        let link = &mut self.links[index as usize];
        match link.driver.replace(driver.clone()) {
            None => link.peers.add_dialled(now, &driver),
            Some(former) if link.life != life => link.peers.replace_dialled(now, &former, &driver),
            Some(_) => {}
        }
        link.life = life;
        link.job = job;
        link.met = link.met.max(term);
        self.pump(index, LinkSide::Peer);
    }

    /// The driver receives a hello.
    pub(super) fn greet(&mut self, index: u32, number: u32, hello: &SessionHello) {
        let now = self.local_now();
        let Some(node) = self.links[index as usize].node.clone() else { return };
        let (link, welcome) = match self.driver.peers.handle_hello(now, &node, hello) {
            Ok(greeted) => greeted,
            Err(refusal) => {
                let word = (CloseCode::Broken, refusal.to_string());
                return self.end_connection(index, number, LinkSide::Driver, Some(word));
            }
        };
        self.driver.carriers.insert(link, index);
        if let Some(connection) = self.links[index as usize].connection(number) {
            connection.driver.link = Some(link);
        }
        self.update_hearing(index);
        self.queue(index, number, LinkDirection::ToPeer, Wire::Welcome(welcome));
    }

    /// The peer receives the answer.
    pub(super) fn welcome(&mut self, index: u32, number: u32, welcome: &SessionWelcome) {
        let now = self.local_now();
        let link = &mut self.links[index as usize];
        let Some(driver) = link.driver.clone() else { return };
        match link.peers.handle_welcome(now, &driver, welcome) {
            Ok(id) => {
                if let Some(connection) = link.connection(number) {
                    connection.peer.link = Some(id);
                }
            }
            Err(error) => {
                let word = (CloseCode::Broken, error.to_string());
                self.end_connection(index, number, LinkSide::Peer, Some(word));
            }
        }
    }

    /// Closes the connection if its hello has not been answered.
    pub(in crate::cores) fn handle_greeting_due(&mut self, index: u32, number: u32) {
        let link = &mut self.links[index as usize];
        let life = link.life;
        let Some(connection) = link.connection(number) else { return };
        if connection.peer.link.is_some() || !connection.peer.is_open {
            return;
        }
        let happening = Happening::GreetingDue { link: index, connection: number };
        if !self.is_put_off(index, LinkSide::Peer, life, happening) {
            let word = (CloseCode::Broken, "no answer in time".to_owned());
            self.end_connection(index, number, LinkSide::Peer, Some(word));
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

    /// Remembers the link of an incarnation.
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
}
