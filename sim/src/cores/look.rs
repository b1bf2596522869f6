//! Looks at the nodes while nothing happens: at the driver's `status` for the recorded decisions, and at the states of all
//! cores for the recorded states. Part of the simulated world.

use super::{Happening, LOOK_EVERY_NS, World};
use crate::decisions::words;
use crate::trace::TracePlace;

impl World {
    /// Whether nodes are looked at: in runs that are recorded, where the nodes are cores.
    pub(super) fn is_looked_at(&self) -> bool {
        (self.trace.decisions.is_wanted() || self.trace.states.is_wanted()) && self.hub.is_none()
    }

    /// Looks at the nodes, and again later.
    pub(super) fn look_at_nodes(&mut self) {
        if self.is_over() || self.is_done {
            return;
        }
        self.agenda.push(self.now + LOOK_EVERY_NS, Happening::LookedAt);
        if self.trace.decisions.is_wanted() {
            self.note_status();
        }
        if self.trace.states.is_wanted() {
            self.note_states();
        }
    }

    fn note_status(&mut self) {
        let now = self.driver_now();
        if self.driver.stopped > 0 {
            return;
        }
        let Some(cores) = self.driver.cores() else { return };
        let status = cores.driver.status(now, &|time| time.to_string());
        self.driver_decides(|| words::status(status));
    }

    fn note_states(&mut self) {
        let (at, states) = (self.now, &mut self.trace.states);
        states.begin_look(at);
        for life in self.former.iter().chain([&self.driver]) {
            let Some(cores) = life.cores_here() else { continue };
            states.note(at, TracePlace::DRIVER, "driver", &*cores.driver);
            states.note(at, TracePlace::DRIVER, "host_manager", &cores.host_manager);
            states.note(at, TracePlace::DRIVER, "registry", cores.registry());
            states.note(at, TracePlace::DRIVER, "peers", &life.peers);
        }
        for host in &self.hosts {
            let Some(agent) = &host.agent else { continue };
            let place = TracePlace::agent(host.number);
            if let Some(core) = agent.core_here() {
                states.note(at, place, "agent", core);
            }
            states.note(at, place, "peers", self.links[agent.link as usize].peers());
        }
        for process in self.processes.iter().filter(|process| !process.has_died()) {
            if let Some(core) = process.state.core_here() {
                states.note(at, process.place, "state", core);
            }
            if let Some(link) = self.links.get(process.link as usize) {
                states.note(at, process.place, "peers", link.peers());
            }
        }
    }
}
