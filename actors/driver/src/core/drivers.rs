//! The drivers of a job: the leading one, its standbys, and the handover from one to another. Called by `actor`
//! and by `ending`.

use elastic_protocol::messages::{DRIVERS_MAX, DriverStatus, KnownDrivers};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{NodeId, Time};

use super::DriverCore;
use super::event::{DriverEvent, EventKind};
use super::output::DriverOutput;
use super::table::{PeerLink, Stance};

/// The signal of `kill` and of service managers: it ends the driver, not its job.
const SIGTERM: i32 = 15;

impl DriverCore {
    /// Takes the new list of standby drivers.
    pub fn handle_standbys(&mut self, _now: Time, standbys: Vec<DriverStatus>) {
        if standbys == self.standbys {
            return;
        }
        self.standbys = standbys;
        let standbys = self.standbys.iter().map(|standby| standby.address.clone()).collect();
        self.event(EventKind::StandbysChanged { standbys });
        let agents = self
            .roster
            .agents()
            .map(|(_, agent)| agent)
            .filter(|agent| agent.link != PeerLink::Down);
        let agents = agents.map(|agent| agent.node.clone());
        let workers = self.roster.workers().filter(|(_, record)| {
            record.link != PeerLink::Down && !matches!(record.stance, Stance::Starting)
        });
        let to = agents.chain(workers.map(|(worker, _)| NodeId::worker(worker))).collect();
        self.output(DriverOutput::KnownDrivers { to, message: self.known_drivers() });
    }

    /// Tells a node that has just joined the addresses of all drivers.
    pub(crate) fn tell_of_drivers(&mut self, node: NodeId) {
        if !self.standbys.is_empty() && !is_planted(Bug::StandbysUntold) {
            let message = self.known_drivers();
            self.output(DriverOutput::KnownDrivers { to: vec![node], message });
        }
    }

    fn known_drivers(&self) -> KnownDrivers {
        let standbys = self.standbys.iter().map(|standby| &standby.address);
        let all = std::iter::once(&self.config.driver_address).chain(standbys);
        KnownDrivers { addresses: all.take(DRIVERS_MAX).cloned().collect() }
    }

    /// The drivers' addresses as in a worker's environment, separated by commas.
    pub(crate) fn driver_addresses(&self) -> String {
        self.known_drivers().addresses.join(",")
    }

    /// Whether this signal ends the driver and not the job: a standby can go on with the job.
    pub(crate) fn is_to_hand_over(&self, signal: i32) -> bool {
        let is_there = !self.standbys.is_empty() && !is_planted(Bug::StandbyNotUsed);
        signal == SIGTERM && is_there && !self.round.phase().is_over()
    }

    /// Leaves the job to the standbys. To them it is as if this driver were killed, without the time to notice.
    pub(crate) fn hand_over(&mut self) {
        let to = self.standbys.iter().map(|standby| standby.address.clone()).collect();
        self.retire(EventKind::HandedOver { to }, DriverOutput::HandedOver);
    }

    /// Retires the driver, which has lost the leader lease. Pending outputs do not leave, and nothing more is
    /// decided.
    pub fn handle_abandon(&mut self, reason: &str) {
        self.abandon(reason.to_owned(), false);
    }

    /// Leaves the job without a message to anyone.
    pub(crate) fn abandon(&mut self, reason: String, is_outdated: bool) {
        self.retire(
            EventKind::Abandoned { reason: reason.clone() },
            DriverOutput::Abandoned { reason, is_outdated },
        );
    }

    fn retire(&mut self, kind: EventKind, last: DriverOutput) {
        let (term, generation) = (self.term, self.round.generation());
        self.outbox.retire([DriverOutput::Event(DriverEvent { term, generation, kind }), last]);
    }
}
