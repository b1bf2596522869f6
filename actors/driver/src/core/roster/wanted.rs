//! Selection of the slots that are to have a worker: level-triggered, from the present records (G-7), oldest hosts
//! first (G-8). The core's handlers ask for it before they read the seating.

use std::collections::BTreeSet;

use elastic_protocol::{HostName, Time, WorkerId};

use super::Roster;
use super::seating::{HostFacts, WorkerFacts};
use super::selection::AT_REST;
use crate::core::round::Round;
use crate::core::standing::WorkerStanding;
use crate::core::table::{SlotId, Stance, WorkerRecord};

impl Roster {
    /// Updates the seating for all hosts that have changed. To be called before the seating is read.
    ///
    /// A slot is wanted if its host is listed and not blacklisted, and if the host's agent is there and stays. A list
    /// may name more slots than the agent has: those are never filled. Of more than `max_np` slots, those whose
    /// worker takes part already come before empty ones, so that the return of an older host displaces no worker
    /// (H-3, H-19). Slots at rest come last, and are wanted only if there would be fewer workers than `min_np`.
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
        self.refreshed_at = now;
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
        let is_unfit = record.rest.is_some() && self.unfit.contains(&slot.0);
        !is_unfit
            && record.closed_under.is_none()
            && record.backoff_until.is_none_or(|until| until <= now)
    }

    /// Rank of a slot's claim; a smaller one comes before a larger one.
    fn claim(&self, slot: &SlotId) -> u8 {
        let record = self.slots.get(slot);
        let worker = record.and_then(|record| record.worker.as_ref());
        let at_rest = if record.is_some_and(|record| record.rest.is_some()) { AT_REST } else { 0 };
        at_rest
            + match worker.and_then(|worker| self.workers.get(worker)) {
                Some(record) if record.is_wanted() => match record.stance {
                    Stance::Member | Stance::Finished => 0,
                    Stance::Arrived => 1,
                    _ => 2,
                },
                _ => 3,
            }
    }

    /// Checks that the incremental seating, once brought up to date, equals one computed from all records.
    ///
    /// # Errors
    /// Both seatings.
    pub(crate) fn check_seating(&self, round: &Round) -> Result<(), String> {
        let now = self.refreshed_at;
        let is_due = |until: Option<Time>| until.is_some_and(|until| until <= now);
        // A back-off that is over and whose timer has not fired yet has no effect on the seating so far.
        let due = self.slots.iter().filter(|(_, slot)| is_due(slot.backoff_until));
        let due = due.map(|((host, _), _)| host);
        let changed = [self.workers.hosts(), self.slots.hosts(), self.agents.hosts()];
        let changed: BTreeSet<HostName> =
            changed.into_iter().flatten().chain(due).cloned().collect();
        let workers = self.workers.keys().map(|worker| &worker.host);
        let listed = self.snapshot.hosts.iter().map(|entry| &entry.name);
        let hosts: BTreeSet<&HostName> = workers.chain(listed).chain(self.agents.keys()).collect();
        let gone = self.seating.known_hosts().filter(|host| !hosts.contains(host));
        let known = hosts.iter().copied().chain(gone);
        let mut known = known.map(|host| (host, self.facts_of(host, now, round)));
        // A seating derived from the same facts was compared already.
        if self.seating.is_checked() && known.all(|(host, facts)| self.seating.has(host, &facts)) {
            return Ok(());
        }
        let mut kept = self.seating.clone();
        let relisted = kept.take_relisted();
        for host in relisted.union(&changed) {
            kept.set_host(host, self.facts_of(host, now, round));
        }
        kept.settle();
        let mut anew = self.seating.emptied();
        anew.set_list(&self.snapshot.hosts);
        for host in hosts {
            anew.set_host(host, self.facts_of(host, now, round));
        }
        anew.settle();
        let (kept, anew) = (kept.view(), anew.view());
        if kept != anew {
            return Err(format!("the seating is {kept:?}, and made anew {anew:?}"));
        }
        self.seating.note_checked();
        Ok(())
    }
}
