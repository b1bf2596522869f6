//! A simulated disk: what is written is seen at once by whoever reads, and is safe only after a sync. When power
//! goes, sectors that were not synced survive or not, each for itself, whatever the order of their writes: so
//! writes are reordered, torn and lost. Names of files are metadata of their own, safe after a sync of the
//! directory. It may be full, read-only, fail to sync, and rot. All of it comes from the seed.
//!
//! What a write promises is POSIX's and Linux's: a sync that fails has lost what it could not write, and the next
//! one does not write it either ("Can Applications Recover from fsync Failures?", Rebello et al., USENIX ATC 2020).
//!
//! A driver's machine has one; a journal lies in a [`DiskFile`], which is what redb wants of its storage.

mod file;
mod store;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use self::file::Contents;
pub use self::store::DiskFile;

/// The unit in which a disk writes: all of it or nothing.
pub const SECTOR_BYTES: usize = 512;

/// How a disk serves writes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Condition {
    /// As it should.
    #[default]
    Sound,
    /// No file can grow.
    Full,
    /// Nothing can be written.
    ReadOnly,
    /// Syncs fail, and lose some of what they should have written.
    FailsSyncs,
}

/// What a directory says since it was synced last.
#[derive(Clone, Debug)]
enum Renaming {
    Made { name: String, file: usize },
    Moved { from: String, to: String },
    Removed { name: String },
}

#[derive(Debug)]
struct State {
    random: ChaCha8Rng,
    condition: Condition,
    files: Vec<Contents>,
    /// What is seen now.
    names: BTreeMap<String, usize>,
    /// What is safe.
    safe_names: BTreeMap<String, usize>,
    renamings: Vec<Renaming>,
    /// Counts losses of power, and deaths of the process: handles from before are dead.
    powered: u64,
}

impl State {
    fn may_write(&self) -> io::Result<()> {
        match self.condition {
            Condition::ReadOnly => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
            _ => Ok(()),
        }
    }
}

/// A machine's disk. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct Disk {
    state: Arc<Mutex<State>>,
}

impl Disk {
    /// An empty disk; `random` decides what survives.
    pub fn new(random: ChaCha8Rng) -> Self {
        let state = State {
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a file, which is made if there is none.
    ///
    /// # Errors
    /// As the disk's condition has it.
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

    /// Gives a file another name, in the place of whatever had it.
    ///
    /// # Errors
    /// If there is no such file, or as the disk's condition has it.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.may_write()?;
        let file = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), file);
        let (from, to) = (from.to_owned(), to.to_owned());
        state.renamings.push(Renaming::Moved { from, to });
        Ok(())
    }

    /// Takes a name away.
    ///
    /// # Errors
    /// If there is no such file, or as the disk's condition has it.
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
    /// As the disk's condition has it.
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
                Ok(())
            }
        }
    }

    /// From now on it is like this.
    pub fn set_condition(&self, condition: Condition) {
        self.state().condition = condition;
    }

    /// Power goes. What is left is what will be found: of names a prefix of what was done, of contents any
    /// choice of the sectors that were not synced.
    pub fn lose_power(&self) {
        let mut guard = self.state();
        let State { random, files, names, safe_names, renamings, powered, .. } = &mut *guard;
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
    }

    /// The process that had files open is dead: its handles are, too. What it wrote stays as it is.
    pub fn detach(&self) {
        self.state().powered += 1;
    }

    /// One bit of a file is no more what was written; whether there was one.
    pub fn rot(&self, name: &str) -> bool {
        let mut guard = self.state();
        let State { random, files, names, .. } = &mut *guard;
        let Some(file) = names.get(name) else { return false };
        files[*file].rot(random)
    }
}
