//! Refusals: a host answers for its ended processes that their ports are closed, or a forged message says so. Part of
//! the simulated network.

use elastic_runtime::transport::{LinkEvent, LossReason};

use super::super::{Happening, MS, World};
use super::LinkSide;

impl World {
    /// A peer's process has ended without a word: the next beat of the driver may be refused.
    pub(super) fn refuse_soon(&mut self, index: u32) {
        if !self.scenario.deaths_are_refused {
            return;
        }
        let beat = self.scenario.driver.deadlines.beat.as_nanos() as u64;
        let wait = self.draw_ns(MS, beat + self.scenario.delay_ns);
        let happening = Happening::Refused { link: index, is_forged: false };
        self.agenda.push(self.now + wait, happening);
    }

    /// Somebody says of all nodes of a host that their ports are closed.
    pub(in crate::cores) fn forge_refusals(&mut self, host: u32) {
        for index in self.links_of(host) {
            self.agenda.push(self.now, Happening::Refused { link: index, is_forged: true });
        }
    }

    /// Checks that a peer that was heard all the time is not lost because somebody has said that its port is closed.
    pub(super) fn check_refusal(&mut self, index: u32, event: &LinkEvent) {
        let LinkEvent::Lost { reason: LossReason::Refused { .. }, .. } = event else { return };
        let link = &self.links[index as usize];
        // The session is lost at a look, after the driver has noted the peers that it hears.
        if link.heard_at_look == self.now {
            let who = link.place.label();
            self.fail_safety(format!(
                "TR-5: {who} is lost for a refusal, and was heard all the time"
            ));
        }
    }

    /// The driver's machine receives a refusal.
    pub(in crate::cores) fn handle_refused(&mut self, index: u32, is_forged: bool) {
        let link = &self.links[index as usize];
        let host = &self.hosts[link.host as usize];
        let is_in_reach = host.down == 0 && host.cut_to_driver == 0 && host.cut_from_driver == 0;
        if !is_forged && (!is_in_reach || link.is_alive) {
            return;
        }
        let life = self.driver.life;
        let carries = |it: &&super::SimulatedConnection| it.life == life && it.driver.is_open;
        let Some(id) = link.connections.iter().find(carries).and_then(|it| it.driver.link) else {
            return;
        };
        let happening = Happening::Refused { link: index, is_forged };
        if !self.driver.is_alive() || self.is_put_off(index, LinkSide::Driver, life, happening) {
            return;
        }
        let now = self.local_now();
        self.links[index as usize].refused_at = self.now;
        self.driver.peers.handle_refused(now, id);
        self.arm_peers(index, LinkSide::Driver);
    }
}
