//! Silence on connections: each end hears the other or does not. The agenda has no beats, only their absence. A
//! connection that hears nothing for the permitted silence ends by itself, as QUIC's do. The session's core decides
//! what that means for the session. Part of the simulated network.

use elastic_protocol::Time;
use elastic_runtime::transport::{LinkEvent, LossReason};
use elastic_transport::peers::{LinkEnd, STARVED_MAX};
use rand::Rng;

use super::super::agents::AgentLife;
use super::super::{Happening, World};
use super::{LinkOwner, LinkSide};

impl World {
    /// Whether there was a time, within the last `within` nanoseconds, when the driver did not hear a peer. A peer that
    /// has turned to another driver is heard by that one only.
    pub(in crate::cores) fn was_deaf(&self, index: u32, within: u64) -> bool {
        let link = &self.links[index as usize];
        link.is_unheard
            || link.life != self.driver.life
            || (link.unheard_until > 0 && link.unheard_until + within > self.now)
    }

    /// Updates the hearing of the ends of a link's connections. Called after every change that decides it.
    pub(in crate::cores) fn update_hearing(&mut self, index: u32) {
        let link = &self.links[index as usize];
        let host = &self.hosts[link.host as usize];
        let driver_is_deaf = !link.is_alive || host.cut_to_driver > 0 || !self.peer_runs(link);
        let peer_is_cut = host.cut_from_driver > 0;
        let ends: Vec<(u32, bool, bool)> = link
            .connections
            .iter()
            .map(|connection| {
                let is_silent = !connection.driver.is_open || !self.life_runs(connection.life);
                (
                    connection.number,
                    driver_is_deaf || !connection.peer.is_open,
                    peer_is_cut || is_silent,
                )
            })
            .collect();
        let now = self.now;
        let link = &mut self.links[index as usize];
        // A connection that the peer has given up carries nothing, although it is still open at the driver.
        let carries = |it: &super::SimulatedConnection| {
            it.driver.is_open && it.peer.is_open && it.driver.link.is_some()
        };
        let is_unheard = driver_is_deaf || !link.connections.iter().any(carries);
        if std::mem::replace(&mut link.is_unheard, is_unheard) && !is_unheard {
            link.unheard_until = now;
        }
        for (number, driver_is_deaf, peer_is_deaf) in ends {
            self.set_deaf(index, number, LinkSide::Driver, driver_is_deaf);
            self.set_deaf(index, number, LinkSide::Peer, peer_is_deaf);
        }
    }

    fn set_deaf(&mut self, index: u32, number: u32, end: LinkSide, is_deaf: bool) {
        let deadlines = self.scenario.driver.deadlines;
        let Some(connection) = self.links[index as usize].connection(number) else { return };
        let state = connection.end(end);
        if !state.is_open || state.deaf_since.is_some() == is_deaf {
            return;
        }
        state.epoch += 1;
        let epoch = state.epoch;
        state.deaf_since = None;
        if is_deaf {
            let since_beat = self.net.random_range(0..=deadlines.beat.as_nanos() as u64);
            let heard_at = self.now.saturating_sub(since_beat);
            let Some(connection) = self.links[index as usize].connection(number) else { return };
            connection.end(end).deaf_since = Some(heard_at);
            let at = heard_at + deadlines.lost.as_nanos() as u64;
            let happening = Happening::Idle { link: index, connection: number, end, epoch };
            self.agenda.push(at, happening);
        } else {
            // The first beat takes effect at once.
            self.look_now(index, number, end);
        }
    }

    fn look_now(&mut self, index: u32, number: u32, end: LinkSide) {
        let Some(connection) = self.links[index as usize].connection(number) else { return };
        let life = connection.life;
        let Some(link) = connection.end(end).link else { return };
        let now = self.local_now();
        let runs = match end {
            LinkSide::Driver => self.life_runs(life),
            LinkSide::Peer => self.peer_runs(&self.links[index as usize]),
        };
        if runs {
            self.in_life(life, |world| {
                world.peers(index, end).handle_heard(link, now);
                world.pump(index, end);
            });
        }
    }

    /// Postpones an event for a stopped node. True if the node is stopped or gone: the event must not happen now.
    pub(super) fn is_put_off(
        &mut self,
        index: u32,
        end: LinkSide,
        life: u32,
        happening: Happening,
    ) -> bool {
        match (end, self.links[index as usize].owner) {
            (LinkSide::Driver, _) => {
                if self.life_runs(life) {
                    return false;
                }
                self.in_life(life, |world| world.driver.frozen.push(happening));
                true
            }
            (LinkSide::Peer, LinkOwner::Worker { process }) => self.freeze(process, happening),
            (LinkSide::Peer, LinkOwner::Agent { host, life }) => match self.agent_mut(host, life) {
                Some(agent) if agent.stopped > 0 => {
                    agent.frozen.push(happening);
                    true
                }
                Some(_) => false,
                None => true,
            },
        }
    }

    /// Breaks a connection whose permitted silence has passed.
    pub(in crate::cores) fn handle_idle(
        &mut self,
        index: u32,
        number: u32,
        end: LinkSide,
        epoch: u32,
    ) {
        let Some(connection) = self.links[index as usize].connection(number) else { return };
        let life = connection.life;
        let state = connection.end(end);
        if state.epoch != epoch || !state.is_open {
            return;
        }
        let happening = Happening::Idle { link: index, connection: number, end, epoch };
        if self.is_put_off(index, end, life, happening) {
            return;
        }
        match end {
            LinkSide::Driver => {
                self.in_life(life, |world| {
                    world.lose_connection(index, number, end, LinkEnd::Broken);
                });
            }
            LinkSide::Peer => self.lose_connection(index, number, end, LinkEnd::Broken),
        }
    }

    /// Runs the timer of a peer's sessions.
    pub(in crate::cores) fn handle_look(&mut self, index: u32) {
        let at = self.now;
        if self.links[index as usize].armed > at || !self.links[index as usize].is_alive {
            return;
        }
        let life = self.links[index as usize].life;
        if self.is_put_off(index, LinkSide::Peer, life, Happening::Look { link: index }) {
            return;
        }
        let link = &mut self.links[index as usize];
        link.armed = u64::MAX;
        for connection in &link.connections {
            if let Some(id) = connection.peer.link {
                link.peers.handle_heard(id, Time(connection.peer.deaf_since.unwrap_or(at)));
            }
        }
        link.peers.handle_timeout(Time(at));
        self.pump(index, LinkSide::Peer);
    }

    /// Runs the timer of the driver's sessions.
    pub(in crate::cores) fn handle_driver_look(&mut self) {
        let at = self.now;
        if self.driver.stopped > 0 {
            let life = self.driver.life;
            return self.driver.frozen.push(Happening::DriverLook { life });
        }
        if self.driver.peers_armed > at {
            return;
        }
        self.driver.peers_armed = u64::MAX;
        let life = self.driver.life;
        for (id, index) in &self.driver.carriers {
            let connection = self.links[*index as usize].connection_of(LinkSide::Driver, life, *id);
            if let Some(connection) = connection {
                let heard_at = connection.driver.deaf_since.unwrap_or(at);
                self.links[*index as usize].heard_at_look = heard_at;
                self.driver.peers.handle_heard(*id, Time(heard_at));
            }
        }
        self.see_who_is_starved();
        self.driver.peers.handle_timeout(Time(at));
        self.pump_driver();
    }

    /// Tells the driver's sessions that an agent is silent because its process waits for the driver's machine, as that
    /// machine's kernel reports.
    fn see_who_is_starved(&mut self) {
        let now = Time(self.now);
        let starved = self.hosts.iter().filter_map(|host| host.agent.as_ref());
        let starved = starved.filter(|agent| agent.waits_for_its_machine());
        for node in starved.filter_map(|agent| self.links[agent.link as usize].node.as_ref()) {
            if self.driver.peers.is_quiet(now, node) {
                self.driver.peers.handle_starved(now, node);
            }
        }
    }

    /// Checks that an agent is not lost for a silence in which its process waited for the driver's machine.
    pub(super) fn check_starved(&mut self, index: u32, event: &LinkEvent) {
        let LinkEvent::Lost { reason: LossReason::Silence { silent_ms }, .. } = event else {
            return;
        };
        let link = &self.links[index as usize];
        let LinkOwner::Agent { host, life } = link.owner else { return };
        let agent = self.hosts[host as usize].agent.as_ref().filter(|agent| agent.life == life);
        // A closed port outweighs this, even if the refusal is forged.
        let is_refused = link.refused_at > link.heard_at_look;
        if u128::from(*silent_ms) < STARVED_MAX.as_millis()
            && !is_refused
            && agent.is_some_and(AgentLife::waits_for_its_machine)
        {
            let who = link.place.label();
            self.fail_safety(format!(
                "TR-5: {who} is lost after {silent_ms} ms, while its process waits for the driver's machine"
            ));
        }
    }

    /// Arms the timer of an end's sessions.
    pub(super) fn arm_peers(&mut self, index: u32, end: LinkSide) {
        let now = self.now;
        match end {
            LinkSide::Peer => {
                let link = &mut self.links[index as usize];
                if let Some(due) = link.peers.poll_timeout()
                    && due.0.max(now) < link.armed
                {
                    link.armed = due.0.max(now);
                    self.agenda.push(link.armed, Happening::Look { link: index });
                }
            }
            LinkSide::Driver => {
                let life = self.driver.life;
                if let Some(due) = self.driver.peers.poll_timeout()
                    && due.0.max(now) < self.driver.peers_armed
                {
                    self.driver.peers_armed = due.0.max(now);
                    self.agenda.push(self.driver.peers_armed, Happening::DriverLook { life });
                }
            }
        }
    }
}
