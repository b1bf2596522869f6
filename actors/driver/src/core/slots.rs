//! Slots whose workers left of their own accord (SIGTERM from outside): those are not refilled, until another agent
//! of the host joins. A worker cannot tell who has signalled it. Its agent can: where a former driver had it
//! stopped, or the agent itself did, nobody meant the slot.

use elastic_protocol::messages::StoppedBy;
use elastic_protocol::{HostName, Incarnation, WorkerId};

use super::DriverCore;

impl DriverCore {
    /// A worker asks to leave: nobody takes its place.
    pub(crate) fn close_slot_of(&mut self, worker: &WorkerId) {
        let slot = (worker.host.clone(), worker.slot);
        let agent = self.agents.get(&worker.host).map(|agent| agent.node.incarnation);
        // Where a new driver has not heard the agent yet, it is one that came to a former one.
        let agent = agent.unwrap_or(Incarnation::enrolled(self.term, 0));
        self.slots.get_or_default(slot).closed_under = Some(agent);
        self.record_slot(&worker.host, worker.slot);
    }

    /// Slots that were left for good are there again with another agent, whichever driver let that one in.
    pub(crate) fn open_slots(&mut self, host: &HostName, agent: Incarnation) {
        let of_host = self.slots.range((host.clone(), 0)..=(host.clone(), u32::MAX));
        let closed = of_host.filter(|(_, slot)| slot.closed_under.is_some_and(|it| it < agent));
        let closed: Vec<u32> = closed.map(|((_, number), _)| *number).collect();
        for number in closed {
            self.open_slot(host, number);
        }
    }

    /// What a worker took for a wish that it leave was none, or nobody can say any more (G-7).
    pub(crate) fn open_slot_of(&mut self, worker: &WorkerId) {
        let slot = self.slots.get(&(worker.host.clone(), worker.slot));
        let closed = slot.is_some_and(|slot| {
            slot.closed_under.is_some() && slot.worker.as_ref() == Some(worker)
        });
        if closed {
            self.open_slot(&worker.host, worker.slot);
        }
    }

    fn open_slot(&mut self, host: &HostName, number: u32) {
        self.slots.get_or_default((host.clone(), number)).closed_under = None;
        self.record_slot(host, number);
    }

    /// Whether a process was stopped, and not by this driver nor by somebody outside.
    pub(crate) fn is_stopped_by_another(&self, stopped_by: Option<StoppedBy>) -> bool {
        match stopped_by {
            Some(StoppedBy::Driver(term)) => term < self.term,
            Some(StoppedBy::Agent) => true,
            None => false,
        }
    }
}
