//! A simulated disk. Written data is visible at once, and safe only after a sync. In a loss of power each unsynced
//! sector survives or not, independently of the order of writes: writes are reordered, torn and lost. File names are
//! separate metadata, safe after a sync of the directory. The disk may be full, read-only, fail to sync, and rot. All
//! its randomness comes from the seed.
//!
//! Writes promise what POSIX and Linux promise: a sync that fails has lost what it could not write, and the next one
//! does not write it either ("Can Applications Recover from fsync Failures?", Rebello et al., USENIX ATC 2020).
//!
//! A driver's machine has one such disk. A journal lies in a [`DiskFile`], which serves as redb's storage.

mod file;
mod journal_place;
mod store;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use self::file::Contents;
pub use self::journal_place::DiskJournalPlace;
pub use self::store::DiskFile;

/// The unit in which a disk writes: a sector is written whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// Condition of a disk, which decides how it serves writes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Condition {
    /// Works correctly.
    #[default]
    Sound,
    /// No file can grow.
    Full,
    /// No write succeeds.
    ReadOnly,
    /// Syncs fail and lose some of their data.
    FailsSyncs,
}

/// A change of a directory since its last sync.
#[derive(Clone, Debug)]
enum Renaming {
    Made { name: String, file: usize },
    Moved { from: String, to: String },
    Removed { name: String },
}

#[derive(Debug)]
struct DiskState {
    random: ChaCha8Rng,
    condition: Condition,
    files: Vec<Contents>,
    /// Names as readers see them.
    names: BTreeMap<String, usize>,
    /// Names that survive a loss of power.
    safe_names: BTreeMap<String, usize>,
    renamings: Vec<Renaming>,
    /// Counts losses of power and deaths of the process. Handles from before are dead.
    powered: u64,
}

impl DiskState {
    fn may_write(&self) -> io::Result<()> {
        match self.condition {
            Condition::ReadOnly => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
            _ => Ok(()),
        }
    }

    /// Frees the contents of files without a name.
    fn forget_unnamed(&mut self) {
        for (number, contents) in self.files.iter_mut().enumerate() {
            let mut named = self.names.values().chain(self.safe_names.values());
            if !named.any(|file| *file == number) {
                *contents = Contents::default();
            }
        }
    }
}

/// A machine's disk. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct Disk {
    state: Arc<Mutex<DiskState>>,
}

impl Disk {
    /// An empty disk. `random` decides which unsynced data survives.
    pub fn new(random: ChaCha8Rng) -> Self {
        let state = DiskState {
            random,
            condition: Condition::Sound,
            files: Vec::new(),
            names: BTreeMap::new(),
            safe_names: BTreeMap::new(),
            renamings: Vec::new(),
            powered: 0,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a file. Creates it if there is none.
    ///
    /// # Errors
    /// If the disk's condition forbids it.
    pub fn open(&self, name: &str) -> io::Result<DiskFile> {
        let mut state = self.state();
        let file = match state.names.get(name) {
            Some(file) => *file,
            None => {
                state.may_write()?;
                let file = state.files.len();
                state.files.push(Contents::default());
                state.names.insert(name.to_owned(), file);
                state.renamings.push(Renaming::Made { name: name.to_owned(), file });
                file
            }
        };
        Ok(DiskFile::new(self.clone(), file, state.powered))
    }

    /// Whether there is a file of this name.
    pub fn exists(&self, name: &str) -> bool {
        self.state().names.contains_key(name)
    }

    /// Renames a file, replacing any file of the new name.
    ///
    /// # Errors
    /// If there is no such file, or if the disk's condition forbids it.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.may_write()?;
        let file = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), file);
        let (from, to) = (from.to_owned(), to.to_owned());
        state.renamings.push(Renaming::Moved { from, to });
        Ok(())
    }

    /// Removes a name.
    ///
    /// # Errors
    /// If there is no such file, or if the disk's condition forbids it.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.may_write()?;
        state.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        state.renamings.push(Renaming::Removed { name: name.to_owned() });
        Ok(())
    }

    /// Makes the names of files safe.
    ///
    /// # Errors
    /// If the disk's condition forbids it.
    pub fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.state();
        match state.condition {
            Condition::FailsSyncs => Err(io::Error::other("simulated: input/output error")),
            Condition::ReadOnly if !state.renamings.is_empty() => {
                Err(io::ErrorKind::ReadOnlyFilesystem.into())
            }
            _ => {
                state.renamings.clear();
                state.safe_names = state.names.clone();
                state.forget_unnamed();
                Ok(())
            }
        }
    }

    /// The number of the file that has this name after a loss of power.
    pub fn safe_file(&self, name: &str) -> Option<usize> {
        self.state().safe_names.get(name).copied()
    }

    /// The number of the file that has this name.
    pub fn file(&self, name: &str) -> Option<usize> {
        self.state().names.get(name).copied()
    }

    /// Somebody else gives a file another name, whatever the condition. False if there is none.
    pub fn move_by_hand(&self, from: &str, to: &str) -> bool {
        self.by_hand(|state| {
            let Some(file) = state.names.remove(from) else { return false };
            state.names.insert(to.to_owned(), file);
            true
        })
    }

    /// Somebody else writes a file, whatever the condition.
    pub fn write_by_hand(&self, name: &str, bytes: &[u8]) {
        self.by_hand(|state| {
            let mut contents = Contents::default();
            contents.write(0, bytes);
            contents.sync();
            state.names.insert(name.to_owned(), state.files.len());
            state.files.push(contents);
        });
    }

    /// Somebody else removes a name, whatever the condition.
    pub fn remove_by_hand(&self, name: &str) {
        let _number = self.by_hand(|state| state.names.remove(name));
    }

    /// Changes names, which are safe at once.
    fn by_hand<T>(&self, change: impl FnOnce(&mut DiskState) -> T) -> T {
        let mut state = self.state();
        let changed = change(&mut state);
        state.renamings.clear();
        state.safe_names = state.names.clone();
        changed
    }

    /// Sets the condition from now on.
    pub fn set_condition(&self, condition: Condition) {
        self.state().condition = condition;
    }

    /// Loses power. The remaining names result from a prefix of the changes; the remaining contents are any choice of
    /// the unsynced sectors.
    pub fn lose_power(&self) {
        let mut guard = self.state();
        let DiskState { random, files, names, safe_names, renamings, powered, .. } = &mut *guard;
        *powered += 1;
        let kept = random.random_range(0..=renamings.len());
        for renaming in renamings.drain(..).take(kept) {
            match renaming {
                Renaming::Made { name, file } => {
                    safe_names.insert(name, file);
                }
                Renaming::Moved { from, to } => {
                    if let Some(file) = safe_names.remove(&from) {
                        safe_names.insert(to, file);
                    }
                }
                Renaming::Removed { name } => {
                    safe_names.remove(&name);
                }
            }
        }
        *names = safe_names.clone();
        for contents in files {
            contents.lose_power(random);
        }
        guard.forget_unnamed();
    }

    /// The process with open files has died: its handles are dead, too. Written data stays.
    pub fn detach(&self) {
        self.state().powered += 1;
    }

    /// Flips one bit of a file. False if there is nothing to flip.
    pub fn rot(&self, name: &str) -> bool {
        let mut guard = self.state();
        let DiskState { random, files, names, .. } = &mut *guard;
        let Some(file) = names.get(name) else { return false };
        files[*file].rot(random)
    }
}
