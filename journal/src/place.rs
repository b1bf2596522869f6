//! [`JournalPlace`]: the location of a journal's file. [`FileJournal`](crate::FileJournal) reads the file, writes a
//! new file beside it, and replaces the old one. [`Folder`] is a place in the system's file system; the
//! simulation has a place that fails and loses power.

use std::cell::RefCell;
use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use redb::StorageBackend;
use redb::backends::FileBackend;

use crate::JournalError;

/// The bytes that were read at a place, with the hold that excludes other drivers; `None` if there is no
/// journal.
pub type JournalBytes<H> = Option<(Vec<u8>, H)>;

/// The file that stands at the place of a journal, as compared with the one that was installed last.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Occupant {
    /// The file that was installed last.
    Ours,
    /// No file.
    Nobody,
    /// Another file.
    Other,
}

/// The location of a journal's file.
pub trait JournalPlace: Send + 'static {
    /// A file that can be written.
    type File: StorageBackend;
    /// A lock that excludes other drivers from the journal that was read, until it is dropped.
    type Hold;

    /// The bytes of the journal at this place; `None` if there is none.
    ///
    /// # Errors
    /// [`JournalError`].
    fn read(&self) -> Result<JournalBytes<Self::Hold>, JournalError>;

    /// Makes a new, empty file beside the journal. A leftover of an earlier attempt is removed.
    ///
    /// # Errors
    /// [`JournalError`].
    fn draft(&self) -> Result<Self::File, JournalError>;

    /// Syncs the draft and durably renames it to the journal.
    ///
    /// # Errors
    /// [`JournalError`]; the journal is then the previous one or the draft.
    fn install(&self) -> Result<(), JournalError>;

    /// Whether the file that was installed last is still the journal at this place.
    ///
    /// # Errors
    /// [`JournalError`].
    fn occupant(&self) -> Result<Occupant, JournalError>;

    /// Name of the place, for people.
    fn name(&self) -> String;
}

/// A path in the system's file system.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// The file that was installed last. It is kept open: the system gives the number of a file that is removed and open nowhere
    /// to the next one.
    installed: RefCell<Option<File>>,
}

impl Folder {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), installed: RefCell::new(None) }
    }

    fn draft_path(&self) -> PathBuf {
        PathBuf::from(format!("{}.draft", self.path.display()))
    }
}

/// Refuses a path that is no plain file: an open of a pipe waits for its writer, and a device may have no end.
pub(crate) fn refuse_other(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            let why = format!("{} is no plain file", path.display());
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
        // An error here is left to the opening of the file, which reports it.
        _ => Ok(()),
    }
}

impl JournalPlace for Folder {
    type File = FileBackend;
    type Hold = File;

    fn read(&self) -> Result<JournalBytes<File>, JournalError> {
        refuse_other(&self.path)?;
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::InUse),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        // Another driver may have replaced the file between the opening and the lock.
        if fs::metadata(&self.path)?.ino() != file.metadata()?.ino() {
            return Err(JournalError::InUse);
        }
        Ok(Some((fs::read(&self.path)?, file)))
    }

    fn draft(&self) -> Result<FileBackend, JournalError> {
        let draft = self.draft_path();
        match fs::remove_file(&draft) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        // Only this user may read the file: it holds a job's secrets.
        let file =
            File::options().read(true).write(true).create_new(true).mode(0o600).open(&draft)?;
        Ok(FileBackend::new(file)?)
    }

    fn install(&self) -> Result<(), JournalError> {
        let draft = self.draft_path();
        let file = File::open(&draft)?;
        file.sync_all()?;
        fs::rename(&draft, &self.path)?;
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        // This comes last: after an error the new file is not used.
        *self.installed.borrow_mut() = Some(file);
        Ok(())
    }

    fn occupant(&self) -> Result<Occupant, JournalError> {
        let installed = self.installed.borrow().as_ref().map(File::metadata).transpose()?;
        match fs::metadata(&self.path) {
            Ok(found) if Some(identity(&found)) == installed.as_ref().map(identity) => {
                Ok(Occupant::Ours)
            }
            // To open a pipe is to wait for its writer.
            Ok(found) if !found.is_file() => {
                let (place, what) = (self.name(), "it is no plain file".to_owned());
                Err(JournalError::Displaced { place, what })
            }
            Ok(_) => Ok(Occupant::Other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Occupant::Nobody),
            Err(error) => Err(error.into()),
        }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// Device and inode of a file.
fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}
