//! The planned end of a generation: every rank stops at the same boundary, live state is kept.
//!
//! No collective is needed for that, and nothing is paid while no change is pending. The driver asks every
//! member how many boundaries it has passed (`Pause`); a member that answers promises to pass no more than
//! the next one unheard. The driver then names one boundary beyond all answers (`StopAt`), which every
//! member can still reach and none has passed.

use std::collections::BTreeSet;

use elastic_protocol::messages::DriverToWorker;
use elastic_protocol::{ResetCause, Stamp, Time, WorkerId};
use elastic_runtime::planted::{Bug, is_planted};

use super::DriverCore;
use super::output::EventKind;
use super::phase::Phase;
use super::table::Stance;
use super::timers::Timer;
use crate::journal::Record;

/// What an interrupt would change.
struct Change {
    added: Vec<WorkerId>,
    removed: Vec<WorkerId>,
    /// Wanted workers whose processes are on their way.
    coming: usize,
}

impl DriverCore {
    fn pending_change(&mut self, now: Time) -> Change {
        self.refresh_seating(now);
        let mut change = Change { added: Vec::new(), removed: Vec::new(), coming: 0 };
        let Some(current) = &self.current else { return change };
        let alive = &current.alive;
        let unwanted = self.seating.unwanted().iter().filter(|worker| alive.contains(worker));
        change.removed = unwanted.cloned().collect();
        let ready = self.seating.ready().filter(|worker| !alive.contains(worker));
        change.added = ready.cloned().collect();
        let survivors = alive.len() - change.removed.len();
        change.coming = self.seating.wanted().saturating_sub(survivors + change.added.len());
        if survivors == 0 && change.added.is_empty() && !self.is_by_restart() {
            // Nobody would be left to hold the state (G-5): the leavers train on until somebody comes.
            change.removed.clear();
        }
        change
    }

    /// Interrupts the running generation if its membership should be another.
    pub(crate) fn consider_interrupt(&mut self, now: Time) {
        let change = self.pending_change(now);
        if change.added.is_empty() && change.removed.is_empty() {
            self.change_since = None;
            return;
        }
        if self.seating.finished() > 0 {
            return;
        }
        let is_by_restart = self.is_by_restart();
        let since = *self.change_since.get_or_insert(now);
        let last_call = since + self.config.deadlines.last_call;
        // Where everybody has to start anew for it, who comes a little later is waited for, too.
        let more_may_come = change.coming > 0 || (is_by_restart && change.removed.is_empty());
        if more_may_come && now < last_call {
            // Those who come together enter together.
            self.timers.set(last_call, Timer::LastCall);
            return;
        }
        if is_by_restart {
            self.change_since = None;
            let cause = self.interrupt_cause(change);
            return self.begin_abort(now, cause, now);
        }
        self.begin_interrupt(now);
    }

    fn begin_interrupt(&mut self, now: Time) {
        let Some(current) = &self.current else { return };
        let stamp = current.stamp;
        let members: Vec<WorkerId> = current.alive.iter().cloned().collect();
        let deadline = now + self.config.deadlines.elastic;
        self.timers.set(deadline, Timer::Phase);
        let waiting_for = self.training_members();
        self.phase = Phase::Pausing { deadline, waiting_for, passed: 0 };
        self.interrupt_since = now;
        self.tell_all(members, DriverToWorker::Pause { stamp });
    }

    pub(crate) fn handle_paused(
        &mut self,
        now: Time,
        worker: &WorkerId,
        stamp: Stamp,
        boundary: u64,
    ) {
        if self.current_stamp() != Some(stamp) || !self.is_member(worker) {
            return self.drop_message();
        }
        if let Phase::Pausing { waiting_for, passed, .. } = &mut self.phase {
            waiting_for.remove(worker);
            *passed = boundary.max(*passed);
            self.check_paused(now);
        }
    }

    /// Members whose training functions have not returned.
    fn training_members(&self) -> BTreeSet<WorkerId> {
        let alive = self.current.iter().flat_map(|current| &current.alive);
        let trains = |worker: &&WorkerId| {
            self.workers.get(worker).is_some_and(|record| record.stance == Stance::Member)
        };
        alive.filter(trains).cloned().collect()
    }

    fn check_paused(&mut self, now: Time) {
        let Phase::Pausing { waiting_for, passed, .. } = &self.phase else { return };
        if !waiting_for.is_empty() {
            return;
        }
        let passed = *passed;
        let boundary = if is_planted(Bug::StopsInThePast) { passed } else { passed + 1 };
        self.decide_stop(now, boundary);
    }

    fn decide_stop(&mut self, now: Time, boundary: u64) {
        let Some(stamp) = self.current_stamp() else { return };
        let members: Vec<WorkerId> =
            self.current.iter().flat_map(|current| current.alive.iter().cloned()).collect();
        let change = self.pending_change(now);
        self.change_since = None;
        if change.added.is_empty() && change.removed.is_empty() {
            if !is_planted(Bug::ResumeNotSent) {
                self.tell_all(members, DriverToWorker::Resume { stamp });
            }
            let reason = "the change was undone before it took effect".to_owned();
            self.event(EventKind::ResetCalledOff { reason });
            self.phase = Phase::Run;
            return;
        }
        let cause = self.interrupt_cause(change);
        if self.reset_limit_reached(now, &cause) {
            return;
        }
        self.event(EventKind::ResetDecided { cause: cause.clone(), way: "interrupt" });
        self.resets += 1;
        let since = self.interrupt_since;
        self.start_reset_record(since, cause.clone(), since);
        let waiting_for = self.training_members();
        self.record(&Record::StopDecided { stamp, boundary, cause });
        self.tell_all(members, DriverToWorker::StopAt { stamp, boundary });
        let deadline = now + self.config.deadlines.elastic;
        self.timers.set(deadline, Timer::Phase);
        self.phase = Phase::Stopping { deadline, boundary, waiting_for };
        self.check_stopped(now);
    }

    fn interrupt_cause(&self, change: Change) -> ResetCause {
        if let ([worker], []) = (change.removed.as_slice(), change.added.as_slice())
            && let Some(reason) = self.workers.get(worker).and_then(|record| record.leaving.clone())
        {
            return ResetCause::WorkerLeaves { worker: worker.clone(), reason };
        }
        ResetCause::HostsChanged { added: change.added, removed: change.removed }
    }

    /// A worker has arrived or is gone: whoever was waiting only for it goes on.
    pub(crate) fn no_longer_waited_for(&mut self, now: Time, worker: &WorkerId) {
        let is_lost = self.workers.get(worker).is_some_and(|record| record.stance == Stance::Lost);
        if is_lost && is_planted(Bug::LostStillWaitedFor) {
            return;
        }
        let by_restart = self.is_by_restart();
        match &mut self.phase {
            Phase::Gather(gather) => {
                let was_last = gather.waiting_for.remove(worker) && gather.waiting_for.is_empty();
                if was_last && by_restart {
                    // The slots of those that have ended are still to be given to their next ones.
                    self.ask_review(now);
                } else if was_last {
                    self.try_form(now);
                }
            }
            Phase::Stopping { waiting_for, .. } => {
                waiting_for.remove(worker);
                self.check_stopped(now);
            }
            _ => {}
        }
    }

    /// A member's training function returned while an interrupt was on its way.
    pub(crate) fn finished_during_interrupt(&mut self, now: Time, worker: &WorkerId) {
        match self.phase {
            Phase::Pausing { ref mut waiting_for, .. } => {
                waiting_for.remove(worker);
                self.check_paused(now);
            }
            Phase::Stopping { .. } => self.no_longer_waited_for(now, worker),
            _ => {}
        }
    }

    /// Everyone has stopped at the boundary: the next generation can be formed.
    fn check_stopped(&mut self, now: Time) {
        let Phase::Stopping { waiting_for, .. } = &self.phase else { return };
        if !waiting_for.is_empty() {
            return;
        }
        let Some(current) = &self.current else { return };
        let stamp = current.stamp;
        let finished: BTreeSet<WorkerId> = current
            .alive
            .iter()
            .filter(|worker| {
                self.workers.get(worker).is_some_and(|record| record.stance == Stance::Finished)
            })
            .cloned()
            .collect();
        if !finished.is_empty() && finished.len() == current.alive.len() {
            return;
        }
        if let Some(cause) = self.reset.as_ref().map(|reset| reset.cause.clone()) {
            let to = finished.iter().cloned().collect();
            self.record(&Record::GenerationEnded { stamp, cause: cause.clone() });
            self.tell_all(to, DriverToWorker::Abort { stamp, cause });
        }
        self.enter_gather(now, finished);
        self.try_form(now);
    }

    /// A worker that wants to leave has been kept for its state as long as it may be: it goes, and if it
    /// was the last holder its state goes with it.
    pub(crate) fn let_the_last_holder_go(&mut self, now: Time, worker: &WorkerId, reason: &str) {
        let cause = ResetCause::WorkerLeaves { worker: worker.clone(), reason: reason.to_owned() };
        self.lose_member(now, worker, &cause, now);
        self.dismiss(now, worker, reason);
        self.ask_review(now);
    }
}
