//! Stop orders, and the agent's own end. Part of [`AgentCore`].

use std::time::Duration;

use elastic_protocol::messages::StoppedBy;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Time, WorkerId};

use super::output::{AgentOutput, AgentWarning, StopSignal};
use super::slot::OrderedStop;
use super::{AgentCore, AgentPhase, ms};

impl AgentCore {
    /// The driver's order to stop a worker.
    pub(super) fn stop(&mut self, now: Time, worker: WorkerId, grace: Duration, reason: String) {
        let Some(slot) = self.slots.get_mut(&worker.slot) else {
            return self.warn(AgentWarning::NotHere { worker, reason });
        };
        if let Some(order) = slot.next.take_if(|order| order.worker == worker) {
            let reason = format!("it was stopped before it was started: {reason}");
            return self.report_not_started(order.worker, reason);
        }
        if slot.current.as_ref().is_some_and(|process| process.worker == worker) {
            return self.order_stop(now, &worker, grace, reason, self.by_driver());
        }
        // The worker's end was reported already, or is about to be: no report is missing.
        let is_over = slot.newest.is_some_and(|newest| newest >= worker.incarnation);
        if !is_over {
            self.warn(AgentWarning::NotHere { worker, reason });
        }
    }

    /// The origin of a stop that the driver ordered.
    pub(super) fn by_driver(&self) -> StoppedBy {
        StoppedBy::Driver(self.welcome.as_ref().map(|welcome| welcome.term).unwrap_or_default())
    }

    /// Notes that a process has to end, and begins the stop if the process runs already.
    pub(super) fn order_stop(
        &mut self,
        now: Time,
        worker: &WorkerId,
        grace: Duration,
        reason: String,
        by: StoppedBy,
    ) {
        let Some(process) = self.process_mut(worker) else { return };
        match &mut process.stop {
            Some(stop) => stop.hasten(now, grace),
            none => *none = Some(OrderedStop::new(now, grace, reason, by)),
        }
        self.carry_out_stop(now, worker);
    }

    /// Sends the signal that is due: SIGTERM, or SIGKILL when the grace period is over. A process that is still
    /// being started is left to `handle_spawned`.
    pub(super) fn carry_out_stop(&mut self, now: Time, worker: &WorkerId) {
        let Some(process) = self.process_mut(worker) else { return };
        let (Some(pid), Some(stop)) = (process.pid, &mut process.stop) else { return };
        if stop.killed {
            return;
        }
        let signal = if stop.kill_at <= now {
            stop.killed = true;
            StopSignal::Kill
        } else if stop.terminated {
            return;
        } else {
            stop.terminated = true;
            StopSignal::Terminate
        };
        let (reason, grace_ms) = (stop.reason.clone(), ms(stop.grace));
        let worker = worker.clone();
        if stop.killed_after_grace() {
            let (worker, reason) = (worker.clone(), reason.clone());
            self.warn(AgentWarning::KilledAfterGrace { worker, pid, grace_ms, reason });
        }
        self.outputs.push_back(AgentOutput::Signal { worker, signal, reason });
    }

    /// Stops all processes, then ends the agent. Without a grace period SIGKILL is sent at once. The first
    /// reason is kept; a later order can only hasten the end.
    pub(super) fn leave(&mut self, now: Time, code: i32, reason: String, grace: Option<Duration>) {
        let grace = grace.unwrap_or(Duration::ZERO);
        let give_up_at = now + grace + Self::KILL_PATIENCE;
        let why = match &mut self.phase {
            AgentPhase::Ended => return,
            AgentPhase::Leaving { reason, give_up_at: first, .. } => {
                *first = give_up_at.min(*first);
                reason.clone()
            }
            AgentPhase::Serving | AgentPhase::Draining { .. } => {
                self.phase = AgentPhase::Leaving { code, reason: reason.clone(), give_up_at };
                reason
            }
        };
        let never_started: Vec<_> =
            self.slots.values_mut().filter_map(|slot| slot.next.take()).collect();
        for order in never_started {
            let reason = format!("it was not started: {why}");
            self.report_not_started(order.worker, reason);
        }
        let running: Vec<_> = self.processes().map(|process| process.worker.clone()).collect();
        for worker in running {
            self.order_stop(now, &worker, grace, why.clone(), StoppedBy::Agent);
        }
    }

    /// Whether the agent is leaving or has ended.
    pub(super) const fn is_ending(&self) -> bool {
        matches!(self.phase, AgentPhase::Leaving { .. } | AgentPhase::Ended)
    }

    /// Ends the agent if it is leaving or draining, no process is left, and all last words are reported.
    pub(super) fn end_if_empty(&mut self) {
        if !self.slots.values().all(super::AgentSlot::is_empty) || !self.speechless.is_empty() {
            return;
        }
        match &self.phase {
            AgentPhase::Leaving { code, reason, .. }
            | AgentPhase::Draining { code, reason, .. } => {
                let (code, reason) = (*code, reason.clone());
                self.end(code, reason);
            }
            AgentPhase::Serving | AgentPhase::Ended => {}
        }
    }

    /// Ends the agent although processes are left that SIGKILL did not end.
    pub(super) fn give_up(&mut self) {
        let AgentPhase::Leaving { code, reason, .. } = &self.phase else { return };
        let (code, mut text) = (*code, reason.clone());
        for process in self.processes() {
            let pid = process.pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
            text += &format!("; {} (pid {pid}) did not end after SIGKILL", process.worker);
        }
        self.end(code, text);
    }

    /// The time at which the agent has been alone for too long, if it is alone.
    pub(super) fn alone_until(&self) -> Option<Time> {
        if self.is_ending() || is_planted(Bug::NeverAlone) {
            return None;
        }
        let patience = match &self.welcome {
            // Workers end by themselves when they have nothing left to do.
            Some(_) if self.processes().next().is_some() => self.deadlines().orphan_training?,
            Some(welcome) => welcome.deadlines.orphan,
            None => self.settings.join_within,
        };
        self.alone_since.map(|since| since + patience)
    }

    /// Leaves because no driver has welcomed this host, or none has come back (`--orphan-timeout`).
    pub(super) fn alone_too_long(&mut self, now: Time) {
        let grace = self.deadlines().grace;
        let alone = self.alone_since.map_or(Duration::ZERO, |since| now.since(since));
        let reason = if self.welcome.is_some() {
            format!("the driver has been gone for {} ms", ms(alone))
        } else {
            format!("no driver welcomed this host within {} ms", ms(self.settings.join_within))
        };
        self.leave(now, 1, reason, Some(grace));
    }

    fn end(&mut self, code: i32, reason: String) {
        self.phase = AgentPhase::Ended;
        self.outputs.push_back(AgentOutput::Exit { code, reason });
    }
}
