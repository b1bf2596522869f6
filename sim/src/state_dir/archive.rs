//! The oracle's copy, in digests, of the records that the journal has acknowledged over all lives of the driver. It is compared
//! with the records that a successor loads (D-4), and with the numbers that leave a driver (D-1).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use elastic_driver::journal::{Image, JournalRecord};
use elastic_journal::{JournalBatch, JournalSnapshot, LoadedJournal};
use elastic_protocol::{GenerationId, Incarnation, Stamp};

use crate::dataset::mix;

/// Number of remembered snapshots: one more than a crash can choose from.
const SNAPSHOTS_KEPT: usize = 4;

/// Number of remembered generations.
const OPENED_KEPT: usize = 256;

#[derive(Debug, Default)]
struct Acknowledged {
    /// The number of the last record.
    last: u64,
    /// Digests of the records after the oldest remembered snapshot, by number.
    records: BTreeMap<u64, u64>,
    /// Digests of snapshots, by the number of their last record.
    snapshots: BTreeMap<u64, u64>,
    /// The last recorded generations, and the one with which the journal began.
    opened: BTreeSet<Stamp>,
    /// The last number that the record of a generation, or of an end, has reserved; the last recorded incarnation.
    generation: GenerationId,
    incarnation: Incarnation,
}

impl Acknowledged {
    /// Notes the generation that a record opens, and the number that it reserves.
    fn note_generation(&mut self, record: &[u8]) {
        match JournalRecord::decode(record) {
            Ok(JournalRecord::GenerationOpened { formation }) => {
                self.generation = self.generation.max(formation.stamp.generation);
                self.open(formation.stamp);
            }
            Ok(
                JournalRecord::GenerationRunning { stamp }
                | JournalRecord::GenerationEnded { stamp, .. },
            ) => {
                self.generation = self.generation.max(stamp.generation.next());
            }
            _ => {}
        }
    }

    /// Notes the generation with which a snapshot goes on.
    fn note_snapshot(&mut self, bytes: &[u8]) {
        if let Ok(Image { current: Some(current), .. }) = Image::decode(bytes) {
            self.open(current.formation.stamp);
        }
    }

    fn open(&mut self, stamp: Stamp) {
        self.opened.insert(stamp);
        if self.opened.len() > OPENED_KEPT {
            self.opened.pop_first();
        }
    }
}

/// The archive of a journal. Clones share their contents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Archive(Arc<Mutex<Acknowledged>>);

impl Archive {
    fn with<T>(&self, work: impl FnOnce(&mut Acknowledged) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes the snapshot with which a journal begins, and the numbers given out until then.
    pub(super) fn begin_from(
        &self,
        snapshot: &JournalSnapshot,
        generation: GenerationId,
        incarnation: Incarnation,
    ) {
        self.with(|archive| {
            archive.last = snapshot.upto;
            archive.snapshots.insert(snapshot.upto, digest(&snapshot.bytes));
            (archive.generation, archive.incarnation) = (generation, incarnation);
            archive.note_snapshot(&snapshot.bytes);
        });
    }

    /// Notes a batch that the journal has acknowledged.
    pub(super) fn acknowledged(&self, batch: &JournalBatch) {
        self.with(|archive| {
            for (number, record) in (batch.first..).zip(&batch.records) {
                archive.records.insert(number, digest(record));
                archive.note_generation(record);
                if let Ok(
                    JournalRecord::WorkerStarted { worker }
                    | JournalRecord::ProcessStarted { worker },
                ) = JournalRecord::decode(record)
                {
                    archive.incarnation = archive.incarnation.max(worker.incarnation);
                }
            }
            archive.last = archive.last.max(batch.last());
            let Some(snapshot) = &batch.snapshot else { return };
            archive.snapshots.insert(snapshot.upto, digest(&snapshot.bytes));
            if archive.snapshots.len() > SNAPSHOTS_KEPT {
                archive.snapshots.pop_first();
            }
            if let Some(oldest) = archive.snapshots.keys().next().copied() {
                archive.records = archive.records.split_off(&(oldest + 1));
            }
        });
    }

    /// Checks D-4 when a driver has loaded the journal: all acknowledged records are there as written. Remains of a
    /// failed or interrupted write count from now on, since the driver goes on from them.
    pub(super) fn loaded(&self, loaded: &LoadedJournal) -> Result<(), String> {
        self.with(|archive| {
            if loaded.last() < archive.last {
                return Err(format!(
                    "D-4: record {} was acknowledged, and the journal ends at {}",
                    archive.last,
                    loaded.last()
                ));
            }
            let damaged = |known: Option<&u64>, bytes: &[u8]| {
                known.is_some_and(|known| *known != digest(bytes))
            };
            let mut first = 1;
            if let Some(snapshot) = &loaded.snapshot {
                first = snapshot.upto + 1;
                archive.note_snapshot(&snapshot.bytes);
                if damaged(archive.snapshots.get(&snapshot.upto), &snapshot.bytes) {
                    return Err(format!("D-4: snapshot {} is not what was stored", snapshot.upto));
                }
            }
            for (number, record) in (first..).zip(&loaded.records) {
                if damaged(archive.records.get(&number), record) {
                    return Err(format!("D-4: record {number} is not what was stored"));
                }
                archive.note_generation(record);
            }
            Ok(())
        })
    }

    /// The number of the last record that was acknowledged.
    pub(super) fn last(&self) -> u64 {
        self.with(|archive| archive.last)
    }

    /// Whether a successor would know that this generation's number may have been told: its own record is stored, or the begin
    /// or the end of the one before.
    pub(crate) fn has_generation(&self, generation: GenerationId) -> bool {
        self.with(|archive| archive.generation >= generation)
    }

    /// Whether a successor would know of this generation and its members.
    pub(crate) fn has_opened(&self, stamp: Stamp) -> bool {
        self.with(|archive| archive.opened.contains(&stamp))
    }

    /// Whether a successor would know of this worker's incarnation.
    pub(crate) fn has_incarnation(&self, incarnation: Incarnation) -> bool {
        self.with(|archive| archive.incarnation >= incarnation)
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut chunks = bytes.chunks_exact(8);
    let whole = chunks.by_ref().filter_map(|chunk| chunk.try_into().ok().map(u64::from_le_bytes));
    let sum = whole.fold(bytes.len() as u64, mix);
    chunks.remainder().iter().fold(sum, |sum, byte| mix(sum, u64::from(*byte)))
}
