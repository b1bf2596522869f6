//! [`FileJournal`]: the embedded store, on redb. A batch is one transaction: its pages are written beside the
//! old ones, synced, and made valid by one checked header, so that a torn write leaves the state before it.
//!
//! A file is never written again after an error. A sync that fails may have dropped pages that it could not
//! write. The next sync does not write them either, although readers go on seeing them ("Can Applications
//! Recover from fsync Failures?", Rebello et al., USENIX ATC 2020): anything built on such pages is lost when
//! the machine stops. So at each opening the file is read, its content is written to a new file and synced, and the
//! new file replaces the old one. After an error the same is done with the content that is kept in memory: the file may
//! have been removed, or another one may stand in its place by then.
//!
//! The content is also written to a new file if the file was removed by somebody else, or if an older journal of the
//! same job stands in its place. The latter happens if a folder that was away comes back.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::backends::InMemoryBackend;
use redb::{Builder, Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

use crate::place::{Folder, refuse_other};
use crate::{
    Journal, JournalBatch, JournalError, JournalIdentity, JournalPlace, JournalSnapshot,
    LoadedJournal, Occupant, seal,
};

/// Sealed records by number.
const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
/// The sealed snapshot, as one entry, by the number of the last record in it.
const SNAPSHOT: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("snapshot");

/// Size of redb's cache. The journal is small and read once, so redb's default of a gibibyte is too much.
const CACHE_BYTES: usize = 4 << 20;

/// Most attempts to read a journal that its driver writes meanwhile. An attempt may read half of a commit.
const READINGS_MAX: usize = 5;

/// Largest file that is read beside its driver, in bytes (256 MiB).
const READ_BYTES_MAX: u64 = 256 << 20;

/// Reads the identity of a journal; `None` if the journal is empty.
pub type IdentityOf = fn(&LoadedJournal) -> Result<Option<JournalIdentity>, JournalError>;

/// Reason for which a journal was written to a new file in its place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Restored {
    /// Its file was removed.
    Removed,
    /// An older journal of the same job, which nobody had open, stood in its place, and is replaced.
    CameBack,
}

/// A journal in one file.
pub struct FileJournal {
    place: Box<dyn DatabasePlace>,
    /// None after an error, until the journal is written to a new file.
    database: Option<Database>,
    /// A copy of the stored journal.
    kept: LoadedJournal,
    /// Reads the identity of a journal; without it no other journal is replaced.
    identity_of: Option<IdentityOf>,
    /// The reason of a restoration that was not reported yet.
    untold: Option<Restored>,
    /// Whether the job is over, and nothing is written any more.
    is_over: bool,
}

impl std::fmt::Debug for FileJournal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FileJournal").finish_non_exhaustive()
    }
}

impl FileJournal {
    /// Opens the journal at a path; makes an empty one if there is none.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        Self::open_at(Folder::new(path))
    }

    /// Opens the journal at a place.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open_at(place: impl JournalPlace) -> Result<Self, JournalError> {
        let database = unpanicked(|| place.renewed())?;
        let kept = unpanicked(|| load(&database))?;
        let (place, database) = (Box::new(place), Some(database));
        Ok(Self { place, database, kept, identity_of: None, untold: None, is_over: false })
    }

    /// Lets the journal replace an older one of the same job that comes to stand in its place.
    #[must_use]
    pub fn identified_by(self, identity_of: IdentityOf) -> Self {
        Self { identity_of: Some(identity_of), ..self }
    }

    /// Writes the journal to a new file in its place if its file was removed, or an older journal of the same job stands
    /// there. Anything that is appended does this first. Returns why it was written since the last such call.
    ///
    /// # Errors
    /// [`JournalError`]; [`JournalError::InUse`] where somebody else has the file that stands in its place,
    /// [`JournalError::Displaced`] where that file is not replaced.
    pub fn restore_if_removed(&mut self) -> Result<Option<Restored>, JournalError> {
        self.restore()?;
        Ok(self.untold.take())
    }

    /// Has a database in the journal's place, unless the job is over.
    fn restore(&mut self) -> Result<(), JournalError> {
        if self.is_over {
            return Ok(());
        }
        let (place, kept, identity_of) = (&*self.place, &self.kept, self.identity_of);
        let (restored, why) = match (place.occupant()?, &self.database) {
            (Occupant::Ours, Some(_)) => return Ok(()),
            // After an error.
            (Occupant::Ours, None) => (unpanicked(|| place.rewritten(kept))?, None),
            (Occupant::Nobody, _) => (unpanicked(|| place.written(kept))?, Some(Restored::Removed)),
            (Occupant::Other, _) => {
                (unpanicked(|| place.taken_back(kept, identity_of))?, Some(Restored::CameBack))
            }
        };
        self.database = Some(restored);
        self.untold = why.or(self.untold);
        Ok(())
    }

    /// Writes nothing from now on: the job is over, and its file may be removed. Batches that are appended later are
    /// dropped.
    pub fn retire(&mut self) {
        self.is_over = true;
    }

    /// The content of the journal at a path, which a driver may use; none if there is no journal. Nothing is written.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn read_beside_driver(path: &Path) -> Result<Option<LoadedJournal>, JournalError> {
        let mut last_error = JournalError::Corrupt("it was not read".to_owned());
        for _ in 0..READINGS_MAX {
            let bytes = match std::fs::metadata(path).and_then(|found| {
                if found.len() > READ_BYTES_MAX {
                    let bytes = found.len();
                    return Err(std::io::Error::other(format!("it has {bytes} bytes")));
                }
                refuse_other(path)?;
                std::fs::read(path)
            }) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            match unpanicked(|| read(&bytes)) {
                Ok(loaded) => return Ok(Some(loaded)),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }
}

impl Journal for FileJournal {
    fn load(&mut self) -> Result<LoadedJournal, JournalError> {
        match &self.database {
            Some(database) => unpanicked(|| load(database)),
            None => Ok(self.kept.clone()),
        }
    }

    fn append(&mut self, batch: &JournalBatch) -> Result<(), JournalError> {
        self.restore()?;
        // After an error it is not used again.
        let Some(database) = self.database.take().filter(|_| !self.is_over) else {
            return Ok(());
        };
        unpanicked(|| store(&database, batch))?;
        self.database = Some(database);
        self.kept.add(batch);
        Ok(())
    }
}

/// A [`JournalPlace`] with the databases in its files.
trait DatabasePlace: Send {
    /// Copies the journal at this place into a new file that replaces the old one. The old file is not written, not
    /// even to repair it.
    fn renewed(&self) -> Result<Database, JournalError>;

    /// Writes a journal to a new file, which replaces one that may be there.
    fn written(&self, kept: &LoadedJournal) -> Result<Database, JournalError>;

    /// Writes a journal to a new file, which replaces the one that was installed last, if nobody has that.
    fn rewritten(&self, kept: &LoadedJournal) -> Result<Database, JournalError>;

    /// Writes a journal to a new file, which replaces another one, if that is an older one of the same job, and nobody has
    /// it.
    fn taken_back(
        &self,
        kept: &LoadedJournal,
        identity_of: Option<IdentityOf>,
    ) -> Result<Database, JournalError>;

    /// See [`JournalPlace::occupant`].
    fn occupant(&self) -> Result<Occupant, JournalError>;
}

impl<P: JournalPlace> DatabasePlace for P {
    fn renewed(&self) -> Result<Database, JournalError> {
        // Its hold excludes other drivers until the new file is there.
        let former = self.read()?;
        match &former {
            Some((bytes, _)) => self.written(&read(bytes)?),
            None => self.written(&LoadedJournal::default()),
        }
    }

    fn written(&self, kept: &LoadedJournal) -> Result<Database, JournalError> {
        let database = builder().create_with_backend(self.draft()?)?;
        fill(&database, kept)?;
        self.install()?;
        Ok(database)
    }

    fn rewritten(&self, kept: &LoadedJournal) -> Result<Database, JournalError> {
        // The hold excludes other drivers until the new file is there.
        let _held = self.read()?;
        self.written(kept)
    }

    fn taken_back(
        &self,
        kept: &LoadedJournal,
        identity_of: Option<IdentityOf>,
    ) -> Result<Database, JournalError> {
        // The hold excludes other drivers until the new file is there.
        if let Some((bytes, _hold)) = &self.read()?
            && let Some(what) = reason_to_keep(bytes, kept, identity_of)?
        {
            return Err(JournalError::Displaced { place: self.name(), what });
        }
        self.written(kept)
    }

    fn occupant(&self) -> Result<Occupant, JournalError> {
        JournalPlace::occupant(self)
    }
}

/// Reason for which a journal that stands in the place of another one must not be replaced by it; `None` if it may be
/// replaced.
fn reason_to_keep(
    bytes: &[u8],
    kept: &LoadedJournal,
    identity_of: Option<IdentityOf>,
) -> Result<Option<String>, JournalError> {
    let Some(identity_of) = identity_of else {
        return Ok(Some("nothing says whose it is".to_owned()));
    };
    let read = || {
        let found = read(bytes)?;
        Ok((identity_of(&found)?, found.last()))
    };
    let (theirs, last) = match unpanicked(read) {
        Ok((Some(theirs), last)) => (theirs, last),
        // A driver was ended before it wrote a job there.
        Ok((None, _)) => return Ok(None),
        Err(JournalError::Corrupt(why)) => {
            return Ok(Some(format!("it cannot be read, {why}")));
        }
        Err(error) => return Err(error),
    };
    let JournalIdentity { job, term } = theirs;
    let ours = identity_of(kept)?;
    Ok(match ours {
        Some(ours) if ours.job == job => (term > ours.term || last > kept.last()).then(|| {
            let (our_term, our_last) = (ours.term, kept.last());
            format!(
                "it is newer, of term {term} with {last} records, where this driver's is of term {our_term} with \
                 {our_last}"
            )
        }),
        _ => Some(format!("it is of another job, {job}")),
    })
}

/// The content of a journal, from the bytes of its file.
fn read(bytes: &[u8]) -> Result<LoadedJournal, JournalError> {
    // redb would treat an empty file as a new database.
    if bytes.is_empty() {
        return Err(JournalError::Corrupt("its file is empty".to_owned()));
    }
    let load = || {
        let copy = InMemoryBackend::new();
        copy.set_len(bytes.len() as u64)?;
        copy.write(0, bytes)?;
        load(&builder().create_with_backend(copy)?)
    };
    load().map_err(|error| match error {
        // Memory does not fail: the bytes refer to others beyond their end.
        JournalError::Io(error) => JournalError::Corrupt(format!("its file is cut off: {error}")),
        error => error,
    })
}

fn load(database: &Database) -> Result<LoadedJournal, JournalError> {
    let reading = database.begin_read()?;
    let snapshot = match reading.open_table(SNAPSHOT) {
        Ok(table) => match table.last()? {
            Some((upto, sealed)) => Some(read_snapshot(upto.value(), sealed.value())?),
            None => None,
        },
        Err(redb::TableError::TableDoesNotExist(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let mut loaded = LoadedJournal { snapshot, records: Vec::new() };
    let table = match reading.open_table(RECORDS) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(loaded),
        Err(error) => return Err(error.into()),
    };
    for entry in table.iter()? {
        let (number, sealed) = entry?;
        let (number, expected) = (number.value(), loaded.last() + 1);
        if number != expected {
            let what = format!("record {number} stands where record {expected} should");
            return Err(JournalError::Corrupt(what));
        }
        let bytes = seal::open(number, sealed.value()).ok_or_else(|| {
            JournalError::Corrupt(format!("record {number} is not what was written"))
        })?;
        loaded.records.push(bytes.to_vec());
    }
    Ok(loaded)
}

/// Stores the whole content of a journal in an empty database.
fn fill(database: &Database, kept: &LoadedJournal) -> Result<(), JournalError> {
    let writing = database.begin_write()?;
    {
        let mut records = writing.open_table(RECORDS)?;
        let mut snapshots = writing.open_table(SNAPSHOT)?;
        let mut first = 1;
        if let Some(JournalSnapshot { upto, bytes }) = &kept.snapshot {
            snapshots.insert(*upto, seal::seal(*upto, bytes).as_slice())?;
            first = upto + 1;
        }
        for (number, record) in (first..).zip(&kept.records) {
            records.insert(number, seal::seal(number, record).as_slice())?;
        }
    }
    writing.commit()?;
    Ok(())
}

fn store(database: &Database, batch: &JournalBatch) -> Result<(), JournalError> {
    let writing = database.begin_write()?;
    {
        let mut records = writing.open_table(RECORDS)?;
        let mut snapshots = writing.open_table(SNAPSHOT)?;
        let recorded = records.last()?.map(|(number, _)| number.value());
        let covered = snapshots.last()?.map(|(upto, _)| upto.value());
        let last = recorded.max(covered).unwrap_or(0);
        if batch.first > last + 1 {
            let what = format!("it ends at record {last}, not at {}", batch.first - 1);
            return Err(JournalError::Corrupt(what));
        }
        let numbered = (batch.first..).zip(&batch.records);
        for (number, record) in numbered.filter(|(number, _)| *number > last) {
            records.insert(number, seal::seal(number, record).as_slice())?;
        }
        if let Some(JournalSnapshot { upto, bytes }) = &batch.snapshot
            && covered.is_none_or(|covered| covered < *upto)
        {
            snapshots.retain(|_, _| false)?;
            snapshots.insert(*upto, seal::seal(*upto, bytes).as_slice())?;
            records.retain_in(..=*upto, |_, _| false)?;
        }
    }
    writing.commit()?;
    Ok(())
}

fn read_snapshot(upto: u64, sealed: &[u8]) -> Result<JournalSnapshot, JournalError> {
    let bytes = seal::open(upto, sealed)
        .ok_or_else(|| JournalError::Corrupt(format!("snapshot {upto} is not what was written")))?;
    Ok(JournalSnapshot { upto, bytes: bytes.to_vec() })
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder
}

/// Runs `work` and turns a panic into an error, since redb may panic on damaged bytes.
fn unpanicked<T>(work: impl FnOnce() -> Result<T, JournalError>) -> Result<T, JournalError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(JournalError::Corrupt("its bytes make no sense".to_owned())))
}
