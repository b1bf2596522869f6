//! Hosts and slots as the events describe them, and the bucket of each slot that follows from it. Used by the ledger.

use std::collections::BTreeMap;

use elastic_driver::ListedHost;
use elastic_protocol::{HostName, WorkerId};

use super::bucket::TimeBucket;

/// The generation's phase, as far as the events tell.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum KnownPhase {
    /// Workers are waited for.
    #[default]
    Gather,
    /// A generation was formed.
    Form,
    /// It trains.
    Run,
    /// It trains, and a member hangs.
    Hang,
    /// A planned end was decided.
    Pause,
    /// The job is over.
    Over,
    /// There is no driver.
    Away,
}

/// One slot.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotFacts {
    pub(super) worker: Option<WorkerId>,
    /// Whether the worker's process runs.
    pub(super) has_process: bool,
    pub(super) has_attached: bool,
    pub(super) is_leaving: bool,
    /// Whether the worker is a member of the current generation.
    pub(super) is_member: bool,
    /// Whether a generation was formed without the worker while it was there.
    pub(super) was_passed_over: bool,
    pub(super) last_end: LastEnd,
    /// The generation whose end the slot's present time is charged to; 0: none.
    pub(super) account: u64,
    /// The bucket and the account under which the slot is counted now; none before it is counted.
    pub(super) counted_as: Option<(TimeBucket, u64)>,
}

/// The end of a slot's last process.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum LastEnd {
    /// There was none, or it was told to end.
    #[default]
    Meant,
    /// It failed.
    Failed,
    /// It ended with success.
    Success,
}

/// One host.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedHost {
    /// Whether it gets no workers: it is blacklisted, or drained.
    pub(super) is_blacklisted: bool,
    pub(super) is_drained: bool,
    pub(super) has_agent: bool,
    /// Slots that count, from the list; 0: the host is not listed.
    pub(super) slots_listed: u32,
    pub(super) slots: BTreeMap<u32, SlotFacts>,
}

impl ObservedHost {
    /// The bucket of one of its slots. `is_short`: the hosts that are there have fewer slots than the job needs.
    pub(super) fn bucket_of(
        &self,
        slot: &SlotFacts,
        phase: KnownPhase,
        is_short: bool,
    ) -> TimeBucket {
        match phase {
            KnownPhase::Away => return TimeBucket::DriverAway,
            KnownPhase::Over => return TimeBucket::Ending,
            _ if self.is_drained => return TimeBucket::Drained,
            _ if self.is_blacklisted => return TimeBucket::Blacklisted,
            // A worker may be back before the agent of its host, and train.
            _ if !self.has_agent && slot.worker.is_none() => return TimeBucket::Absent,
            _ => {}
        }
        if slot.worker.is_none() {
            return match (slot.last_end, phase) {
                (LastEnd::Failed, _) => TimeBucket::Backoff,
                (LastEnd::Success, KnownPhase::Run | KnownPhase::Hang) => TimeBucket::Finished,
                _ => TimeBucket::Vacant,
            };
        }
        if slot.is_leaving {
            return TimeBucket::Leaving;
        }
        match phase {
            KnownPhase::Run if slot.is_member => TimeBucket::Training,
            KnownPhase::Hang if slot.is_member => TimeBucket::Hung,
            // A process that lives for one generation starts when that is formed, and may never attach.
            _ if !slot.has_attached && !slot.has_process => TimeBucket::Starting,
            _ if !slot.has_attached => TimeBucket::Importing,
            KnownPhase::Form if slot.is_member => TimeBucket::Forming,
            KnownPhase::Pause if slot.is_member => TimeBucket::Pausing,
            _ if slot.was_passed_over => TimeBucket::Spare,
            KnownPhase::Gather if is_short => TimeBucket::Idle,
            KnownPhase::Gather => TimeBucket::Gathering,
            _ => TimeBucket::Waiting,
        }
    }
}

/// All hosts.
#[derive(Clone, Debug, Default)]
pub(super) struct JobFacts {
    pub(super) hosts: BTreeMap<HostName, ObservedHost>,
}

impl JobFacts {
    /// Takes a new list of hosts. Slots that are not in it any more are not counted any more.
    pub(super) fn list(&mut self, listed: &[ListedHost]) {
        for host in self.hosts.values_mut() {
            host.slots_listed = 0;
            (host.is_blacklisted, host.is_drained) = (false, false);
        }
        for ListedHost { name, slots, is_blacklisted, is_drained } in listed {
            let host = self.hosts.entry(name.clone()).or_default();
            host.is_blacklisted = *is_blacklisted;
            host.is_drained = *is_drained;
            host.slots_listed = *slots;
            for slot in 0..*slots {
                host.slots.entry(slot).or_default();
            }
        }
    }

    pub(super) fn host(&mut self, host: &HostName) -> &mut ObservedHost {
        self.hosts.entry(host.clone()).or_default()
    }

    /// The slot of a worker, whether or not that worker is in it.
    pub(super) fn slot(&mut self, worker: &WorkerId) -> &mut SlotFacts {
        self.host(&worker.host).slots.entry(worker.slot).or_default()
    }

    /// The slot that a worker is in.
    pub(super) fn slot_with(&mut self, worker: &WorkerId) -> Option<&mut SlotFacts> {
        let slot = self.hosts.get_mut(&worker.host)?.slots.get_mut(&worker.slot)?;
        (slot.worker.as_ref() == Some(worker)).then_some(slot)
    }

    pub(super) fn slots_mut(&mut self) -> impl Iterator<Item = &mut SlotFacts> {
        self.hosts.values_mut().flat_map(|host| host.slots.values_mut())
    }

    /// Number of slots that count.
    pub(super) fn count(&self) -> u64 {
        self.hosts.values().map(|host| u64::from(host.slots_listed)).sum()
    }

    /// Number of slots of the listed hosts whose agents are there, and that may have workers.
    pub(super) fn usable_slots(&self) -> u64 {
        let usable = self.hosts.values().filter(|host| host.has_agent && !host.is_blacklisted);
        usable.map(|host| u64::from(host.slots_listed)).sum()
    }

    /// Forgets hosts of which nothing is left: unlisted, without an agent and without a process.
    pub(super) fn forget_the_gone(&mut self) {
        self.hosts.retain(|_, host| {
            host.slots_listed > 0
                || host.has_agent
                || host.slots.values().any(|slot| {
                    slot.counted_as.is_some() || slot.worker.is_some() || slot.is_member
                })
        });
    }
}
