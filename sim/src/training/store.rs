//! The store of a run's checkpoints: a file system in memory, which all threads of the run share, and which cannot be listed now and
//! then. Threads of different runs have different ones. Used by `world` and by the product's code, through the State's port.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use elastic_checkpoint::{FileSystem, MemoryFiles, SeekableRead, SyncedWrite};
use elastic_worker::state::training::StorePort;

use super::seat::ThreadSeat;
use super::turnstile::ThreadHalt;

/// The store of a run. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct RunStore {
    pub(super) files: MemoryFiles,
    /// Number of the next listings that fail.
    unlisted: Arc<AtomicU32>,
}

impl RunStore {
    pub(super) fn new(seed: u64) -> Self {
        Self { files: MemoryFiles::new(seed), unlisted: Arc::default() }
    }

    /// The next listings fail.
    pub(super) fn fail_listings(&self, count: u32) {
        self.unlisted.store(count, Ordering::Relaxed);
    }

    fn fails_to_list(&self) -> bool {
        let fewer = |left: u32| left.checked_sub(1);
        self.unlisted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok()
    }
}

thread_local! {
    /// The store of the run that this thread is part of.
    static STORE: RefCell<RunStore> = RefCell::default();
    /// The process whose thread this is.
    static SEAT: RefCell<Option<Arc<ThreadSeat>>> = const { RefCell::new(None) };
}

/// The store of whichever run the calling thread is part of.
struct StoreOfThread;

/// Makes the calling thread part of the run that has this store; `seat` is its process's.
pub(super) fn join(store: &RunStore, seat: Option<&Arc<ThreadSeat>>) {
    STORE.set(store.clone());
    SEAT.set(seat.cloned());
}

/// The store as a training thread reaches it. It gives the turn away for a pause.
pub(super) const PORT: StorePort = StorePort { of: store_of, pause };

fn store_of(_directory: &Path) -> &'static dyn FileSystem {
    &StoreOfThread
}

fn pause(_: Duration) {
    if let Some(seat) = SEAT.with_borrow(Clone::clone) {
        seat.halt_at(ThreadHalt::Between);
    }
}

fn files() -> MemoryFiles {
    STORE.with_borrow(|store| store.files.clone())
}

impl FileSystem for StoreOfThread {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        files().make_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        if STORE.with_borrow(RunStore::fails_to_list) {
            return Err(io::Error::other("the plan says so"));
        }
        files().list(directory)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn SyncedWrite>> {
        files().create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn SeekableRead>> {
        files().open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        files().rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        files().remove_file(path)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        files().remove_directory(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        files().sync_directory(path)
    }
}
