//! Words for what a generation waits for: workers and hosts that are missing. Read by `status`, by warnings and by the
//! job's failure.

use elastic_host_manager::HostState;
use elastic_protocol::{HostName, Time, WorkerId, counted};

use crate::core::DriverCore;
use crate::core::table::Stance;

/// Most hosts with fewer slots than listed that the status names.
const SHORT_HOSTS_SHOWN_MAX: usize = 8;

impl DriverCore {
    /// Workers that could be in a generation now: those whose slots are on the list.
    pub(crate) fn workers_there(&self) -> impl Iterator<Item = &WorkerId> {
        let eligible = self.roster.workers().filter(|(_, record)| record.is_eligible());
        eligible.map(|(worker, _)| worker).filter(|worker| {
            let listing = self.roster.seating().listing(&worker.host);
            listing.is_some_and(|listing| worker.slot < listing.slots_of_list)
        })
    }

    /// Hosts that are there with fewer slots than the list says: the host, its slots, and those of the list.
    fn hosts_short_of_slots(&self) -> impl Iterator<Item = (&HostName, u32, u32)> {
        let listed = self.roster.hosts().iter().filter(|entry| entry.state == HostState::Listed);
        listed.filter_map(|entry| {
            let agent = self.roster.agent(&entry.name).filter(|agent| agent.is_available())?;
            (agent.slots < entry.slots).then_some((&entry.name, agent.slots, entry.slots))
        })
    }

    /// Hosts that are there with fewer slots than the list says, in words for the status.
    pub(crate) fn short_hosts_in_words(&self) -> impl Iterator<Item = String> {
        self.hosts_short_of_slots().take(SHORT_HOSTS_SHOWN_MAX).map(|(host, slots, listed)| {
            let has = counted(slots, "slot");
            let are = if listed == 1 { "is" } else { "are" };
            format!(
                "host {host} has {has}, and {listed} {are} listed: start its agent with --slots {listed}, or list {slots}"
            )
        })
    }

    /// Workers, slots and hosts that are missing for a generation, in words.
    pub(crate) fn who_is_missing(&self, now: Time, late: &[WorkerId]) -> Vec<String> {
        let mut missing: Vec<String> =
            late.iter().map(|worker| format!("{worker} (has not arrived)")).collect();
        for (worker, record) in self.roster.workers() {
            match record.stance {
                Stance::Starting => missing.push(format!("{worker} (starting)")),
                Stance::Attached => missing.push(format!("{worker} (not at rest)")),
                Stance::Lost => missing.push(format!("{worker} (out of reach)")),
                Stance::Dying => missing.push(format!("{worker} (its process is ending)")),
                Stance::Leaving => missing.push(format!("{worker} (its process has not ended)")),
                _ => {}
            }
        }
        for (slot_id, slot) in self.roster.slots() {
            if slot.worker.is_none() && slot.backoff_until.is_some_and(|until| until > now) {
                let (host, number) = slot_id;
                let is_refused = self.roster.is_of_other_release(slot_id);
                let why =
                    if is_refused { "its library is of another release" } else { "in back-off" };
                missing.push(format!("{host}[{number}] ({why})"));
            } else if slot.worker.is_none() && slot.closed_under.is_some() {
                let (host, number) = slot_id;
                let why =
                    "its worker was told to leave; empty until the host's agent is started again";
                missing.push(format!("{host}[{number}] ({why})"));
            }
        }
        for (host, slots, listed) in self.hosts_short_of_slots() {
            let has = counted(slots, "slot");
            missing.push(format!("host {host} (has {has} of {listed})"));
        }
        for entry in self.roster.hosts() {
            match (&entry.state, self.roster.agent(&entry.name)) {
                (HostState::Blacklisted { .. }, _) => {
                    missing.push(format!("host {} (blacklisted)", entry.name));
                }
                (HostState::Drained, _) => {
                    missing.push(format!("host {} (drained)", entry.name));
                }
                (_, None) => missing.push(format!("host {} (no agent)", entry.name)),
                (_, Some(agent)) if !agent.is_available() => {
                    missing.push(format!("host {} (lost or draining)", entry.name));
                }
                _ => {}
            }
        }
        missing
    }
}

pub(in crate::core) fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { "nobody".to_owned() } else { items.join(", ") }
}

/// Number of workers needed, in words.
pub(in crate::core) fn needed_text(needed: u32) -> String {
    format!("{} {} needed", counted(needed, "worker"), if needed == 1 { "is" } else { "are" })
}
