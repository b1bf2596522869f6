//! Losses of workers, which end a generation at once (G-12). Called by the handlers of agents, workers and verdicts.
//! Failures are counted against slots in `slot_failures`.

use elastic_host_manager::HostState;
use elastic_protocol::job::shorten;
use elastic_protocol::messages::{Ballot, LibraryTrace, StoppedBy, Vote};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{ExitStatus, ResetCause, Time, WorkerFailure, WorkerId};
use elastic_registry::{BudgetSpent, GenerationVerdict, Incident, RestartBudget};

use super::DriverCore;
use super::ending::LateLoss;
use super::event::{EventKind, ResetWay};
use super::output::DriverOutput;
use super::phase::{Gather, RoundPhase};
use super::table::{Stance, WorkerRecord};
use super::timers::Timer;
use super::untrained_ends::MISSING;

/// End of a process, as its agent saw it.
#[derive(Debug)]
pub(crate) struct ProcessExit {
    pub(crate) status: ExitStatus,
    pub(crate) stopped_by: Option<StoppedBy>,
    pub(crate) killed_after_grace: bool,
    /// The process's use of the library.
    pub(crate) library: LibraryTrace,
}

impl DriverCore {
    /// Handles a verdict of the registry.
    pub fn handle_verdict(&mut self, now: Time, verdict: GenerationVerdict) {
        match verdict {
            GenerationVerdict::AllReady { stamp } => self.handle_all_ready(now, stamp),
            GenerationVerdict::AllSynced { stamp, votes } => {
                self.handle_all_synced(now, stamp, &votes);
            }
            GenerationVerdict::Succeeded { stamp, worker } => {
                if self.round.stamp() == Some(stamp) && self.roster.finish(now, &worker) {
                    self.note_finished_before_step(&worker);
                    self.finished_during_interrupt(now, &worker);
                    self.review_hangs(now);
                }
            }
            GenerationVerdict::AllSucceeded { stamp } => {
                if self.round.stamp() == Some(stamp) {
                    self.succeed(now);
                }
            }
            GenerationVerdict::Failed { stamp, failure } => {
                if self.round.stamp() == Some(stamp) && failure.status.is_none() {
                    self.handle_error_vote(now, &failure.worker, &failure.message);
                }
            }
            GenerationVerdict::Broken { stamp, cause, evidence, spent } => {
                if self.round.stamp() == Some(stamp) && self.round.phase().is_generation_active() {
                    self.handle_broken(now, cause, evidence, spent);
                }
            }
            GenerationVerdict::CauseKnown { stamp, cause } => {
                self.round.correct_cause(stamp, cause);
            }
            GenerationVerdict::AllFailed { stamp, .. } => {
                if self.round.stamp() == Some(stamp) {
                    self.fail_with_first_cause(now, "every worker failed");
                }
            }
        }
    }

    /// Ends the generation under way, which cannot go on.
    fn handle_broken(
        &mut self,
        now: Time,
        cause: ResetCause,
        evidence: Time,
        spent: Option<BudgetSpent>,
    ) {
        let cause = self.round.explained(cause);
        if let Some(spent) = spent {
            return self.fail_of_spent_budget(now, spent, &cause);
        }
        if self.is_by_restart() && cause.is_failure() {
            self.round.count_restart();
        }
        self.begin_abort(now, cause, evidence);
    }

    /// Handles the error of a worker's training function; the process will end by itself.
    fn handle_error_vote(&mut self, now: Time, worker: &WorkerId, message: &str) {
        let is_known = self.roster.worker(worker).is_some_and(|record| !record.stance.is_gone());
        if !is_known {
            return;
        }
        self.note_failure(worker, None, message);
        self.tell_further_failure(worker, message);
        self.note_committed_step();
        self.round.lose(worker);
        self.roster.set_stance(now, worker, Stance::Leaving);
        self.not_awaited_in_gather(now, worker);
        self.await_departure(now, worker);
        self.count_failure(now, worker, message);
    }

    /// Tells of a member that failed after its generation was broken for another cause, and before it heard of that. The reset names
    /// its cause alone.
    fn tell_further_failure(&mut self, worker: &WorkerId, message: &str) {
        let error = shorten(message);
        if self.round.note_further_failure(&error) {
            self.event(EventKind::WorkerFailed { worker: worker.clone(), error });
        }
    }

    /// Handles the death of a worker, as its agent saw it before the process has ended. The loss counts at once. The
    /// consequences of the exit status follow with it: the cause's words, the slot's failure, the slot's next process.
    pub(crate) fn handle_dying(&mut self, now: Time, worker: &WorkerId) {
        let Some(record) = self.roster.worker(worker) else { return self.drop_message() };
        // For these processes the exit status decides whether the end is a success.
        let is_judged_by_status = record.stage.is_some() || record.leaving.is_some();
        let takes_part =
            matches!(record.stance, Stance::Attached | Stance::Arrived | Stance::Member);
        if is_judged_by_status || !takes_part || self.round.phase().is_over() {
            return;
        }
        let rank = self.round.rank_of(worker);
        self.first_cause.note_death(now, worker, rank, &self.config.deadlines);
        self.roster.set_stance(now, worker, Stance::Dying);
        self.lose_member(now, worker, &ResetCause::WorkerDied { worker: worker.clone() }, now);
        if is_planted(Bug::DeathCountsTwice) {
            self.count_failure(now, worker, "it died");
        }
        // A process that has only replaced its program does not end by itself.
        self.await_departure(now, worker);
        self.agenda.ask_review(now);
    }

    /// Begins the grace period of a worker that leaves, or may come back.
    pub(crate) fn await_departure(&mut self, now: Time, worker: &WorkerId) {
        let deadline = now + self.config.deadlines.grace;
        self.agenda.set(deadline, Timer::Departure(worker.clone()));
    }

    /// Handles a process that its agent is stopping without an order of this driver: a former driver gave it, or the
    /// agent was alone. The worker takes no part any more, and its commit is lost with it.
    pub(crate) fn handle_being_stopped(&mut self, now: Time, worker: &WorkerId) {
        let is_known = self.roster.worker(worker).is_some_and(|record| !record.stance.is_gone());
        if !is_known || self.round.phase().is_over() {
            return;
        }
        let reason = "its process is being stopped".to_owned();
        let cause = ResetCause::WorkerLeaves { worker: worker.clone(), reason };
        self.roster.set_stance(now, worker, Stance::Leaving);
        self.lose_member(now, worker, &cause, now);
        self.await_departure(now, worker);
    }

    /// Handles the end of a worker's process, as its agent saw it.
    pub(crate) fn handle_exit(&mut self, now: Time, worker: &WorkerId, exit: &ProcessExit) {
        let ProcessExit { status, stopped_by, killed_after_grace, library } = exit;
        let (status, killed_after_grace) = (*status, *killed_after_grace);
        let cause = ResetCause::WorkerExited { worker: worker.clone(), status };
        // The status may come after the process was stopped, after the end of the job, or to a driver that has taken over
        // and does not know the worker any more.
        let is_explained = self.round.explain_death(worker, status);
        let Some(record) = self.roster.worker(worker) else { return self.drop_message() };
        let rank = self.round.rank_of(worker);
        self.first_cause.process_ended(now, worker, (status, rank), &self.config.deadlines);
        let stance = record.stance;
        let was_known_dead = stance == Stance::Dying;
        self.round.note_exit(worker, status);
        let was_lost = stance == Stance::Lost;
        let is_over = self.round.phase().is_over();
        // No generation went on without a member of the last one: the others had finished.
        let is_unfinished = self.ends_after_training()
            && (was_lost || was_known_dead)
            && self.round.rank_of(worker).is_some();
        let has_failed_lost = was_lost
            && (self.has_failed_by_itself(now, record, exit)
                || is_unfinished && !status.is_success());
        let was_leaving = record.leaving.is_some();
        let is_untrained_end = self.is_untrained_end(record, exit);
        let is_missing = record.is_before_arrival && status.is_success();
        let is_stopped_by_another = self.is_stopped_by_another(*stopped_by);
        if is_stopped_by_another {
            self.open_slot_of(worker);
        }
        let is_done = self.handle_process_done(worker, status, library);
        let expected = is_done
            || is_untrained_end
            || is_stopped_by_another
            || stance == Stance::Leaving
            || (was_lost && !has_failed_lost)
            || (was_leaving && status.is_success())
            || (is_over && status.is_success());
        self.event(EventKind::WorkerExited {
            worker: worker.clone(),
            status,
            expected,
            killed_after_grace,
        });
        if killed_after_grace {
            let message = format!("{worker} did not end on SIGTERM and was killed");
            self.event(EventKind::Warning { message });
        }
        if is_over {
            self.forget_worker(worker);
            // A loss that was known before the last generation was formed has had its consequences: the others went on
            // without it.
            if !expected && is_unfinished {
                self.handle_late_failure(worker, LateLoss::Unfinished(status));
            } else if !expected && !was_known_dead && !was_lost {
                self.handle_late_failure(worker, LateLoss::Failed(status));
            }
            return self.continue_ending(now);
        }
        if is_done {
            return;
        }
        if !expected {
            self.note_member_failure(worker, Some(status), "");
        }
        let was_member = self.round.is_member(worker);
        if was_member && !expected {
            self.note_failure(worker, Some(status), "");
        }
        let failure = (!expected).then_some(status);
        if was_known_dead || has_failed_lost {
            // The loss was counted. If its generation is still the newest, the registry learns how the member ended.
            self.report_incident(Some(worker.clone()), failure, cause, now);
            if is_explained {
                self.report_held_reset();
            }
        } else if !is_planted(Bug::DeathIgnored) {
            self.lose_failed_member(now, worker, failure, &cause, now);
        }
        self.forget_worker(worker);
        if is_untrained_end {
            self.note_untrained_end(now, worker);
        } else if let Some(release) = library.refused_release().filter(|_| !expected) {
            self.handle_other_release(now, worker, release);
        } else if !expected && !self.round.phase().is_over() {
            // A death was noted when it was known; a generation may have trained since.
            if !was_known_dead {
                let (status, words) = if is_missing { (None, MISSING) } else { (Some(status), "") };
                self.note_failure(worker, status, words);
            }
            self.handle_unexpected_exit(now, worker, status);
        }
        self.agenda.ask_review(now);
    }

    /// Whether the process of a lost worker has failed by itself, so that a failure of its slot is counted. The end of its
    /// connection may come before its agent's report, and its host may be silent at that time. But a worker that was unheard
    /// for long may have ended for want of a driver. It may have heard nothing for `lost` before the driver did.
    fn has_failed_by_itself(&self, now: Time, record: &WorkerRecord, exit: &ProcessExit) -> bool {
        let deadlines = &self.config.deadlines;
        let orphan =
            deadlines.orphan_training.map_or(deadlines.orphan, |it| it.min(deadlines.orphan));
        let is_orphaned = record
            .heard_until
            .is_none_or(|heard_until| heard_until + orphan <= now + deadlines.lost);
        exit.stopped_by.is_none() && !exit.status.is_success() && !is_orphaned
    }

    fn handle_unexpected_exit(&mut self, now: Time, worker: &WorkerId, status: ExitStatus) {
        self.count_failure(now, worker, &status.to_string());
        if matches!(status, ExitStatus::Code(_)) {
            self.roster.note_exit(worker);
            self.judge_early_failures(now);
        }
    }

    pub(crate) fn handle_start_failed(
        &mut self,
        now: Time,
        worker: &WorkerId,
        reason: &str,
        is_programs: bool,
    ) {
        if !self.roster.has_worker(worker) {
            return self.drop_message();
        }
        let event =
            EventKind::WorkerNotStarted { worker: worker.clone(), reason: reason.to_owned() };
        self.event(event);
        // An order that crosses the notice of a leaving host is no failure.
        let is_refused = self.roster.agent(&worker.host).is_some_and(|it| it.draining.is_some());
        if !is_refused {
            self.note_failure(worker, None, reason);
        }
        let cause = ResetCause::WorkerFailed { worker: worker.clone(), error: shorten(reason) };
        self.lose_member(now, worker, &cause, now);
        self.forget_worker(worker);
        if is_programs {
            self.judge_missing_program(now, worker);
        }
        if !is_refused {
            self.count_start_failure(now, worker, reason);
        }
        self.agenda.ask_review(now);
    }

    /// Remembers the first failure since a generation last trained (G-10).
    pub(crate) fn note_failure(
        &mut self,
        worker: &WorkerId,
        status: Option<ExitStatus>,
        message: &str,
    ) {
        let rank = self.round.rank_of(worker);
        self.note_member_failure(worker, status, message);
        let (worker, message) = (worker.clone(), shorten(message));
        self.first_cause.note(WorkerFailure { worker, rank, status, message });
    }

    /// Remembers the first failure of a member of the generation formed last. The others may have finished.
    fn note_member_failure(
        &mut self,
        worker: &WorkerId,
        status: Option<ExitStatus>,
        message: &str,
    ) {
        let rank = self.round.rank_of(worker);
        let (worker, message) = (worker.clone(), shorten(message));
        self.round.note_member_failure(WorkerFailure { worker, rank, status, message });
    }

    /// Counts a failure of a slot whose worker did not come in time.
    pub(crate) fn handle_missed_start(&mut self, now: Time, worker: &WorkerId, message: &str) {
        self.note_failure(worker, None, message);
        self.count_failure(now, worker, message);
        self.agenda.ask_review(now);
    }

    /// Gives a silent worker up. If its host is heard, the process is at fault and is killed. Else the fault is
    /// unknown, and the worker may come back with its host and its commit (G-5). A process whose commit nobody else holds is left
    /// alone until its session ends, member or not: no generation without it could go on.
    pub(crate) fn handle_silent_worker(&mut self, now: Time, worker: &WorkerId, silent_ms: u64) {
        let gone = self.roster.worker(worker).is_none_or(|record| record.stance.is_gone());
        if gone {
            return;
        }
        if !self.roster.is_host_heard(&worker.host) {
            let reason = format!("not heard for {silent_ms} ms, and neither is its host");
            return self.handle_worker_gone(now, worker, &reason, silent_ms);
        }
        let is_last_holder = if self.round.is_member(worker) {
            self.are_last_holders(now, std::slice::from_ref(worker))
        } else {
            self.holds_alone_outside(worker)
        };
        if is_last_holder {
            return;
        }
        let evidence = last_heard(now, silent_ms);
        let doing = self.take_silent_doing(worker, silent_ms);
        let cause = ResetCause::WorkerSilent { worker: worker.clone(), silent_ms, doing };
        let message = cause.to_string();
        self.note_failure(worker, None, &message);
        self.put_hanging_to_rest(now, worker);
        self.stop_process(now, worker, 0, &message);
        self.lose_member(now, worker, &cause, evidence);
        self.count_failure(now, worker, &message);
        self.agenda.ask_review(now);
    }

    /// Handles the end of a worker's session without a report of its agent.
    pub(crate) fn handle_worker_gone(
        &mut self,
        now: Time,
        worker: &WorkerId,
        reason: &str,
        silent_ms: u64,
    ) {
        if self.round.phase().is_over() {
            return;
        }
        let evidence = last_heard(now, silent_ms);
        let error = format!("its connection ended: {reason}");
        let cause = ResetCause::WorkerFailed { worker: worker.clone(), error };
        // The stance comes first, before the loss has effects such as a new generation of the others: the worker may
        // come back with its commit. If its process has ended, its agent tells.
        // During a takeover the worker may have been in session with the former driver alone, until an unknown time.
        let heard_until = self.takeover.is_none().then_some(evidence);
        self.roster.lose_session(now, worker, heard_until);
        self.lose_member(now, worker, &cause, evidence);
        self.await_departure(now, worker);
    }

    /// Removes the workers of blacklisted hosts at once, also of those that are no longer listed: their workers may still train.
    pub(crate) fn expel_blacklisted(&mut self, now: Time) {
        let known = self.roster.hosts().iter().chain(self.roster.unlisted());
        let out: Vec<_> = known
            .filter(|entry| matches!(entry.state, HostState::Blacklisted { .. }))
            .map(|entry| entry.name.clone())
            .collect();
        for host in out {
            for worker in self.roster.workers_of(&host) {
                let stays =
                    self.roster.worker(&worker).is_some_and(|record| !record.stance.is_gone());
                if stays {
                    let cause = ResetCause::HostBlacklisted { host: host.clone() };
                    self.lose_member(now, &worker, &cause, now);
                    self.stop_process(now, &worker, self.grace_ms(), "its host was blacklisted");
                }
            }
        }
        if self.roster.every_host_is_out() && !self.round.phase().is_over() {
            let names: Vec<String> =
                self.roster.hosts().iter().map(|entry| entry.name.to_string()).collect();
            let reason = format!("every host is blacklisted: {}", names.join(", "));
            self.fail_with_first_cause(now, &reason);
        }
    }

    /// Removes a worker from the generation formed last. The registry judges the effect on that generation. Called
    /// once the worker's record is up to date, since the next generation may be formed before this returns.
    pub(crate) fn lose_member(
        &mut self,
        now: Time,
        worker: &WorkerId,
        cause: &ResetCause,
        evidence: Time,
    ) {
        self.lose_failed_member(now, worker, None, cause, evidence);
    }

    fn lose_failed_member(
        &mut self,
        now: Time,
        worker: &WorkerId,
        failure: Option<ExitStatus>,
        cause: &ResetCause,
        evidence: Time,
    ) {
        if !self.round.is_member(worker) {
            return;
        }
        self.note_committed_step();
        self.round.lose(worker);
        self.roster.membership_changed(worker);
        self.report_incident(Some(worker.clone()), failure, cause.clone(), evidence);
        self.not_awaited_in_gather(now, worker);
    }

    /// Stops waiting for a worker if the gather room is open.
    fn not_awaited_in_gather(&mut self, now: Time, worker: &WorkerId) {
        if let RoundPhase::Gather(_) = self.round.phase() {
            self.no_longer_waited_for(now, worker);
        }
    }

    /// Reports to the registry that the generation cannot go on although no member is lost.
    pub(crate) fn accuse_generation(&mut self, cause: ResetCause, evidence: Time) {
        self.report_incident(None, None, cause, evidence);
    }

    /// Reports an incident of the generation formed last to the registry, which judges it.
    fn report_incident(
        &mut self,
        lost: Option<WorkerId>,
        failure: Option<ExitStatus>,
        cause: ResetCause,
        evidence: Time,
    ) {
        let Some(stamp) = self.round.stamp() else { return };
        let incident = Incident { stamp, lost, failure, cause, evidence };
        self.output_for_generation(DriverOutput::Incident(incident));
    }

    /// Ends the generation under way after a verdict or by plan: all members roll back to the last commit and arrive.
    pub(crate) fn begin_abort(&mut self, now: Time, cause: ResetCause, evidence: Time) {
        let Some(stamp) = self.round.stamp() else { return };
        let way = if self.is_by_restart() { ResetWay::Restart } else { ResetWay::Abort };
        self.report_held_reset();
        self.tell_first_steps();
        self.tell_step_shares(now);
        self.event(EventKind::ResetDecided { cause: cause.clone(), way });
        let survivors: Vec<WorkerId> = self.round.alive().cloned().collect();
        self.stop_processes(now, &survivors, &cause);
        let waiting_for = survivors
            .iter()
            .filter(|worker| {
                let rests_soon = self.roster.worker(worker).is_some_and(|record| {
                    matches!(record.stance, Stance::Member | Stance::Finished)
                });
                rests_soon || self.roster.is_ending(worker)
            })
            .cloned()
            .collect();
        self.record_end(stamp, &cause);
        self.tell_broken(survivors, stamp, &cause);
        self.open_gather(now, cause, evidence, waiting_for);
    }

    /// Opens the gather room after a generation has ended, or is about to.
    pub(crate) fn open_gather(
        &mut self,
        now: Time,
        cause: ResetCause,
        evidence: Time,
        waiting_for: std::collections::BTreeSet<WorkerId>,
    ) {
        // A generation that breaks on its way to a planned stop counts as one reset.
        if !matches!(self.round.phase(), RoundPhase::Stopping { .. }) {
            self.round.count_reset();
        }
        self.round.start_reset_record(now, cause, evidence);
        self.enter_gather(now, waiting_for);
    }

    pub(crate) fn enter_gather(
        &mut self,
        now: Time,
        waiting_for: std::collections::BTreeSet<WorkerId>,
    ) {
        self.rest_state(now);
        let deadline = now + self.config.deadlines.elastic;
        let ends_by = self.ends_by(now, &waiting_for);
        let gather = Gather { since: now, deadline, waiting_for, ends_by, changed_at: now };
        self.enter_phase(now, RoundPhase::Gather(gather));
        self.look_for_hangs(now);
        self.agenda.ask_review(now);
    }

    /// The rest of the restart budget.
    pub(crate) fn restart_budget(&self) -> RestartBudget {
        RestartBudget {
            resets: self.round.resets(),
            resets_max: self.config.reset_limit,
            restarts: self.round.restarts(),
            restarts_max: self.config.max_job_restarts,
            is_by_restart: self.is_by_restart(),
        }
    }

    /// Fails the job if a planned reset exceeds the budget; true if it does.
    pub(crate) fn reset_limit_reached(&mut self, now: Time, cause: &ResetCause) -> bool {
        let Some(spent) = self.restart_budget().spent_by(cause) else { return false };
        self.fail_of_spent_budget(now, spent, cause);
        true
    }

    fn fail_of_spent_budget(&mut self, now: Time, spent: BudgetSpent, cause: &ResetCause) {
        let reason = match spent {
            BudgetSpent::Resets { .. } => format!("{spent}; the last cause: {cause}"),
            BudgetSpent::NoRestarts | BudgetSpent::Restarts { .. } => spent.to_string(),
        };
        // A peer may tell of a death before its agent does.
        if let ResetCause::PeerBroken { peer: Some(peer), error, .. } = cause {
            let rank = self.round.rank_of(peer);
            self.first_cause.note_unreached(now, peer, (rank, error), &self.config.deadlines);
        }
        self.fail_with_first_cause(now, &reason);
    }

    pub(crate) fn vote_for(&mut self, worker: &WorkerId, ballot: Ballot) {
        if let Some(stamp) = self.round.stamp() {
            let vote = Vote { stamp, worker: worker.clone(), ballot };
            self.output(DriverOutput::Vote(vote));
        }
    }
}

/// Time at which a node was heard last that has been silent for `silent_ms`: the first sign of its loss.
pub(crate) const fn last_heard(now: Time, silent_ms: u64) -> Time {
    Time(now.0.saturating_sub(silent_ms.saturating_mul(1_000_000)))
}
