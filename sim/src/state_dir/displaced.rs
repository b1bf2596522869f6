//! A journal that somebody takes away while its driver runs. Afterwards nothing stands in its place, or the journal of this job
//! as the driver found it, or the journal of another job. The product's store writes its own journal anew in the first two
//! cases, and refuses in the third. A store in memory has no place, so only the third case shows. Part of the state directory.

use std::sync::atomic::Ordering;

use elastic_driver::journal::{JobSecretsBytes, JournalRecord};
use elastic_journal::{FileJournal, Journal as _, JournalBatch, JournalError, JournalPlace as _};
use elastic_protocol::{JobId, ProgramSpec, Term};
use elastic_runtime::random::stream;

use super::{FILE, SimulatedStateDir, Store};
use crate::disk::{Disk, DiskJournalPlace};
use crate::plan::JournalIntruder;

/// The name of the journal that was taken away.
const AWAY: &str = "journal.redb.away";

/// A journal that was taken away.
#[derive(Clone, Copy, Debug)]
pub(super) struct Displacement {
    by: JournalIntruder,
    /// The number of the file that stands in its place; none where there is none.
    file: Option<usize>,
    /// The last record that was acknowledged before.
    acknowledged: u64,
}

impl SimulatedStateDir {
    /// Takes the journal away, and puts another in its place. False where that is so already, or there is none.
    pub(crate) fn displace(&mut self, by: JournalIntruder) -> bool {
        if self.displaced.is_some() {
            return false;
        }
        let acknowledged = self.archive.last();
        let mut file = None;
        match &self.store {
            Store::Memory(_) => {
                self.is_anothers.store(by == JournalIntruder::AnotherJob, Ordering::Relaxed);
            }
            Store::Disk(disk) => {
                if !disk.move_by_hand(FILE, AWAY) {
                    return false;
                }
                let intruder = match by {
                    JournalIntruder::Nothing => None,
                    JournalIntruder::Older => self.former.borrow().clone(),
                    JournalIntruder::AnotherJob => of_another_job(self.seed),
                };
                if let Some(bytes) = intruder {
                    disk.write_by_hand(FILE, &bytes);
                    file = disk.file(FILE);
                }
            }
        }
        self.displaced = Some(Displacement { by, file, acknowledged });
        true
    }

    /// Puts the journal in its place again, unless its driver has written it anew there.
    ///
    /// # Errors
    /// D-4: records were acknowledged meanwhile that no next driver would have found; or another job has lost its journal.
    pub(crate) fn put_back(&mut self) -> Result<(), String> {
        let Some(Displacement { by, file, acknowledged }) = self.displaced.take() else {
            return Ok(());
        };
        self.is_anothers.store(false, Ordering::Relaxed);
        let Store::Disk(disk) = &self.store else { return Ok(()) };
        if disk.safe_file(FILE) != file {
            disk.remove_by_hand(AWAY);
            return match (by, file) {
                (JournalIntruder::AnotherJob, Some(_)) => {
                    Err("D-4: the journal of another job was replaced".to_owned())
                }
                _ => Ok(()),
            };
        }
        disk.move_by_hand(AWAY, FILE);
        match self.archive.last() > acknowledged {
            true => Err(format!(
                "D-4: record {} was acknowledged, and would not have been found in the place of the journal",
                self.archive.last()
            )),
            false => Ok(()),
        }
    }

    /// Whether the newest driver was told that another journal stands in the place of its own.
    pub(crate) fn was_told_of_another(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }
}

/// Error of a store in memory that finds another journal in its place, as the product's store reports it for one on a disk.
pub(super) fn in_memory() -> JournalError {
    let what = "it is of another job, simulated".to_owned();
    JournalError::Displaced { place: FILE.to_owned(), what }
}

/// The bytes of another job's journal.
fn of_another_job(seed: u64) -> Option<Vec<u8>> {
    let disk = Disk::new(stream(seed, "another job's disk", 0));
    let place = || DiskJournalPlace::new(disk.clone(), FILE);
    let program = ProgramSpec { argv: vec!["other".to_owned()], environment: Vec::new() };
    let job = JobId(uuid::Uuid::from_u64_pair(seed, u64::MAX));
    let records = [
        JournalRecord::Job { job, program, secrets: JobSecretsBytes::default() },
        JournalRecord::Term { term: Term(1) },
    ];
    let records = records.iter().map(JournalRecord::encode).collect();
    let mut journal = FileJournal::open_at(place()).ok()?;
    journal.append(&JournalBatch { first: 1, records, snapshot: None }).ok()?;
    place().read().ok()?.map(|(bytes, ())| bytes)
}
