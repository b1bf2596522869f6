//! [`Round`]: the generation formed last, the phase that it is in, and the resets between generations. A part of the
//! core; handlers change it through its methods, which keep its invariants.

mod resets;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{
    ExitStatus, GenerationId, JobResult, ResetCause, Stamp, Time, WorkerFailure, WorkerId,
};
use serde::{Deserialize, Serialize};

use super::agenda::Timetable;
use super::phase::{FormedGeneration, Gather, ResetRecord, RoundPhase};
use super::timers::Timer;
use crate::journal::Image;

/// Progress of the job through its generations.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Round {
    /// Number of the last generation.
    generation: GenerationId,
    /// Highest number that a former driver may have told.
    #[serde(default)]
    restored: GenerationId,
    /// Highest number that members may have been told, as the journal has it.
    #[serde(default)]
    told_upto: GenerationId,
    phase: RoundPhase,
    /// Number of the record that the phase's orders wait for.
    #[serde(default)]
    orders: u64,
    /// The generation formed last.
    current: Option<FormedGeneration>,
    /// Whether any worker ever attached. If so, a worker that exits with code 0 without attaching has not succeeded.
    program_attaches: bool,
    /// World size of the first generation.
    started_with: Option<u32>,
    resets: u64,
    /// Number of resets caused by failures, in the restart mode.
    restarts: u64,
    /// Time at which the membership was first seen to need a planned change.
    change_since: Option<Time>,
    /// Time at which the interrupt under way was announced.
    interrupt_since: Time,
    /// The reset under way.
    reset: Option<ResetRecord>,
    /// Time since which the journal can be written again, after it could not be.
    #[serde(default)]
    writable_since: Time,
    /// The last resets that are over, the oldest first; at most `StatusReport::RESETS_RECENT_MAX`.
    #[serde(default)]
    past_resets: VecDeque<ResetRecord>,
    /// The reset that is over and not reported, and the end of the wait for its cause's exit status.
    held_report: Option<(ResetRecord, Time)>,
    /// Exit statuses of members of the last two generations.
    #[serde(with = "crate::recording::readable::pairs")]
    exits: BTreeMap<WorkerId, ExitStatus>,
    /// First failure of a member of the generation formed last.
    #[serde(default)]
    member_failure: Option<WorkerFailure>,
    /// Number of members of the generation formed last that failed after it was broken, and that are told.
    #[serde(default)]
    further_failures: u32,
    /// A member of the generation formed last that is to be evicted once the journal has stored all records, and why.
    #[serde(default)]
    refused: Option<(WorkerId, ResetCause)>,
}

impl Round {
    /// Without a generation. The gather room closes at `deadline`.
    pub(crate) fn new(now: Time, deadline: Time, timetable: &mut Timetable) -> Self {
        let waiting_for = BTreeSet::new();
        timetable.set(deadline, Timer::Phase);
        Self {
            generation: GenerationId::default(),
            restored: GenerationId::default(),
            told_upto: GenerationId::default(),
            phase: RoundPhase::Gather(Gather {
                since: now,
                deadline,
                waiting_for,
                ends_by: None,
                changed_at: now,
            }),
            orders: 0,
            current: None,
            program_attaches: false,
            started_with: None,
            resets: 0,
            restarts: 0,
            change_since: None,
            interrupt_since: now,
            reset: None,
            writable_since: Time::ZERO,
            past_resets: VecDeque::new(),
            held_report: None,
            exits: BTreeMap::new(),
            member_failure: None,
            further_failures: 0,
            refused: None,
        }
    }

    /// Takes the counts that a former driver has recorded.
    pub(crate) fn restore(&mut self, image: &Image) {
        let current = image.current.as_ref().map(|current| current.formation.stamp.generation);
        self.generation = current.unwrap_or(image.generation);
        (self.restored, self.told_upto) = (image.generation, image.generation);
        self.resets = if is_planted(Bug::ResetsCountedAnew) { 0 } else { image.resets };
        self.started_with = image.started_with;
        self.program_attaches = image.program_attaches;
        self.restarts = image.restarts;
    }

    /// Number of the last generation.
    pub(crate) const fn generation(&self) -> GenerationId {
        self.generation
    }

    pub(crate) const fn phase(&self) -> &RoundPhase {
        &self.phase
    }

    /// The generation formed last.
    pub(crate) const fn current(&self) -> Option<&FormedGeneration> {
        self.current.as_ref()
    }

    /// World size of the first generation.
    pub(crate) const fn started_with(&self) -> Option<u32> {
        self.started_with
    }

    /// Whether any worker ever attached.
    pub(crate) const fn program_attaches(&self) -> bool {
        self.program_attaches
    }

    pub(crate) const fn resets(&self) -> u64 {
        self.resets
    }

    /// Number of resets caused by failures, in the restart mode.
    pub(crate) const fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Time at which the interrupt under way was announced.
    pub(crate) const fn interrupt_since(&self) -> Time {
        self.interrupt_since
    }

    /// Number of the record that the phase's orders wait for.
    pub(crate) const fn orders(&self) -> u64 {
        self.orders
    }

    /// Time from which the elastic timeout of the reset under way counts. While the journal cannot be written, no orders
    /// leave, so that time does not count.
    pub(crate) fn reset_counts_from(&self) -> Option<Time> {
        self.reset.as_ref().map(|reset| reset.counts_from.max(self.writable_since))
    }

    /// Notes that the journal can be written again.
    pub(crate) const fn note_writable(&mut self, now: Time) {
        self.writable_since = now;
    }

    /// Enters a phase, and sets its timer (G-9). Its orders wait for the record `orders`. A phase with a deadline of `now`
    /// needs no timer, since it is left before the next input.
    pub(crate) fn enter(
        &mut self,
        now: Time,
        phase: RoundPhase,
        orders: u64,
        timetable: &mut Timetable,
    ) {
        if let Some(deadline) = phase.deadline().filter(|deadline| *deadline > now) {
            timetable.set(deadline, Timer::Phase);
        }
        if let RoundPhase::Gather(Gather { ends_by: Some(ends_by), .. }) = &phase {
            timetable.set(*ends_by, Timer::Phase);
        }
        self.phase = phase;
        self.orders = orders;
    }

    /// Moves the end of the gather room.
    pub(crate) fn gather_until(&mut self, end: Time, timetable: &mut Timetable) {
        if let RoundPhase::Gather(gather) = &mut self.phase {
            gather.deadline = end;
            timetable.set(end, Timer::Phase);
        }
    }

    /// Moves the deadline of a phase whose orders leave only now, or whose answers are read only now. A later deadline
    /// stays.
    pub(crate) fn restart_deadline(&mut self, at: Time, timetable: &mut Timetable) {
        let (RoundPhase::Gather(Gather { deadline, .. })
        | RoundPhase::Form { deadline }
        | RoundPhase::Sync { deadline }
        | RoundPhase::Pausing { deadline, .. }
        | RoundPhase::Stopping { deadline, .. }
        | RoundPhase::Ending { deadline, .. }) = &mut self.phase
        else {
            return;
        };
        *deadline = at.max(*deadline);
        timetable.set(*deadline, Timer::Phase);
        if let RoundPhase::Gather(Gather { ends_by: Some(ends_by), .. }) = &mut self.phase {
            *ends_by = at.max(*ends_by);
            timetable.set(*ends_by, Timer::Phase);
        }
    }

    /// Gives out the number of the next generation (G-2).
    pub(crate) fn next_generation(&mut self) -> GenerationId {
        let reuses = self.generation.0 > 1 && is_planted(Bug::GenerationNumberReused);
        let last = self.generation.max(self.restored);
        self.generation = if reuses { last } else { last.next() };
        self.told_upto = self.told_upto.max(self.generation);
        self.generation
    }

    /// Notes that the journal's record `record` reserves the number after that of the generation formed last: members may be told
    /// the next generation once that is stored. A number that a former driver reserved is skipped: the one after it is not reserved.
    pub(crate) fn reserve_next(&mut self, record: Option<u64>) {
        let Some(current) = &mut self.current else { return };
        let after = current.stamp.generation.next();
        self.told_upto = self.told_upto.max(after);
        if self.restored < after || is_planted(Bug::SkippedNumberTakenForReserved) {
            current.next_reserved = current.next_reserved.or(record);
        }
    }

    /// Highest number of a generation that members may have been told.
    pub(crate) const fn told_upto(&self) -> GenerationId {
        self.told_upto
    }

    /// Takes a generation that was formed just now. The reset under way leads to it.
    pub(crate) fn form(&mut self, generation: FormedGeneration) {
        if let Some(reset) = &mut self.reset {
            reset.to = generation.stamp.generation;
        }
        self.started_with.get_or_insert(generation.assignment.world_size());
        let before = self.current.as_ref().map(|before| &before.assignment);
        let is_of_before =
            |worker: &WorkerId| before.is_some_and(|table| table.rank_of(worker).is_some());
        self.exits.retain(|worker, _| is_of_before(worker));
        self.current = Some(generation);
        (self.member_failure, self.refused) = (None, None);
        self.further_failures = 0;
    }

    /// Goes on with a generation of a former driver.
    pub(crate) fn resume(&mut self, generation: FormedGeneration) {
        self.current = Some(generation);
    }

    /// Takes the generation formed last back: its processes are kept for the next one, and none of its members is awaited.
    pub(crate) fn take_back(&mut self) {
        (self.current, self.started_with) = (None, None);
        if let RoundPhase::Gather(gather) = &mut self.phase {
            gather.waiting_for.clear();
        }
        if let Some(reset) = &mut self.reset {
            reset.ready_at = None;
        }
    }

    /// Notes that a worker has attached through the library.
    pub(crate) const fn note_attached(&mut self) {
        self.program_attaches = true;
    }

    /// Removes a lost member from those alive. Returns whether it was one.
    pub(crate) fn lose(&mut self, worker: &WorkerId) -> bool {
        self.current.as_mut().is_some_and(|current| current.alive.remove(worker))
    }

    /// Removes the members that are not there from those alive.
    pub(crate) fn keep_alive(&mut self, is_there: impl Fn(&WorkerId) -> bool) {
        if let Some(current) = &mut self.current {
            current.alive.retain(is_there);
        }
    }

    /// Notes that a member was not told its assignment, which it missed with its session.
    pub(crate) fn note_untold(&mut self, worker: WorkerId, missed: Stamp) {
        if let Some(current) = self.current.as_mut().filter(|current| current.stamp == missed) {
            current.untold.insert(worker);
        }
    }

    /// Stops waiting for a worker in the gather room or until all have stopped. Returns whether it was the last.
    pub(crate) fn stops_waiting_for(&mut self, worker: &WorkerId) -> bool {
        match &mut self.phase {
            RoundPhase::Gather(Gather { waiting_for, .. })
            | RoundPhase::Stopping { waiting_for, .. } => {
                waiting_for.remove(worker) && waiting_for.is_empty()
            }
            _ => false,
        }
    }

    /// Takes a member's answer to a pause, with the boundary that it has passed. False outside of a pause.
    pub(crate) fn paused(&mut self, worker: &WorkerId, boundary: u64) -> bool {
        let RoundPhase::Pausing { waiting_for, passed, .. } = &mut self.phase else { return false };
        waiting_for.remove(worker);
        *passed = boundary.max(*passed);
        true
    }

    /// Time since which a planned change has been pending: now, if it is new.
    pub(crate) fn change_is_pending(&mut self, now: Time) -> Time {
        *self.change_since.get_or_insert(now)
    }

    pub(crate) const fn no_change_is_pending(&mut self) {
        self.change_since = None;
    }

    /// Notes the time at which an interrupt was announced.
    pub(crate) const fn begin_interrupt(&mut self, now: Time) {
        self.interrupt_since = now;
    }

    pub(crate) const fn count_reset(&mut self) {
        self.resets += 1;
    }

    pub(crate) const fn count_restart(&mut self) {
        self.restarts += 1;
    }

    /// Notes a failure of a member of the generation formed last, unless another one came before it.
    pub(crate) fn note_member_failure(&mut self, failure: WorkerFailure) {
        let is_of_generation = self.rank_of(&failure.worker).is_some();
        if is_of_generation && self.member_failure.is_none() {
            self.member_failure = Some(failure);
        }
    }

    /// Notes a member that is to be evicted before the next generation, unless another one was noted before it.
    pub(crate) fn note_refused(&mut self, worker: WorkerId, cause: ResetCause) {
        self.refused.get_or_insert((worker, cause));
    }

    /// The member that is to be evicted before the next generation.
    pub(crate) const fn refused(&self) -> Option<&(WorkerId, ResetCause)> {
        self.refused.as_ref()
    }

    pub(crate) const fn take_refused(&mut self) -> Option<(WorkerId, ResetCause)> {
        self.refused.take()
    }

    /// First failure of a member of the generation formed last.
    pub(crate) const fn member_failure(&self) -> Option<&WorkerFailure> {
        self.member_failure.as_ref()
    }

    /// The result of the job that is ending, to be corrected; none before and after.
    pub(crate) const fn result_mut(&mut self) -> Option<&mut JobResult> {
        match &mut self.phase {
            RoundPhase::Ending { result, .. } => Some(result),
            _ => None,
        }
    }

    /// Begins the time in which agents must leave. The orders to do so wait for the record `orders`. Returns code and
    /// reason of the result, once.
    pub(crate) fn begin_leaving(
        &mut self,
        until: Time,
        orders: u64,
        timetable: &mut Timetable,
    ) -> Option<(i32, String)> {
        let RoundPhase::Ending { result, deadline, agents_told, .. } = &mut self.phase else {
            return None;
        };
        if std::mem::replace(agents_told, true) {
            return None;
        }
        *deadline = until;
        self.orders = orders;
        timetable.set(until, Timer::Phase);
        Some((result.code, result.reason.clone()))
    }

    /// Ends the job: all agents have left, or have had the time to.
    pub(crate) fn end(&mut self, result: JobResult) {
        self.phase = RoundPhase::Ended { result };
    }

    /// Breaks the part's invariants, for tests of its check.
    #[cfg(test)]
    pub(crate) fn corrupt(
        &mut self,
        change: impl FnOnce(&mut RoundPhase, &mut Option<FormedGeneration>),
    ) {
        change(&mut self.phase, &mut self.current);
    }

    /// Breaks the part's invariants, for tests of its check.
    #[cfg(test)]
    pub(crate) const fn forget_last_number(&mut self) {
        self.generation = GenerationId(self.generation.0 - 1);
    }

    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.current.as_ref().map(|current| current.stamp)
    }

    /// Whether a worker is a member of the generation formed last, and not lost.
    pub(crate) fn is_member(&self, worker: &WorkerId) -> bool {
        self.current.as_ref().is_some_and(|current| current.alive.contains(worker))
    }

    /// The members of the generation formed last that are not lost.
    pub(crate) fn alive(&self) -> impl Iterator<Item = &WorkerId> {
        self.current.iter().flat_map(|current| &current.alive)
    }

    /// Rank of a worker in the generation formed last, also of one that is lost.
    pub(crate) fn rank_of(&self, worker: &WorkerId) -> Option<u32> {
        self.current.as_ref().and_then(|current| current.assignment.rank_of(worker))
    }

    /// Restarts the last call of the gather room, since the set of hosts or workers has changed.
    pub(crate) fn gather_changed(&mut self, now: Time) {
        if let RoundPhase::Gather(gather) = &mut self.phase {
            gather.changed_at = now;
        }
    }

    /// Checks the round's invariants.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(reset) = &self.reset
            && (reset.from > reset.to || reset.to > self.generation)
        {
            let (from, to, last) = (reset.from, reset.to, self.generation);
            return Err(format!(
                "G-2: a reset from {from} to {to}, and the last generation is {last}"
            ));
        }
        self.check_reset()?;
        let Some(current) = &self.current else {
            let is_active = self.phase.is_generation_active();
            return if is_active { Err("a phase without a generation".to_owned()) } else { Ok(()) };
        };
        let table: Vec<WorkerId> =
            current.assignment.members().map(|member| member.worker).collect();
        let members: BTreeSet<&WorkerId> = table.iter().collect();
        if members.len() != table.len() {
            return Err("G-3: a worker has two ranks".to_owned());
        }
        let (formed, told) = (current.stamp, current.formation.stamp);
        if formed != told || formed.generation > self.generation {
            let last = self.generation;
            return Err(format!(
                "G-2: {formed:?} was told as {told:?}, and the last number is {last}"
            ));
        }
        if let Some(worker) = current.alive.iter().find(|worker| !members.contains(*worker)) {
            return Err(format!("{worker} is alive in a generation of which it is no member"));
        }
        if let RoundPhase::Gather(Gather { waiting_for, .. }) = &self.phase
            && let Some(worker) = waiting_for.iter().find(|it| !current.alive.contains(*it))
        {
            return Err(format!("G-9: {worker} is lost, and waited for"));
        }
        let awaited = self.phase.waiting_for();
        if let Some(worker) = awaited.into_iter().flatten().find(|it| !members.contains(*it)) {
            return Err(format!("G-9: {worker} is waited for and is no member"));
        }
        Ok(())
    }
}
