//! [`RecordLedger`]: the core's side of the journal. It has the records that are made, and the number of the last stored
//! one, on which the release of outputs depends. Owned by the core's `DriverOutbox`.

use std::collections::VecDeque;
use std::time::Duration;

use elastic_journal::{JournalBatch, JournalSnapshot};
use elastic_protocol::Time;
use elastic_protocol::planted::{Bug, is_planted};
use serde::{Deserialize, Serialize};

use super::image::Image;
use super::record::JournalRecord;

/// Delay before a failed batch is tried again: the disk may have room by then.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Records of a core, stored and unstored.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct RecordLedger {
    /// State that all records give.
    image: Image,
    /// Number of the last record.
    last: u64,
    /// Number of the last record for which later outputs must wait.
    waited_for: u64,
    /// Number of the last stored record.
    stored: u64,
    /// Records that are not stored yet, encoded.
    #[serde(with = "crate::recording::readable::records")]
    unstored: VecDeque<Vec<u8>>,
    snapshot_at: u64,
    /// Number of records after a snapshot before the next one is written.
    records_between_snapshots: u64,
    in_flight: bool,
    /// Number of the last record in the snapshot that is on its way.
    #[serde(default)]
    snapshot_in_flight: Option<u64>,
    retry_at: Option<Time>,
    /// Reason why nothing can be stored at present.
    trouble: Option<String>,
}

impl RecordLedger {
    /// Ledger that goes on from an image of all records up to `last`. These are stored.
    pub(crate) fn new(image: Image, last: u64, records_between_snapshots: u64) -> Self {
        Self {
            image,
            last,
            waited_for: last,
            stored: last,
            unstored: VecDeque::new(),
            snapshot_at: last,
            records_between_snapshots,
            in_flight: false,
            snapshot_in_flight: None,
            retry_at: None,
            trouble: None,
        }
    }

    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    /// Number of the last record.
    pub(crate) const fn last(&self) -> u64 {
        self.last
    }

    /// Reason why nothing can be stored at present.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    pub(crate) fn record(&mut self, record: &JournalRecord) {
        self.image.apply(record);
        self.last += 1;
        self.unstored.push_back(record.encode());
        if record.is_waited_for() {
            self.waited_for = self.last;
        }
    }

    /// Number of the record that must be stored before an output that is decided now may leave.
    pub(crate) const fn waited_for(&self) -> u64 {
        self.waited_for
    }

    /// Whether all records up to a number are stored.
    pub(crate) fn is_stored(&self, number: u64) -> bool {
        number <= self.stored
    }

    /// The next batch to store. Only one batch is on its way at a time.
    pub(crate) fn poll_batch(&mut self) -> Option<JournalBatch> {
        let is_busy = self.in_flight && !is_planted(Bug::TwoBatchesAtOnce);
        if is_busy || self.retry_at.is_some() || self.unstored.is_empty() {
            return None;
        }
        self.in_flight = true;
        let is_long = self.last - self.snapshot_at >= self.records_between_snapshots;
        self.snapshot_in_flight = is_long.then_some(self.last);
        let snapshot =
            is_long.then(|| JournalSnapshot { upto: self.last, bytes: self.image.encode() });
        let records = self.unstored.iter().cloned().collect();
        Some(JournalBatch { first: self.stored + 1, records, snapshot })
    }

    pub(crate) fn handle_stored(&mut self, upto: u64) {
        self.in_flight = false;
        self.trouble = None;
        if let Some(upto) = self.snapshot_in_flight.take() {
            self.snapshot_at = upto;
        }
        let stored = upto.min(self.last).saturating_sub(self.stored);
        self.unstored.drain(..usize::try_from(stored).unwrap_or(0).min(self.unstored.len()));
        self.stored += stored;
    }

    /// Notes that the batch could not be stored. It is given again after a delay, with newer records. True if storing
    /// worked before.
    pub(crate) fn handle_failure(&mut self, now: Time, reason: &str) -> bool {
        if is_planted(Bug::FailedBatchCountsAsStored) {
            self.handle_stored(self.last);
            return false;
        }
        self.in_flight = false;
        self.retry_at = Some(now + RETRY_AFTER);
        self.trouble.replace(reason.to_owned()).is_none()
    }

    pub(crate) const fn retry_at(&self) -> Option<Time> {
        self.retry_at
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.retry_at.take_if(|at| *at <= now);
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::Term;

    use super::*;

    const BETWEEN: u64 = 3;

    fn ledger() -> RecordLedger {
        RecordLedger::new(Image::default(), 0, BETWEEN)
    }

    fn record(ledger: &mut RecordLedger, count: u64) {
        (0..count).for_each(|_| ledger.record(&JournalRecord::Term { term: Term(1) }));
    }

    #[test]
    fn a_journal_that_is_always_busy_has_its_snapshots() {
        let mut ledger = ledger();
        let (mut behind, mut batches) = (0, 0);
        record(&mut ledger, 2);
        while batches < 20 {
            let batch = ledger.poll_batch().expect("there are records, and none is on its way");
            batches += 1;
            behind += batch.records.len() as u64;
            // Others come while it is on its way.
            record(&mut ledger, 2);
            let upto = batch.first - 1 + batch.records.len() as u64;
            if let Some(snapshot) = batch.snapshot {
                behind = upto - snapshot.upto;
            }
            assert!(behind <= BETWEEN + 2, "{behind} records stand behind a snapshot");
            ledger.handle_stored(upto);
        }
    }

    #[test]
    fn a_snapshot_that_could_not_be_stored_is_given_again() {
        let mut ledger = ledger();
        record(&mut ledger, BETWEEN);
        let first = ledger.poll_batch().expect("enough records");
        assert!(ledger.poll_batch().is_none(), "one batch at a time");
        assert!(ledger.handle_failure(Time::ZERO, "disk full"), "storing worked before");
        assert!(!ledger.handle_failure(Time::ZERO, "disk full"), "it did not");
        assert!(ledger.poll_batch().is_none(), "it is tried again later");
        assert_eq!(ledger.trouble(), Some("disk full"));
        ledger.handle_timeout(Time::ZERO + RETRY_AFTER);
        assert_eq!(ledger.poll_batch(), Some(first));
        ledger.handle_stored(BETWEEN);
        assert_eq!((ledger.trouble(), ledger.retry_at()), (None, None));
        assert!(ledger.is_stored(BETWEEN) && !ledger.is_stored(BETWEEN + 1));
        record(&mut ledger, 1);
        let next = ledger.poll_batch().expect("a record");
        assert_eq!((next.first, next.records.len()), (BETWEEN + 1, 1));
        assert!(next.snapshot.is_none(), "it was stored with the others");
    }
}
