//! How a job ends: one exit code, one reason (G-10); workers and agents leave in order.

use elastic_protocol::messages::{DriverToAgent, DriverToWorker};
use elastic_protocol::{ExitStatus, JobResult, Outcome, Time, WorkerFailure, WorkerId};

use super::DriverCore;
use super::first_failure::shorten;
use super::output::{DriverOutput, EventKind};
use super::phase::Phase;
use super::table::{Link, Stance};
use super::timers::Timer;
use crate::journal::Record;

impl DriverCore {
    /// The operator asks for the end (SIGINT is 2, SIGTERM 15). A second time: at once. SIGTERM is for this
    /// driver alone where another stands by.
    pub fn handle_stop(&mut self, now: Time, signal: i32) {
        if self.is_to_hand_over(signal) {
            return self.hand_over();
        }
        if self.phase.is_over() {
            return self.end_at_once(now);
        }
        let reason = format!("stopped by signal {signal}");
        let result = self.result(Outcome::Stopped, 128 + signal, reason, None);
        self.end(now, result);
    }

    /// Something that the job cannot go on without is not to be had, such as the first discovery (H-15).
    pub fn handle_fatal(&mut self, now: Time, reason: &str, hint: Option<&str>) {
        self.fail(now, reason, hint);
    }

    /// How the job ended, once it has.
    pub fn result_so_far(&self) -> Option<&JobResult> {
        match &self.phase {
            Phase::Ending { result, .. } | Phase::Ended { result } => Some(result),
            _ => None,
        }
    }

    pub(crate) fn succeed(&mut self, now: Time) {
        if self.phase.is_over() {
            return;
        }
        let finished =
            self.workers.values().filter(|record| record.stance == Stance::Finished).count();
        let reason = format!("{finished} workers finished in generation {}", self.generation);
        let result = self.result(Outcome::Succeeded, 0, reason, None);
        self.end(now, result);
    }

    pub(crate) fn fail(&mut self, now: Time, reason: &str, hint: Option<&str>) {
        if self.phase.is_over() {
            return;
        }
        let result =
            self.result(Outcome::Failed, 1, reason.to_owned(), hint.map(ToOwned::to_owned));
        self.end(now, result);
    }

    /// Fails with the first real cause behind the reason.
    pub(crate) fn fail_with_first_cause(&mut self, now: Time, reason: &str) {
        if self.phase.is_over() {
            return;
        }
        self.failed_because = Some(reason.to_owned());
        let reason = self.with_first_cause(reason);
        self.fail(now, &reason, None);
    }

    /// The first cause turned out to be another one, after the job had ended with it.
    pub(crate) fn tell_first_cause_anew(&mut self) {
        let Some(reason) = &self.failed_because else { return };
        let reason = self.with_first_cause(reason);
        let first_failure = self.first_failure.clone();
        if let Phase::Ending { result, .. } = &mut self.phase
            && result.outcome == Outcome::Failed
        {
            result.reason = reason;
            result.first_failure = first_failure;
        }
    }

    fn with_first_cause(&self, reason: &str) -> String {
        match &self.first_failure {
            Some(first) => {
                let how = match first.status {
                    Some(status) if first.message.is_empty() => status.to_string(),
                    Some(status) => format!("{status}: {}", first.message),
                    None => first.message.clone(),
                };
                format!("{reason}; first {}: {how}", first.worker)
            }
            None => match &self.first_launch_failure {
                Some(failure) => format!("{reason}; first {failure}"),
                None => reason.to_owned(),
            },
        }
    }

    fn result(
        &self,
        outcome: Outcome,
        code: i32,
        reason: String,
        hint: Option<String>,
    ) -> JobResult {
        let first_failure = match outcome {
            Outcome::Succeeded => None,
            _ => self.first_failure.clone(),
        };
        JobResult { outcome, code, reason, hint, generation: self.generation, first_failure }
    }

    /// A former driver had ended the job, and perhaps not told everybody.
    pub(crate) fn end_again(&mut self, now: Time, result: JobResult) {
        let window = self.config.deadlines.elastic;
        let deadline = now + window;
        self.timers.set(deadline, Timer::Phase);
        self.phase = Phase::Ending { result, deadline, agents_told: false };
    }

    fn end(&mut self, now: Time, result: JobResult) {
        self.record(&Record::Ended { result: result.clone() });
        self.event(EventKind::JobEnded { result: result.clone() });
        // Workers that finished well may still have something to write: they are waited for.
        let patience = match result.outcome {
            Outcome::Succeeded => self.config.deadlines.elastic,
            _ => self.leaving_time(),
        };
        let deadline = now + patience;
        let succeeded = result.outcome == Outcome::Succeeded;
        self.timers.set(deadline, Timer::Phase);
        self.phase = Phase::Ending { result: result.clone(), deadline, agents_told: false };
        self.forget_the_done();
        let workers: Vec<(WorkerId, Stance, Link)> = self
            .workers
            .iter()
            .map(|(worker, record)| (worker.clone(), record.stance, record.link))
            .collect();
        let in_reach = workers.iter().filter(|(_, _, link)| *link != Link::Down);
        let in_reach = in_reach.map(|(worker, _, _)| worker.clone()).collect();
        self.tell_all(in_reach, DriverToWorker::Finished { result });
        for (worker, stance, link) in workers {
            if link == Link::Down && succeeded && stance == Stance::Starting {
                self.stop_process(now, &worker, self.grace_ms(), "the job is over");
            }
        }
        for host in std::mem::take(&mut self.pending_joins).into_values() {
            let message = DriverToAgent::Refused { reason: "the job is over".to_owned() };
            self.output(DriverOutput::ToAgent { to: host.node, message });
        }
        if !succeeded {
            self.tell_agents(now);
        }
        self.continue_ending(now);
    }

    /// Time for an agent to stop its workers and to leave.
    fn leaving_time(&self) -> std::time::Duration {
        self.config.deadlines.grace * 2 + self.config.deadlines.lost
    }

    fn tell_agents(&mut self, now: Time) {
        let patience = self.leaving_time();
        let Phase::Ending { result, deadline, agents_told } = &mut self.phase else { return };
        if *agents_told {
            return;
        }
        *agents_told = true;
        *deadline = now + patience;
        let (deadline, code, reason) = (*deadline, result.code, result.reason.clone());
        self.timers.set(deadline, Timer::Phase);
        let agents: Vec<_> = self.agents.values().map(|agent| agent.node.clone()).collect();
        for agent in self.agents.values_mut() {
            agent.dismissed = true;
        }
        for to in agents {
            let message = DriverToAgent::Leave { code, reason: reason.clone() };
            self.output(DriverOutput::ToAgent { to, message });
        }
    }

    /// One more process or agent has gone.
    pub(crate) fn continue_ending(&mut self, now: Time) {
        let Phase::Ending { result, agents_told, .. } = &self.phase else { return };
        if self.takeover.is_some() {
            return;
        }
        if !agents_told {
            let waits_for_workers = result.outcome == Outcome::Succeeded;
            let still_there = self.workers.keys().any(|worker| self.agent_of(worker).is_some());
            if still_there && waits_for_workers {
                return;
            }
            self.tell_agents(now);
        }
        if self.agents.values().all(|agent| agent.link == Link::Down) {
            self.finish();
        }
    }

    /// A process failed after the training had succeeded: that is not silent either (G-10).
    pub(crate) fn handle_late_failure(
        &mut self,
        worker: &WorkerId,
        status: ExitStatus,
        tail: &str,
    ) {
        let Phase::Ending { result, .. } = &mut self.phase else { return };
        if result.outcome != Outcome::Succeeded {
            return;
        }
        let message = shorten(tail);
        result.outcome = Outcome::Failed;
        result.code = 1;
        result.reason = format!("{worker} failed after training had finished: {status}");
        result.first_failure = Some(WorkerFailure {
            worker: worker.clone(),
            rank: None,
            status: Some(status),
            message,
        });
        let result = result.clone();
        self.record(&Record::Ended { result });
    }

    pub(crate) fn handle_ending_deadline(&mut self, now: Time) {
        let Phase::Ending { agents_told, .. } = &self.phase else { return };
        if *agents_told {
            let late: Vec<String> = self
                .agents
                .iter()
                .filter(|(_, agent)| agent.link != Link::Down)
                .map(|(host, _)| host.to_string())
                .collect();
            let message = format!("these agents did not leave in time: {}", late.join(", "));
            self.event(EventKind::Warning { message });
            self.finish();
        } else {
            let late: Vec<String> = self.workers.keys().map(ToString::to_string).collect();
            let message = format!("these workers did not end by themselves: {}", late.join(", "));
            self.event(EventKind::Warning { message });
            self.tell_agents(now);
        }
    }

    fn end_at_once(&mut self, now: Time) {
        let workers: Vec<WorkerId> = self.workers.keys().cloned().collect();
        for worker in workers {
            self.stop_process(now, &worker, 0, "stopped at once");
        }
        self.tell_agents(now);
        self.finish();
    }

    fn finish(&mut self) {
        let Phase::Ending { result, .. } = &self.phase else { return };
        let result = result.clone();
        self.phase = Phase::Ended { result: result.clone() };
        self.output(DriverOutput::Ended(result));
    }
}
