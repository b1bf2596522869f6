//! [`DriverOutbox`]: the core's pending outputs, and the records that they wait for. Outputs stay in order. An output that
//! depends only on older records may overtake others. A part of the core.

use std::collections::VecDeque;

use elastic_journal::JournalBatch;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{CommitId, Time, WorkerId};
use serde::{Deserialize, Serialize};

use super::output::DriverOutput;
use crate::journal::{Image, JournalRecord, RecordLedger};

/// Pending outputs, and the records that they wait for.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct DriverOutbox {
    /// The journal's ledger; none without a journal.
    ledger: Option<RecordLedger>,
    /// Whether this driver has stopped leading: later outputs are dropped.
    is_retired: bool,
    /// Whether outputs wait for no record any more.
    #[serde(skip)]
    waits_for_none: bool,
    /// Each output with the number of the record that must be stored before.
    #[serde(skip)]
    outputs: VecDeque<(u64, DriverOutput)>,
}

impl DriverOutbox {
    /// Makes records from now on.
    pub(crate) fn keep_records(&mut self, ledger: RecordLedger) {
        self.ledger = Some(ledger);
    }

    /// The state that all records give, and the number of the last of them; none without a journal.
    pub(crate) fn journaled(&self) -> Option<(&Image, u64)> {
        self.ledger.as_ref().map(|ledger| (ledger.image(), ledger.last()))
    }

    /// Whether records are made.
    pub(crate) const fn keeps_records(&self) -> bool {
        self.ledger.is_some()
    }

    /// Number of the record that an output decided now must wait for.
    pub(crate) fn waited_for(&self) -> u64 {
        self.ledger.as_ref().map_or(0, RecordLedger::waited_for)
    }

    /// Whether all records up to a number are stored.
    pub(crate) fn is_stored(&self, record: u64) -> bool {
        self.waits_for_none || self.ledger.as_ref().is_none_or(|ledger| ledger.is_stored(record))
    }

    /// Whether a decision waits for a record that is not stored yet.
    pub(crate) fn is_held(&self) -> bool {
        !self.is_stored(self.waited_for())
    }

    /// Reason why nothing can be stored at present.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.ledger.as_ref().and_then(RecordLedger::trouble)
    }

    /// Notes that all records up to this number are stored.
    pub(crate) fn handle_stored(&mut self, upto: u64) {
        if let Some(ledger) = &mut self.ledger {
            ledger.handle_stored(upto);
        }
    }

    /// Notes that a batch could not be stored. True if storing worked before.
    pub(crate) fn handle_failure(&mut self, now: Time, reason: &str) -> bool {
        let ledger = self.ledger.as_mut().filter(|_| !self.is_retired);
        ledger.is_some_and(|ledger| ledger.handle_failure(now, reason))
    }

    /// Tries a batch again that could not be stored, if it is time.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if let Some(ledger) = &mut self.ledger {
            ledger.handle_timeout(now);
        }
    }

    /// The commit that a worker is recorded to hold.
    pub(crate) fn recorded_commit(&self, worker: &WorkerId) -> Option<CommitId> {
        self.ledger.as_ref()?.image().workers.get(worker)?.commit
    }

    /// Whether any output has not left.
    pub(crate) fn holds_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// The next output, unless it waits for a record.
    pub(crate) fn poll(&mut self) -> Option<DriverOutput> {
        let (needs, _) = self.outputs.front()?;
        if !self.is_stored(*needs) && !is_planted(Bug::RecordNotWaitedFor) {
            return None;
        }
        self.outputs.pop_front().map(|(_, output)| output)
    }

    /// Lets outputs leave, whether their records are stored or not: the job is over, and a journal that cannot be written must
    /// not keep it alive. Withdraws outputs that give out an unstored number, or tell of one: the next driver would give it out
    /// again (D-1, D-4), and a job that is over begins nothing.
    pub(crate) fn wait_for_none(&mut self) {
        let ledger = self.ledger.as_ref();
        self.outputs.retain(|(needs, output)| leaves_for_an_end(ledger, *needs, output));
        self.waits_for_none = true;
    }

    /// Whether the job is over, and this output would give out or tell a number that is not stored.
    fn is_withdrawn(&self, needs: u64, output: &DriverOutput) -> bool {
        self.waits_for_none && !leaves_for_an_end(self.ledger.as_ref(), needs, output)
    }

    pub(crate) fn put(&mut self, output: DriverOutput) {
        let needs = self.waited_for();
        if self.is_retired || self.is_withdrawn(needs, &output) {
            return;
        }
        self.outputs.push_back((needs, output));
    }

    /// Adds an output that waits for `record` and no later one: it overtakes outputs that wait for those. Outputs that wait for the
    /// same record stay in order. `None`: the output waits as others do.
    pub(crate) fn put_after(&mut self, record: Option<u64>, output: DriverOutput) {
        let ledger = self.ledger.as_ref().filter(|_| !self.is_retired);
        let Some((ledger, record)) = ledger.zip(record) else { return self.put(output) };
        if self.is_withdrawn(record, &output) {
            return;
        }
        let waits_longer = |needs: u64| needs > record && !ledger.is_stored(needs);
        let held = self.outputs.iter().position(|(needs, _)| waits_longer(*needs));
        self.outputs.insert(held.unwrap_or(self.outputs.len()), (record, output));
    }

    /// Withdraws outputs that must not leave any more.
    pub(crate) fn retain(&mut self, mut stays: impl FnMut(&mut DriverOutput) -> bool) {
        self.outputs.retain_mut(|(_, output)| stays(output));
    }

    /// Adds an output before all others. It waits for no record, since records cannot be stored at present.
    pub(crate) fn put_first(&mut self, output: DriverOutput) {
        self.outputs.push_front((0, output));
    }

    /// Replaces all outputs by these last ones, since this driver has stopped leading.
    pub(crate) fn retire(&mut self, last: impl IntoIterator<Item = DriverOutput>) {
        if std::mem::replace(&mut self.is_retired, true) {
            return;
        }
        self.outputs = last.into_iter().map(|output| (0, output)).collect();
    }

    pub(crate) const fn is_retired(&self) -> bool {
        self.is_retired
    }

    pub(crate) fn record(&mut self, record: &JournalRecord) {
        if let Some(ledger) = &mut self.ledger {
            ledger.record(record);
        }
    }

    /// The next batch to store.
    pub(crate) fn poll_batch(&mut self) -> Option<JournalBatch> {
        self.ledger.as_mut().filter(|_| !self.is_retired)?.poll_batch()
    }

    /// Time at which a batch that could not be stored is tried again.
    pub(crate) fn retry_at(&self) -> Option<Time> {
        self.ledger.as_ref().and_then(RecordLedger::retry_at)
    }

    /// Checks that no output waits for a record that is not made, nor a phase whose orders wait for the record `orders`.
    ///
    /// # Errors
    /// The record that is waited for, and the last one made.
    pub(crate) fn check(&self, orders: u64) -> Result<(), String> {
        let recorded = self.waited_for();
        if orders > recorded {
            return Err(format!("a phase waits for record {orders} of {recorded}"));
        }
        match self.outputs.iter().find(|(needs, _)| *needs > recorded) {
            Some((needs, _)) => Err(format!("an output waits for record {needs} of {recorded}")),
            None => Ok(()),
        }
    }
}

/// Whether an output that depends on this record may leave once no record is waited for: see
/// [`DriverOutbox::wait_for_none`].
fn leaves_for_an_end(ledger: Option<&RecordLedger>, needs: u64, output: &DriverOutput) -> bool {
    ledger.is_none_or(|ledger| ledger.is_stored(needs))
        || is_planted(Bug::UnstoredNumbersLeave)
        || !output.gives_a_number_out()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(host: &str) -> DriverOutput {
        let host = elastic_protocol::HostName::new(host).expect("a literal");
        DriverOutput::HostLeft { host }
    }

    fn recorded() -> DriverOutbox {
        let ledger = Some(RecordLedger::new(Image::default(), 7, 4096));
        DriverOutbox { ledger, ..DriverOutbox::default() }
    }

    #[test]
    fn what_depends_on_an_older_record_overtakes_what_waits() {
        let mut outbox = recorded();
        outbox.put(output("a"));
        outbox.record(&JournalRecord::Term { term: elastic_protocol::Term(2) });
        outbox.put(output("b"));
        outbox.put_after(Some(7), output("c"));
        outbox.put_after(Some(7), output("d"));
        outbox.put_after(Some(8), output("e"));
        assert_eq!(outbox.check(0), Ok(()));
        let left: Vec<DriverOutput> = std::iter::from_fn(|| outbox.poll()).collect();
        assert_eq!(left, [output("a"), output("c"), output("d")], "in order, as far as they may");
        if let Some(ledger) = &mut outbox.ledger {
            ledger.handle_stored(8);
        }
        let left: Vec<DriverOutput> = std::iter::from_fn(|| outbox.poll()).collect();
        assert_eq!(left, [output("b"), output("e")]);
    }

    #[test]
    fn what_waits_for_a_record_leaves_with_it_and_not_with_later_ones() {
        let mut outbox = recorded();
        let record = |outbox: &mut DriverOutbox, term| {
            outbox.record(&JournalRecord::Term { term: elastic_protocol::Term(term) });
        };
        record(&mut outbox, 2);
        record(&mut outbox, 3);
        outbox.put(output("later"));
        outbox.put_after(Some(8), output("a"));
        if let Some(ledger) = &mut outbox.ledger {
            ledger.handle_stored(8);
        }
        outbox.put_after(Some(8), output("b"));
        assert_eq!(outbox.check(0), Ok(()));
        let left: Vec<DriverOutput> = std::iter::from_fn(|| outbox.poll()).collect();
        assert_eq!(left, [output("a"), output("b")], "in the order in which they were given");
    }

    #[test]
    fn what_waits_leaves_in_order_where_no_record_is_waited_for_any_more() {
        let mut outbox = recorded();
        outbox.record(&JournalRecord::Term { term: elastic_protocol::Term(2) });
        outbox.put(output("a"));
        assert!(outbox.is_held() && outbox.poll().is_none());
        outbox.wait_for_none();
        outbox.record(&JournalRecord::Term { term: elastic_protocol::Term(3) });
        outbox.put(output("b"));
        assert!(!outbox.is_held());
        let left: Vec<DriverOutput> = std::iter::from_fn(|| outbox.poll()).collect();
        assert_eq!(left, [output("a"), output("b")]);
    }

    #[test]
    fn d_4_what_gives_a_number_out_that_is_not_stored_does_not_leave_for_the_end_of_a_job() {
        let mut outbox = recorded();
        let open = |generation: u64| DriverOutput::OpenGeneration {
            stamp: elastic_protocol::Stamp {
                term: elastic_protocol::Term(2),
                generation: elastic_protocol::GenerationId(generation),
            },
            members: Vec::new(),
            budget: Default::default(),
        };
        outbox.put(open(1));
        outbox.record(&JournalRecord::Term { term: elastic_protocol::Term(2) });
        outbox.put(open(2));
        outbox.put(output("a"));
        outbox.wait_for_none();
        let left: Vec<DriverOutput> = std::iter::from_fn(|| outbox.poll()).collect();
        assert_eq!(left, [open(1), output("a")], "what is stored leaves");
        outbox.put(open(3));
        outbox.put_after(Some(7), open(1));
        outbox.put_after(Some(8), open(2));
        let left: Vec<DriverOutput> = std::iter::from_fn(|| outbox.poll()).collect();
        assert_eq!(left, [open(1)], "nor later");
    }

    #[test]
    fn a_driver_that_has_stopped_leading_says_its_last_and_nothing_more() {
        let mut outbox = recorded();
        outbox.record(&JournalRecord::Term { term: elastic_protocol::Term(2) });
        outbox.put(output("a"));
        outbox.retire([output("last")]);
        outbox.put(output("b"));
        outbox.retire([output("again")]);
        assert_eq!((outbox.poll(), outbox.poll()), (Some(output("last")), None));
        assert!(outbox.poll_batch().is_none(), "nor does it store anything");
    }

    #[test]
    fn an_output_that_waits_for_a_record_that_is_not_made_is_found() {
        let mut outbox = recorded();
        outbox.outputs.push_back((8, output("a")));
        assert_eq!(outbox.check(0), Err("an output waits for record 8 of 7".to_owned()));
    }
}
