//! The planned end of a generation: every rank stops at the same boundary and keeps its live state. Called by
//! `review`, `workers` and `losses`.
//!
//! An interrupt needs no collective, and costs nothing while no change is pending. The driver asks every member for the
//! number of boundaries that it has passed (`Pause`). A member that answers promises to pass at most the next one without
//! an order. The driver then names one boundary beyond all answers (`StopAt`), which every member can still reach and
//! none has passed.

use std::collections::BTreeSet;

use elastic_protocol::messages::DriverToWorker;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{ResetCause, Stamp, Time, WorkerId};

use super::DriverCore;
use super::divergence::PendingRepair;
use super::event::{EventKind, ResetWay};
use super::phase::RoundPhase;
use super::table::Stance;
use super::timers::Timer;
use crate::journal::JournalRecord;

/// Change of the membership that an interrupt would make.
struct Change {
    added: Vec<WorkerId>,
    removed: Vec<WorkerId>,
    /// Number of wanted workers whose processes are on their way.
    coming: usize,
}

impl DriverCore {
    fn pending_change(&mut self, now: Time) -> Change {
        self.roster.refresh_seating(now, &self.round);
        let mut change = Change { added: Vec::new(), removed: Vec::new(), coming: 0 };
        let Some(current) = self.round.current() else { return change };
        let alive = &current.alive;
        let unwanted =
            self.roster.seating().unwanted().iter().filter(|worker| alive.contains(worker));
        change.removed = unwanted.cloned().collect();
        let ready = self.roster.seating().ready().filter(|worker| !alive.contains(worker));
        change.added = ready.cloned().collect();
        let enough = self.min_np() as usize;
        if alive.len() - change.removed.len() + change.added.len() < enough {
            // A worker that is to be replaced trains on until its replacement is ready.
            change.removed.retain(|worker| !self.roster.is_at_rest(worker));
        }
        let survivors = alive.len() - change.removed.len();
        change.coming =
            self.roster.seating().wanted().saturating_sub(survivors + change.added.len());
        if survivors == 0 && change.added.is_empty() && !self.is_by_restart() {
            // No worker would be left to hold the state (G-5): the leavers train on until another comes.
            change.removed.clear();
        }
        change
    }

    /// Whether the same members are to begin anew: to take the majority's content over, or to carry other shards.
    const fn members_begin_anew(&self) -> bool {
        self.divergence.repair().is_some() || self.rebalancing.wanted().is_some()
    }

    /// Interrupts the running generation if its membership should change.
    pub(crate) fn consider_interrupt(&mut self, now: Time) {
        let change = self.pending_change(now);
        if change.added.is_empty() && change.removed.is_empty() && !self.members_begin_anew() {
            self.round.no_change_is_pending();
            return;
        }
        if self.roster.seating().finished() > 0 {
            return;
        }
        let is_by_restart = self.is_by_restart();
        let since = self.round.change_is_pending(now);
        let staying = self.round.alive().count() - change.removed.len() + change.added.len();
        if !self.members_begin_anew() && self.leavers_train_on(now, staying) {
            return;
        }
        // Workers that are to be replaced train on while their replacements start.
        let are_replaced = change.added.is_empty()
            && change.removed.iter().all(|worker| self.roster.is_at_rest(worker));
        let last_call = since
            + match are_replaced {
                true => self.config.deadlines.start,
                false => self.config.deadlines.last_call,
            };
        // By restart, every process starts anew for a change: so slightly later newcomers are waited for, too.
        let more_may_come = change.coming > 0 || (is_by_restart && change.removed.is_empty());
        if more_may_come && now < last_call {
            // Newcomers that come at about the same time enter together.
            self.agenda.set(last_call, Timer::LastCall);
            return;
        }
        if is_by_restart {
            self.round.no_change_is_pending();
            let cause = self.interrupt_cause(change);
            if !self.reset_limit_reached(now, &cause) {
                self.begin_abort(now, cause, now);
            }
            return;
        }
        self.begin_interrupt(now);
    }

    fn begin_interrupt(&mut self, now: Time) {
        let Some(current) = self.round.current() else { return };
        let stamp = current.stamp;
        let members: Vec<WorkerId> = current.alive.iter().cloned().collect();
        let deadline = now + self.config.deadlines.elastic;
        let waiting_for = self.training_members();
        let phase = RoundPhase::Pausing { deadline, waiting_for, passed: 0 };
        self.enter_phase(now, phase);
        self.round.begin_interrupt(now);
        self.look_for_hangs(now);
        let left_out = usize::from(members.len() > 1 && is_planted(Bug::PauseNotToldToAll));
        let members = members.into_iter().skip(left_out).collect();
        self.tell_all(members, DriverToWorker::Pause { stamp });
    }

    pub(crate) fn handle_paused(
        &mut self,
        now: Time,
        worker: &WorkerId,
        stamp: Stamp,
        boundary: u64,
    ) {
        if self.round.stamp() != Some(stamp) || !self.round.is_member(worker) {
            return self.drop_message();
        }
        if self.round.paused(worker, boundary) {
            self.check_paused(now);
        }
    }

    /// Members whose training functions have not returned.
    fn training_members(&self) -> BTreeSet<WorkerId> {
        let alive = self.round.current().into_iter().flat_map(|current| &current.alive);
        let trains = |worker: &&WorkerId| {
            self.roster.worker(worker).is_some_and(|record| record.stance == Stance::Member)
        };
        alive.filter(trains).cloned().collect()
    }

    fn check_paused(&mut self, now: Time) {
        let RoundPhase::Pausing { waiting_for, passed, .. } = self.round.phase() else { return };
        if !waiting_for.is_empty() {
            return;
        }
        let passed = *passed;
        let boundary = if is_planted(Bug::StopsInThePast) { passed } else { passed + 1 };
        self.decide_stop(now, boundary);
    }

    fn decide_stop(&mut self, now: Time, boundary: u64) {
        let Some(stamp) = self.round.stamp() else { return };
        let members: Vec<WorkerId> = self.round.alive().cloned().collect();
        let change = self.pending_change(now);
        self.round.no_change_is_pending();
        if change.added.is_empty() && change.removed.is_empty() && !self.members_begin_anew() {
            if !is_planted(Bug::ResumeNotSent) {
                self.tell_all(members, DriverToWorker::Resume { stamp });
            }
            let reason = "the change was undone before it took effect".to_owned();
            self.event(EventKind::ResetCalledOff { reason });
            self.enter_phase(now, RoundPhase::Run);
            return self.go_on_saving(now);
        }
        let cause = self.interrupt_cause(change);
        if self.reset_limit_reached(now, &cause) {
            return;
        }
        self.report_held_reset();
        self.tell_first_steps();
        self.tell_step_shares(now);
        self.event(EventKind::ResetDecided { cause: cause.clone(), way: ResetWay::Interrupt });
        self.round.count_reset();
        let since = self.round.interrupt_since();
        self.round.start_reset_record(since, cause.clone(), since);
        let waiting_for = self.training_members();
        self.record(&JournalRecord::StopDecided { stamp, boundary, cause });
        let left_out = usize::from(members.len() > 1 && is_planted(Bug::StopNotToldToAll));
        let members = members.into_iter().skip(left_out).collect();
        self.tell_all(members, DriverToWorker::StopAt { stamp, boundary });
        let deadline = now + self.config.deadlines.elastic;
        let phase = RoundPhase::Stopping { deadline, boundary, waiting_for };
        self.enter_phase(now, phase);
        self.look_for_hangs(now);
        self.check_stopped(now);
    }

    fn interrupt_cause(&self, change: Change) -> ResetCause {
        if let ([worker], []) = (change.removed.as_slice(), change.added.as_slice())
            && let Some(reason) =
                self.roster.worker(worker).and_then(|record| record.leaving.clone())
        {
            return ResetCause::WorkerLeaves { worker: worker.clone(), reason };
        }
        if let Some(cause) = self.replacement_cause(&change.added, &change.removed) {
            return cause;
        }
        if let (Some(repair), [], []) =
            (self.divergence.repair(), &change.removed[..], &change.added[..])
        {
            let PendingRepair { workers, tensor, step } = repair.clone();
            return ResetCause::ReplicasDiffer { workers, tensor, step };
        }
        if change.removed.is_empty()
            && change.added.is_empty()
            && let Some(cause) = self.rebalance_cause()
        {
            return cause;
        }
        ResetCause::HostsChanged { added: change.added, removed: change.removed }
    }

    /// Stops waiting for a worker that has arrived or is gone, and goes on if it was the last one.
    pub(crate) fn no_longer_waited_for(&mut self, now: Time, worker: &WorkerId) {
        let is_lost =
            self.roster.worker(worker).is_some_and(|record| record.stance == Stance::Lost);
        if is_lost && is_planted(Bug::LostStillWaitedFor) {
            return;
        }
        let by_restart = self.is_by_restart();
        let was_last = self.round.stops_waiting_for(worker);
        match self.round.phase() {
            // The slots of ended processes still need their next ones.
            RoundPhase::Gather(_) if was_last && by_restart => self.agenda.ask_review(now),
            RoundPhase::Gather(_) if was_last => self.try_form(now),
            RoundPhase::Stopping { .. } => self.check_stopped(now),
            _ => {}
        }
    }

    /// Notes that a member's training function returned during an interrupt.
    pub(crate) fn finished_during_interrupt(&mut self, now: Time, worker: &WorkerId) {
        match self.round.phase() {
            RoundPhase::Pausing { .. } => {
                self.round.paused(worker, 0);
                self.check_paused(now);
            }
            RoundPhase::Stopping { .. } => self.no_longer_waited_for(now, worker),
            _ => {}
        }
    }

    /// Opens the gather room once all members have stopped at the boundary.
    fn check_stopped(&mut self, now: Time) {
        let RoundPhase::Stopping { waiting_for, .. } = self.round.phase() else { return };
        if !waiting_for.is_empty() {
            return;
        }
        let Some(current) = self.round.current() else { return };
        let stamp = current.stamp;
        let finished: BTreeSet<WorkerId> = current
            .alive
            .iter()
            .filter(|worker| {
                self.roster.worker(worker).is_some_and(|record| record.stance == Stance::Finished)
            })
            .cloned()
            .collect();
        if !finished.is_empty() && finished.len() == current.alive.len() {
            return;
        }
        if let Some(cause) = self.round.reset().map(|reset| reset.cause.clone()) {
            let to = finished.iter().cloned().collect();
            self.record_end(stamp, &cause);
            self.tell_all(to, DriverToWorker::Abort { stamp, cause });
        }
        self.enter_gather(now, finished);
        self.try_form(now);
    }

    /// Lets a worker leave that has been kept for its state for the longest allowed time. If it was the last holder, the
    /// state is lost with it.
    pub(crate) fn let_the_last_holder_go(&mut self, now: Time, worker: &WorkerId, reason: &str) {
        let cause = ResetCause::WorkerLeaves { worker: worker.clone(), reason: reason.to_owned() };
        self.lose_member(now, worker, &cause, now);
        self.dismiss(now, worker, reason);
        self.agenda.ask_review(now);
    }
}
