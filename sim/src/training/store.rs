//! The store of a run's checkpoints: a file system in memory, which all threads of the run share. Threads of different runs have
//! different ones. Used by `world` and by the product's code, through the State's port.

use std::cell::RefCell;
use std::io;
use std::path::Path;

use elastic_checkpoint::{FileSystem, MemoryFiles, SeekableRead, SyncedWrite};

thread_local! {
    /// The files of the run that this thread is part of.
    static FILES: RefCell<MemoryFiles> = RefCell::default();
}

/// The store of whichever run the calling thread is part of.
struct StoreOfThread;

/// Makes the calling thread part of the run that has these files.
pub(super) fn join(files: &MemoryFiles) {
    FILES.set(files.clone());
}

/// The store that a directory of checkpoints stands in.
pub(super) fn store_of(_directory: &Path) -> &'static dyn FileSystem {
    &StoreOfThread
}

fn files() -> MemoryFiles {
    FILES.with_borrow(Clone::clone)
}

impl FileSystem for StoreOfThread {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        files().make_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
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
