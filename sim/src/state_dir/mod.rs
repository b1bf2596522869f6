//! The driver's state directory: what it keeps over the lives of the driver. The world opens it for each life, takes
//! power from its machine, fills its disk.
//!
//! Whoever writes to the journal first after opening it has it from then on: the handle of a former life is fenced,
//! as a store for several drivers does it. In *cores* the journal is one in memory, in *actors* the product's, on a simulated disk.

mod archive;
mod memory;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use elastic_journal::{Batch, FileJournal, Journal, JournalError, Loaded};
use elastic_runtime::random::stream;

pub(crate) use self::archive::Archive;
use self::memory::MemoryJournal;
use crate::disk::{Condition, Disk};

/// The journal's file.
const FILE: &str = "journal.redb";

#[derive(Debug)]
enum Store {
    Memory(MemoryJournal),
    Disk(Disk),
}

/// The state directory.
#[derive(Debug)]
pub(crate) struct StateDir {
    store: Store,
    seed: u64,
    /// How often the state directory was lost.
    losses: u64,
    /// Counts handles.
    opened: AtomicU64,
    /// The handle that wrote last: none from before it can.
    holder: Arc<AtomicU64>,
    archive: Archive,
}

impl StateDir {
    /// An empty one. `is_real`: the product's store on a simulated disk.
    pub(crate) fn new(seed: u64, is_real: bool) -> Self {
        let random = stream(seed, "driver's disk", 0);
        let store = if is_real {
            Store::Disk(Disk::new(random))
        } else {
            Store::Memory(MemoryJournal::new(random))
        };
        Self {
            store,
            seed,
            losses: 0,
            opened: AtomicU64::new(0),
            holder: Arc::default(),
            archive: Archive::default(),
        }
    }

    /// Opens the journal: once this handle has written, none from before it can.
    ///
    /// # Errors
    /// As the product's store has it.
    pub(crate) fn open(&self) -> Result<Handle, JournalError> {
        let number = self.opened.fetch_add(1, Ordering::Relaxed) + 1;
        let journal: Box<dyn Journal> = match &self.store {
            Store::Memory(journal) => Box::new(journal.clone()),
            Store::Disk(disk) => {
                disk.detach();
                disk.open(FILE)?;
                disk.sync_directory()?;
                let disk = disk.clone();
                Box::new(FileJournal::open_on(move || {
                    disk.open(FILE).expect("the file is there: it was opened before")
                })?)
            }
        };
        let (holder, archive) = (Arc::clone(&self.holder), self.archive.clone());
        Ok(Handle { journal, number, holder, archive, wrong: None })
    }

    /// The process that has the journal open is killed; with `power`, the machine loses it.
    pub(crate) fn crash(&self, power: bool) {
        if let Store::Disk(disk) = &self.store {
            if power { disk.lose_power() } else { disk.detach() }
        }
    }

    pub(crate) fn set_condition(&self, condition: Condition) {
        match &self.store {
            Store::Memory(journal) => journal.set_condition(condition),
            Store::Disk(disk) => disk.set_condition(condition),
        }
    }

    /// The state directory is lost: whoever starts next begins another job.
    pub(crate) fn lose(&mut self) {
        self.losses += 1;
        self.holder.store(u64::MAX, Ordering::Relaxed);
        self.holder = Arc::default();
        self.archive = Archive::default();
        let random = stream(self.seed, "driver's disk", self.losses);
        match &mut self.store {
            Store::Memory(journal) => journal.lose(),
            Store::Disk(disk) => *disk = Disk::new(random),
        }
    }

    /// What the journal has acknowledged.
    pub(crate) const fn archive(&self) -> &Archive {
        &self.archive
    }
}

/// One life's hold on the journal.
pub(crate) struct Handle {
    journal: Box<dyn Journal>,
    number: u64,
    holder: Arc<AtomicU64>,
    archive: Archive,
    /// What was wrong with what it has read.
    wrong: Option<String>,
}

impl Handle {
    /// What was wrong with what it has read (D-4), if something was.
    pub(crate) fn take_complaint(&mut self) -> Result<(), String> {
        self.wrong.take().map_or(Ok(()), Err)
    }
}

impl Journal for Handle {
    fn load(&mut self) -> Result<Loaded, JournalError> {
        let loaded = self.journal.load()?;
        self.wrong = self.archive.loaded(&loaded).err();
        Ok(loaded)
    }

    fn append(&mut self, batch: &Batch) -> Result<(), JournalError> {
        if self.holder.load(Ordering::Relaxed) > self.number {
            return Err(JournalError::Fenced("simulated: a later driver has it".to_owned()));
        }
        self.journal.append(batch)?;
        self.holder.store(self.number, Ordering::Relaxed);
        self.archive.acknowledged(batch);
        Ok(())
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Handle").field("number", &self.number).finish_non_exhaustive()
    }
}
