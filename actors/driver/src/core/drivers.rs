//! The drivers of a job: the one that acts, those that stand by for it, and how one gives way to another.

use elastic_protocol::messages::{DRIVERS_MAX, DriverStatus, KnownDrivers};
use elastic_protocol::{NodeId, Time};

use super::DriverCore;
use super::output::{DriverOutput, Event, EventKind};
use super::table::{Link, Stance};

/// What `kill` and those who run services send: the driver is to go, not its job.
const SIGTERM: i32 = 15;

impl DriverCore {
    /// These drivers stand by from now on.
    pub fn handle_standbys(&mut self, _now: Time, standbys: Vec<DriverStatus>) {
        if standbys == self.standbys {
            return;
        }
        self.standbys = standbys;
        let standbys = self.standbys.iter().map(|standby| standby.address.clone()).collect();
        self.event(EventKind::StandbysChanged { standbys });
        let agents = self.agents.values().filter(|agent| agent.link != Link::Down);
        let agents = agents.map(|agent| agent.node.clone());
        let workers = self.workers.iter().filter(|(_, record)| {
            record.link != Link::Down && !matches!(record.stance, Stance::Starting)
        });
        let to = agents.chain(workers.map(|(worker, _)| NodeId::worker(worker))).collect();
        self.output(DriverOutput::KnownDrivers { to, message: self.known_drivers() });
    }

    /// Tells a node that has just come where else it may find a driver.
    pub(crate) fn tell_of_drivers(&mut self, node: NodeId) {
        if !self.standbys.is_empty() {
            let message = self.known_drivers();
            self.output(DriverOutput::KnownDrivers { to: vec![node], message });
        }
    }

    fn known_drivers(&self) -> KnownDrivers {
        let standbys = self.standbys.iter().map(|standby| &standby.address);
        let all = std::iter::once(&self.config.driver_address).chain(standbys);
        KnownDrivers { addresses: all.take(DRIVERS_MAX).cloned().collect() }
    }

    /// The same as a worker finds it in its environment: with commas between them.
    pub(crate) fn driver_addresses(&self) -> String {
        self.known_drivers().addresses.join(",")
    }

    /// Whether this signal asks the driver, not the job, to end: somebody stands by to go on with it.
    pub(crate) fn is_to_hand_over(&self, signal: i32) -> bool {
        signal == SIGTERM && !self.standbys.is_empty() && !self.phase.is_over()
    }

    /// Gives way to those that stand by. It is as if it were killed, but for the time that it takes to notice.
    pub(crate) fn hand_over(&mut self) {
        let to = self.standbys.iter().map(|standby| standby.address.clone()).collect();
        self.retire(EventKind::HandedOver { to }, DriverOutput::HandedOver);
    }

    /// The right to act is lost: whatever waits to leave does not, and nothing more is decided.
    pub fn handle_abandon(&mut self, reason: &str) {
        let reason = reason.to_owned();
        self.retire(
            EventKind::Abandoned { reason: reason.clone() },
            DriverOutput::Abandoned { reason },
        );
    }

    fn retire(&mut self, kind: EventKind, last: DriverOutput) {
        if self.is_retired {
            return;
        }
        self.is_retired = true;
        self.outputs.clear();
        let (term, generation) = (self.term.0, self.generation.0);
        self.outputs.push_back((0, DriverOutput::Event(Event { term, generation, kind })));
        self.outputs.push_back((0, last));
    }
}
