//! Closed slots: their workers left of their own accord (SIGTERM from outside). A closed slot is not refilled until
//! another agent of the host joins. A worker cannot tell the sender of a signal, but its agent can. A slot stays open
//! if a former driver or the agent itself stopped the worker. Called by the core's handlers.

use elastic_protocol::messages::StoppedBy;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{HostName, Incarnation, WorkerId};

use super::DriverCore;

impl DriverCore {
    /// Closes the slot of a worker that asks to leave.
    pub(crate) fn close_slot_of(&mut self, worker: &WorkerId) {
        if is_planted(Bug::NoticedSlotRefilled) {
            return;
        }
        let slot = (worker.host.clone(), worker.slot);
        let agent = self.roster.agent(&worker.host).map(|agent| agent.node.incarnation);
        // A new driver may not have heard the agent yet: then the agent came to a former one.
        let agent = agent.unwrap_or(Incarnation::enrolled(self.term, 0));
        self.roster.close_slot(slot, agent);
        self.record_slot(&worker.host, worker.slot);
    }

    /// Opens closed slots of a host that has another agent now, whichever driver admitted the agent.
    pub(crate) fn open_slots(&mut self, host: &HostName, agent: Incarnation) {
        for number in self.roster.closed_before(host, agent) {
            self.open_slot(host, number);
        }
    }

    /// Opens a worker's closed slot: its signal was not meant to close the slot, or the sender cannot be established
    /// any more (G-7).
    pub(crate) fn open_slot_of(&mut self, worker: &WorkerId) {
        let slot = self.roster.slot(&(worker.host.clone(), worker.slot));
        let closed = slot.is_some_and(|slot| {
            slot.closed_under.is_some() && slot.worker.as_ref() == Some(worker)
        });
        if closed {
            self.open_slot(&worker.host, worker.slot);
        }
    }

    fn open_slot(&mut self, host: &HostName, number: u32) {
        self.roster.open_slot((host.clone(), number));
        self.record_slot(host, number);
    }

    /// Whether a process was stopped by a former driver or by its agent, and not by this driver or from outside.
    pub(crate) fn is_stopped_by_another(&self, stopped_by: Option<StoppedBy>) -> bool {
        match stopped_by {
            Some(StoppedBy::Driver(term)) => term < self.term,
            Some(StoppedBy::Agent) => true,
            None => false,
        }
    }
}
