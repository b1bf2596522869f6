//! Changes of slots: their workers, failures, back-off, closing. Called by the core's handlers.

use std::collections::BTreeSet;

use elastic_protocol::{HostName, Incarnation, Time, WorkerId};

use super::Roster;
use crate::core::table::{SlotId, SlotRecord, SlotRest};

impl Roster {
    /// Gives an empty slot a new worker with the next incarnation number.
    pub(super) fn take_slot(&mut self, slot: &SlotId) -> WorkerId {
        self.incarnation = self.incarnation.next();
        let incarnation = self.incarnation;
        let worker = WorkerId { host: slot.0.clone(), slot: slot.1, incarnation };
        let record = self.slots.get_or_default(slot.clone());
        record.worker = Some(worker.clone());
        // Equivalent mutant: a back-off that is over counts as none. It would only be looked at again at each refresh.
        record.backoff_until = None;
        worker
    }

    /// Notes a worker as its slot's, unless the slot has a newer one.
    pub(super) fn hold_slot(&mut self, worker: &WorkerId) {
        let slot = self.slots.get_or_default((worker.host.clone(), worker.slot));
        if slot.worker.as_ref().is_none_or(|held| held.incarnation < worker.incarnation) {
            slot.worker = Some(worker.clone());
        }
    }

    /// Restores a slot's history as a former driver has recorded it.
    pub(crate) fn restore_slot(
        &mut self,
        slot: SlotId,
        failures: u32,
        closed_under: Option<Incarnation>,
    ) {
        let record = SlotRecord { failures, closed_under, ..SlotRecord::default() };
        self.slots.insert(slot, record);
    }

    /// Goes on with the incarnation numbers of a former driver.
    pub(crate) const fn restore_incarnation(&mut self, last: Incarnation) {
        self.incarnation = last;
    }

    /// Counts a failure of a slot's worker. Returns the number of failures.
    pub(crate) fn count_failure(&mut self, slot: &SlotId) -> u32 {
        let record = self.slots.get_or_default(slot.clone());
        record.failures += 1;
        record.trains_since = None;
        record.failures
    }

    /// Notes that a slot's process has ended with an exit code, which was counted as a failure.
    pub(crate) fn note_exit(&mut self, worker: &WorkerId) {
        let slot = (worker.host.clone(), worker.slot);
        if let Some(record) = self.slots.get_mut_untouched(&slot) {
            record.exits += 1;
        }
    }

    /// Keeps a slot empty until a time.
    pub(crate) fn back_off(&mut self, slot: &SlotId, until: Time) {
        self.slots.get_or_default(slot.clone()).backoff_until = Some(until);
    }

    /// Notes that a slot's back-off is over.
    pub(crate) fn back_off_is_over(&mut self, host: &HostName) {
        self.slots.touch(host);
    }

    /// Puts a slot to rest until a time.
    pub(crate) fn put_to_rest(&mut self, slot: &SlotId, rest: SlotRest) {
        let record = self.slots.get_or_default(slot.clone());
        record.rest = Some(rest);
        record.rests = record.rests.saturating_add(1);
    }

    /// Ends a slot's rest if it is over.
    pub(crate) fn end_rest(&mut self, now: Time, slot: &SlotId) -> Option<SlotRest> {
        let record = self.slots.get(slot)?;
        record.rest.filter(|rest| rest.until <= now)?;
        self.slots.get_or_default(slot.clone()).rest.take()
    }

    /// Slots of a host that are at rest.
    pub(crate) fn resting_of(&self, host: &HostName) -> impl Iterator<Item = (u32, SlotRest)> {
        let of_host = self.slots.range((host.clone(), 0)..=(host.clone(), u32::MAX));
        of_host.filter_map(|((_, number), record)| Some((*number, record.rest?)))
    }

    /// Notes whether the last health check of a host has failed: its slots at rest are closed then.
    pub(crate) fn set_unfit(&mut self, host: &HostName, is_unfit: bool) {
        let is_changed = match is_unfit {
            true => self.unfit.insert(host.clone()),
            false => self.unfit.remove(host),
        };
        if is_changed {
            self.slots.touch(host);
        }
    }

    /// Notes the time at which a process of a failed slot began to train.
    pub(crate) fn note_training(&mut self, slot: &SlotId, since: Time) {
        if let Some(record) = self.slots.get_mut_untouched(slot) {
            record.trains_since = Some(since);
        }
    }

    /// Forgives the failures of a slot.
    pub(crate) fn forgive(&mut self, slot: &SlotId) {
        if let Some(record) = self.slots.get_mut_untouched(slot) {
            (record.failures, record.exits) = (0, 0);
            record.trains_since = None;
        }
    }

    /// Closes a slot until another agent than this one joins.
    pub(crate) fn close_slot(&mut self, slot: SlotId, under: Incarnation) {
        self.slots.get_or_default(slot).closed_under = Some(under);
    }

    /// Opens a closed slot.
    pub(crate) fn open_slot(&mut self, slot: SlotId) {
        self.slots.get_or_default(slot).closed_under = None;
    }

    /// Slots of a host that were closed under an earlier agent.
    pub(crate) fn closed_before(&self, host: &HostName, agent: Incarnation) -> Vec<u32> {
        let of_host = self.slots.range((host.clone(), 0)..=(host.clone(), u32::MAX));
        let closed = of_host.filter(|(_, slot)| slot.closed_under.is_some_and(|it| it < agent));
        closed.map(|((_, number), _)| *number).collect()
    }

    /// Notes that the program could be started, under this driver or an earlier one.
    pub(crate) const fn note_program_starts(&mut self) {
        self.program_starts = true;
    }

    /// Notes that the program cannot be started on a worker's host.
    pub(crate) fn note_programless(&mut self, worker: &WorkerId) {
        self.programless.insert((worker.host.clone(), worker.slot));
        let hosts = &self.snapshot.hosts;
        self.programless.retain(|(host, _)| hosts.iter().any(|entry| entry.name == *host));
    }

    /// Slots of listed hosts on which the program cannot be started; none if it could be started on some slot.
    pub(crate) fn programless(&self) -> Option<&BTreeSet<SlotId>> {
        (!self.program_starts).then_some(&self.programless)
    }

    /// Notes that the library of a slot's process was of another release than this driver. False if that was known.
    pub(crate) fn note_other_release(&mut self, slot: SlotId) -> bool {
        self.other_releases.insert(slot)
    }

    /// Whether the library of a slot's last process was of another release than this driver.
    pub(crate) fn is_of_other_release(&self, slot: &SlotId) -> bool {
        self.other_releases.contains(slot)
    }

    /// The number of slots on listed hosts whose last process was refused for the release of its library.
    pub(crate) fn other_releases(&mut self) -> usize {
        let hosts = &self.snapshot.hosts;
        self.other_releases.retain(|(host, slot)| {
            hosts.iter().any(|entry| entry.name == *host && *slot < entry.slots)
        });
        self.other_releases.len()
    }

    /// Checks that slots and workers agree.
    pub(super) fn check_slots(&self) -> Result<(), String> {
        for ((host, number), slot) in self.slots.iter() {
            let Some(worker) = &slot.worker else { continue };
            if worker.host != *host || worker.slot != *number {
                return Err(format!("slot {host}[{number}] has {worker}, which is of another"));
            }
            if !self.workers.contains_key(worker) {
                return Err(format!("slot {host}[{number}] has {worker}, which is not there"));
            }
        }
        Ok(())
    }
}
