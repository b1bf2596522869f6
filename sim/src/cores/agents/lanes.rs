//! Lanes of an agent's process that do not answer, and the agent's reports of them. Faults block and release a lane.
//! `truth` compares the reports with the driver's status.

use elastic_agent::HostChange;
use elastic_protocol::messages::LaneStatus;

use super::super::{Happening, MS, World};

/// Interval between two looks of an agent at its lanes.
const LOOK_EVERY_NS: u64 = 1_000 * MS;

/// Time after which a lane counts as hanging.
const ANSWERS_WITHIN_MS: u64 = 1_000;

/// The lane for output of a host's agent.
#[derive(Debug, Default)]
pub(in crate::cores) struct HostLane {
    /// The life of the agent whose lane it is.
    life: u32,
    /// Number of active faults that block it.
    blocked: u32,
    /// World time at which it was last blocked or released.
    pub(in crate::cores) changed_at: u64,
}

impl HostLane {
    /// Whether the lane of this life of the agent hangs.
    pub(in crate::cores) const fn hangs(&self, life: u32) -> bool {
        self.blocked > 0 && self.life == life
    }
}

impl World {
    /// Blocks a lane of an agent that lives.
    pub(in crate::cores) fn hang_lane(&mut self, host: u32, life: u32) {
        let now = self.now;
        let lane = &mut self.hosts[host as usize].lane;
        if lane.hangs(life) {
            lane.blocked += 1;
        } else {
            *lane = HostLane { life, blocked: 1, changed_at: now };
            self.look_at_lane(host, life);
        }
    }

    /// Ends a number of faults that block a lane.
    pub(in crate::cores) fn release_lane(&mut self, host: u32, life: u32, faults: u32) {
        let now = self.now;
        let lane = &mut self.hosts[host as usize].lane;
        if lane.hangs(life) {
            lane.blocked -= faults.min(lane.blocked);
            if lane.blocked == 0 {
                lane.changed_at = now;
                self.look_at_lane(host, life);
            }
        }
    }

    fn look_at_lane(&mut self, host: u32, life: u32) {
        let wait = self.draw_ns(0, LOOK_EVERY_NS);
        let at = self.now + ANSWERS_WITHIN_MS * MS + wait;
        self.agenda.push(at, Happening::LaneLook { host, life });
    }

    /// The agent tells which of its lanes hang.
    pub(in crate::cores) fn handle_lane_look(&mut self, host: u32, life: u32) {
        let now = self.now;
        let Some(agent) = self.agent_mut(host, life) else { return };
        if agent.stopped > 0 {
            return agent.frozen.push(Happening::LaneLook { host, life });
        }
        let lane = &self.hosts[host as usize].lane;
        let hangs = lane.hangs(life).then(|| LaneStatus {
            name: "output".to_owned(),
            answers_within_ms: ANSWERS_WITHIN_MS,
            hanging_ms: Some((now - lane.changed_at) / MS),
            dropped_lines: 0,
        });
        let change = HostChange { meeting: None, hanging: hangs.into_iter().collect() };
        if let Some(node) = self.agent_mut(host, life).and_then(|agent| agent.node()) {
            return node.host_changed(change);
        }
        let HostChange { meeting, hanging } = change;
        self.with_agent(host, life, |core, now| core.handle_host_changed(now, meeting, hanging));
    }
}
