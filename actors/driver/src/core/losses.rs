//! Losses: what ends a generation at once (G-12). What is held against the slot: `slot_failures`.

use elastic_host_manager::HostState;
use elastic_protocol::messages::{Ballot, StoppedBy, Vote};
use elastic_protocol::{ExitStatus, ResetCause, Time, WorkerId};
use elastic_registry::Verdict;
use elastic_runtime::planted::{Bug, is_planted};

use super::DriverCore;
use super::first_failure::shorten;
use super::output::{DriverOutput, EventKind};
use super::phase::{Gather, Phase, ResetRecord};
use super::table::Stance;
use super::timers::Timer;
use crate::journal::Record;

/// How a process ended, as its agent saw it.
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) status: ExitStatus,
    pub(crate) stopped_by: Option<StoppedBy>,
    pub(crate) killed_after_grace: bool,
    /// The end of its stderr, or what it wrote about its own end.
    pub(crate) tail: String,
}

impl DriverCore {
    /// The registry came to a verdict.
    pub fn handle_verdict(&mut self, now: Time, verdict: Verdict) {
        match verdict {
            Verdict::AllReady { stamp } => self.handle_all_ready(now, stamp),
            Verdict::AllSynced { stamp } => self.handle_all_synced(now, stamp),
            Verdict::Succeeded { stamp, worker } => {
                if self.current_stamp() == Some(stamp)
                    && let Some(record) = self.workers.get_mut(&worker)
                    && record.stance == Stance::Member
                {
                    record.take_stance(now, Stance::Finished);
                    self.finished_during_interrupt(now, &worker);
                }
            }
            Verdict::AllSucceeded { stamp } => {
                if self.current_stamp() == Some(stamp) {
                    self.succeed(now);
                }
            }
            Verdict::Failed { stamp, failure } => {
                if self.current_stamp() != Some(stamp) {
                    return;
                }
                match failure.status {
                    None => self.handle_error_vote(now, &failure.worker, &failure.message),
                    Some(ExitStatus::Signal(_) | ExitStatus::Code(0)) => {
                        self.accident_in = Some(stamp);
                    }
                    Some(ExitStatus::Code(_)) => {}
                }
            }
            Verdict::AllFailed { stamp, .. } => {
                // Every worker raised: trying again would raise again (H-10). Deaths by signal are
                // accidents, and are survived by restarting.
                let may_go_otherwise = self.accident_in == Some(stamp) || self.is_by_restart();
                if self.current_stamp() == Some(stamp) && !may_go_otherwise {
                    self.fail_with_first_cause(now, "every worker failed");
                }
            }
        }
    }

    /// A worker's training function returned an error; its process will end by itself.
    fn handle_error_vote(&mut self, now: Time, worker: &WorkerId, message: &str) {
        let is_known = self
            .workers
            .get(worker)
            .is_some_and(|record| !matches!(record.stance, Stance::Leaving | Stance::Lost));
        if !is_known {
            return;
        }
        let cause = ResetCause::WorkerFailed { worker: worker.clone(), error: shorten(message) };
        self.note_failure(worker, None, message);
        self.lose_member(now, worker, &cause, now);
        if let Some(record) = self.workers.get_mut(worker) {
            record.take_stance(now, Stance::Leaving);
        }
        let deadline = now + self.config.deadlines.grace;
        self.timers.set(deadline, Timer::Departure(worker.clone()));
        self.count_failure(now, worker, message);
    }

    /// An agent saw a worker's process end.
    pub(crate) fn handle_exit(&mut self, now: Time, worker: &WorkerId, exit: &Exit) {
        let Exit { status, stopped_by, killed_after_grace, tail } = exit;
        let (status, killed_after_grace) = (*status, *killed_after_grace);
        let Some(record) = self.workers.get(worker) else { return self.drop_message() };
        let stance = record.stance;
        let was_leaving = record.leaving.is_some();
        let is_over = self.phase.is_over();
        let is_stopped_by_another = self.is_stopped_by_another(*stopped_by);
        if is_stopped_by_another {
            self.open_slot_of(worker);
        }
        let is_done = self.handle_process_done(worker, status);
        let expected = is_done
            || is_stopped_by_another
            || matches!(stance, Stance::Leaving | Stance::Lost)
            || (was_leaving && status.is_success())
            || (is_over && status.is_success());
        self.event(EventKind::WorkerExited {
            worker: worker.to_string(),
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
            if !expected {
                self.handle_late_failure(worker, status, tail);
            }
            return self.continue_ending(now);
        }
        if is_done {
            return;
        }
        let was_member = self.is_member(worker);
        if was_member && !expected {
            self.note_failure(worker, Some(status), tail);
            self.vote_for(worker, Ballot::Failure { status: Some(status), message: tail.clone() });
        }
        let cause = ResetCause::WorkerExited { worker: worker.clone(), status };
        if !is_planted(Bug::DeathIgnored) {
            self.lose_member(now, worker, &cause, now);
        }
        self.forget_worker(worker);
        if !expected && !self.phase.is_over() {
            self.handle_unexpected_exit(now, worker, status, tail);
        }
        self.ask_review(now);
    }

    fn handle_unexpected_exit(
        &mut self,
        now: Time,
        worker: &WorkerId,
        status: ExitStatus,
        tail: &str,
    ) {
        let message =
            if tail.is_empty() { status.to_string() } else { format!("{status}: {tail}") };
        self.note_failure(worker, Some(status), tail);
        self.count_failure(now, worker, &message);
        if matches!(status, ExitStatus::Code(_)) {
            self.judge_early_failures(now);
        }
    }

    pub(crate) fn handle_start_failed(&mut self, now: Time, worker: &WorkerId, reason: &str) {
        if !self.workers.contains_key(worker) {
            return self.drop_message();
        }
        self.event(EventKind::Warning { message: format!("{worker} could not start: {reason}") });
        self.note_failure(worker, None, reason);
        let cause = ResetCause::WorkerFailed { worker: worker.clone(), error: shorten(reason) };
        self.lose_member(now, worker, &cause, now);
        self.forget_worker(worker);
        self.count_failure(now, worker, reason);
        self.ask_review(now);
    }

    /// A worker that was waited for in vain is a failure of its slot.
    pub(crate) fn handle_missed_start(&mut self, now: Time, worker: &WorkerId, message: &str) {
        self.note_failure(worker, None, message);
        self.count_failure(now, worker, message);
        self.ask_review(now);
    }

    /// A worker is not heard, and is waited for no more. If its host is, its process is at fault and is
    /// killed; else nobody can tell, and it may come back with its host and its commit (G-5).
    pub(crate) fn handle_silent_worker(&mut self, now: Time, worker: &WorkerId, silent_ms: u64) {
        let gone = self
            .workers
            .get(worker)
            .is_none_or(|record| matches!(record.stance, Stance::Leaving | Stance::Lost));
        if gone {
            return;
        }
        if !self.is_host_heard(&worker.host) {
            let reason = format!("not heard for {silent_ms} ms, and neither is its host");
            return self.handle_worker_gone(now, worker, &reason, silent_ms);
        }
        let evidence = last_heard(now, silent_ms);
        let cause = ResetCause::WorkerSilent { worker: worker.clone(), silent_ms };
        let message = cause.to_string();
        self.note_failure(worker, None, &message);
        self.lose_member(now, worker, &cause, evidence);
        self.stop_process(now, worker, 0, &message);
        self.count_failure(now, worker, &message);
        self.ask_review(now);
    }

    /// A worker's session ended without a word from its agent.
    pub(crate) fn handle_worker_gone(
        &mut self,
        now: Time,
        worker: &WorkerId,
        reason: &str,
        silent_ms: u64,
    ) {
        if self.phase.is_over() {
            return;
        }
        let evidence = last_heard(now, silent_ms);
        let error = format!("its connection ended: {reason}");
        let cause = ResetCause::WorkerFailed { worker: worker.clone(), error };
        self.lose_member(now, worker, &cause, evidence);
        if let Some(record) = self.workers.get_mut(worker) {
            // It may come back with its commit; if its process has ended, its agent tells.
            record.take_stance(now, Stance::Lost);
        }
        let deadline = now + self.config.deadlines.grace;
        self.timers.set(deadline, Timer::Departure(worker.clone()));
    }

    /// Hosts that were blacklisted lose their workers at once.
    pub(crate) fn expel_blacklisted(&mut self, now: Time) {
        let out: Vec<_> = self
            .snapshot
            .hosts
            .iter()
            .filter(|entry| matches!(entry.state, HostState::Blacklisted { .. }))
            .map(|entry| entry.name.clone())
            .collect();
        for host in out {
            for worker in self.workers_of(&host) {
                let stays = self
                    .workers
                    .get(&worker)
                    .is_some_and(|record| !matches!(record.stance, Stance::Leaving | Stance::Lost));
                if stays {
                    let cause = ResetCause::HostBlacklisted { host: host.clone() };
                    self.lose_member(now, &worker, &cause, now);
                    self.stop_process(now, &worker, self.grace_ms(), "its host was blacklisted");
                }
            }
        }
        if self.every_host_is_out() && !self.phase.is_over() {
            let names: Vec<String> =
                self.snapshot.hosts.iter().map(|entry| entry.name.to_string()).collect();
            let reason = format!("every host is blacklisted: {}", names.join(", "));
            self.fail_with_first_cause(now, &reason);
        }
    }

    /// A worker takes part no more: ends the generation if it was a member of the one under way.
    pub(crate) fn lose_member(
        &mut self,
        now: Time,
        worker: &WorkerId,
        cause: &ResetCause,
        evidence: Time,
    ) {
        let Some(current) = &mut self.current else { return };
        if !current.alive.remove(worker) {
            return;
        }
        self.workers.touch(&worker.host);
        if self.phase.is_generation_active() {
            self.begin_abort(now, cause.clone(), evidence);
        } else if let Phase::Gather(_) = self.phase {
            self.sharpen_cause(worker, cause);
        }
        self.no_longer_waited_for(now, worker);
    }

    /// A broken link was all that was known of; now it is known what became of the peer.
    fn sharpen_cause(&mut self, worker: &WorkerId, cause: &ResetCause) {
        let Some(reset) = &mut self.reset else { return };
        if let ResetCause::PeerBroken { peer, .. } = &reset.cause
            && peer.as_ref().is_none_or(|peer| peer == worker)
        {
            reset.cause = cause.clone();
        }
    }

    /// Ends the generation under way: everyone rolls back to the last commit and arrives.
    pub(crate) fn begin_abort(&mut self, now: Time, cause: ResetCause, evidence: Time) {
        let Some(stamp) = self.current_stamp() else { return };
        let is_over = self.finished_ones_stand(now)
            || self.restarts_are_spent(now, &cause)
            || self.reset_limit_reached(now, &cause);
        if is_over {
            return;
        }
        let way = if self.is_by_restart() { "restart" } else { "abort" };
        self.event(EventKind::ResetDecided { cause: cause.clone(), way });
        let survivors: Vec<WorkerId> =
            self.current.iter().flat_map(|current| current.alive.iter().cloned()).collect();
        self.stop_processes(now, &survivors, &cause);
        let waiting_for = survivors
            .iter()
            .filter(|worker| {
                let rests_soon = self.workers.get(worker).is_some_and(|record| {
                    matches!(record.stance, Stance::Member | Stance::Finished)
                });
                rests_soon || self.is_ending(worker)
            })
            .cloned()
            .collect();
        self.record(&Record::GenerationEnded { stamp, cause: cause.clone() });
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
        self.resets += 1;
        self.start_reset_record(now, cause, evidence);
        self.enter_gather(now, waiting_for);
    }

    pub(crate) fn enter_gather(
        &mut self,
        now: Time,
        waiting_for: std::collections::BTreeSet<WorkerId>,
    ) {
        let deadline = now + self.config.deadlines.elastic;
        self.timers.set(deadline, Timer::Phase);
        self.phase = Phase::Gather(Gather { since: now, deadline, waiting_for, changed_at: now });
        self.ask_review(now);
    }

    pub(crate) fn start_reset_record(&mut self, now: Time, cause: ResetCause, evidence: Time) {
        let from = self.generation;
        let detect_ms = now.ms_since(evidence);
        // A generation that breaks before it trained belongs to the reset that it was part of.
        let (decided_at, detect_ms, steps_lost) = match &self.reset {
            Some(reset) => (reset.decided_at, reset.detect_ms, reset.steps_lost),
            None => (now, detect_ms, 0),
        };
        self.reset = Some(ResetRecord {
            cause,
            from,
            to: from,
            decided_at,
            detect_ms,
            ready_at: None,
            synced_at: None,
            steps_lost,
        });
    }

    /// Members that finished keep their result when nobody else is left (H-21).
    fn finished_ones_stand(&mut self, now: Time) -> bool {
        let Some(current) = &self.current else { return false };
        if self.is_by_restart() {
            // Its processes ended each for itself: without the others' work theirs is not whole.
            return false;
        }
        let mut alive =
            current.alive.iter().filter_map(|worker| self.workers.get(worker)).peekable();
        let stands =
            alive.peek().is_some() && alive.all(|record| record.stance == Stance::Finished);
        if stands {
            self.succeed(now);
        }
        stands
    }

    pub(crate) fn reset_limit_reached(&mut self, now: Time, cause: &ResetCause) -> bool {
        let Some(limit) = self.config.reset_limit else { return false };
        if self.resets < u64::from(limit) {
            return false;
        }
        let reason = format!("the limit of {limit} resets was reached; the last cause: {cause}");
        self.fail_with_first_cause(now, &reason);
        true
    }

    pub(crate) fn vote_for(&mut self, worker: &WorkerId, ballot: Ballot) {
        if let Some(stamp) = self.current_stamp() {
            let vote = Vote { stamp, worker: worker.clone(), ballot };
            self.output(DriverOutput::Vote(vote));
        }
    }
}

/// When a node that has been silent for so long was heard last: the first sign of its loss.
pub(crate) const fn last_heard(now: Time, silent_ms: u64) -> Time {
    Time(now.0.saturating_sub(silent_ms.saturating_mul(1_000_000)))
}
