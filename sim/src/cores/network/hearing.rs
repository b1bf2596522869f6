//! Who hears whom, and what silence does: `suspect`, then `lost`.

use elastic_runtime::transport::{LinkEvent, LossReason};
use rand::Rng;

use super::super::{Happening, MS, World};
use super::{End, Owner};

impl World {
    pub(in crate::cores) fn update_hearing(&mut self, index: u32) {
        let link = &self.links[index as usize];
        let host = &self.hosts[link.host as usize];
        let driver_is_deaf = !link.is_alive || host.cut_to_driver > 0 || !self.peer_runs(link);
        let peer_is_deaf = host.cut_from_driver > 0 || !self.life_runs(link.life);
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
            End::Driver => self.life_runs(self.links[index as usize].life),
            End::Peer => {
                let link = &self.links[index as usize];
                link.is_alive && self.peer_runs(link)
            }
        }
    }

    pub(in crate::cores) fn handle_silence(
        &mut self,
        index: u32,
        end: End,
        epoch: u32,
        is_lost: bool,
    ) {
        let now = self.now;
        if !self.end_runs(index, end) {
            // A node that stands still notices nothing; if the silence is still on when it runs again, it
            // counts from then.
            let happening = Happening::Silence { link: index, end, epoch, is_lost };
            match (end, self.links[index as usize].owner) {
                (End::Driver, _) => {
                    let life = self.links[index as usize].life;
                    self.in_life(life, |world| world.driver.frozen.push(happening));
                }
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
}
