//! Stores of a driver's journal: numbered records of bytes, and a snapshot that replaces the oldest of them.
//! The driver defines their meaning (`elastic_driver::journal`). The driver's process opens the store; the
//! simulation has a store of its own.
//!
//! [`Journal`] is the trait. [`FileJournal`] is the embedded store: a redb file at a [`JournalPlace`], such as a path
//! of the file system, or a simulated disk that tears and loses unsynced writes. [`etcd`] is the store for
//! several drivers.

mod error;
pub mod etcd;
mod file;
mod place;
mod seal;
#[cfg(test)]
mod tests;

pub use self::error::JournalError;
pub use self::file::{FileJournal, IdentityOf, Restored};
pub use self::place::{JournalBytes, JournalPlace, Occupant};

/// The content of a journal.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LoadedJournal {
    /// The snapshot, which replaces all records up to its number.
    pub snapshot: Option<JournalSnapshot>,
    /// The records after the snapshot, the oldest first, numbered without a gap.
    pub records: Vec<Vec<u8>>,
}

impl LoadedJournal {
    /// The number of the last record; 0 before the first one.
    pub fn last(&self) -> u64 {
        self.covered() + self.records.len() as u64
    }

    /// The number up to which the snapshot replaces records.
    fn covered(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.upto)
    }

    /// Adds a batch that was stored after this.
    fn add(&mut self, batch: &JournalBatch) {
        let last = self.last();
        let numbered = (batch.first..).zip(&batch.records);
        self.records.extend(numbered.filter(|(number, _)| *number > last).map(|(_, r)| r.clone()));
        if let Some(snapshot) = &batch.snapshot
            && snapshot.upto > self.covered()
        {
            let replaced = (snapshot.upto - self.covered()) as usize;
            self.records.drain(..replaced.min(self.records.len()));
            self.snapshot = Some(snapshot.clone());
        }
    }
}

/// Identity of a journal: the job that it belongs to, and its latest term. Made by the driver, since only the driver
/// knows the meaning of the records.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JournalIdentity {
    /// The job's id.
    pub job: String,
    /// Term of the last driver that wrote it.
    pub term: u64,
}

/// A snapshot, which replaces the records up to a number.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JournalSnapshot {
    /// The number of the last record that it replaces.
    pub upto: u64,
    /// The bytes of the snapshot.
    pub bytes: Vec<u8>,
}

/// Records and a snapshot that are stored atomically.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct JournalBatch {
    /// The number of the first of the records; numbers begin at 1.
    pub first: u64,
    /// The records.
    pub records: Vec<Vec<u8>>,
    /// A snapshot that replaces all records up to its number, which may be one of these.
    pub snapshot: Option<JournalSnapshot>,
}

impl JournalBatch {
    /// The number of the last of the records.
    pub fn last(&self) -> u64 {
        self.first + self.records.len() as u64 - 1
    }
}

/// A store of records. Calls may block.
pub trait Journal: Send {
    /// Reads the whole journal.
    ///
    /// # Errors
    /// [`JournalError`]; no record is ever left out silently.
    fn load(&mut self) -> Result<LoadedJournal, JournalError>;

    /// Stores a batch. It is durable when this returns. After an error it may have been stored or not. The
    /// caller then gives the same batch again, perhaps with more records at its end. Records that are stored
    /// already are not stored twice.
    ///
    /// # Errors
    /// [`JournalError`].
    fn append(&mut self, batch: &JournalBatch) -> Result<(), JournalError>;
}
