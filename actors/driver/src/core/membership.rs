//! Which slots are to have a worker: level-triggered, from what is true now (G-7), oldest hosts first (G-8).

use elastic_host_manager::HostState;
use elastic_protocol::{HostName, Time, WorkerId};

use super::DriverCore;
use super::table::{SlotId, Stance};

impl DriverCore {
    /// Hosts that may have workers now, oldest first, with their slots: listed, not blacklisted, their
    /// agent there and staying. A list may name more slots than the agent has: those are never filled.
    fn available_hosts(&self) -> impl Iterator<Item = (&HostName, u32)> {
        self.snapshot.hosts.iter().filter_map(|entry| {
            let listed = entry.state == HostState::Listed;
            let agent = self.agents.get(&entry.name).filter(|agent| agent.is_available())?;
            listed.then_some((&entry.name, entry.slots.min(agent.slots)))
        })
    }

    /// The slots that are to have a worker, in rank order.
    ///
    /// Up to `max_np`; slots whose worker takes part already come before empty ones, so that an older
    /// host's return displaces nobody (H-3, H-19).
    pub(crate) fn desired_slots(&self, now: Time) -> Vec<SlotId> {
        let mut slots: Vec<SlotId> = self
            .available_hosts()
            .flat_map(|(host, slots)| (0..slots).map(|slot| (host.clone(), slot)))
            .filter(|slot| self.may_be_filled(slot, now))
            .collect();
        let cap = self.config.max_np.map_or(usize::MAX, |max| max as usize);
        if slots.len() > cap {
            let mut by_claim: Vec<usize> = (0..slots.len()).collect();
            // Cached: a claim is two searches, and this is done at each review.
            by_claim.sort_by_cached_key(|index| (self.claim(&slots[*index]), *index));
            let mut kept = vec![false; slots.len()];
            for index in by_claim.into_iter().take(cap) {
                kept[index] = true;
            }
            let mut kept = kept.into_iter();
            slots.retain(|_| kept.next() == Some(true));
        }
        slots
    }

    fn may_be_filled(&self, slot: &SlotId, now: Time) -> bool {
        let Some(record) = self.slots.get(slot) else { return true };
        if let Some(worker) = &record.worker
            && let Some(worker) = self.workers.get(worker)
        {
            // A process on its way out still holds the slot: its successor must wait for it.
            return worker.is_wanted();
        }
        !record.closed && record.backoff_until.is_none_or(|until| until <= now)
    }

    /// Smaller keeps its place before larger.
    fn claim(&self, slot: &SlotId) -> u8 {
        match self.worker_in(slot).and_then(|worker| self.workers.get(worker)) {
            Some(record) if record.is_wanted() => match record.stance {
                Stance::Member | Stance::Finished => 0,
                Stance::Arrived => 1,
                _ => 2,
            },
            _ => 3,
        }
    }

    /// The worker that a slot has.
    pub(crate) fn worker_in(&self, slot: &SlotId) -> Option<&WorkerId> {
        self.slots.get(slot)?.worker.as_ref()
    }

    /// Slots of all hosts that are listed, whether their agents are there or not, up to the cap.
    pub(crate) fn listed_slots(&self) -> u32 {
        let all = self
            .snapshot
            .hosts
            .iter()
            .filter(|entry| entry.state == HostState::Listed)
            .fold(0u32, |sum, entry| sum.saturating_add(entry.slots));
        self.config.max_np.map_or(all, |max| all.min(max))
    }

    /// Workers needed for the next generation: `np` for the first, `min_np` after it.
    pub(crate) fn workers_needed(&self) -> u32 {
        let np = self.config.np.unwrap_or_else(|| self.listed_slots()).max(1);
        if self.current.is_none() { np } else { self.min_np() }
    }

    /// Fewest workers to go on with.
    pub(crate) fn min_np(&self) -> u32 {
        self.config.min_np.or(self.started_with).or(self.config.np).unwrap_or(1)
    }

    /// Whether every host that is known is out for good, so that waiting is in vain (H-11).
    pub(crate) fn every_host_is_out(&self) -> bool {
        !self.snapshot.hosts.is_empty()
            && self
                .snapshot
                .hosts
                .iter()
                .all(|entry| entry.state == HostState::Blacklisted { until: None })
    }
}
