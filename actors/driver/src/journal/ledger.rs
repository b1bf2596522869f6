//! [`Ledger`]: the core's side of the journal. What was recorded, what of it is stored, and so what may leave.

use std::collections::VecDeque;
use std::time::Duration;

use elastic_journal::{Batch, Snapshot};
use elastic_protocol::Time;
use elastic_runtime::planted::{Bug, is_planted};

use super::image::Image;
use super::record::Record;

/// A snapshot is written when so many records stand behind the last one.
const RECORDS_BETWEEN_SNAPSHOTS: u64 = 4096;

/// How long after a failure the same is tried again: somebody may have made room.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Where the journal of a core stands.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// What all records say.
    image: Image,
    /// The number of the last record.
    last: u64,
    /// The number of the last record that what follows it must wait for.
    waited_for: u64,
    /// All records up to this number are stored.
    stored: u64,
    /// Those that are not, encoded.
    unstored: VecDeque<Vec<u8>>,
    snapshot_at: u64,
    in_flight: bool,
    retry_at: Option<Time>,
    /// Why nothing can be stored at present.
    trouble: Option<String>,
}

impl Ledger {
    /// Goes on from an image of all records up to `last`, which are stored.
    pub(crate) fn new(image: Image, last: u64) -> Self {
        Self {
            image,
            last,
            waited_for: last,
            stored: last,
            unstored: VecDeque::new(),
            snapshot_at: last,
            in_flight: false,
            retry_at: None,
            trouble: None,
        }
    }

    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    /// Why nothing can be stored at present.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    pub(crate) fn record(&mut self, record: &Record) {
        self.image.apply(record);
        self.last += 1;
        self.unstored.push_back(record.encode());
        if record.is_waited_for() {
            self.waited_for = self.last;
        }
    }

    /// The number of the record that must be stored before what is decided now may leave.
    pub(crate) const fn waited_for(&self) -> u64 {
        self.waited_for
    }

    /// Whether all records up to a number are stored.
    pub(crate) fn is_stored(&self, number: u64) -> bool {
        number <= self.stored
    }

    /// What to store next. Only one batch is on its way at a time.
    pub(crate) fn poll_batch(&mut self) -> Option<Batch> {
        if self.in_flight || self.retry_at.is_some() || self.unstored.is_empty() {
            return None;
        }
        self.in_flight = true;
        let is_long = self.last - self.snapshot_at >= RECORDS_BETWEEN_SNAPSHOTS;
        let snapshot = is_long.then(|| Snapshot { upto: self.last, bytes: self.image.encode() });
        let records = self.unstored.iter().cloned().collect();
        Some(Batch { first: self.stored + 1, records, snapshot })
    }

    pub(crate) fn handle_stored(&mut self, upto: u64) {
        self.in_flight = false;
        self.trouble = None;
        if self.last - self.snapshot_at >= RECORDS_BETWEEN_SNAPSHOTS {
            self.snapshot_at = upto;
        }
        let stored = upto.min(self.last).saturating_sub(self.stored);
        self.unstored.drain(..usize::try_from(stored).unwrap_or(0).min(self.unstored.len()));
        self.stored += stored;
    }

    /// The same batch is given again, with what has come since.
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
