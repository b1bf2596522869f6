//! The end of a job: one exit code, one reason (G-10). Workers and agents leave in order. Called by `actor` and
//! the core's handlers.

use std::time::Duration;

use elastic_protocol::job::shorten;
use elastic_protocol::messages::{DriverToAgent, DriverToWorker};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{ExitStatus, JobOutcome, JobResult, Time, WorkerFailure, WorkerId, counted};

use super::DriverCore;
use super::event::EventKind;
use super::first_cause::FailureWords;
use super::output::DriverOutput;
use super::phase::RoundPhase;
use super::table::{PeerLink, Stance};
use super::timers::Timer;
use crate::journal::{JournalRecord, StopImage};

/// How a member of the last generation is lost when the others have finished.
#[derive(Debug)]
pub(crate) enum LateLoss {
    /// Its process failed after its training function had returned.
    Failed(ExitStatus),
    /// Its process failed before that, and no other member was left to go on without it.
    Unfinished(ExitStatus),
    /// The end of its process will not be known.
    Gone(String),
}

/// The signal that gives the exit code of a job that a client ended.
const SIGINT: i32 = 2;

/// Time after the end of the training after which processes that are still there are named. A program may have data to
/// write then; but a thread that it has forgotten keeps its process for ever.
const SLOW_END_AFTER: Duration = Duration::from_secs(5);

/// Deadline for storing the end of a job. After it, the end is told without being stored.
const STORED_WITHIN: Duration = Duration::from_secs(60);

/// As [`STORED_WITHIN`], for a job that is ended at once: a second signal ends the driver's process after two seconds.
const STORED_AT_ONCE_WITHIN: Duration = Duration::from_secs(1);

impl DriverCore {
    /// Handles the operator's request to end (SIGINT is 2, SIGTERM 15). A second request ends at once. If a
    /// standby is there, SIGTERM ends only this driver.
    pub fn handle_stop(&mut self, now: Time, signal: i32) {
        // A job that was to end before still ends: its operator was told so.
        let was_asked = self.stopping.is_some() || self.stop_asked.is_some();
        if !was_asked && self.is_to_hand_over(signal) {
            return self.hand_over();
        }
        let reason = format!("stopped by signal {signal}");
        self.stop(now, signal, reason);
    }

    /// Handles a client's request to end (`elastic-node stop`), as SIGINT.
    pub fn handle_stop_asked(&mut self, now: Time) {
        let reason = "stopped by `elastic-node stop`".to_owned();
        self.stop(now, SIGINT, reason);
    }

    fn stop(&mut self, now: Time, signal: i32, reason: String) {
        if let RoundPhase::Failing { .. } = self.round.phase() {
            return self.conclude_failure(now);
        }
        if self.stopping.is_some() {
            self.give_up_stop_save(now, "was asked again");
            return self.end_at_once(now);
        }
        if self.round.phase().is_over() {
            return self.end_at_once(now);
        }
        let was_asked = self.stop_asked.is_some();
        if self.takeover.is_some() && !was_asked {
            self.record_stop(signal, &reason);
            self.stop_asked = Some((signal, reason));
            return;
        }
        if self.begin_stop_save(now, signal, &reason) {
            return;
        }
        let result = self.result(JobOutcome::Stopped, 128 + signal, reason, None);
        self.end(now, result);
        if was_asked {
            self.end_at_once(now);
        }
    }

    /// Records a request to end that takes effect later: the next driver ends the job, too, and does not train on.
    pub(crate) fn record_stop(&mut self, signal: i32, reason: &str) {
        let stop = StopImage { signal, reason: reason.to_owned() };
        self.record(&JournalRecord::StopAsked { stop });
    }

    /// Ends a job that was asked to end during the takeover, or under a former driver, now that the takeover is over. Before, the
    /// driver did not know all agents and workers that it has to tell.
    pub(crate) fn stop_after_takeover(&mut self, now: Time) {
        if let Some((signal, reason)) = self.stop_asked.take() {
            self.stop(now, signal, reason);
        }
    }

    /// Fails the job for want of something that it cannot go on without, such as the first discovery (H-15).
    pub fn handle_fatal(&mut self, now: Time, reason: &str, hint: Option<&str>) {
        self.fail(now, reason, hint);
    }

    /// The job's result; none while it goes on.
    pub fn result_so_far(&self) -> Option<&JobResult> {
        match self.round.phase() {
            RoundPhase::Ending { result, .. } | RoundPhase::Ended { result } => Some(result),
            _ => None,
        }
    }

    pub(crate) fn succeed(&mut self, now: Time) {
        if self.round.phase().is_over() {
            return;
        }
        let finished = self
            .roster
            .workers()
            .map(|(_, record)| record)
            .filter(|record| record.stance == Stance::Finished)
            .count();
        let generation = self.round.generation();
        let members = self.round.current().map_or(0, |current| current.assignment.world_size());
        let reason = if finished < members as usize && !self.is_by_restart() {
            format!("{finished} of {members} workers finished in generation {generation}")
        } else {
            let finished = counted(finished as u64, "worker");
            format!("{finished} finished in generation {generation}")
        };
        let result = self.result(JobOutcome::Succeeded, 0, reason, None);
        self.warn_of_no_step();
        self.end(now, result);
        self.judge_unfinished();
    }

    /// Fails a job that has finished without a member that failed or whose host is lost. The others may have finished
    /// before or after that was known: the result is the same (G-10). A member whose process has yet to end is told of.
    fn judge_unfinished(&mut self) {
        if let Some(failure) = self.round.member_failure().cloned() {
            return self.fail_late(failure, "failed before training had finished");
        }
        let current = self.round.current();
        let members: Vec<WorkerId> = current
            .into_iter()
            .flat_map(|current| current.assignment.members())
            .map(|member| member.worker)
            .collect();
        for worker in members {
            let stance = self.roster.worker(&worker).map(|record| record.stance);
            if !matches!(stance, Some(Stance::Lost | Stance::Dying)) {
                continue;
            }
            if self.roster.agent_of(&worker).is_none() {
                self.note_gone_at_end(&worker, "its host was lost");
                continue;
            }
            let message = format!(
                "{worker} was lost before it had finished, and all others have: the end of its process decides"
            );
            self.event(EventKind::Warning { message });
        }
    }

    /// Whether the job ends after its training has finished.
    pub(crate) const fn ends_after_training(&self) -> bool {
        matches!(self.round.phase(), RoundPhase::Ending { has_trained: true, .. })
    }

    /// Fails a job that has finished for a member whose process was still there, and is out of reach for good.
    pub(crate) fn note_gone_at_end(&mut self, worker: &WorkerId, why: &str) {
        let is_member = self.round.rank_of(worker).is_some();
        let stance = self.roster.worker(worker).map(|record| record.stance);
        if is_member && stance.is_some_and(|stance| stance != Stance::Leaving) {
            self.handle_late_failure(worker, LateLoss::Gone(why.to_owned()));
        }
    }

    pub(crate) fn fail(&mut self, now: Time, reason: &str, hint: Option<&str>) {
        if self.round.phase().is_over() {
            return;
        }
        let result =
            self.result(JobOutcome::Failed, 1, reason.to_owned(), hint.map(ToOwned::to_owned));
        self.end(now, result);
    }

    /// Fails the job with a reason and the first real cause. If a process has ended whose last words are still to
    /// come, the job waits for them.
    pub(crate) fn fail_with_first_cause(&mut self, now: Time, reason: &str) {
        if self.round.phase().is_over() {
            return;
        }
        let because = reason.to_owned();
        let words_until = self.first_cause.words_until(now);
        let deadline = words_until.unwrap_or(now);
        self.enter_phase(now, RoundPhase::Failing { because, deadline });
        if words_until.is_none() {
            self.conclude_failure(now);
        }
    }

    /// Ends the failing job: its first cause is as clear as it will become.
    pub(crate) fn conclude_failure(&mut self, now: Time) {
        let RoundPhase::Failing { because, .. } = self.round.phase() else { return };
        let because = because.clone();
        let reason = self.first_cause.conclude(because);
        let result = self.result(JobOutcome::Failed, 1, reason, None);
        self.end(now, result);
    }

    /// Takes the last words of a process that has ended.
    pub(crate) fn handle_last_words(&mut self, now: Time, worker: &WorkerId, words: &FailureWords) {
        if self.first_cause.last_words(worker, words) {
            match self.round.phase() {
                RoundPhase::Failing { .. } if self.first_cause.words_until(now).is_none() => {
                    self.conclude_failure(now);
                }
                RoundPhase::Ending { .. } => self.tell_first_cause_anew(),
                _ => {}
            }
        }
        self.complete_late_failure(worker, words);
    }

    /// Adds the last words of a process that failed after the training had succeeded.
    fn complete_late_failure(&mut self, worker: &WorkerId, words: &FailureWords) {
        let Some(result) = self.round.result_mut() else { return };
        let failure = result.first_failure.as_mut();
        if let Some(failure) = failure.filter(|it| it.worker == *worker && it.message.is_empty()) {
            failure.message = shorten(&words.message);
            let result = result.clone();
            self.record(&JournalRecord::Ended { result });
        }
    }

    /// Corrects the result of a failed job whose first cause turned out to be another one.
    pub(crate) fn tell_first_cause_anew(&mut self) {
        let Some(reason) = self.first_cause.concluded() else { return };
        let first_failure = self.first_cause.failure().cloned();
        if let Some(result) = self.round.result_mut()
            && result.outcome == JobOutcome::Failed
            && (&result.reason, &result.first_failure) != (&reason, &first_failure)
        {
            result.reason = reason;
            result.first_failure = first_failure;
            let result = result.clone();
            self.record(&JournalRecord::Ended { result });
        }
    }

    pub(crate) fn result(
        &self,
        outcome: JobOutcome,
        code: i32,
        reason: String,
        hint: Option<String>,
    ) -> JobResult {
        let first_failure = match outcome {
            JobOutcome::Succeeded => None,
            _ => self.first_cause.failure().cloned(),
        };
        JobResult {
            outcome,
            code,
            reason,
            hint,
            generation: self.round.generation(),
            first_failure,
        }
    }

    /// Ends a job again that a former driver had ended, perhaps without telling all.
    pub(crate) fn end_again(&mut self, now: Time, result: JobResult) {
        let window = self.config.deadlines.elastic;
        let deadline = now + window;
        let has_trained = result.outcome == JobOutcome::Succeeded;
        let phase = RoundPhase::Ending { result, deadline, agents_told: false, has_trained };
        self.enter_phase(now, phase);
    }

    pub(crate) fn end(&mut self, now: Time, result: JobResult) {
        (self.stopping, self.stop_asked) = (None, None);
        self.record(&JournalRecord::Ended { result: result.clone() });
        self.report_held_reset();
        self.tell_first_steps();
        self.tell_step_shares(now);
        self.event(EventKind::JobEnded { result: result.clone() });
        let succeeded = result.outcome == JobOutcome::Succeeded;
        let deadline = now + self.ending_time(succeeded);
        let has_trained = succeeded;
        let phase = RoundPhase::Ending { result, deadline, agents_told: false, has_trained };
        self.enter_phase(now, phase);
        self.agenda.set(now + STORED_WITHIN, Timer::Unstored);
        self.forget_the_done();
        if !succeeded || !self.begin_last_save(now) {
            self.dismiss_workers(now);
        }
    }

    /// Tells the workers that the job has ended. They end by themselves then.
    pub(crate) fn dismiss_workers(&mut self, now: Time) {
        let Some(result) = self.result_for_workers() else { return };
        let has_trained = self.ends_after_training();
        let workers: Vec<(WorkerId, Stance, PeerLink)> = self
            .roster
            .workers()
            .map(|(worker, record)| (worker.clone(), record.stance, record.link))
            .collect();
        let in_reach = workers.iter().filter(|(_, _, link)| *link != PeerLink::Down);
        let in_reach = in_reach.map(|(worker, _, _)| worker.clone()).collect();
        self.tell_all(in_reach, DriverToWorker::Finished { result });
        for (worker, stance, link) in workers {
            if link == PeerLink::Down && has_trained && stance == Stance::Starting {
                self.stop_process(now, &worker, self.grace_ms(), "the job is over");
            }
        }
        for host in self.roster.take_pending_joins() {
            let message = DriverToAgent::Refused { reason: "the job is over".to_owned() };
            self.output(DriverOutput::ToAgent { to: host.node, message });
        }
        if has_trained {
            let deadline = now + self.config.deadlines.elastic;
            self.round.restart_deadline(deadline, &mut self.agenda);
            self.agenda.set(now + SLOW_END_AFTER, Timer::SlowEnd);
        } else {
            self.tell_agents(now);
        }
        self.continue_ending(now);
    }

    /// The result of a job that ends, as its workers are told it: those that have trained to the end go on with what follows
    /// the training, also if another one fails meanwhile.
    pub(crate) fn result_for_workers(&self) -> Option<JobResult> {
        let RoundPhase::Ending { result, has_trained, .. } = self.round.phase() else {
            return None;
        };
        if *has_trained && result.outcome == JobOutcome::Failed {
            let reason = format!("training has finished in generation {}", result.generation);
            return Some(self.result(JobOutcome::Succeeded, 0, reason, None));
        }
        Some(result.clone())
    }

    /// Warns of processes that are still there some time after the training has finished.
    pub(crate) fn handle_slow_end(&mut self, now: Time) {
        if let Some(message) = self.awaited_ends(now) {
            self.event(EventKind::Warning { message });
        }
    }

    /// The processes that a finished job waits for, and the rest of the wait, in words.
    pub(crate) fn awaited_ends(&self, now: Time) -> Option<String> {
        let RoundPhase::Ending { deadline, agents_told: false, has_trained: true, .. } =
            self.round.phase()
        else {
            return None;
        };
        let awaited: Vec<String> = self
            .roster
            .worker_ids()
            .filter(|worker| self.roster.agent_of(worker).is_some())
            .map(ToString::to_string)
            .collect();
        if awaited.is_empty() {
            return None;
        }
        if let Some(save) = self.awaited_last_save() {
            return Some(save);
        }
        let seconds = deadline.since(now).as_secs();
        Some(format!(
            "training has finished, and processes of workers are still running: {}; in {seconds} s they are told to end",
            awaited.join(", ")
        ))
    }

    /// Time for an agent to stop its workers and to leave: twice `grace`, and `lost`.
    fn leaving_time(&self) -> Duration {
        self.config.deadlines.grace * 2 + self.config.deadlines.lost
    }

    /// Time of the end's next step. Workers that have trained to the end may still have data to write: they are waited for.
    pub(crate) fn ending_time(&self, waits_for_workers: bool) -> Duration {
        if waits_for_workers { self.config.deadlines.elastic } else { self.leaving_time() }
    }

    fn tell_agents(&mut self, now: Time) {
        let (until, orders) = (now + self.leaving_time(), self.outbox.waited_for());
        let Some((code, reason)) = self.round.begin_leaving(until, orders, &mut self.agenda) else {
            return;
        };
        for to in self.roster.dismiss_agents() {
            let message = DriverToAgent::Leave { code, reason: reason.clone() };
            self.output(DriverOutput::ToAgent { to, message });
        }
    }

    /// Continues the job's end after a process or agent has gone.
    pub(crate) fn continue_ending(&mut self, now: Time) {
        let is_ending = matches!(self.round.phase(), RoundPhase::Ending { .. });
        if !is_ending || self.takeover.is_some() || self.awaits_last_save(now) {
            return;
        }
        let RoundPhase::Ending { agents_told, has_trained, .. } = self.round.phase() else {
            return;
        };
        if !agents_told {
            let still_there =
                self.roster.worker_ids().any(|worker| self.roster.agent_of(worker).is_some());
            if still_there && *has_trained {
                return;
            }
            self.tell_agents(now);
        }
        if self.roster.agents().map(|(_, agent)| agent).all(|agent| agent.link == PeerLink::Down) {
            self.finish();
        }
    }

    /// Turns the result into a failure, since a member was lost after the training had succeeded (G-10). The others may
    /// still have data to write: they end by themselves.
    pub(crate) fn handle_late_failure(&mut self, worker: &WorkerId, loss: LateLoss) {
        let (status, message, how) = match loss {
            LateLoss::Failed(status) => {
                (Some(status), String::new(), "failed after training had finished")
            }
            LateLoss::Unfinished(status) => {
                (Some(status), String::new(), "failed before training had finished")
            }
            LateLoss::Gone(why) => (None, why, "was lost before its process had ended"),
        };
        let worker = worker.clone();
        self.fail_late(WorkerFailure { worker, rank: None, status, message }, how);
    }

    fn fail_late(&mut self, failure: WorkerFailure, how: &str) {
        let Some(result) = self.round.result_mut() else { return };
        if result.outcome != JobOutcome::Succeeded {
            return;
        }
        result.outcome = JobOutcome::Failed;
        result.code = 1;
        let why = failure.status.map_or_else(|| failure.message.clone(), |it| it.to_string());
        result.reason = format!("{} {how}: {why}", failure.worker);
        result.first_failure = Some(failure);
        let result = result.clone();
        self.record(&JournalRecord::Ended { result: result.clone() });
        self.event(EventKind::Warning { message: result.reason });
    }

    pub(crate) fn handle_ending_deadline(&mut self, now: Time) {
        let RoundPhase::Ending { agents_told, .. } = self.round.phase() else { return };
        if *agents_told {
            let late: Vec<String> = self
                .roster
                .agents()
                .filter(|(_, agent)| agent.link != PeerLink::Down)
                .map(|(host, _)| host.to_string())
                .collect();
            let message = format!("these agents did not leave in time: {}", late.join(", "));
            self.event(EventKind::Warning { message });
            self.finish();
        } else if self.checkpoints.ends_with().is_some() {
            self.give_up_last_save(now, "it was not safe in time");
        } else {
            let late: Vec<String> = self.roster.worker_ids().map(ToString::to_string).collect();
            let message = format!("these workers did not end by themselves: {}", late.join(", "));
            self.event(EventKind::Warning { message });
            self.fail_for_the_unfinished();
            self.tell_agents(now);
        }
    }

    /// Fails a job that has finished for members that had not, and whose processes do not end either.
    fn fail_for_the_unfinished(&mut self) {
        let unfinished: Vec<WorkerId> = self
            .roster
            .workers()
            .filter(|(_, record)| matches!(record.stance, Stance::Lost | Stance::Dying))
            .map(|(worker, _)| worker.clone())
            .collect();
        for worker in unfinished {
            self.note_gone_at_end(&worker, "it did not end in time");
        }
    }

    /// Tells the end of the job although it is not stored, since its deadline has passed. A successor of this driver would go
    /// on with the job. But on a dead or frozen disk the end is never stored, and no driver would be left to end the workers.
    pub(crate) fn handle_unstored_end(&mut self) {
        let is_planted = is_planted(Bug::UnstoredEndNotTold);
        if !self.round.phase().is_over() || !self.is_held() || is_planted {
            return;
        }
        let why = self.outbox.trouble().unwrap_or("the journal does not answer").to_owned();
        self.outbox.wait_for_none();
        let message = format!(
            "the job is over, and that is not stored ({why}): a driver that is started again would go on with the job"
        );
        self.event(EventKind::Warning { message });
    }

    /// Ends the job without waiting for agents and workers, and hardly for the journal: see
    /// [`handle_unstored_end`](Self::handle_unstored_end).
    fn end_at_once(&mut self, now: Time) {
        match self.outbox.trouble() {
            _ if is_planted(Bug::UnstoredStopWaits) => {}
            Some(_) => self.handle_unstored_end(),
            None => self.agenda.set(now + STORED_AT_ONCE_WITHIN, Timer::Unstored),
        }
        self.cut_last_save_short("the job was stopped at once");
        let workers: Vec<WorkerId> = self.roster.worker_ids().cloned().collect();
        for worker in workers {
            self.stop_process(now, &worker, 0, "stopped at once");
        }
        self.tell_agents(now);
        self.finish();
    }

    fn finish(&mut self) {
        let RoundPhase::Ending { result, .. } = self.round.phase() else { return };
        let result = result.clone();
        self.round.end(result.clone());
        self.output(DriverOutput::Ended(result));
    }
}
