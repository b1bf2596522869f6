//! External ends of sessions and connections: dead processes, nodes that close, connections broken by faults. Part of
//! the simulated network.

use elastic_protocol::NodeId;
use elastic_transport::peers::{CloseCode, LinkEnd};
use rand::Rng;

use super::super::World;
use super::{LinkSide, Wire};

/// Reason that connections give for the end of a process, where one is given.
const PROCESS_ENDED: &str = "its process ended";

impl World {
    /// The peer's process has ended. The driver is told if the end was clean, or if the network tells it. Otherwise
    /// it hears nothing any more.
    pub(in crate::cores) fn end_peer(&mut self, index: u32, is_clean: bool, is_told: bool) {
        self.links[index as usize].is_alive = false;
        for number in self.numbers(index) {
            let word = (is_clean || is_told).then(|| (CloseCode::Closed, PROCESS_ENDED.to_owned()));
            self.end_connection(index, number, LinkSide::Peer, word);
        }
        self.links[index as usize].peers.stop(PROCESS_ENDED);
        self.update_hearing(index);
        if !is_clean && !is_told {
            self.refuse_soon(index);
        }
    }

    fn numbers(&self, index: u32) -> Vec<u32> {
        self.links[index as usize].connections.iter().map(|it| it.number).collect()
    }

    /// A driver's process is gone, or ends. Its peers are told, or find out by silence.
    pub(in crate::cores) fn end_connections_of(&mut self, life: u32, is_told: bool) {
        for index in 0..self.links.len() as u32 {
            for number in self.numbers(index) {
                let link = &mut self.links[index as usize];
                let is_alive = link.is_alive;
                let Some(connection) = link.connection(number) else { continue };
                if connection.life != life || !std::mem::take(&mut connection.driver.is_open) {
                    continue;
                }
                connection.driver.link = None;
                connection.to_driver.frames.clear();
                if is_told && is_alive {
                    let (code, reason) = (CloseCode::Closed, PROCESS_ENDED.to_owned());
                    self.queue(
                        index,
                        number,
                        super::LinkDirection::ToPeer,
                        Wire::Close { code, reason },
                    );
                }
            }
        }
    }

    /// Closes an end's session for good.
    pub(in crate::cores) fn close(
        &mut self,
        index: u32,
        end: LinkSide,
        peer: &NodeId,
        reason: &str,
    ) {
        let now = self.local_now();
        self.peers(index, end).close(now, peer, reason, None);
        self.serve(index, end);
    }

    /// Breaks the connections of a host's nodes, each in one of four ways.
    pub(in crate::cores) fn break_links(&mut self, host: u32) {
        for index in self.links_of(host) {
            let way = self.net.random_range(0..4);
            for number in self.numbers(index) {
                match way {
                    // Both ends know.
                    0 => {
                        let word = (CloseCode::Broken, "to be made again".to_owned());
                        self.break_at_peer(index, number, Some(word));
                    }
                    // The peer makes another connection. The driver keeps the first until it sees the new one.
                    1 => self.break_at_peer(index, number, None),
                    // The driver's end is gone. The peer finds out by silence.
                    2 => self.break_at_driver(index, number),
                    // The peer has forgotten the session, too.
                    _ => {
                        self.break_at_peer(index, number, None);
                        self.forget_session(index);
                    }
                }
            }
        }
    }

    fn break_at_peer(&mut self, index: u32, number: u32, word: Option<(CloseCode, String)>) {
        let now = self.local_now();
        let Some(connection) = self.links[index as usize].connection(number) else { return };
        let link = connection.peer.link;
        self.end_connection(index, number, LinkSide::Peer, word);
        if let Some(link) = link {
            self.links[index as usize].peers.handle_link_end(now, link, LinkEnd::Broken);
            self.pump(index, LinkSide::Peer);
        }
    }

    fn break_at_driver(&mut self, index: u32, number: u32) {
        let Some(connection) = self.links[index as usize].connection(number) else { return };
        let life = connection.life;
        if self.life_runs(life) {
            self.in_life(life, |world| {
                world.lose_connection(index, number, LinkSide::Driver, LinkEnd::Broken);
            });
        }
    }

    fn forget_session(&mut self, index: u32) {
        let now = self.local_now();
        let link = &mut self.links[index as usize];
        if let Some(driver) = link.driver.clone().filter(|driver| link.peers.is_dialled(driver)) {
            link.peers.replace_dialled(now, &driver, &driver);
            self.pump(index, LinkSide::Peer);
        }
    }
}
