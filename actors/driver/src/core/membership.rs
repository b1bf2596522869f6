//! Selection of the slots that are to have a worker: level-triggered, from the present records (G-7), oldest hosts
//! first (G-8). Called by the core's handlers before they read the seating.

use elastic_protocol::{Assignment, HostName, Time, WorkerId};

use super::DriverCore;
use super::roster::Roster;
use super::round::Round;
use super::seating::{HostFacts, WorkerFacts};
use super::standing::WorkerStanding;
use super::table::{SlotId, Stance, WorkerRecord};

impl Roster {
    /// Updates the seating for all hosts that have changed. To be called before the seating is read.
    ///
    /// A slot is wanted if its host is listed and not blacklisted, and if the host's agent is there and stays. A list
    /// may name more slots than the agent has: those are never filled. Of more than `max_np` slots, those whose
    /// worker takes part already come before empty ones, so that the return of an older host displaces no worker
    /// (H-3, H-19).
    pub(crate) fn refresh_seating(&mut self, now: Time, round: &Round) {
        let mut hosts = self.seating.take_relisted();
        hosts.append(&mut self.workers.take_hosts());
        hosts.append(&mut self.slots.take_hosts());
        hosts.append(&mut self.agents.take_hosts());
        for host in hosts {
            let facts = self.facts_of(&host, now, round);
            self.seating.set_host(&host, facts);
        }
        self.seating.settle();
        #[cfg(debug_assertions)]
        self.check_seating(now, round);
    }

    fn facts_of(&self, host: &HostName, now: Time, round: &Round) -> HostFacts {
        let agent = self.agents.get(host);
        let slots = self.seating.listing(host).map_or(0, |listing| listing.slots);
        let usable = agent.filter(|agent| agent.is_available()).map_or(0, |agent| agent.slots);
        let claims = (0..slots.min(usable))
            .map(|slot| (host.clone(), slot))
            .filter(|slot| self.may_be_filled(slot, now))
            .map(|slot| (slot.1, self.claim(&slot)))
            .collect();
        let facts = |(worker, record): (&WorkerId, &WorkerRecord)| WorkerFacts {
            is_eligible: record.is_eligible() && record.leaving.is_none(),
            is_member: round.is_member(worker),
            has_finished: record.stance == Stance::Finished,
            is_away: matches!(record.standing(), WorkerStanding::Awaited(_)),
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

    /// Rank of a slot's claim; a smaller one comes before a larger one.
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

    /// Checks that the incremental seating equals one computed from all records. Skipped while a back-off is over and
    /// its timer has not fired.
    #[cfg(debug_assertions)]
    fn check_seating(&self, now: Time, round: &Round) {
        let is_due = |until: Option<Time>| until.is_some_and(|until| until <= now);
        if self.slots.values().any(|slot| slot.worker.is_none() && is_due(slot.backoff_until)) {
            return;
        }
        let mut anew = self.seating.emptied();
        anew.set_list(&self.snapshot.hosts);
        let workers = self.workers.keys().map(|worker| &worker.host);
        let listed = self.snapshot.hosts.iter().map(|entry| &entry.name);
        let hosts: std::collections::BTreeSet<HostName> =
            workers.chain(listed).chain(self.agents.keys()).cloned().collect();
        for host in hosts {
            anew.set_host(&host, self.facts_of(&host, now, round));
        }
        anew.settle();
        debug_assert_eq!(self.seating.view(), anew.view());
    }
}

impl DriverCore {
    /// Slots of all hosts that are listed, whether their agents are there or not, up to the cap.
    pub(crate) fn listed_slots(&self) -> u32 {
        let all = self.roster.seating.listed_slots();
        self.config.max_np.map_or(all, |max| all.min(max))
    }

    /// Most workers that are ever wanted at once.
    pub(crate) fn workers_max(max_np: Option<u32>) -> usize {
        max_np.map_or(usize::MAX, |max| max as usize).min(Assignment::WORLD_SIZE_MAX)
    }

    /// Workers needed for the next generation: `np` for the first, `min_np` after it.
    pub(crate) fn workers_needed(&self) -> u32 {
        let np = self.config.np.unwrap_or_else(|| self.listed_slots()).max(1);
        if self.round.current().is_none() { np } else { self.min_np() }
    }

    /// Fewest workers to go on with.
    pub(crate) fn min_np(&self) -> u32 {
        self.config.min_np.or(self.round.started_with()).or(self.config.np).unwrap_or(1)
    }
}
