//! Asks agents for health checks, and takes their answers. Called by `replacements`, by the review, by the handlers of
//! agents' messages, and by the timer of checks.

use elastic_protocol::job::shorten;
use elastic_protocol::messages::{DriverToAgent, HealthFailure};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{HostName, NodeId, Time};

use super::{ANSWER_WITHIN, CHECK_AGAIN_AFTER, CheckStage, HostCheck};
use crate::core::DriverCore;
use crate::core::event::EventKind;
use crate::core::output::DriverOutput;
use crate::core::table::{PeerLink, SlotId};
use crate::core::timers::Timer;

impl DriverCore {
    /// Has a host with slots at rest checked, even if it has passed a check before.
    pub(crate) fn want_health_check(&mut self, now: Time, host: &HostName) {
        if self.config.health_check.is_none() {
            return;
        }
        let failure = self.health.hosts.remove(host).and_then(|check| check.failure);
        let check = HostCheck { stage: CheckStage::Due { at: now }, failure };
        self.health.hosts.insert(host.clone(), check);
        self.agenda.ask_review(now);
    }

    /// Whether a slot whose cool-down is over stays at rest, since its host has not passed its check. A slot that has a worker
    /// all the same does not wait for the check.
    pub(crate) fn waits_for_health(&self, slot: &SlotId) -> bool {
        self.config.health_check.is_some()
            && !self.health.has_passed(&slot.0)
            && !self.has_worker(slot)
    }

    fn has_worker(&self, slot: &SlotId) -> bool {
        self.roster.slot(slot).is_some_and(|slot| slot.worker.is_some())
    }

    /// Ends the rests of a host's slots whose cool-down is over.
    fn end_rests_of(&mut self, now: Time, host: &HostName) {
        let resting = self.roster.resting_of(host).map(|(slot, _)| (host.clone(), slot));
        let slots: Vec<SlotId> = resting.collect();
        slots.iter().for_each(|slot| self.handle_rest_over(now, slot));
    }

    /// Whether a worker is on a slot of a host that is at rest: it has not left yet, or there are too few others.
    fn is_used_at_rest(&self, host: &HostName) -> bool {
        let mut resting = self.roster.resting_of(host).map(|(slot, _)| (host.clone(), slot));
        resting.any(|slot| self.has_worker(&slot))
    }

    /// Asks for the checks that are due, of hosts whose slots at rest are empty. A slot that is in use at the end of its cool-down
    /// rests no longer, without a check.
    pub(crate) fn ask_health_checks(&mut self, now: Time) {
        let Some(settings) = self.config.health_check.clone() else { return };
        let used = self.health.hosts.keys().filter(|host| self.is_used_at_rest(host));
        let used: Vec<HostName> = used.cloned().collect();
        used.iter().for_each(|host| self.end_rests_of(now, host));
        let is_due = |(host, check): (&HostName, &HostCheck)| {
            let agent = self.roster.agent(host).filter(|agent| agent.link == PeerLink::Up)?;
            let is_due = match &check.stage {
                CheckStage::Due { at } => *at <= now,
                // That agent is gone, and its check with it.
                CheckStage::Running { agent: asked, .. } => *asked != agent.node,
                CheckStage::Passed => false,
            };
            (is_due && !self.is_used_at_rest(host)).then(|| (host.clone(), agent.node.clone()))
        };
        let due: Vec<(HostName, NodeId)> = self.health.hosts.iter().filter_map(is_due).collect();
        for (host, agent) in due {
            self.health.asked += 1;
            let number = self.health.asked;
            let until = now + settings.timeout + ANSWER_WITHIN;
            if let Some(check) = self.health.hosts.get_mut(&host) {
                check.stage = CheckStage::Running { number, agent: agent.clone(), until };
            }
            self.agenda.set(until, Timer::HealthCheck(host));
            let timeout_ms = u64::try_from(settings.timeout.as_millis()).unwrap_or(u64::MAX);
            let command = settings.command.clone();
            let message = DriverToAgent::CheckHealth { number, command, timeout_ms };
            self.output(DriverOutput::ToAgent { to: agent, message });
        }
    }

    /// Handles the timer of a check that is due again, or has not been answered.
    pub(crate) fn handle_health_timer(&mut self, now: Time, host: &HostName) {
        let stage = self.health.hosts.get(host).map(|check| &check.stage);
        match stage {
            Some(CheckStage::Running { until, .. }) if *until <= now => {
                let reason = "its agent has not answered".to_owned();
                let failure = HealthFailure { reason, output: String::new() };
                self.fail_health_check(now, host, failure);
            }
            Some(CheckStage::Due { at }) if *at <= now => self.agenda.ask_review(now),
            _ => {}
        }
    }

    /// Handles the result of a check that an agent has run.
    pub(crate) fn handle_health_checked(
        &mut self,
        now: Time,
        host: &HostName,
        number: u64,
        failure: Option<HealthFailure>,
    ) {
        let Some(check) = self.health.hosts.get_mut(host) else { return self.drop_message() };
        let is_asked =
            matches!(check.stage, CheckStage::Running { number: asked, .. } if asked == number);
        if !is_asked {
            return self.drop_message();
        }
        match failure {
            Some(HealthFailure { reason, output }) => {
                let failure = HealthFailure { reason: shorten(&reason), output: shorten(&output) };
                self.fail_health_check(now, host, failure);
            }
            None => {
                check.stage = CheckStage::Passed;
                check.failure = None;
                self.roster.set_unfit(host, false);
                self.event(EventKind::HealthCheckPassed { host: host.clone() });
                self.end_rests_of(now, host);
                self.agenda.ask_review(now);
            }
        }
    }

    /// Handles a failed check: the host's slots at rest are closed until a later one passes.
    fn fail_health_check(&mut self, now: Time, host: &HostName, failure: HealthFailure) {
        let at = now + CHECK_AGAIN_AFTER;
        let Some(check) = self.health.hosts.get_mut(host) else { return };
        check.stage = match is_planted(Bug::FailedCheckIgnored) {
            true => CheckStage::Passed,
            false => CheckStage::Due { at },
        };
        let is_told = check.failure.as_ref().is_some_and(|told| told.reason == failure.reason);
        check.failure = Some(failure.clone());
        self.agenda.set(at, Timer::HealthCheck(host.clone()));
        self.roster.set_unfit(host, !is_planted(Bug::FailedCheckIgnored));
        self.agenda.ask_review(now);
        if !is_told {
            let HealthFailure { reason, output } = failure;
            let slots = self.roster.resting_of(host).map(|(slot, _)| slot).collect();
            let host = host.clone();
            self.event(EventKind::HealthCheckFailed { host, slots, reason, output });
        }
    }

    /// Forgets a host's check if none of its slots is at rest any more.
    pub(crate) fn forget_health_check(&mut self, host: &HostName) {
        if self.roster.resting_of(host).next().is_none() {
            self.health.hosts.remove(host);
            self.roster.set_unfit(host, false);
        }
    }
}
