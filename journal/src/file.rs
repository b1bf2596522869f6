//! [`FileJournal`]: the embedded store, on redb. A batch is one transaction: its pages are written beside the
//! old ones, synced, and made valid by one checked header, so that a torn write leaves the state before it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{Builder, Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

use crate::{Batch, Journal, JournalError, Loaded, Snapshot, seal};

/// Sealed records by number.
const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
/// One entry: the snapshot, sealed, by the number of the last record in it.
const SNAPSHOT: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("snapshot");

/// The journal is read once and small: redb's default of a gibibyte is not for it.
const CACHE_BYTES: usize = 4 << 20;

/// Opens the store again after an error, which a redb database does not survive.
type Open = Box<dyn Fn() -> Result<Database, JournalError> + Send>;

/// A journal in one file.
pub struct FileJournal {
    open: Open,
    database: Option<Database>,
}

impl std::fmt::Debug for FileJournal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FileJournal").finish_non_exhaustive()
    }
}

impl FileJournal {
    /// Opens the journal at a path. Where there is none, one is made beside it and put there when it is whole,
    /// so that whatever is found there later was a journal once.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        if !path.try_exists()? {
            create(path)?;
        }
        let path = path.to_owned();
        Self::with(Box::new(move || {
            // redb would take an empty file for a new database.
            if fs::metadata(&path)?.len() == 0 {
                return Err(JournalError::Corrupt("its file is empty".to_owned()));
            }
            unpanicked(|| Ok(builder().open(&path)?))
        }))
    }

    /// Opens the journal on what `backend` gives: called now, and again after every error.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open_on<B: StorageBackend>(
        backend: impl Fn() -> B + Send + 'static,
    ) -> Result<Self, JournalError> {
        Self::with(Box::new(move || unpanicked(|| Ok(builder().create_with_backend(backend())?))))
    }

    fn with(open: Open) -> Result<Self, JournalError> {
        let database = Some(open()?);
        Ok(Self { open, database })
    }

    /// Does something with the database; it is opened anew next time if that fails.
    fn using<T>(
        &mut self,
        work: impl FnOnce(&Database) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => (self.open)()?,
        };
        let done = unpanicked(|| work(&database))?;
        self.database = Some(database);
        Ok(done)
    }
}

impl Journal for FileJournal {
    fn load(&mut self) -> Result<Loaded, JournalError> {
        self.using(|database| {
            let reading = database.begin_read()?;
            let snapshot = match reading.open_table(SNAPSHOT) {
                Ok(table) => match table.last()? {
                    Some((upto, sealed)) => Some(read_snapshot(upto.value(), sealed.value())?),
                    None => None,
                },
                Err(redb::TableError::TableDoesNotExist(_)) => None,
                Err(error) => return Err(error.into()),
            };
            let mut loaded = Loaded { snapshot, records: Vec::new() };
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
        })
    }

    fn append(&mut self, batch: &Batch) -> Result<(), JournalError> {
        self.using(|database| {
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
                if let Some(Snapshot { upto, bytes }) = &batch.snapshot
                    && covered.is_none_or(|covered| covered < *upto)
                {
                    snapshots.retain(|_, _| false)?;
                    snapshots.insert(*upto, seal::seal(*upto, bytes).as_slice())?;
                    records.retain_in(..=*upto, |_, _| false)?;
                }
            }
            writing.commit()?;
            Ok(())
        })
    }
}

fn read_snapshot(upto: u64, sealed: &[u8]) -> Result<Snapshot, JournalError> {
    let bytes = seal::open(upto, sealed)
        .ok_or_else(|| JournalError::Corrupt(format!("snapshot {upto} is not what was written")))?;
    Ok(Snapshot { upto, bytes: bytes.to_vec() })
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder
}

/// Makes an empty journal at a path, whole or not at all.
fn create(path: &Path) -> Result<(), JournalError> {
    let draft = PathBuf::from(format!("{}.draft", path.display()));
    match fs::remove_file(&draft) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    // For its user alone: a job's secrets are in it.
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&draft)?;
    unpanicked(|| {
        let backend = FileBackend::new(file)?;
        Ok(builder().create_with_backend(backend)?)
    })
    .map(drop)?;
    File::open(&draft)?.sync_all()?;
    fs::rename(&draft, path)?;
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// A store of damaged bytes may trip over them in ways that its makers did not foresee.
fn unpanicked<T>(work: impl FnOnce() -> Result<T, JournalError>) -> Result<T, JournalError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(JournalError::Corrupt("its bytes make no sense".to_owned())))
}
