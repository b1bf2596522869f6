//! An open file of the simulated disk: redb's storage for a journal. Made by [`Disk`].

use std::io;

use super::{Condition, Disk, DiskState};

/// An open file. It is dead after a loss of power or the death of its process.
#[derive(Clone, Debug)]
pub struct DiskFile {
    disk: Disk,
    file: usize,
    powered: u64,
}

impl DiskFile {
    pub(super) const fn new(disk: Disk, file: usize, powered: u64) -> Self {
        Self { disk, file, powered }
    }

    fn with<T>(&self, work: impl FnOnce(&mut DiskState, usize) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.state();
        if state.powered != self.powered {
            return Err(io::ErrorKind::StaleNetworkFileHandle.into());
        }
        work(&mut state, self.file)
    }

    /// Length in bytes.
    ///
    /// # Errors
    /// After a loss of power.
    pub fn len(&self) -> io::Result<u64> {
        self.with(|state, file| Ok(state.files[file].len() as u64))
    }

    /// Whether the file is empty.
    ///
    /// # Errors
    /// After a loss of power.
    pub fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|length| length == 0)
    }

    /// Reads `out` from an offset.
    ///
    /// # Errors
    /// If that is beyond the end, and after a loss of power.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|state, file| {
            let is_read = state.files[file].read(offset as usize, out);
            is_read.then_some(()).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
        })
    }

    /// Makes the file longer, with zeros, or shorter.
    ///
    /// # Errors
    /// If the disk's condition forbids it, and after a loss of power.
    pub fn set_len(&self, length: u64) -> io::Result<()> {
        self.with(|state, file| {
            state.may_write()?;
            may_grow(state, file, length)?;
            state.files[file].set_len(length as usize);
            Ok(())
        })
    }

    /// Writes. Extends the file if that goes beyond its end.
    ///
    /// # Errors
    /// If the disk's condition forbids it, and after a loss of power.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|state, file| {
            state.may_write()?;
            may_grow(state, file, offset + data.len() as u64)?;
            state.files[file].write(offset as usize, data);
            Ok(())
        })
    }

    /// Makes all written data safe, if it returns without an error.
    ///
    /// # Errors
    /// If the disk's condition forbids it, and after a loss of power.
    pub fn sync(&self) -> io::Result<()> {
        self.with(|state, file| {
            let DiskState { files, random, .. } = state;
            if state.condition == Condition::FailsSyncs {
                files[file].sync_badly(random);
                return Err(io::Error::other("simulated: input/output error"));
            }
            files[file].sync();
            Ok(())
        })
    }
}

fn may_grow(state: &DiskState, file: usize, length: u64) -> io::Result<()> {
    let grows = length > state.files[file].len() as u64;
    match state.condition {
        Condition::Full if grows => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    }
}

impl redb::StorageBackend for DiskFile {
    fn len(&self) -> io::Result<u64> {
        Self::len(self)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        Self::read(self, offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Self::set_len(self, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        Self::write(self, offset, data)
    }
}
