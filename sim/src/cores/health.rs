//! Health checks: agents run them on simulated hosts, and the oracle checks the driver's conclusions. A check fails only
//! because the host is sick or its agent is away. A slot of a host that has failed its check is not used again before the host
//! has passed one. Called by `agents` and with the driver's events.

use std::collections::BTreeSet;
use std::time::Duration;

use elastic_agent::ProcessEvent;
use elastic_protocol::messages::HealthFailure;
use elastic_protocol::{HostName, WorkerId};

use super::processes::SimulatedProcess;
use super::{Happening, MS, World};

/// Longest time of a check that passes.
const CHECK_NS: u64 = 800 * MS;

/// Age up to which a host's sickness, or its agent's absence, explains that a check is said to have failed: the time of a
/// check, its answer, and delays on the way.
const KNOWN_NS: u64 = 20_000 * MS;

/// The oracle's knowledge of health checks under the driver's present life.
#[derive(Debug, Default)]
pub(super) struct HealthWatch {
    /// The driver's life.
    life: u32,
    /// Hosts that have failed their last check.
    failed: BTreeSet<HostName>,
    /// Workers whose start was ordered and whose end was not reported, under any life: their slots are in use before there is a
    /// process.
    ordered: BTreeSet<WorkerId>,
}

impl World {
    pub(super) fn mend_sick(&mut self, host: u32, times: u32) {
        let now = self.now;
        let host = &mut self.hosts[host as usize];
        if host.sick > 0 {
            host.sick = host.sick.saturating_sub(times);
            host.sick_until = now;
        }
    }

    /// An agent begins a health check. On a sick host, about every other check does not end in time.
    pub(crate) fn agent_checks_health(&mut self, host: u32, timeout: Duration) {
        let timeout_ns = timeout.as_nanos() as u64;
        let entry = &self.hosts[host as usize];
        let takes = match entry.sick > 0 && (self.now / MS).is_multiple_of(2) {
            true => timeout_ns,
            false => (self.now / 7 % CHECK_NS).min(timeout_ns / 2),
        };
        let life = entry.lives;
        self.agenda.push(self.now + takes, Happening::HealthChecked { host, life });
    }

    /// A health check has ended.
    pub(super) fn handle_health_checked(&mut self, host: u32, life: u32) {
        let is_sick = self.hosts[host as usize].sick > 0;
        let failure = is_sick.then(|| HealthFailure {
            reason: "exit code 1".to_owned(),
            output: "simulated".to_owned(),
        });
        let Some(agent) = self.agent_mut(host, life) else { return };
        if agent.stopped > 0 {
            return agent.frozen.push(Happening::HealthChecked { host, life });
        }
        match agent.node() {
            Some(node) => node.process_event(ProcessEvent::HealthChecked { failure }),
            None => self.with_agent(host, life, |core, _now| core.handle_health_checked(failure)),
        }
    }

    fn turn_health_watch(&mut self) {
        if self.health.life != self.driver.life {
            self.health.life = self.driver.life;
            self.health.failed.clear();
        }
    }

    /// Checks a failed health check that the driver reports: the host was sick, or its agent away.
    pub(super) fn check_unhealthy(&mut self, name: &HostName, reason: &str) -> Result<(), String> {
        self.turn_health_watch();
        self.health.failed.insert(name.clone());
        let Some(host) = self.hosts.iter().find(|host| host.name == *name) else {
            return Err(format!(
                "health: the check of {name} has failed, and there is no such host"
            ));
        };
        let was_sick = host.sick > 0 || host.sick_until + KNOWN_NS > self.now;
        let was_away = reason != "exit code 1" && self.calm_for(0) < KNOWN_NS;
        // Events wait for the journal.
        let was_held = !self.driver_acts_since(KNOWN_NS);
        match was_sick || was_away || was_held {
            true => Ok(()),
            false => Err(format!(
                "health: the check of {name} is said to have failed ({reason}), and it is well"
            )),
        }
    }

    pub(super) fn note_healthy(&mut self, name: &HostName) {
        self.turn_health_watch();
        self.health.failed.remove(name);
    }

    pub(super) fn note_ordered(&mut self, worker: &WorkerId) {
        self.health.ordered.insert(worker.clone());
    }

    pub(super) fn note_not_ordered(&mut self, worker: &WorkerId) {
        self.health.ordered.remove(worker);
    }

    /// Checks that a slot whose rest is over is none of a host that has failed its check, unless it was in use all the time.
    pub(super) fn check_rested(&mut self, name: &HostName, slot: u32) -> Result<(), String> {
        self.turn_health_watch();
        let is_here =
            |process: &SimulatedProcess| process.id.host == *name && process.id.slot == slot;
        let is_used = self.processes.iter().any(|process| process.is_alive && is_here(process))
            || self.health.ordered.iter().any(|worker| worker.host == *name && worker.slot == slot);
        match self.health.failed.contains(name) && !is_used {
            true => Err(format!(
                "health: {name}[{slot}] is used again, and the check of its host has failed"
            )),
            false => Ok(()),
        }
    }
}
