//! From the gather room to a running generation: members, root, and the two steps of the barrier. Called by `review`,
//! `losses`, `interrupt` and timers.

mod late;
pub(super) mod missing;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use elastic_protocol::messages::{DriverToWorker, Formation, FormationTable, SyncPlan};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Assignment, CommitId, Stamp, Step, Time, WorkerId};

use elastic_registry::MemberVotes;

use super::DriverCore;
use super::event::EventKind;
use super::output::DriverOutput;
use super::phase::{FormedGeneration, RoundPhase};
use super::roster::CommitOrder;
use super::standing::{Until, WorkerStanding};
use super::table::{Stance, WorkerRecord};
use super::timers::Timer;
use crate::journal::JournalRecord;

impl DriverCore {
    /// Forms a generation if enough workers are ready and no other is worth waiting for.
    pub(crate) fn try_form(&mut self, now: Time) {
        let RoundPhase::Gather(gather) = self.round.phase() else { return };
        if !gather.waiting_for.is_empty() || self.is_taking_over(now) || !self.evict_refused(now) {
            return;
        }
        let RoundPhase::Gather(gather) = self.round.phase() else { return };
        let changed_at = gather.changed_at;
        self.roster.refresh_seating(now, &self.round);
        let needed = self.workers_needed() as usize;
        let mut members: Vec<WorkerId> = self.roster.seating().ready_for(needed);
        let leavers = self.leavers_to_go_on_with(now, needed);
        if members.len() + leavers.len() < needed {
            return;
        }
        let of_leavers = leavers.iter().map(|leaver| self.roster.commit_order_of(leaver)).max();
        let inside = self.roster.seating().best_ready_commit().max(of_leavers.flatten());
        if !leavers.is_empty() {
            members.extend(leavers);
            self.roster.seating().sort_by_age(&mut members);
        }
        if self.is_last_call_open(now, needed) {
            let last_call = changed_at + self.config.deadlines.last_call;
            if now < last_call {
                self.agenda.set(last_call, Timer::LastCall);
                return;
            }
        }
        let invited = self.best_holder_outside(inside);
        let best_invited = invited.as_ref().and_then(|worker| self.roster.commit_order_of(worker));
        if self.is_holder_coming_back(now, inside.max(best_invited)) {
            return;
        }
        if members.len() > needed && is_planted(Bug::ReadyLeftOut) {
            members.pop();
        }
        // A holder whose slot rests may be among them already, if the others are too few.
        if let Some(invited) = invited.filter(|invited| !members.contains(invited)) {
            self.invite(invited, &mut members);
        }
        let waits = self.is_put_off(now, &members) || self.leaves_a_quarreller_out(now, &members);
        if !waits && !self.fails_of_total_loss(now, &members) {
            self.form(now, members);
        }
    }

    /// Whether a worker that is out of reach, or just back, holds a later commit than all that would take part. It is waited
    /// for until it is at rest, or must have ended for want of a driver (`orphan`). So no commit is rolled back while
    /// a holder lives (G-5). If only its agent is out of reach, the wait has no such end.
    fn is_holder_coming_back(&mut self, now: Time, best_inside: CommitOrder) -> bool {
        let patience = self.ended_alone_within();
        let is_back =
            |record: &WorkerRecord| matches!(record.stance, Stance::Starting | Stance::Attached);
        let until = |record: &WorkerRecord| match record.standing() {
            WorkerStanding::Awaited(_)
                if is_back(record) && is_planted(Bug::HolderBackForgotten) =>
            {
                Time::ZERO
            }
            // The transport reports the end of these waits.
            WorkerStanding::Awaited(Until::SilenceEnds | Until::HostReturns) => Time(u64::MAX),
            WorkerStanding::Awaited(Until::Rests) => record.since + patience,
            WorkerStanding::Ready | WorkerStanding::Engaged | WorkerStanding::Departing => {
                Time::ZERO
            }
        };
        let away =
            self.roster.seating().away().iter().filter_map(|worker| self.roster.worker(worker));
        let is_later = |record: &&WorkerRecord| {
            let order = self.order_outside(record);
            order > best_inside
                && !self.is_checkpoint_later(order.map(|(generation, _)| generation))
        };
        let holders = away.filter(|record| until(record) > now).filter(is_later);
        let Some(until) = holders.map(until).max() else { return false };
        if until < Time(u64::MAX) {
            self.agenda.set(until, Timer::LastCall);
        }
        true
    }

    /// Time after which a worker that is out of reach must have ended for want of a driver.
    pub(crate) fn ended_alone_within(&self) -> Duration {
        let deadlines = &self.config.deadlines;
        let alone = deadlines.orphan.max(deadlines.orphan_training.unwrap_or_default());
        alone + deadlines.grace + deadlines.lost * 2
    }

    /// Order of the commit that an absent worker holds at least. A worker that was told to begin the generation
    /// formed last may hold any commit of it. But no commit is acknowledged without all members. If one member is
    /// ready, a commit of that generation counts only if the ready member holds it. Else the commit counts from which
    /// the generation began.
    fn order_outside(&self, record: &WorkerRecord) -> CommitOrder {
        let order = record.commit_order();
        match self.round.current() {
            Some(current) if self.roster.seating().ready_members() > 0 => {
                let begun = (current.stamp.generation, current.formation.step);
                if order == Some(begun) { current.began_from } else { order }
            }
            _ => order,
        }
    }

    /// Whether more workers are worth a short wait. Never if the survivors are enough by themselves.
    fn is_last_call_open(&self, now: Time, needed: usize) -> bool {
        if self.round.current().is_some() && self.roster.seating().ready_members() >= needed {
            return false;
        }
        let ready = self.roster.seating().ready().len();
        let has_room = self.config.max_np.is_none_or(|max| ready < max as usize);
        let is_open = self.config.np.is_none() && self.config.hosts_join && has_room;
        let more_hosts_may_join = self.round.current().is_none() && is_open;
        let more_are_coming = self.roster.seating().wanted() > ready;
        more_are_coming || more_hosts_may_join || self.is_room_coming(now)
    }

    /// The holder of the highest commit, if only workers hold it whose slots are not wanted any more, and that commit is later
    /// than those inside. It takes part once more so that the others can take the commit over (G-5, G-8).
    fn best_holder_outside(&self, inside: CommitOrder) -> Option<WorkerId> {
        let is_eligible =
            |worker: &&WorkerId| self.roster.worker(worker).is_some_and(WorkerRecord::is_eligible);
        let outside = self.roster.seating().unwanted().iter().filter(is_eligible);
        let best = outside.max_by_key(|worker| self.roster.commit_order_of(worker))?;
        (self.roster.commit_order_of(best) > inside).then(|| best.clone())
    }

    /// Adds an invited worker to the members: among those of its host if there are any, else first. At least one
    /// other member must take its commit over. So if `max_np` is 1, this generation has two members; otherwise the worker
    /// would be invited for ever.
    fn invite(&self, worker: WorkerId, members: &mut Vec<WorkerId>) {
        let is_full = self.config.max_np.is_some_and(|max| members.len() >= max as usize);
        if is_full && members.len() > 1 {
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

    /// Forms the next generation. Its members are told it as soon as its number is reserved, by a record of the one before: they
    /// form, and compute their first step, while its own record is being stored. `Go` waits for that record.
    fn form(&mut self, now: Time, members: Vec<WorkerId>) {
        let stamp = Stamp { term: self.term, generation: self.round.next_generation() };
        let table = members
            .iter()
            .filter_map(|worker| Some((worker.clone(), self.roster.worker(worker)?.data_address?)));
        let assignment = Arc::new(Assignment::new(table));
        let members: Vec<WorkerId> = assignment.members().map(|member| member.worker).collect();
        let mut commits: Vec<Option<CommitId>> = members
            .iter()
            .map(|worker| self.roster.worker(worker).and_then(|record| record.commit))
            .collect();
        let is_distrusted = |rank: usize| self.divergence.is_distrusted(&members[rank]);
        let (mut sync, mut step) = sync_plan(&commits, &is_distrusted);
        if self.is_checkpoint_later(commits.iter().flatten().map(|held| held.generation))
            && !is_planted(Bug::OldCommitPreferred)
        {
            // The members look for the checkpoint as if they held nothing. If it is gone, the root still has its commit.
            let root = if let SyncPlan::FromRoot { root } = sync { root } else { 0 };
            (sync, step) = (SyncPlan::FromRoot { root }, Step::default());
            commits.fill(None);
        }
        self.tell_of_distrusted_root(&members, sync);
        self.tell_of_lost_steps(now, stamp.generation, step, &commits);
        let key = self.random.key();
        let table = FormationTable::Full(Arc::clone(&assignment));
        let (encrypts, data_plane) = (self.config.encrypt_data, self.config.data_plane);
        let shards = self.deal_for(&members);
        let formation = Formation { stamp, table, sync, step, key, encrypts, data_plane, shards };
        // Processes that live for one generation begin as they start.
        let ended = self.round.current().filter(|_| !self.is_by_restart());
        let told_after = ended.and_then(|ended| ended.next_reserved);
        self.record(&JournalRecord::GenerationOpened { formation: formation.clone() });
        let record = told_after.unwrap_or_else(|| self.outbox.waited_for());
        let (of_table, budget) = (members.clone(), self.restart_budget());
        let open = DriverOutput::OpenGeneration { stamp, members: of_table, budget };
        self.outbox.put_after(Some(record), open);
        for worker in &members {
            self.roster.join_generation(now, worker);
        }
        self.tell_formation(&members, &assignment, &formation, record);
        let root = match sync {
            SyncPlan::Skip => None,
            SyncPlan::FromRoot { root } => Some(root),
        };
        self.event(EventKind::GenerationFormed { members: members.clone(), root, step: step.0 });
        let alive: BTreeSet<WorkerId> = members.into_iter().collect();
        let former = self.round.current().into_iter().flat_map(|ended| ended.assignment.members());
        for worker in former.map(|member| member.worker).filter(|it| !alive.contains(it)) {
            self.roster.membership_changed(&worker);
        }
        let began_from = commits.iter().flatten().map(|held| (held.generation, held.step)).max();
        let untold = BTreeSet::new();
        self.round.form(FormedGeneration {
            stamp,
            assignment,
            formation,
            record,
            next_reserved: None,
            alive,
            began_from,
            untold,
        });
        self.pacing.formed();
        let deadline = now + self.config.deadlines.form;
        self.start_members();
        self.enter_phase(now, RoundPhase::Form { deadline });
        self.agenda.ask_review(now);
    }

    /// Warns if all that is left of the state is content that a majority disagreed with.
    fn tell_of_distrusted_root(&mut self, members: &[WorkerId], sync: SyncPlan) {
        // If no sync is needed, all hold the same state.
        let root = if let SyncPlan::FromRoot { root } = sync { root } else { 0 };
        let Some(worker) = members.get(root as usize) else { return };
        if self.divergence.is_distrusted(worker) {
            let message = format!(
                "{worker} differed from the majority, and only it holds the last commit: training goes on from its content"
            );
            self.event(EventKind::Warning { message });
        }
    }

    pub(crate) fn handle_all_ready(&mut self, now: Time, stamp: Stamp) {
        if self.round.stamp() != Some(stamp)
            || !matches!(self.round.phase(), RoundPhase::Form { .. })
        {
            return;
        }
        let members: Vec<WorkerId> = self.round.alive().cloned().collect();
        let source = self.checkpoint_source();
        if source.is_some() {
            self.begin_load(now, stamp);
        }
        self.tell_all(members, DriverToWorker::Go { stamp, source });
        self.note_shared_commit();
        self.round.note_ready(now);
        self.watch_first_steps();
        let deadline = now + self.config.deadlines.elastic;
        self.enter_phase(now, RoundPhase::Sync { deadline });
        self.sync_processes();
    }

    pub(crate) fn handle_all_synced(&mut self, now: Time, stamp: Stamp, votes: &[MemberVotes]) {
        if self.round.stamp() != Some(stamp)
            || !matches!(self.round.phase(), RoundPhase::Sync { .. })
        {
            return;
        }
        self.enter_phase(now, RoundPhase::Run);
        self.pacing.runs(now);
        if !self.is_by_restart() {
            self.state.trains(now);
            self.record_state(now);
        }
        self.record_running(stamp);
        self.first_cause.forget();
        self.watch_failed_slots(now);
        self.begin_checkpoints(now);
        self.begin_divergence();
        let world_size = self.round.current().map_or(0, |current| current.assignment.world_size());
        self.event(EventKind::GenerationRunning { world_size });
        self.watch_activity(now);
        self.vote_for_the_done();
        if let Some(reset) = self.round.end_reset(now) {
            let steps_lost = reset.undone.steps;
            self.report_reset(now, reset);
            self.time_hosts(now, votes);
            self.count_lost_steps(now, steps_lost);
        }
        self.agenda.ask_review(now);
    }

    /// Notes the generation's first commit for all members. From here on they take the root's commit over and train
    /// without another message. A member that is lost before it arrives again may hold this commit, or a later
    /// acknowledged one (G-5). The digest is not known here and not needed: no sync is skipped on this record.
    pub(crate) fn note_shared_commit(&mut self) {
        let by_restart = self.is_by_restart();
        let Some(current) = self.round.current() else { return };
        if !by_restart {
            self.state.reached(current.formation.step);
        }
        let (generation, step) = (current.stamp.generation, current.formation.step);
        for worker in &current.alive {
            self.roster.share_commit(worker, CommitId { generation, step, digest: 0 });
        }
    }
}

/// The plan of the sync, and the step to begin at. Sync is skipped only if every member proved the same step and
/// digest (G-6). Else the root is the lowest rank among the holders of the highest commit (G-8).
///
/// A rank whose content a majority disagrees with is the root only if no other holds a commit of that generation. If another one
/// holds an earlier commit of it, not every rank had acknowledged the highest one (G-5).
fn sync_plan(
    commits: &[Option<CommitId>],
    is_distrusted: &dyn Fn(usize) -> bool,
) -> (SyncPlan, Step) {
    let order = |held: &CommitId| (held.generation, held.step);
    let Some(highest) = commits.iter().flatten().map(order).max() else {
        return (SyncPlan::FromRoot { root: 0 }, Step::default());
    };
    let is_trusted = |rank: usize| !is_distrusted(rank) || is_planted(Bug::DistrustForgotten);
    let holds =
        || commits.iter().enumerate().filter_map(|(rank, held)| Some((rank, held.as_ref()?)));
    let trusted = holds().filter(|(rank, _)| is_trusted(*rank)).map(|(_, held)| order(held)).max();
    let best = trusted.filter(|trusted| trusted.0 == highest.0).unwrap_or(highest);
    let has_best = || holds().filter(|(_, held)| order(held) == best).map(|(rank, _)| rank);
    let root = has_best().find(|rank| is_trusted(*rank)).or_else(|| has_best().next()).unwrap_or(0);
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
