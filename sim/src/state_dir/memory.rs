//! A journal in memory that keeps its promise: a batch is stored whole or not at all. It serves runs in large
//! numbers. [`FileJournal`](elastic_journal::FileJournal) on [`Disk`](crate::disk::Disk) covers a real store on a
//! real disk.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use elastic_journal::{Journal, JournalBatch, JournalError, JournalSnapshot, LoadedJournal};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::disk::Condition;

#[derive(Debug)]
struct MemoryContents {
    loaded: LoadedJournal,
    condition: Condition,
    random: ChaCha8Rng,
}

/// A journal in memory. Clones share their contents.
#[derive(Clone, Debug)]
pub(super) struct MemoryJournal {
    kept: Arc<Mutex<MemoryContents>>,
}

impl MemoryJournal {
    /// An empty journal. `random` decides whether a failed sync has written.
    pub(super) fn new(random: ChaCha8Rng) -> Self {
        let kept = MemoryContents {
            loaded: LoadedJournal::default(),
            condition: Condition::Sound,
            random,
        };
        Self { kept: Arc::new(Mutex::new(kept)) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut MemoryContents) -> T) -> T {
        work(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_condition(&self, condition: Condition) {
        self.with(|kept| kept.condition = condition);
    }

    /// Begins with a snapshot.
    pub(super) fn begin_from(&self, snapshot: &JournalSnapshot) {
        self.with(|kept| kept.loaded.snapshot = Some(snapshot.clone()));
    }

    /// Loses all contents.
    pub(super) fn lose(&self) {
        self.with(|kept| kept.loaded = LoadedJournal::default());
    }
}

impl Journal for MemoryJournal {
    fn load(&mut self) -> Result<LoadedJournal, JournalError> {
        Ok(self.with(|kept| kept.loaded.clone()))
    }

    fn append(&mut self, batch: &JournalBatch) -> Result<(), JournalError> {
        self.with(|kept| match kept.condition {
            Condition::Sound => store(&mut kept.loaded, batch),
            Condition::Full => Err(io::Error::from(io::ErrorKind::StorageFull).into()),
            Condition::ReadOnly => Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem).into()),
            Condition::FailsSyncs => {
                if kept.random.random_bool(0.5) {
                    store(&mut kept.loaded, batch)?;
                }
                Err(io::Error::other("simulated: input/output error").into())
            }
        })
    }
}

fn store(loaded: &mut LoadedJournal, batch: &JournalBatch) -> Result<(), JournalError> {
    let last = loaded.last();
    let Some(known) = (last + 1).checked_sub(batch.first) else {
        let what = format!("it ends at record {last}, not at {}", batch.first - 1);
        return Err(JournalError::Corrupt(what));
    };
    loaded.records.extend(batch.records.iter().skip(known as usize).cloned());
    if let Some(snapshot) = &batch.snapshot {
        let covered = loaded.snapshot.as_ref().map_or(0, |snapshot| snapshot.upto);
        if covered < snapshot.upto {
            loaded.records.drain(..(snapshot.upto - covered) as usize);
            loaded.snapshot = Some(snapshot.clone());
        }
    }
    Ok(())
}
