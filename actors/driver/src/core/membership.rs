//! Which slots are to have a worker: level-triggered, from what is true now (G-7), oldest hosts first (G-8).

use elastic_host_manager::HostState;
use elastic_protocol::{Assignment, HostName, Time, WorkerId};

use super::DriverCore;
use super::seating::{HostFacts, WorkerFacts};
use super::table::{SlotId, Stance};

impl DriverCore {
    /// Works out anew what follows from the hosts of which something has changed: to be called before the
    /// seating is read.
    ///
    /// Wanted are slots of hosts that are listed, not blacklisted, and whose agent is there and stays; a list
    /// may name more slots than the agent has: those are never filled. Of more than `max_np` slots those whose
    /// worker takes part already come before empty ones, so that an older host's return displaces nobody
    /// (H-3, H-19).
    pub(crate) fn refresh_seating(&mut self, now: Time) {
        let mut hosts = self.seating.take_relisted();
        hosts.append(&mut self.workers.take_hosts());
        hosts.append(&mut self.slots.take_hosts());
        hosts.append(&mut self.agents.take_hosts());
        for host in hosts {
            let facts = self.facts_of(&host, now);
            self.seating.set_host(&host, facts);
        }
        self.seating.settle();
    }

    pub(crate) fn facts_of(&self, host: &HostName, now: Time) -> HostFacts {
        let agent = self.agents.get(host);
        let slots = self.seating.listing(host).map_or(0, |listing| listing.slots);
        let usable = agent.filter(|agent| agent.is_available()).map_or(0, |agent| agent.slots);
        let claims = (0..slots.min(usable))
            .map(|slot| (host.clone(), slot))
            .filter(|slot| self.may_be_filled(slot, now))
            .map(|slot| (slot.1, self.claim(&slot)))
            .collect();
        let facts = |(worker, record): (&WorkerId, &super::WorkerRecord)| WorkerFacts {
            is_eligible: record.is_eligible() && record.leaving.is_none(),
            is_member: self.is_member(worker),
            has_finished: record.stance == Stance::Finished,
            is_away: matches!(record.stance, Stance::Lost | Stance::Starting | Stance::Attached),
            commit: record.commit_order(),
            worker: worker.clone(),
        };
        HostFacts {
            claims,
            workers: self.records_of(host).map(facts).collect(),
            is_draining: agent.is_some_and(|agent| agent.draining.is_some() && !agent.dismissed),
        }
    }

    fn may_be_filled(&self, slot: &SlotId, now: Time) -> bool {
        let Some(record) = self.slots.get(slot) else { return true };
        if let Some(worker) = &record.worker
            && let Some(worker) = self.workers.get(worker)
        {
            // A process on its way out still holds the slot: its successor must wait for it.
            return worker.is_wanted();
        }
        record.closed_under.is_none() && record.backoff_until.is_none_or(|until| until <= now)
    }

    /// Smaller keeps its place before larger.
    fn claim(&self, slot: &SlotId) -> u8 {
        let worker = self.slots.get(slot).and_then(|record| record.worker.as_ref());
        match worker.and_then(|worker| self.workers.get(worker)) {
            Some(record) if record.is_wanted() => match record.stance {
                Stance::Member | Stance::Finished => 0,
                Stance::Arrived => 1,
                _ => 2,
            },
            _ => 3,
        }
    }

    /// Slots of all hosts that are listed, whether their agents are there or not, up to the cap.
    pub(crate) fn listed_slots(&self) -> u32 {
        let all = self.seating.listed_slots();
        self.config.max_np.map_or(all, |max| all.min(max))
    }

    /// Most workers that are ever wanted at once.
    pub(crate) fn workers_max(max_np: Option<u32>) -> usize {
        max_np.map_or(usize::MAX, |max| max as usize).min(Assignment::WORLD_SIZE_MAX)
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
