//! Puts slots into buckets: counts them anew after what an event has changed. Called by the ledger's handlers of events.

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{GenerationId, HostName, WorkerId};

use super::GoodputLedger;
use super::facts::KnownPhase;

impl GoodputLedger {
    pub(super) fn enter(&mut self, phase: KnownPhase) {
        self.phase = phase;
        self.count_all();
    }

    pub(super) fn count_slot(&mut self, worker: &WorkerId) {
        self.count_host(&worker.host);
    }

    pub(super) fn count_all(&mut self) {
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
    pub(super) fn count_host(&mut self, host: &HostName) {
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
