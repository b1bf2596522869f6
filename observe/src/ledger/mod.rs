//! The goodput ledger: it puts every second of every listed slot into exactly one bucket, by the driver's events alone.
//! A core without I/O. Fed by the observer of the driver's process, by the readers of event logs, and by the
//! simulation, which checks that the buckets add up to the wall clock times the slots.
//!
//! Some events tell late how time was spent: the steps that an abort has undone, the time in which a failure or a hang
//! was not noticed, the waits of steps, and the share of the sync in forming a generation. Such time is booked anew
//! when the event comes. Moving time between buckets keeps the sum.

mod accounts;
mod bucket;
mod facts;
mod hangs;
mod spans;
#[cfg(test)]
mod tests;
mod timeline;
mod totals;
mod unseen;
mod waits;

use std::collections::{BTreeMap, BTreeSet};

use elastic_driver::{DriverEvent, EventKind, ResetWay};
use elastic_protocol::messages::{GoodputStatus, HangGrounds, JobPhase, PhaseMs};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{GenerationId, HostName, Time, WorkerId};

pub use self::accounts::ResetAccount;
use self::accounts::ResetAccounts;
pub use self::bucket::TimeBucket;
use self::facts::{JobFacts, KnownPhase, LastEnd};
use self::spans::{LostTraining, SlotSpan, TrainingHistory};
pub use self::timeline::TotalsTimeline;
pub use self::totals::BucketTotals;
use self::totals::{RecentTotals, seconds};
use self::unseen::UnseenTraining;
use self::waits::AwaitedStragglers;

/// The ledger of a job.
#[derive(Clone, Debug)]
pub struct GoodputLedger {
    began: Time,
    now: Time,
    facts: JobFacts,
    phase: KnownPhase,
    generation: GenerationId,
    /// Step at which the current generation began.
    step: u64,
    /// Time at which the current generation began to train.
    running_since: Time,
    /// Slots in each bucket now, by the account that they are charged to.
    counts: BTreeMap<(TimeBucket, u64), u64>,
    totals: BucketTotals,
    /// Slot-time of all listed slots, summed without the buckets.
    slot_nanos: u128,
    recent: RecentTotals,
    timeline: TotalsTimeline,
    history: TrainingHistory,
    resets: ResetAccounts,
    /// Members of the current generation that hang.
    hung: BTreeSet<WorkerId>,
    /// Slot-time in the bucket of hangs before they did, in nanoseconds.
    hung_before: u128,
    /// Slots of the stragglers that were waited for, with that time.
    stragglers: AwaitedStragglers,
    /// Workers that the first generation needs, and those after it.
    needed: [u32; 2],
    /// Whether the hosts that are there had fewer slots than that when the slots were counted.
    is_short: bool,
    /// The generation whose end has led to no training yet.
    open_reset: Option<GenerationId>,
    /// The phase before the driver went away.
    before_away: Option<KnownPhase>,
    /// Stretches without a driver that began while the current generation trained.
    unseen: UnseenTraining,
    /// Whether more steps may be lost than are counted.
    lost_unseen: bool,
    /// Committed steps that the reset under way has lost.
    rolled_back: u64,
}

impl GoodputLedger {
    /// An empty ledger: the job begins, or is not known yet.
    pub fn new(now: Time) -> Self {
        Self {
            began: now,
            now,
            facts: JobFacts::default(),
            phase: KnownPhase::default(),
            generation: GenerationId::default(),
            step: 0,
            running_since: now,
            counts: BTreeMap::new(),
            totals: BucketTotals::default(),
            slot_nanos: 0,
            recent: RecentTotals::default(),
            timeline: TotalsTimeline::default(),
            history: TrainingHistory::default(),
            resets: ResetAccounts::default(),
            hung: BTreeSet::new(),
            hung_before: 0,
            stragglers: AwaitedStragglers::default(),
            needed: [0; 2],
            is_short: false,
            open_reset: None,
            before_away: None,
            unseen: UnseenTraining::default(),
            lost_unseen: false,
            rolled_back: 0,
        }
    }

    /// Takes an event of the driver.
    pub fn handle_event(&mut self, now: Time, event: &DriverEvent) {
        self.advance(now);
        self.handle_kind(event.generation, &event.kind);
    }

    fn handle_kind(&mut self, generation: GenerationId, kind: &EventKind) {
        match kind {
            EventKind::HostsChanged { needed, min_np, hosts } => {
                self.needed = [*needed, *min_np];
                self.facts.list(hosts);
                self.count_all();
                self.facts.forget_the_gone();
            }
            EventKind::HostJoined { host, .. } => self.host_joined(host),
            EventKind::HostLost { host, .. } => self.host_lost(host),
            EventKind::WorkerStarted { worker } => {
                let slot = self.facts.slot(worker);
                let is_member = slot.is_member && slot.worker.as_ref() == Some(worker);
                slot.worker = Some(worker.clone());
                (slot.has_process, slot.has_attached, slot.is_leaving) = (false, false, false);
                (slot.is_member, slot.was_passed_over) = (is_member, false);
                self.count_slot(worker);
            }
            EventKind::ProcessStarted { worker, .. } => {
                if let Some(slot) = self.facts.slot_with(worker) {
                    slot.has_process = true;
                }
                self.count_slot(worker);
            }
            EventKind::WorkerAttached { worker, .. } => {
                let slot = self.facts.slot(worker);
                slot.is_member &= slot.worker.as_ref() == Some(worker);
                slot.worker = Some(worker.clone());
                slot.has_attached = true;
                self.count_slot(worker);
            }
            EventKind::WorkerStopped { worker, .. } => {
                if let Some(slot) = self.facts.slot_with(worker) {
                    slot.is_leaving = true;
                }
                self.blame(worker);
                self.count_slot(worker);
            }
            EventKind::WorkerExited { worker, status, expected, .. } => {
                self.resets.explain_death(worker, *status);
                self.blame(worker);
                if !expected {
                    self.end_training_of(worker);
                }
                if let Some(slot) = self.facts.slot_with(worker) {
                    slot.last_end = match (status.is_success(), expected) {
                        (_, false) => LastEnd::Failed,
                        (true, true) if slot.is_member => LastEnd::Success,
                        _ => LastEnd::Meant,
                    };
                    slot.worker = None;
                    (slot.is_member, slot.is_leaving) = (false, false);
                }
                self.count_slot(worker);
            }
            EventKind::WorkerNotStarted { worker, .. } => {
                if let Some(slot) = self.facts.slot_with(worker) {
                    (slot.worker, slot.last_end) = (None, LastEnd::Failed);
                    (slot.is_member, slot.is_leaving) = (false, false);
                }
                self.count_slot(worker);
            }
            EventKind::GenerationFormed { members, step, .. } => {
                self.generation_formed(generation, members, *step);
            }
            EventKind::GenerationRunning { .. } => self.generation_running(generation),
            EventKind::WorkerStalled { worker, late_ms, grounds, silent_ms, .. } => {
                // A stall that is only possible stays booked as training: the worker may be training. If a worker is
                // given up for its silence, that time belongs to detection, which its reset reports.
                let holds_up_all = grounds.as_ref().is_none_or(HangGrounds::is_more_than_possible);
                if holds_up_all && silent_ms.is_none() {
                    self.stalled(worker, *late_ms);
                }
            }
            EventKind::StallEnded { worker, .. } => self.stall_ended(worker),
            EventKind::StepsMeasured { ms, data, commit, straggler, slowest } => {
                self.waited(nanos(*ms), TimeBucket::Data, *data);
                self.waited(nanos(*ms), TimeBucket::CheckpointStall, *commit);
                let waited = self.waited(nanos(*ms), TimeBucket::Straggler, *straggler);
                self.stragglers.add(slowest, waited);
            }
            EventKind::ResetDecided { cause, way } => {
                let hung = self.end_hang();
                self.end_training();
                self.resets.open(self.now, generation, cause, *way);
                self.resets.charge(generation.0, TimeBucket::Hung, hung);
                self.open_reset = Some(generation);
                self.charge_members();
                let planned = *way == ResetWay::Interrupt;
                self.enter(if planned { KnownPhase::Pause } else { KnownPhase::Gather });
            }
            EventKind::GenerationTakenBack { .. } => {
                self.end_hang();
                self.end_training();
                self.enter(KnownPhase::Gather);
            }
            EventKind::ResetDone { cause, from, ms, steps_lost, lost_ms } => {
                if let Some(account) = self.resets.get_mut(from.0) {
                    // The first sign of a failure may not have been its cause.
                    account.cause = cause.clone();
                }
                self.reset_done((*from, generation), ms, *steps_lost, *lost_ms);
            }
            EventKind::TakeoverBegun { members, phase, .. } => self.taken_over(members, *phase),
            EventKind::TakeoverDone { lost, .. } => self.takeover_done(*lost),
            EventKind::JobEnded { .. } => {
                self.end_hang();
                self.end_training();
                self.enter(KnownPhase::Over);
            }
            EventKind::WorkerOutOfMemory { worker, detail } => {
                self.resets.explain_kill(worker, detail);
            }
            EventKind::CheckpointLoaded { step: Some(step), .. } => {
                self.checkpoint_loaded(generation, *step);
            }
            EventKind::StateLost { committed, begins_at, unseen, .. } => {
                self.rolled_back = committed.saturating_sub(*begins_at);
                self.lost_unseen |= *unseen || self.rolled_back > 0;
            }
            EventKind::HostRefused { .. }
            | EventKind::HostUnreachable(_)
            | EventKind::HostBlacklisted { .. }
            | EventKind::HostDrained { .. }
            | EventKind::HostReadmitted { .. }
            | EventKind::ResetCalledOff { .. }
            | EventKind::FirstSteps { .. }
            | EventKind::StragglerFound { .. }
            | EventKind::StragglerRecovered { .. }
            | EventKind::SlowLinkFound { .. }
            | EventKind::HealthCheckPassed { .. }
            | EventKind::HealthCheckFailed { .. }
            | EventKind::SlowLinkRecovered { .. }
            | EventKind::WorkerReplaced { .. }
            | EventKind::WorkerNotReplaced { .. }
            | EventKind::ReplacementTook { .. }
            | EventKind::SlotRested { .. }
            | EventKind::ShardsRebalanced { .. }
            | EventKind::NotRebalanced { .. }
            | EventKind::RebalanceTook { .. }
            | EventKind::ReplicasDiffer { .. }
            | EventKind::NotCompared { .. }
            | EventKind::StandbysChanged { .. }
            | EventKind::HandedOver { .. }
            | EventKind::Abandoned { .. }
            | EventKind::CheckpointSaved { .. }
            | EventKind::CheckpointFailed { .. }
            | EventKind::CheckpointLoaded { step: None, .. }
            | EventKind::Stopping { .. }
            | EventKind::Warning { .. } => {}
        }
    }

    /// The driver was last known to be there at this time. The use of the slots after it is unknown.
    pub fn handle_driver_gone(&mut self, at: Time) {
        self.advance(at);
        if self.phase != KnownPhase::Away {
            if self.phase == KnownPhase::Run {
                self.unseen.begin(self.now);
            }
            self.before_away = Some(self.phase);
            self.enter(KnownPhase::Away);
        }
    }

    /// A driver of the same job is there again.
    pub fn handle_driver_back(&mut self, now: Time) {
        self.advance(now);
        if let Some(before) = self.before_away.take() {
            self.unseen.end(self.now);
            self.enter(before);
        }
    }

    /// When the job began.
    pub const fn began(&self) -> Time {
        self.began
    }

    /// The goodput as `status` shows it.
    pub fn status(&self, now: Time) -> GoodputStatus {
        let mut upto = self.clone_sums();
        upto.advance(now);
        let (totals, recent) = (upto.totals, upto.recent.sum(upto.now));
        GoodputStatus {
            since_start: totals.goodput(),
            last_10_min: recent.goodput(),
            slot_seconds: seconds(totals.sum()),
            buckets: totals
                .non_empty()
                .map(|(bucket, seconds)| (bucket.name().to_owned(), seconds))
                .collect(),
            stragglers: self.stragglers.shown(),
        }
    }

    /// Slot-time by bucket up to now.
    pub fn totals(&self, now: Time) -> BucketTotals {
        let mut totals = self.totals;
        let nanos = u128::from(now.0.saturating_sub(self.now.0));
        for ((bucket, _), slots) in &self.counts {
            totals.add(*bucket, u128::from(*slots) * nanos);
        }
        totals
    }

    /// Slot-time by bucket over the job's life, up to now.
    pub fn timeline(&self, now: Time) -> TotalsTimeline {
        let mut timeline = self.timeline.clone();
        if now > self.now {
            for ((bucket, _), slots) in &self.counts {
                timeline.add(*bucket, *slots, self.now, now);
            }
        }
        timeline
    }

    /// Whether more steps may be lost than are counted: all workers were gone, and what they had done since they told their progress,
    /// or while no driver lived, is not known.
    pub const fn has_lost_unseen(&self) -> bool {
        self.lost_unseen
    }

    /// The resets that are kept, the oldest first, with their cost up to the last event.
    pub fn resets(&self) -> impl DoubleEndedIterator<Item = &ResetAccount> {
        self.resets.all()
    }

    /// The bucket that a slot is in; none if it is not listed.
    pub fn bucket_of(&self, host: &HostName, slot: u32) -> Option<TimeBucket> {
        let host = self.facts.hosts.get(host)?;
        Some(host.slots.get(&slot)?.counted_as?.0)
    }

    /// Every listed slot with the bucket that it is in.
    pub fn slots_now(&self) -> impl Iterator<Item = (&HostName, u32, TimeBucket)> {
        self.facts.hosts.iter().flat_map(|(host, facts)| {
            let of_host = facts.slots.iter();
            of_host.filter_map(move |(slot, it)| Some((host, *slot, it.counted_as?.0)))
        })
    }

    /// The current, or last, generation.
    pub const fn generation(&self) -> GenerationId {
        self.generation
    }

    /// Number of slots in a bucket now.
    pub fn slots_in(&self, bucket: TimeBucket) -> u64 {
        let of_bucket = self.counts.range((bucket, 0)..=(bucket, u64::MAX));
        of_bucket.map(|(_, slots)| slots).sum()
    }

    /// Number of listed slots.
    pub fn slots(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Checks that no slot-time is missing, and none is counted twice.
    ///
    /// # Errors
    /// The sums that differ.
    pub fn check(&self) -> Result<(), String> {
        let sum = self.totals.sum();
        if sum != self.slot_nanos {
            let slots = self.slot_nanos;
            return Err(format!(
                "the buckets add up to {sum} ns, and slots were there for {slots} ns"
            ));
        }
        let (counted, listed) = (self.slots(), self.facts.count());
        if counted != listed {
            return Err(format!("{counted} slots are in buckets, and {listed} are listed"));
        }
        Ok(())
    }

    /// Books the time up to now to the buckets in which the slots are.
    fn advance(&mut self, now: Time) {
        // A clock that goes back stands still here.
        let Some(nanos) = now.0.checked_sub(self.now.0).filter(|nanos| *nanos > 0) else { return };
        for ((bucket, account), slots) in &self.counts {
            let booked = u128::from(*slots) * u128::from(nanos);
            self.totals.add(*bucket, booked);
            self.recent.add(*bucket, *slots, self.now, now);
            self.timeline.add(*bucket, *slots, self.now, now);
            self.resets.charge(*account, *bucket, booked);
        }
        self.slot_nanos += u128::from(self.facts.count()) * u128::from(nanos);
        self.now = now;
    }

    /// The sums without the facts, to look ahead to a time.
    fn clone_sums(&self) -> Self {
        Self {
            counts: self.counts.clone(),
            recent: self.recent.clone(),
            totals: self.totals,
            stragglers: self.stragglers.clone(),
            ..Self::new(self.now)
        }
    }

    fn host_joined(&mut self, host: &HostName) {
        self.facts.host(host).has_agent = true;
        self.count_host(host);
    }

    fn host_lost(&mut self, host: &HostName) {
        let workers: Vec<WorkerId> =
            self.facts.host(host).slots.values().filter_map(|slot| slot.worker.clone()).collect();
        for worker in workers {
            self.blame(&worker);
            self.end_training_of(&worker);
        }
        let facts = self.facts.host(host);
        facts.has_agent = false;
        for slot in facts.slots.values_mut() {
            // A worker that comes back attaches again.
            slot.worker = None;
            slot.is_member = false;
            slot.last_end = LastEnd::Meant;
        }
        self.count_host(host);
        self.facts.forget_the_gone();
    }

    /// A member leaves its generation: the time of its slot until it trains again is charged to the generation's end.
    fn blame(&mut self, worker: &WorkerId) {
        let (generation, phase) = (self.generation.0, self.phase);
        if matches!(phase, KnownPhase::Over | KnownPhase::Away) {
            return;
        }
        if let Some(slot) = self.facts.slot_with(worker).filter(|slot| slot.is_member) {
            slot.account = generation;
        }
    }

    fn generation_formed(&mut self, generation: GenerationId, members: &[WorkerId], step: u64) {
        self.end_hang();
        self.end_training();
        self.generation = generation;
        self.step = step;
        for slot in self.facts.slots_mut() {
            slot.is_member = false;
            slot.was_passed_over = slot.has_attached && slot.worker.is_some();
        }
        for member in members {
            let slot = self.facts.slot(member);
            if slot.worker.as_ref() != Some(member) {
                // A process that is started for this generation.
                (slot.worker, slot.has_process) = (Some(member.clone()), false);
                slot.has_attached = false;
            }
            (slot.is_member, slot.was_passed_over, slot.is_leaving) = (true, false, false);
        }
        self.charge_members();
        self.enter(KnownPhase::Form);
    }

    /// A generation whose members held no commit was formed with step 0, and begins at the step of this checkpoint.
    fn checkpoint_loaded(&mut self, generation: GenerationId, step: u64) {
        if generation == self.generation && self.phase == KnownPhase::Form {
            self.step = step;
        }
    }

    fn generation_running(&mut self, generation: GenerationId) {
        self.generation = generation;
        for slot in self.facts.slots_mut().filter(|slot| slot.is_member) {
            slot.account = 0;
        }
        self.open_reset = None;
        self.running_since = self.now;
        self.enter(KnownPhase::Run);
        self.history.begin(self.now, self.step, self.slots_in(TimeBucket::Training));
    }

    fn reset_done(
        &mut self,
        (from, to): (GenerationId, GenerationId),
        ms: &PhaseMs,
        steps_lost: u64,
        lost_ms: u64,
    ) {
        let committed = std::mem::take(&mut self.rolled_back);
        let world_size = self.slots_in(TimeBucket::Training);
        let way = self.resets.get_mut(from.0).map(|account| {
            (account.to, account.ms) = (Some(to), Some(*ms));
            (account.steps_lost, account.lost_ms) = (steps_lost, lost_ms);
            account.lost_unseen = committed > 0;
            account.way
        });
        let sync = nanos(ms.sync.unwrap_or_default());
        let synced_from = Time(self.running_since.0.saturating_sub(sync));
        let synced = SlotSpan::whole(world_size, synced_from, self.running_since);
        self.transfer(from, (TimeBucket::Forming, TimeBucket::Syncing), &synced);
        if way == Some(ResetWay::Interrupt) {
            return;
        }
        if let Some(unnoticed) = self.history.cut_detection(nanos(ms.detect)) {
            self.transfer(from, (TimeBucket::Training, TimeBucket::Detecting), &unnoticed);
        }
        // Processes that live for one generation do not tell their steps.
        if way != Some(ResetWay::Restart) {
            let training = LostTraining {
                goes_on_at: self.step,
                steps: steps_lost,
                committed,
                nanos: lost_ms.saturating_mul(1_000_000),
            };
            for (bucket, lost) in self.history.lose(&training) {
                self.transfer(from, (bucket, TimeBucket::Lost), &lost);
            }
        }
    }

    /// Books past time under another bucket. Returns how much slot-time was moved, in nanoseconds.
    fn rebook(&mut self, buckets: (TimeBucket, TimeBucket), span: &SlotSpan) -> u128 {
        self.recent.transfer(buckets, span);
        self.timeline.transfer(buckets, span);
        self.totals.transfer(buckets.0, buckets.1, span.nanos())
    }

    /// The same, charged to a reset.
    fn transfer(
        &mut self,
        account: GenerationId,
        (from, to): (TimeBucket, TimeBucket),
        span: &SlotSpan,
    ) {
        let moved = self.rebook((from, to), span);
        if let Some(account) = self.resets.get_mut(account.0) {
            let charged = account.cost.transfer(from, to, moved);
            account.cost.add(to, moved - charged);
        }
    }

    /// Goes on from the former driver's record, if its events are not known.
    fn taken_over(&mut self, members: &[WorkerId], phase: JobPhase) {
        for member in members {
            let slot = self.facts.slot(member);
            if slot.worker.is_none() {
                (slot.worker, slot.has_attached) = (Some(member.clone()), true);
            }
            slot.is_member |= slot.worker.as_ref() == Some(member);
            // Orders to end of a driver that died before it had journalled them were never given.
            slot.is_leaving &= !slot.is_member;
        }
        let phase = match phase {
            JobPhase::Gather => KnownPhase::Gather,
            JobPhase::Form | JobPhase::Sync => KnownPhase::Form,
            JobPhase::Run => KnownPhase::Run,
            JobPhase::Succeeded | JobPhase::Failed => KnownPhase::Over,
        };
        self.before_away = None;
        self.end_hang();
        if phase != KnownPhase::Run {
            self.end_training();
        }
        self.enter(phase);
    }

    /// The members of a generation that came back to a new driver have trained meanwhile, if none is lost.
    fn takeover_done(&mut self, lost: usize) {
        let slots = self.slots_of_members();
        for span in self.unseen.take(slots) {
            if lost == 0 {
                self.rebook((TimeBucket::DriverAway, TimeBucket::Training), &span);
            }
        }
    }

    fn end_training(&mut self) {
        self.unseen = UnseenTraining::default();
        let slots = self.slots_of_members();
        self.history.end(self.now, slots);
    }

    /// Number of slots whose workers are members of the generation that trains, or stands still.
    fn slots_of_members(&self) -> u64 {
        self.slots_in(TimeBucket::Training) + self.slots_in(TimeBucket::Hung)
    }

    /// A member is lost: its generation trained until now, with all members.
    fn end_training_of(&mut self, worker: &WorkerId) {
        if self.facts.slot_with(worker).is_some_and(|slot| slot.is_member) {
            self.end_training();
        }
    }

    /// Charges the members' present time to the reset that is under way.
    fn charge_members(&mut self) {
        let Some(GenerationId(from)) = self.open_reset else { return };
        for slot in self.facts.slots_mut().filter(|slot| slot.is_member) {
            slot.account = from;
        }
    }

    fn enter(&mut self, phase: KnownPhase) {
        self.phase = phase;
        self.count_all();
    }

    fn count_slot(&mut self, worker: &WorkerId) {
        self.count_host(&worker.host);
    }

    fn count_all(&mut self) {
        self.is_short = self.lacks_slots();
        let hosts: Vec<HostName> = self.facts.hosts.keys().cloned().collect();
        for host in hosts {
            self.count_slots_of(&host);
        }
    }

    /// Whether the hosts that are there have fewer slots than the next generation needs.
    fn lacks_slots(&self) -> bool {
        let [first, later] = self.needed;
        let needed = if self.generation == GenerationId::default() { first } else { later };
        self.phase == KnownPhase::Gather && self.facts.usable_slots() < u64::from(needed)
    }

    /// Counts the slots of a host anew; those of all, if it decides whether there are enough.
    fn count_host(&mut self, host: &HostName) {
        if self.phase == KnownPhase::Gather && self.is_short != self.lacks_slots() {
            return self.count_all();
        }
        self.count_slots_of(host);
    }

    fn count_slots_of(&mut self, host: &HostName) {
        let Some(host) = self.facts.hosts.get_mut(host) else { return };
        let mut changes = Vec::new();
        for (number, slot) in &host.slots {
            let is_listed = *number < host.slots_listed;
            let bucket = host.bucket_of(slot, self.phase, self.is_short);
            let now = is_listed.then_some((bucket, slot.account));
            if now != slot.counted_as {
                changes.push((*number, now));
            }
        }
        for (number, now) in changes {
            let Some(slot) = host.slots.get_mut(&number) else { continue };
            let before = std::mem::replace(&mut slot.counted_as, now);
            if let Some(before) = before
                && !(now.is_none() && is_planted(Bug::GoneSlotCounted))
                && let Some(slots) = self.counts.get_mut(&before)
            {
                *slots -= 1;
                if *slots == 0 {
                    self.counts.remove(&before);
                }
            }
            if let Some(now) = now {
                *self.counts.entry(now).or_default() += 1;
            }
        }
        host.slots.retain(|number, slot| {
            *number < host.slots_listed || slot.worker.is_some() || slot.is_member
        });
    }
}

/// Milliseconds of an event as nanoseconds.
fn nanos(ms: f64) -> u64 {
    // Saturates, and is zero for NaN.
    (ms * 1e6) as u64
}
