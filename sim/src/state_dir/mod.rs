//! The driver's state directory, which persists over the lives of the driver. The world opens it for each life, cuts
//! the power of its machine and fills its disk.
//!
//! The latest handle that has written owns the journal, and older handles are fenced, as in a store for several
//! drivers. In mode *cores* the journal is in memory. In mode *actors* it is the product's, on a simulated disk.

mod archive;
mod displaced;
mod memory;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use elastic_driver::journal::Image;
use elastic_journal::{
    FileJournal, Journal, JournalBatch, JournalError, JournalPlace as _, JournalSnapshot,
    LoadedJournal,
};
use elastic_protocol::{GenerationId, Incarnation};
use elastic_runtime::random::stream;

pub(crate) use self::archive::Archive;
use self::displaced::Displacement;
use self::memory::MemoryJournal;
use crate::disk::{Condition, Disk, DiskJournalPlace};

/// The journal's file.
const FILE: &str = "journal.redb";

#[derive(Debug)]
enum Store {
    Memory(MemoryJournal),
    Disk(Disk),
}

/// The state directory.
#[derive(Debug)]
pub(crate) struct SimulatedStateDir {
    store: Store,
    seed: u64,
    /// Number of losses of the state directory.
    losses: u64,
    /// Number of handles opened.
    opened: AtomicU64,
    /// The handle that wrote last. Earlier handles cannot write.
    holder: Arc<AtomicU64>,
    archive: Archive,
    /// The journal's bytes as the newest driver found them.
    former: RefCell<Option<Vec<u8>>>,
    /// The journal's replacement, if somebody has taken the journal away.
    displaced: Option<Displacement>,
    /// Whether the journal of another job stands there.
    is_anothers: Arc<AtomicBool>,
    /// Whether the newest driver was told so.
    told: Arc<AtomicBool>,
}

impl SimulatedStateDir {
    /// An empty state directory. `is_real`: the product's store on a simulated disk.
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
            former: RefCell::default(),
            displaced: None,
            is_anothers: Arc::default(),
            told: Arc::default(),
        }
    }

    /// Opens the journal. Once this handle has written, no earlier handle can.
    ///
    /// # Errors
    /// Those of the product's store.
    pub(crate) fn open(&self) -> Result<SimulatedJournal, JournalError> {
        let number = self.opened.fetch_add(1, Ordering::Relaxed) + 1;
        let journal: Box<dyn Journal> = match &self.store {
            Store::Memory(journal) => Box::new(journal.clone()),
            Store::Disk(disk) => {
                disk.detach();
                let place = DiskJournalPlace::new(disk.clone(), FILE);
                let found = place.read()?.map(|(bytes, ())| bytes);
                let journal = FileJournal::open_at(place)?.identified_by(Image::identity_of);
                *self.former.borrow_mut() = found;
                Box::new(journal)
            }
        };
        self.told.store(false, Ordering::Relaxed);
        let (holder, archive) = (Arc::clone(&self.holder), self.archive.clone());
        let (is_anothers, told) = (Arc::clone(&self.is_anothers), Arc::clone(&self.told));
        Ok(SimulatedJournal { journal, number, holder, archive, wrong: None, is_anothers, told })
    }

    /// Begins with the journal of a recorded job, up to its last generation and incarnation. Only a journal in memory does.
    pub(crate) fn begin_from(
        &self,
        snapshot: &JournalSnapshot,
        generation: GenerationId,
        incarnation: Incarnation,
    ) {
        if let Store::Memory(journal) = &self.store {
            journal.begin_from(snapshot);
            self.archive.begin_from(snapshot, generation, incarnation);
        }
    }

    /// The process with the open journal is killed. With `power`, its machine loses power, too.
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

    /// Loses the state directory. The next driver begins another job.
    pub(crate) fn lose(&mut self) {
        self.losses += 1;
        self.displaced = None;
        self.is_anothers.store(false, Ordering::Relaxed);
        *self.former.borrow_mut() = None;
        self.holder.store(u64::MAX, Ordering::Relaxed);
        self.holder = Arc::default();
        self.archive = Archive::default();
        let random = stream(self.seed, "driver's disk", self.losses);
        match &mut self.store {
            Store::Memory(journal) => journal.lose(),
            Store::Disk(disk) => *disk = Disk::new(random),
        }
    }

    /// The records that the journal has acknowledged.
    pub(crate) const fn archive(&self) -> &Archive {
        &self.archive
    }
}

/// The journal as opened by one life of the driver.
pub(crate) struct SimulatedJournal {
    journal: Box<dyn Journal>,
    number: u64,
    holder: Arc<AtomicU64>,
    archive: Archive,
    /// The error in the loaded journal, if any.
    wrong: Option<String>,
    /// Whether the journal of another job stands in its place, where the store is in memory.
    is_anothers: Arc<AtomicBool>,
    /// Whether the newest driver was told so.
    told: Arc<AtomicBool>,
}

impl SimulatedJournal {
    /// Takes the error in the loaded journal (D-4), if there was one.
    pub(crate) fn take_complaint(&mut self) -> Result<(), String> {
        self.wrong.take().map_or(Ok(()), Err)
    }
}

impl Journal for SimulatedJournal {
    fn load(&mut self) -> Result<LoadedJournal, JournalError> {
        let loaded = self.journal.load()?;
        self.wrong = self.archive.loaded(&loaded).err();
        Ok(loaded)
    }

    fn append(&mut self, batch: &JournalBatch) -> Result<(), JournalError> {
        if self.holder.load(Ordering::Relaxed) > self.number {
            return Err(JournalError::Fenced("simulated: a later driver has it".to_owned()));
        }
        let appended = match self.is_anothers.load(Ordering::Relaxed) {
            true => Err(displaced::in_memory()),
            false => self.journal.append(batch),
        };
        if let Err(JournalError::Displaced { .. }) = appended {
            self.told.store(true, Ordering::Relaxed);
        }
        appended?;
        self.holder.store(self.number, Ordering::Relaxed);
        self.archive.acknowledged(batch);
        Ok(())
    }
}

impl std::fmt::Debug for SimulatedJournal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SimulatedJournal")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
