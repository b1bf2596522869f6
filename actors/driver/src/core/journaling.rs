//! What the core writes down, and how it hears that it was stored. Records come before whatever depends on them:
//! an output knows the record that it waits for, and outputs stay in order.

use elastic_host_manager::HostState;
use elastic_journal::Batch;
use elastic_protocol::{CommitId, HostName, Time, WorkerId};

use super::DriverCore;
use super::output::{DriverOutput, EventKind};
use crate::journal::{HostImage, Record};

impl DriverCore {
    /// What to store next; call after every input. `handle_journaled` or `handle_journal_failed` answers.
    pub fn poll_batch(&mut self) -> Option<Batch> {
        if self.is_retired {
            return None;
        }
        self.ledger.as_mut()?.poll_batch()
    }

    /// All records up to this number are stored.
    pub fn handle_journaled(&mut self, upto: u64) {
        let Some(ledger) = &mut self.ledger else { return };
        if ledger.trouble().is_some() {
            let message = "the journal can be written again".to_owned();
            self.event(EventKind::Warning { message });
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.handle_stored(upto);
        }
    }

    /// A batch could not be stored. Where that may pass it is tried again, and nothing new is decided
    /// meanwhile: what was decided before goes on. Where it may not, this driver is none any more.
    pub fn handle_journal_failed(&mut self, now: Time, reason: &str, may_pass: bool) {
        if !may_pass {
            return self.handle_abandon(reason);
        }
        let Some(ledger) = self.ledger.as_mut().filter(|_| !self.is_retired) else { return };
        if ledger.handle_failure(now, reason) {
            let message = format!("{reason}; nothing new is decided until it can be");
            // It waits for no record: those that wait cannot be stored.
            let (term, generation) = (self.term.0, self.generation.0);
            let kind = EventKind::Warning { message };
            let event = super::output::Event { term, generation, kind };
            self.outputs.push_front((0, DriverOutput::Event(event)));
        }
    }

    pub(crate) fn record(&mut self, record: &Record) {
        if let Some(ledger) = &mut self.ledger {
            ledger.record(record);
        }
    }

    pub(crate) fn record_hosts(&mut self) {
        if self.ledger.is_none() {
            return;
        }
        let hosts = self.snapshot.hosts.iter().map(|entry| HostImage {
            name: entry.name.clone(),
            slots: entry.slots,
            is_blacklisted: matches!(entry.state, HostState::Blacklisted { .. }),
        });
        let record = Record::Hosts { hosts: hosts.collect() };
        self.record(&record);
    }

    pub(crate) fn record_slot(&mut self, host: &HostName, number: u32) {
        if self.ledger.is_none() {
            return;
        }
        let Some(slot) = self.slots.get(&(host.clone(), number)) else { return };
        let record = Record::Slot {
            host: host.clone(),
            slot: number,
            failures: slot.failures,
            closed_under: slot.closed_under,
        };
        self.record(&record);
    }

    pub(crate) fn record_commit(&mut self, worker: &WorkerId, commit: Option<CommitId>) {
        let Some(ledger) = &mut self.ledger else { return };
        let known = ledger.image().workers.get(worker).and_then(|image| image.commit);
        if let Some(commit) = commit
            && known != Some(commit)
        {
            ledger.record(&Record::CommitHeld { worker: worker.clone(), commit });
        }
    }
}
