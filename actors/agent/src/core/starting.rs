//! Start orders: how slots are filled, and which workers are refused. Part of [`AgentCore`].

use std::time::Duration;

use elastic_protocol::messages::AgentToDriver;
use elastic_protocol::{Time, WorkerId};

use super::output::{AgentOutput, AgentWarning, SpawnOrder};
use super::slot::SlotProcess;
use super::{AgentCore, AgentPhase, AgentSettings};

impl AgentCore {
    /// Reports that the agent has not started a worker, for a reason that is not the program's.
    pub(super) fn report_not_started(&mut self, worker: WorkerId, reason: String) {
        self.report(AgentToDriver::StartFailed { worker, reason, is_programs: false });
    }

    /// The driver's order to start a worker.
    pub(super) fn start(&mut self, now: Time, mut order: SpawnOrder) {
        let worker = order.worker.clone();
        if let Some(reason) = self.not_ours(&worker) {
            return self.report_not_started(worker, reason);
        }
        match self.slots.get(&worker.slot).and_then(|slot| slot.newest) {
            Some(newest) if newest == worker.incarnation => return,
            Some(newest) if newest > worker.incarnation => {
                return self.warn(AgentWarning::OldIncarnation { worker, newest: newest.0 });
            }
            _ => {}
        }
        if let Some(reason) = self.not_now() {
            return self.report_not_started(worker, reason);
        }
        // Later entries win, so the worker's own entries come after the program's.
        let own = std::mem::take(&mut order.environment);
        order.environment = order.program.environment.iter().cloned().chain(own).collect();
        self.fill(now, order);
    }

    /// The reason why this host never runs a worker; `None` if it can.
    fn not_ours(&self, worker: &WorkerId) -> Option<String> {
        let AgentSettings { host, slots, .. } = &self.settings;
        if worker.host != *host {
            return Some(format!("this is host {host}, not {}", worker.host));
        }
        (worker.slot >= *slots)
            .then(|| format!("slot {} does not exist: host {host} has {slots} slots", worker.slot))
    }

    /// The reason why nothing is started now; `None` if workers can be started.
    fn not_now(&self) -> Option<String> {
        match &self.phase {
            AgentPhase::Draining { reason, .. } | AgentPhase::Leaving { reason, .. } => {
                Some(format!("host {} is leaving: {reason}", self.settings.host))
            }
            AgentPhase::Serving | AgentPhase::Ended => {
                let has_program =
                    self.welcome.as_ref().is_some_and(|welcome| !welcome.program.argv.is_empty());
                (!has_program).then(|| "the job names no program to run".to_owned())
            }
        }
    }

    /// Puts a worker on its slot, after the end of the process that is still there.
    fn fill(&mut self, now: Time, order: SpawnOrder) {
        let slot = self.slots.entry(order.worker.slot).or_default();
        slot.newest = Some(order.worker.incarnation);
        let Some(current) = &slot.current else {
            slot.current = Some(SlotProcess::starting(order.worker.clone()));
            return self.outputs.push_back(AgentOutput::Spawn(Box::new(order)));
        };
        let (old, new) = (current.worker.clone(), order.worker.clone());
        let being_stopped = current.stop.is_some();
        if let Some(replaced) = slot.next.replace(order) {
            let reason = format!("{new} was ordered on its slot before it could be started");
            self.report_not_started(replaced.worker, reason);
        }
        if !being_stopped {
            self.warn(AgentWarning::SlotTaken { old: old.clone(), new: new.clone() });
            let reason = format!("{new} takes its slot");
            self.order_stop(now, &old, Duration::ZERO, reason, self.by_driver());
        }
    }

    /// Takes a process off its slot, and starts the worker that waits for the slot.
    pub(super) fn vacate(&mut self, worker: &WorkerId) {
        let Some(slot) = self.slots.get_mut(&worker.slot) else { return };
        slot.current = None;
        if let Some(order) = slot.next.take() {
            slot.current = Some(SlotProcess::starting(order.worker.clone()));
            self.outputs.push_back(AgentOutput::Spawn(Box::new(order)));
        }
    }
}
