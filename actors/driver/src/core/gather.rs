//! From the gather room to a running generation: who takes part, who is the root, the barrier's two steps.

use std::collections::BTreeSet;
use std::sync::Arc;

use elastic_protocol::messages::{DriverToWorker, Formation, GroupKey, SyncPlan, Table};
use elastic_protocol::{
    Assignment, CommitId, GenerationId, ResetCause, Stamp, Step, Time, WorkerId,
};
use elastic_runtime::planted::{Bug, is_planted};
use rand::RngCore;

use super::DriverCore;
use super::output::{DriverOutput, EventKind};
use super::phase::{Generation, Phase};
use super::seating::CommitOrder;
use super::table::{Link, Stance, WorkerRecord};
use super::timers::Timer;
use crate::journal::{Ledger, Record};

impl DriverCore {
    /// Forms a generation if enough workers are there and nobody is worth waiting for.
    pub(crate) fn try_form(&mut self, now: Time) {
        let Phase::Gather(gather) = &self.phase else { return };
        if !gather.waiting_for.is_empty() || self.is_taking_over(now) {
            return;
        }
        let Phase::Gather(gather) = &self.phase else { return };
        let changed_at = gather.changed_at;
        self.refresh_seating(now);
        let needed = self.workers_needed() as usize;
        if self.seating.ready().len() < needed {
            return;
        }
        if self.is_last_call_open(now, needed) {
            let last_call = changed_at + self.config.deadlines.last_call;
            if now < last_call {
                self.timers.set(last_call, Timer::LastCall);
                return;
            }
        }
        let invited = self.best_holder_outside();
        if self.is_holder_coming_back(now, invited.as_ref()) {
            return;
        }
        let mut members: Vec<WorkerId> = self.seating.ready().cloned().collect();
        if let Some(invited) = invited {
            self.invite(invited, &mut members);
        }
        if !self.leaves_a_quarreller_out(&members) {
            self.form(now, members);
        }
    }

    pub(crate) fn commit_order_of(&self, worker: &WorkerId) -> CommitOrder {
        self.workers.get(worker).and_then(WorkerRecord::commit_order)
    }

    /// Whether somebody who is out of reach, or just back, holds a later commit than all of these: it is
    /// waited for until it is at rest, or must have ended for want of a driver (`orphan`), so that nothing is
    /// rolled back while a holder lives (G-5). Where only its agent is out of reach there is no such end.
    fn is_holder_coming_back(&mut self, now: Time, invited: Option<&WorkerId>) -> bool {
        let best_outside = invited.and_then(|worker| self.commit_order_of(worker));
        let best_inside = self.seating.best_ready_commit().max(best_outside);
        let deadlines = &self.config.deadlines;
        let alone = deadlines.orphan.max(deadlines.orphan_training.unwrap_or_default());
        let patience = alone + deadlines.grace + deadlines.lost * 2;
        let until = |record: &WorkerRecord| match (record.stance, record.link) {
            (Stance::Lost, Link::Up) => Time(u64::MAX),
            (Stance::Lost, _) => record.since + patience,
            (Stance::Starting | Stance::Attached, _) if !is_planted(Bug::HolderBackForgotten) => {
                record.since + patience
            }
            _ => Time::ZERO,
        };
        let away = self.seating.away().iter().filter_map(|worker| self.workers.get(worker));
        let holders =
            away.filter(|record| until(record) > now && record.commit_order() > best_inside);
        let Some(until) = holders.map(until).max() else { return false };
        self.timers.set(until, Timer::LastCall);
        true
    }

    /// Whether more workers are worth a short wait: never where the survivors are enough by themselves.
    fn is_last_call_open(&self, now: Time, needed: usize) -> bool {
        if self.current.is_some() && self.seating.ready_members() >= needed {
            return false;
        }
        let more_hosts_may_join =
            self.current.is_none() && self.config.np.is_none() && self.config.hosts_join;
        let more_are_coming = self.seating.wanted() > self.seating.ready().len();
        more_are_coming || more_hosts_may_join || self.is_room_coming(now)
    }

    /// If the highest commit is held only by somebody whose slot is not wanted any more, that worker
    /// takes part once more so that the others can take the commit over (G-5, G-8).
    fn best_holder_outside(&self) -> Option<WorkerId> {
        let is_eligible =
            |worker: &&WorkerId| self.workers.get(worker).is_some_and(WorkerRecord::is_eligible);
        let outside = self.seating.unwanted().iter().filter(is_eligible);
        let best = outside.max_by_key(|worker| self.commit_order_of(worker))?;
        (self.commit_order_of(best) > self.seating.best_ready_commit()).then(|| best.clone())
    }

    /// Among the other members of its host if there are any, else first.
    fn invite(&self, worker: WorkerId, members: &mut Vec<WorkerId>) {
        if self.config.max_np.is_some_and(|max| members.len() >= max as usize) {
            members.pop();
        }
        let of_host = |member: &WorkerId| member.host == worker.host;
        let first = members.iter().position(of_host).unwrap_or(0);
        let before = members[first..]
            .iter()
            .take_while(|member| of_host(member) && member.slot < worker.slot)
            .count();
        members.insert(first + before, worker);
    }

    fn form(&mut self, now: Time, members: Vec<WorkerId>) {
        let reuses = self.generation.0 > 1 && is_planted(Bug::GenerationNumberReused);
        self.generation = GenerationId(self.generation.0 + u64::from(!reuses));
        let stamp = Stamp { term: self.term, generation: self.generation };
        let table = members
            .iter()
            .filter_map(|worker| Some((worker.clone(), self.workers.get(worker)?.data_address?)));
        let assignment = Arc::new(Assignment::new(table));
        let members: Vec<WorkerId> = assignment.members().map(|member| member.worker).collect();
        let commits: Vec<Option<CommitId>> = members
            .iter()
            .map(|worker| self.workers.get(worker).and_then(|record| record.commit))
            .collect();
        let (sync, step) = sync_plan(&commits);
        let mut key = [0; 32];
        self.rng.fill_bytes(&mut key);
        let key = GroupKey(key);
        let table = Table::Full(Arc::clone(&assignment));
        let (encrypts, data_plane) = (self.config.encrypt_data, self.config.data_plane);
        let formation = Formation { stamp, table, sync, step, key, encrypts, data_plane };
        self.record(&Record::GenerationOpened { formation: formation.clone() });
        let record = self.ledger.as_ref().map_or(0, Ledger::waited_for);
        self.output(DriverOutput::OpenGeneration { stamp, members: members.clone() });
        for worker in &members {
            if let Some(record) = self.workers.get_mut(worker) {
                record.take_stance(now, Stance::Member);
                record.accused = false;
                record.at_rest = false;
            }
        }
        self.tell_formation(&members, &assignment, &formation);
        let root = match sync {
            SyncPlan::Skip => None,
            SyncPlan::FromRoot { root } => Some(root),
        };
        let names = members.iter().map(ToString::to_string).collect();
        self.event(EventKind::GenerationFormed { members: names, root, step: step.0 });
        if let Some(reset) = &mut self.reset {
            reset.to = stamp.generation;
        }
        self.started_with.get_or_insert(assignment.world_size());
        let alive = members.into_iter().collect();
        self.current = Some(Generation { stamp, assignment, formation, record, alive });
        let deadline = now + self.config.deadlines.form;
        self.timers.set(deadline, Timer::Phase);
        self.phase = Phase::Form { deadline };
        self.start_members();
        self.ask_review(now);
    }

    pub(crate) fn handle_all_ready(&mut self, now: Time, stamp: Stamp) {
        if self.current_stamp() != Some(stamp) || !matches!(self.phase, Phase::Form { .. }) {
            return;
        }
        let members: Vec<WorkerId> =
            self.current.iter().flat_map(|current| current.alive.iter().cloned()).collect();
        self.tell_all(members, DriverToWorker::Go { stamp });
        if let Some(reset) = &mut self.reset {
            reset.ready_at = Some(now);
        }
        let deadline = now + self.config.deadlines.elastic;
        self.timers.set(deadline, Timer::Phase);
        self.phase = Phase::Sync { deadline };
        self.sync_processes();
    }

    pub(crate) fn handle_all_synced(&mut self, now: Time, stamp: Stamp) {
        if self.current_stamp() != Some(stamp) || !matches!(self.phase, Phase::Sync { .. }) {
            return;
        }
        self.phase = Phase::Run;
        self.record(&Record::GenerationRunning { stamp });
        self.first_failure = None;
        self.first_failed_at = None;
        self.note_shared_commit();
        self.watch_failed_slots(now);
        let world_size = self.current.as_ref().map_or(0, |current| current.assignment.world_size());
        self.event(EventKind::GenerationRunning { world_size });
        self.vote_for_the_done();
        if let Some(mut reset) = self.reset.take() {
            reset.synced_at = Some(now);
            self.event(EventKind::ResetDone {
                cause: reset.cause.to_string(),
                from: reset.from,
                ms: reset.phases(),
                steps_lost: reset.steps_lost,
            });
            self.last_reset = Some(reset);
        }
        self.ask_review(now);
    }

    /// Every member holds the root's commit now: that is on record if it is lost before it arrives again.
    /// No later one is: a step that one member alone has reached is nobody's loss (G-5). The digest is not
    /// known here, and not needed: nobody skips a sync on this record.
    fn note_shared_commit(&mut self) {
        let Some(current) = &self.current else { return };
        let generation = current.stamp.generation;
        for worker in &current.alive {
            if let Some(record) = self.workers.get_mut(worker)
                && record.stage.is_none()
            {
                record.commit =
                    Some(CommitId { generation, step: current.formation.step, digest: 0 });
            }
        }
    }

    /// The registry named those whose READY or SYNCED is missing, after the phase's deadline has passed.
    pub fn handle_missing(&mut self, now: Time, stamp: Stamp, missing: Vec<WorkerId>) {
        if self.current_stamp() != Some(stamp) || missing.is_empty() {
            return;
        }
        let phase = match &self.phase {
            Phase::Form { deadline } if *deadline <= now => "form",
            Phase::Sync { deadline } if *deadline <= now => "sync",
            _ => return,
        };
        let cause =
            ResetCause::DeadlinePassed { phase: phase.to_owned(), waiting_for: missing.clone() };
        self.evict(now, &missing, &cause);
    }

    /// Those who did not come in time are out, and the others go on without them (G-9); unless the state
    /// would go with them (G-5): then everybody tries again, for as long as the elastic timeout lets them.
    fn evict(&mut self, now: Time, missing: &[WorkerId], cause: &ResetCause) {
        if self.phase.is_generation_active() && self.are_last_holders(now, missing) {
            return self.begin_abort(now, cause.clone(), now);
        }
        let reason = cause.to_string();
        for worker in missing {
            self.lose_member(now, worker, cause, now);
            if self.phase.is_over() {
                return;
            }
            self.stop_process(now, worker, self.grace_ms(), &reason);
            self.handle_missed_start(now, worker, &reason);
        }
    }

    /// Whether nobody but these members holds the commit that the generation is to begin from.
    fn are_last_holders(&self, now: Time, missing: &[WorkerId]) -> bool {
        let Some(current) = &self.current else { return false };
        let is_too_late = self
            .reset
            .as_ref()
            .is_none_or(|reset| reset.decided_at + self.config.deadlines.elastic <= now);
        if is_too_late {
            return false;
        }
        let missing: BTreeSet<&WorkerId> = missing.iter().collect();
        let (late, others): (Vec<_>, Vec<_>) =
            current.alive.iter().partition(|worker| missing.contains(worker));
        if others.is_empty() {
            return true;
        }
        let best = |workers: &[&WorkerId]| {
            workers.iter().filter_map(|worker| self.commit_order_of(worker)).max()
        };
        matches!(self.phase, Phase::Form { .. }) && best(&others) < best(&late)
    }

    pub(crate) fn handle_phase_deadline(&mut self, now: Time) {
        match &self.phase {
            Phase::Gather(gather) if gather.deadline <= now => {
                let late: Vec<WorkerId> = gather.waiting_for.iter().cloned().collect();
                self.handle_gather_deadline(now, late);
            }
            Phase::Form { deadline } | Phase::Sync { deadline } if *deadline <= now => {
                let Some(stamp) = self.current_stamp() else { return };
                self.output(DriverOutput::NameMissing { stamp });
            }
            Phase::Pausing { deadline, waiting_for, .. } if *deadline <= now => {
                let late = waiting_for.iter().cloned().collect();
                self.evict_from_interrupt(now, late);
            }
            Phase::Stopping { deadline, waiting_for, .. } if *deadline <= now => {
                let late = waiting_for.iter().cloned().collect();
                self.evict_from_interrupt(now, late);
            }
            Phase::Ending { deadline, .. } if *deadline <= now => self.handle_ending_deadline(now),
            _ => {}
        }
    }

    fn evict_from_interrupt(&mut self, now: Time, late: Vec<WorkerId>) {
        let phase = "interrupt".to_owned();
        let cause = ResetCause::DeadlinePassed { phase, waiting_for: late.clone() };
        self.evict(now, &late, &cause);
    }

    /// The elastic timeout: without those who are late if the others are enough, else it is the end.
    fn handle_gather_deadline(&mut self, now: Time, late: Vec<WorkerId>) {
        if !late.is_empty() {
            let phase = "gather".to_owned();
            let cause = ResetCause::DeadlinePassed { phase, waiting_for: late.clone() };
            self.evict(now, &late, &cause);
            self.try_form(now);
        }
        let Phase::Gather(_) = &self.phase else { return };
        let there: BTreeSet<&WorkerId> = self
            .workers
            .iter()
            .filter(|(_, record)| record.is_eligible())
            .map(|(worker, _)| worker)
            .collect();
        let reason = format!(
            "the elastic timeout of {} s passed: {} workers are needed; there: {}; missing: {}",
            self.config.deadlines.elastic.as_secs_f64(),
            self.workers_needed(),
            list(there.iter().map(ToString::to_string)),
            list(self.who_is_missing(now, &late).into_iter()),
        );
        let hint = "add hosts or slots, lower --min-np, or raise --elastic-timeout";
        self.fail(now, &reason, Some(hint));
    }

    /// Who would have to come so that a generation could be formed, in words.
    pub(crate) fn who_is_missing(&self, now: Time, late: &[WorkerId]) -> Vec<String> {
        let mut missing: Vec<String> =
            late.iter().map(|worker| format!("{worker} (has not arrived)")).collect();
        for (worker, record) in self.workers.iter() {
            match record.stance {
                Stance::Starting => missing.push(format!("{worker} (starting)")),
                Stance::Attached => missing.push(format!("{worker} (not at rest)")),
                Stance::Lost => missing.push(format!("{worker} (out of reach)")),
                _ => {}
            }
        }
        for ((host, number), slot) in self.slots.iter() {
            if slot.worker.is_none() && slot.backoff_until.is_some_and(|until| until > now) {
                missing.push(format!("{host}[{number}] (in back-off)"));
            }
        }
        for entry in &self.snapshot.hosts {
            match (&entry.state, self.agents.get(&entry.name)) {
                (elastic_host_manager::HostState::Blacklisted { .. }, _) => {
                    missing.push(format!("host {} (blacklisted)", entry.name));
                }
                (_, None) => missing.push(format!("host {} (no agent)", entry.name)),
                (_, Some(agent)) if !agent.is_available() => {
                    missing.push(format!("host {} (lost or draining)", entry.name));
                }
                _ => {}
            }
        }
        missing
    }
}

/// Skipped only if every member proved the same step and digest (G-6); else from the highest commit
/// (G-8), the lowest rank among its holders.
fn sync_plan(commits: &[Option<CommitId>]) -> (SyncPlan, Step) {
    let best = commits.iter().flatten().map(|held| (held.generation, held.step)).max();
    let Some(best) = best else { return (SyncPlan::FromRoot { root: 0 }, Step::default()) };
    let is_best = |held: &CommitId| (held.generation, held.step) == best;
    let root = commits.iter().position(|held| held.as_ref().is_some_and(is_best)).unwrap_or(0);
    let root = if is_planted(Bug::RootIsRankZero) { 0 } else { root };
    let first = commits.first().copied().flatten();
    let proved = first.is_some_and(|first| {
        commits.iter().all(|held| {
            let skips_anyway = held.is_none() && is_planted(Bug::SkipWithoutProof);
            skips_anyway
                || held.is_some_and(|held| (held.step, held.digest) == (first.step, first.digest))
        })
    });
    let plan = if proved {
        SyncPlan::Skip
    } else {
        SyncPlan::FromRoot { root: u32::try_from(root).unwrap_or(0) }
    };
    (plan, best.1)
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { "nobody".to_owned() } else { items.join(", ") }
}
