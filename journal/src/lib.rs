//! Where a driver's journal is kept: numbered records of bytes, and a snapshot that stands for the oldest of
//! them. What they mean is the driver's affair (`elastic_driver::journal`); its process opens the store, and
//! the simulation puts one of its own in its place.
//!
//! [`Journal`] is the trait. [`FileJournal`] is the embedded store: a redb file, whose bytes may lie in
//! anything that is a [`redb::StorageBackend`], such as a disk that tears and loses what was not synced.
//! [`etcd`] is the store for several drivers.

mod error;
pub mod etcd;
mod file;
mod seal;
#[cfg(test)]
mod tests;

pub use self::error::JournalError;
pub use self::file::FileJournal;

/// What a journal holds.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Loaded {
    /// Stands for all records up to its number.
    pub snapshot: Option<Snapshot>,
    /// The records after it, the oldest first, numbered without a gap.
    pub records: Vec<Vec<u8>>,
}

impl Loaded {
    /// The number of the last record; 0 if there was none yet.
    pub fn last(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.upto) + self.records.len() as u64
    }
}

/// What stands for the records up to a number.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Snapshot {
    /// The number of the last record that is in it.
    pub upto: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What is to be stored at once: all of it or nothing.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Batch {
    /// The number of the first of the records; numbers begin at 1.
    pub first: u64,
    /// The records.
    pub records: Vec<Vec<u8>>,
    /// Takes the place of all records up to its number, which may be one of these.
    pub snapshot: Option<Snapshot>,
}

impl Batch {
    /// The number of the last of the records.
    pub fn last(&self) -> u64 {
        self.first + self.records.len() as u64 - 1
    }
}

/// A store of records. Calls may block.
pub trait Journal: Send {
    /// Reads everything.
    ///
    /// # Errors
    /// [`JournalError`]; nothing is ever left out silently.
    fn load(&mut self) -> Result<Loaded, JournalError>;

    /// Stores a batch. It is durable when this returns. After an error it may have been stored or not: the
    /// same batch, perhaps with more records at its end, is given again, and what is there is not stored twice.
    ///
    /// # Errors
    /// [`JournalError`].
    fn append(&mut self, batch: &Batch) -> Result<(), JournalError>;
}
