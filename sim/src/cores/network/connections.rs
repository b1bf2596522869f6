//! Connections: their beginning, the frames that they carry, and their end. Part of the simulated network.

use std::collections::VecDeque;

use elastic_transport::peers::{CloseCode, LinkEnd, LinkId, LinkOutput};
use rand::Rng;

use super::super::{Happening, MS, World};
use super::{LinkDirection, LinkOwner, LinkSide, Peers, SimulatedConnection, SimulatedLink, Wire};
use crate::trace::{TraceKind, TracePlace};

/// Time for which an acknowledgement waits to be sent together with others.
const ACK_DELAY_NS: u64 = 20 * MS;

impl Wire {
    /// The value that goes into the trace's hash.
    pub(super) fn code(&self) -> u64 {
        match self {
            Self::Hello(hello) => 0x10 | hello.fresh.0 << 8 | u64::from(hello.resume.is_some()),
            Self::Welcome(welcome) => 0x12 | welcome.0.session.0 << 8,
            Self::Close { code, .. } => 0x14 | (*code as u64) << 8,
            Self::Frame { frame, .. } => frame.frame.code(),
        }
    }
}

impl World {
    /// Whether frames get through in a direction now, to or from a life of the driver.
    pub(super) fn is_open(&self, link: &SimulatedLink, life: u32, lane: LinkDirection) -> bool {
        let host = &self.hosts[link.host as usize];
        match lane {
            LinkDirection::ToDriver => host.cut_to_driver == 0 && self.life_runs(life),
            LinkDirection::ToPeer => {
                host.cut_from_driver == 0 && link.is_alive && self.peer_runs(link)
            }
        }
    }

    pub(super) fn peer_runs(&self, link: &SimulatedLink) -> bool {
        match link.owner {
            LinkOwner::Agent { host, life } => self.hosts[host as usize]
                .agent
                .as_ref()
                .is_some_and(|agent| agent.life == life && agent.stopped == 0),
            LinkOwner::Worker { process } => self.processes[process as usize].stopped == 0,
        }
    }

    /// Begins a connection with a life of the driver. Returns its number.
    pub(super) fn begin_connection(&mut self, index: u32, life: u32) -> u32 {
        let link = &mut self.links[index as usize];
        link.connections.retain(|connection| !connection.is_over());
        link.next_connection += 1;
        let number = link.next_connection;
        link.connections.push(SimulatedConnection::new(number, life));
        self.update_hearing(index);
        number
    }

    /// Sends something over a connection.
    pub(super) fn queue(&mut self, index: u32, number: u32, lane: LinkDirection, wire: Wire) {
        let link = &self.links[index as usize];
        let host = &self.hosts[link.host as usize];
        let mut delay = self.net.random_range(50_000..=self.scenario.delay_ns) + host.extra_delay;
        if self.scenario.loss > 0 && self.net.random_range(0..self.scenario.loss) == 0 {
            delay += self.net.random_range(20 * MS..300 * MS);
        }
        let now = self.now;
        let link = &mut self.links[index as usize];
        let place = link.place;
        let Some(connection) = link.connection(number) else { return };
        let queue = connection.queue(lane);
        let at = (now + delay).max(queue.last_at + 1);
        queue.last_at = at;
        let code = wire.code();
        let words = if self.trace.wants_words() { format!("{wire:?}") } else { String::new() };
        queue.frames.push_back(super::InFlight { at, wire });
        self.agenda.push(at, Happening::Deliver { link: index, connection: number, lane });
        self.trace.record(now, TraceKind::Send, place, (code, at), || words);
    }

    /// The sessions of an end: those of the current driver's life, or those of the peer.
    pub(super) fn peers(&mut self, index: u32, end: LinkSide) -> &mut Peers {
        match end {
            LinkSide::Driver => &mut self.driver.peers,
            LinkSide::Peer => &mut self.links[index as usize].peers,
        }
    }

    /// Carries out the requests of the sessions of the driver's life, or of a peer, to their connections.
    pub(super) fn serve(&mut self, index: u32, end: LinkSide) {
        while let Some(output) = self.peers(index, end).poll_output() {
            let place = match end {
                LinkSide::Driver => TracePlace::DRIVER,
                LinkSide::Peer => self.links[index as usize].place,
            };
            self.put_out(place, "peers", &output);
            match output {
                LinkOutput::Wake { link, conversation } => {
                    let Some((at, number)) = self.find(index, end, link) else { continue };
                    while let Ok(Some(transmit)) =
                        self.peers(at, end).poll_transmit(link, conversation)
                    {
                        let (sequence, frame) = (transmit.sequence, transmit.frame);
                        let wire = Wire::Frame { conversation, sequence, frame };
                        self.queue(at, number, end.outgoing(), wire);
                    }
                }
                LinkOutput::Acknowledge { link, .. } => {
                    if let Some((at, number)) = self.find(index, end, link) {
                        self.acknowledge_soon(at, number, end);
                    }
                }
                LinkOutput::Close { link, code, reason } => {
                    if let Some((at, number)) = self.find(index, end, link) {
                        let place = self.links[at as usize].place;
                        self.decide(place, || format!("connection closed: {reason}"));
                        self.end_connection(at, number, end, Some((code, reason)));
                    }
                }
            }
        }
        self.arm_peers(index, end);
    }

    /// The link and connection that an end's sessions mean. The driver's sessions may mean any link.
    fn find(&mut self, index: u32, end: LinkSide, link: LinkId) -> Option<(u32, u32)> {
        let at = match end {
            LinkSide::Peer => index,
            LinkSide::Driver => *self.driver.carriers.get(&link)?,
        };
        let life = match end {
            LinkSide::Driver => self.driver.life,
            LinkSide::Peer => {
                self.links[at as usize]
                    .connections
                    .iter()
                    .find(|connection| connection.peer.link == Some(link))?
                    .life
            }
        };
        let connection = self.links[at as usize].connection_of(end, life, link)?;
        Some((at, connection.number))
    }

    fn acknowledge_soon(&mut self, index: u32, number: u32, end: LinkSide) {
        let Some(connection) = self.links[index as usize].connection(number) else { return };
        if std::mem::replace(&mut connection.end(end).acknowledges, true) {
            return;
        }
        let delay = self.net.random_range(50_000..=self.scenario.delay_ns);
        let happening = Happening::Acknowledge { link: index, connection: number, end };
        self.agenda.push(self.now + ACK_DELAY_NS + delay, happening);
    }

    /// Acknowledgements of one end arrive at the other end.
    pub(in crate::cores) fn handle_acknowledge(&mut self, index: u32, number: u32, end: LinkSide) {
        let other = end.other();
        let Some(connection) = self.links[index as usize].connection(number) else { return };
        let life = connection.life;
        let (Some(from), Some(to)) = (connection.end(end).link, connection.end(other).link) else {
            return;
        };
        let runs = match end {
            LinkSide::Driver => self.life_runs(life),
            LinkSide::Peer => self.peer_runs(&self.links[index as usize]),
        };
        let gets_through = runs && self.is_open(&self.links[index as usize], life, end.outgoing());
        let Some(connection) = self.links[index as usize].connection(number) else { return };
        if !gets_through {
            connection.end(end).ack_is_blocked = true;
            return;
        }
        connection.end(end).acknowledges = false;
        self.in_life(life, |world| {
            while let Ok(Some(ack)) = world.peers(index, end).poll_ack(from) {
                world.note_acknowledged(index, number, end, ack);
                if world.peers(index, other).handle_ack(to, ack).is_err() {
                    world.end_connection(
                        index,
                        number,
                        other,
                        Some((CloseCode::Broken, "an impossible acknowledgement".to_owned())),
                    );
                }
            }
            world.pump(index, other);
        });
    }

    /// Ends a connection at one end. `word`: the message to the other end; `None` if nobody is left to send one.
    pub(super) fn end_connection(
        &mut self,
        index: u32,
        number: u32,
        end: LinkSide,
        word: Option<(CloseCode, String)>,
    ) {
        let Some(connection) = self.links[index as usize].connection(number) else { return };
        let state = connection.end(end);
        if !std::mem::take(&mut state.is_open) {
            return;
        }
        state.epoch += 1;
        let link = state.link.take();
        connection.queue(end.incoming()).frames = VecDeque::new();
        if let (LinkSide::Driver, Some(link)) = (end, link) {
            self.driver.carriers.remove(&link);
        }
        if let Some((code, reason)) = word {
            self.queue(index, number, end.outgoing(), Wire::Close { code, reason });
        }
        if end == LinkSide::Peer {
            self.dial_again(index);
        }
        self.update_hearing(index);
    }

    /// A connection has ended by itself, or by a message of the other end.
    pub(super) fn lose_connection(&mut self, index: u32, number: u32, end: LinkSide, how: LinkEnd) {
        let Some(connection) = self.links[index as usize].connection(number) else { return };
        let link = connection.end(end).link;
        self.end_connection(index, number, end, None);
        if let Some(link) = link {
            let now = self.local_now();
            self.peers(index, end).handle_link_end(now, link, how);
            self.pump(index, end);
        }
    }
}
