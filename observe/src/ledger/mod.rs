//! The goodput ledger: it puts every second of every listed slot into exactly one bucket, by the driver's events alone.
//! A core without I/O. Fed by the observer of the driver's process, by the readers of event logs, and by the
//! simulation, which checks that the buckets add up to the wall clock times the slots.
//!
//! Some events tell late how time was spent: the steps that an abort has undone, the time in which a failure or a hang
//! was not noticed, the waits of steps, and the share of the sync in forming a generation. Such time is booked anew
//! when the event comes. Moving time between buckets keeps the sum.

mod accounts;
mod bucket;
mod counting;
mod events;
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

use elastic_driver::DriverEvent;
use elastic_protocol::messages::GoodputStatus;
use elastic_protocol::{GenerationId, HostName, Time, WorkerId};

pub use self::accounts::ResetAccount;
use self::accounts::ResetAccounts;
pub use self::bucket::TimeBucket;
use self::facts::{JobFacts, KnownPhase};
use self::spans::{SlotSpan, TrainingHistory};
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

    /// Number of slots whose workers are members of the generation that trains, or stands still.
    fn slots_of_members(&self) -> u64 {
        self.slots_in(TimeBucket::Training) + self.slots_in(TimeBucket::Hung)
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
}

/// Milliseconds of an event as nanoseconds.
fn nanos(ms: f64) -> u64 {
    // Saturates, and is zero for NaN.
    (ms * 1e6) as u64
}
