//! The core's side of journaling: it makes records, and is told when they are stored. Records come before the outputs
//! that depend on them. Each output waits for one record (`outbox`). Called by `actor` and the core's handlers.

use elastic_journal::JournalBatch;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{CommitId, HostName, ResetCause, Stamp, Time, WorkerId};

use super::DriverCore;
use super::event::EventKind;
use super::output::DriverOutput;
use super::phase::RoundPhase;
use crate::journal::{HostImage, JournalRecord};

impl DriverCore {
    /// The next batch to store; call after every input. `handle_journaled` or `handle_journal_failed` answers.
    pub fn poll_batch(&mut self) -> Option<JournalBatch> {
        self.outbox.poll_batch()
    }

    /// Handles the report that all records up to this number are stored.
    pub fn handle_journaled(&mut self, now: Time, upto: u64) {
        let was_in_trouble = self.outbox.trouble().is_some();
        if was_in_trouble {
            let message = "the journal can be written again".to_owned();
            self.event(EventKind::Warning { message });
        }
        let was_held = self.is_phase_held(now);
        self.outbox.handle_stored(upto);
        if was_held && !self.is_phase_held(now) {
            self.begin_phase_deadline(now);
        }
        if was_in_trouble {
            self.round.note_writable(now);
            self.begin_start_deadlines(now);
        }
        let is_awaited =
            !self.roster.seating().unwanted().is_empty() || self.round.refused().is_some();
        if !self.is_held() && is_awaited {
            self.agenda.ask_review(now);
        }
    }

    /// Number of the last record that was made; 0 without a journal.
    pub(crate) fn last_record(&self) -> u64 {
        self.outbox.journaled().map_or(0, |(_, last)| last)
    }

    /// Whether all records up to a number are stored, or none is waited for: without a journal, or at the end of the job.
    pub(crate) fn is_recorded(&self, record: u64) -> bool {
        self.outbox.is_stored(record)
    }

    /// Whether this driver leads: it has neither handed the job over nor lost the right to lead it.
    pub(crate) const fn leads(&self) -> bool {
        !self.outbox.is_retired()
    }

    /// Reason why nothing can be stored at present.
    pub(crate) fn journal_trouble(&self) -> Option<&str> {
        self.outbox.trouble()
    }

    /// Enters a phase. All outputs so far count as its orders.
    pub(crate) fn enter_phase(&mut self, now: Time, phase: RoundPhase) {
        self.round.enter(now, phase, self.outbox.waited_for(), &mut self.agenda);
    }

    /// Whether orders that the phase needs to go on have not left yet, so that its deadline cannot count.
    ///
    /// The gather room needs more than the orders with which it opened: newcomers are started while it is open. So it
    /// is held while nothing can be stored, and when its deadline passes while a record is not stored.
    pub(crate) fn is_phase_held(&self, now: Time) -> bool {
        if is_planted(Bug::LateForHeldOrders) {
            return false;
        }
        let are_untold = !self.outbox.is_stored(self.round.orders());
        match self.round.phase() {
            RoundPhase::Gather(gather) => {
                let is_due = gather.deadline <= now;
                are_untold || self.outbox.trouble().is_some() || (is_due && self.is_held())
            }
            // It waits for words of a process that has ended, which needs no order.
            RoundPhase::Failing { .. } => false,
            _ => are_untold,
        }
    }

    /// Starts the deadline of a phase anew, since its orders leave only now.
    fn begin_phase_deadline(&mut self, now: Time) {
        let period = match self.round.phase() {
            RoundPhase::Form { .. } => self.config.deadlines.form,
            RoundPhase::Gather(_)
            | RoundPhase::Sync { .. }
            | RoundPhase::Pausing { .. }
            | RoundPhase::Stopping { .. } => self.config.deadlines.elastic,
            RoundPhase::Ending { agents_told, has_trained, .. } => {
                self.ending_time(*has_trained && !*agents_told)
            }
            RoundPhase::Run | RoundPhase::Failing { .. } | RoundPhase::Ended { .. } => return,
        };
        self.round.restart_deadline(now + period, &mut self.agenda);
    }

    /// Whether a decision waits for a record that is not stored yet.
    pub(crate) fn is_held(&self) -> bool {
        self.outbox.is_held()
    }

    /// Handles a batch that could not be stored. If the error may pass, the batch is tried again; meanwhile no new
    /// decision takes effect, and earlier ones go on. If it may not, this driver retires.
    pub fn handle_journal_failed(&mut self, now: Time, reason: &str, may_pass: bool) {
        if !may_pass && !is_planted(Bug::DisplacedGoesOn) {
            return self.handle_abandon(reason);
        }
        if self.outbox.handle_failure(now, reason) {
            let message = format!("{reason}; nothing new is decided until it can be");
            // The warning waits for no record: records cannot be stored at present.
            let (term, generation) = (self.term, self.round.generation());
            let kind = EventKind::Warning { message };
            let event = super::event::DriverEvent { term, generation, kind };
            self.outbox.put_first(DriverOutput::Event(event));
        }
    }

    pub(crate) fn record(&mut self, record: &JournalRecord) {
        self.outbox.record(record);
    }

    /// Records the end of the generation formed last.
    pub(crate) fn record_end(&mut self, stamp: Stamp, cause: &ResetCause) {
        self.record(&JournalRecord::GenerationEnded { stamp, cause: cause.clone() });
        self.reserve_next();
    }

    /// Records that the generation formed last trains.
    pub(crate) fn record_running(&mut self, stamp: Stamp) {
        self.record(&JournalRecord::GenerationRunning { stamp });
        self.reserve_next();
    }

    /// The last record reserves the number of the next generation.
    fn reserve_next(&mut self) {
        self.round.reserve_next(self.outbox.journaled().map(|(_, last)| last));
    }

    pub(crate) fn record_hosts(&mut self) {
        if !self.outbox.keeps_records() {
            return;
        }
        let hosts = self.roster.hosts().iter().map(HostImage::of).collect();
        let unlisted: Vec<_> = self.roster.unlisted().iter().map(HostImage::of).collect();
        let record = match unlisted.is_empty() {
            true => JournalRecord::Hosts { hosts },
            false => JournalRecord::HostsAndUnlisted { hosts, unlisted },
        };
        self.record(&record);
    }

    pub(crate) fn record_slot(&mut self, host: &HostName, number: u32) {
        if !self.outbox.keeps_records() {
            return;
        }
        let Some(slot) = self.roster.slot(&(host.clone(), number)) else { return };
        let record = JournalRecord::Slot {
            host: host.clone(),
            slot: number,
            failures: slot.failures,
            closed_under: slot.closed_under,
        };
        self.record(&record);
    }

    pub(crate) fn record_rest(&mut self, host: &HostName, number: u32) {
        let slot = self.roster.slot(&(host.clone(), number));
        let why = slot.and_then(|record| record.rest).map(|rest| rest.why);
        self.record(&JournalRecord::SlotRests { host: host.clone(), slot: number, why });
    }

    pub(crate) fn record_commit(&mut self, worker: &WorkerId, commit: Option<CommitId>) {
        if is_planted(Bug::CommitNotRecorded) {
            return;
        }
        if let Some(commit) = commit.filter(|commit| {
            self.outbox.keeps_records() && self.outbox.recorded_commit(worker) != Some(*commit)
        }) {
            self.record(&JournalRecord::CommitHeld { worker: worker.clone(), commit });
        }
    }
}
