//! The file system that checkpoints need: a small trait, and its implementation by the operating system. The trait
//! allows tests to cut the power at each operation, and other stores to take the place of files. Used by all of this
//! crate.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

/// A file that is being written. Its content is safe after [`sync`](Self::sync), not after the last write.
pub trait SyncedWrite: Write {
    /// Makes all that was written safe.
    ///
    /// # Errors
    /// The system's error: the bytes that were written may be lost, even if a later sync succeeds.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file that is read, from any place on, and by any thread.
pub trait SeekableRead: Read + Seek + Send {}

impl<T: Read + Seek + Send> SeekableRead for T {}

/// A directory tree. Changes of a directory (new, renamed and removed names) are safe after its
/// [`sync_directory`](Self::sync_directory).
///
/// A store of objects fits, too. Its objects appear when they are [synced](SyncedWrite::sync), its directories are
/// prefixes of names, and a rename is a copy followed by a removal. Two things are required of it: a renamed file has
/// its new name only when it is whole, and of the files in a renamed directory, `manifest.json` loses its old name
/// first. `objects` in this crate's tests is such a store.
pub trait FileSystem {
    /// Makes a directory, with those above it. One that exists already is no error.
    ///
    /// # Errors
    /// The system's error.
    fn make_directory(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory, in no order.
    ///
    /// # Errors
    /// The system's error.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// Makes a file, or empties one that exists.
    ///
    /// # Errors
    /// The system's error.
    fn create(&self, path: &Path) -> io::Result<Box<dyn SyncedWrite>>;
    /// Opens a file to read it.
    ///
    /// # Errors
    /// The system's error.
    fn open(&self, path: &Path) -> io::Result<Box<dyn SeekableRead>>;
    /// Renames a file or a directory; a file of the new name is replaced.
    ///
    /// # Errors
    /// The system's error.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// The system's error.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    ///
    /// # Errors
    /// The system's error.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;
    /// Whether a path is a symbolic link. The target of a link belongs to others, so nothing is removed there.
    fn is_link(&self, _path: &Path) -> bool {
        false
    }
    /// Makes the names in a directory safe.
    ///
    /// # Errors
    /// The system's error.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
}

/// The store that holds a directory of checkpoints. Saves, resumes and inspections all ask here: no other place names a
/// store. Today it is the system's files for every directory.
pub fn store_of(_directory: &Path) -> &'static dyn FileSystem {
    &LocalFiles
}

/// The system's file system: local, NFS, or another that is mounted.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalFiles;

impl SyncedWrite for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl FileSystem for LocalFiles {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name()));
        // No name of ours is anything but UTF-8: the others are not ours.
        names.filter_map(|name| name.map(|name| name.into_string().ok()).transpose()).collect()
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn SyncedWrite>> {
        Ok(Box::new(File::create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn SeekableRead>> {
        // To open a pipe is to wait for its writer.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file"));
        }
        Ok(Box::new(File::open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn is_link(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        // The directory of a relative path with one part.
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        File::open(path)?.sync_all()
    }
}
