//! [`Interrupted`]: a disk with a disturbance at one of its operations: the operation fails, or another process has a turn
//! before it. Used by tests alone.

use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;

use crate::file_system::{FileSystem, SeekableRead, SyncedWrite};
use crate::memory_files::MemoryFiles;

/// A disk with a disturbance at one of its operations.
#[derive(Clone)]
pub(crate) struct Interrupted {
    disk: MemoryFiles,
    /// Operations before the disturbed one.
    left: Rc<Cell<u64>>,
    then: Rc<RefCell<Interruption>>,
}

/// The disturbance of an operation, which fails if this gives an error.
type Interruption = Box<dyn FnMut(&MemoryFiles) -> io::Result<()>>;

impl Interrupted {
    /// The disk, whose operation number `at`, counted from 0, is disturbed by `then`.
    pub(crate) fn new(
        disk: &MemoryFiles,
        at: u64,
        then: impl FnMut(&MemoryFiles) -> io::Result<()> + 'static,
    ) -> Self {
        let then: Interruption = Box::new(then);
        Self { disk: disk.clone(), left: Rc::new(Cell::new(at)), then: Rc::new(RefCell::new(then)) }
    }

    fn step(&self) -> io::Result<()> {
        let left = self.left.get();
        self.left.set(left.wrapping_sub(1));
        if left == 0 { (self.then.borrow_mut())(&self.disk) } else { Ok(()) }
    }

    /// Operations that are left before the disturbed one.
    pub(crate) fn left(&self) -> u64 {
        self.left.get()
    }

    /// Whether it has come to that operation.
    pub(crate) fn has_come(&self) -> bool {
        self.left.get() > u64::MAX / 2
    }
}

struct InterruptedWriter(Interrupted, Box<dyn SyncedWrite>);

impl Write for InterruptedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.step()?;
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.1.flush()
    }
}

impl SyncedWrite for InterruptedWriter {
    fn sync(&mut self) -> io::Result<()> {
        self.0.step()?;
        self.1.sync()
    }
}

impl FileSystem for Interrupted {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        self.disk.make_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.step()?;
        self.disk.list(directory)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn SyncedWrite>> {
        self.step()?;
        Ok(Box::new(InterruptedWriter(self.clone(), self.disk.create(path)?)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn SeekableRead>> {
        self.step()?;
        self.disk.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        self.disk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        self.disk.remove_file(path)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        self.disk.remove_directory(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        self.disk.sync_directory(path)
    }
}
