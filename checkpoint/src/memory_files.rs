//! A file system in memory that can lose power. Content that was not synced survives, is torn, or is gone; names that were
//! not synced survive up to some change, each directory on its own. Used by the tests of this crate, and by the simulation as
//! the storage of whole clusters.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::file_system::{FileSystem, SeekableRead, SyncedWrite};

#[derive(Clone, Debug, Default)]
struct MemoryFile {
    seen: Vec<u8>,
    safe: Vec<u8>,
}

#[derive(Clone, Debug)]
enum MemoryEntry {
    File(usize),
    Directory,
}

/// A change of one directory that is not safe yet.
#[derive(Clone, Debug)]
enum NameChange {
    Made(String, MemoryEntry),
    Removed(String),
    Renamed(String, String),
}

#[derive(Debug, Default)]
struct MemoryTree {
    contents: Vec<MemoryFile>,
    seen: BTreeMap<String, MemoryEntry>,
    safe: BTreeMap<String, MemoryEntry>,
    changes: Vec<NameChange>,
    /// Operations until the power fails.
    left: Option<u64>,
    operations: u64,
    is_full: bool,
    random: u64,
}

impl MemoryTree {
    fn next(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) as usize % below.max(1)
    }

    /// Counts a change; from the moment when the power fails on, none takes place.
    fn step(&mut self) -> io::Result<()> {
        self.operations += 1;
        if let Some(left) = &mut self.left {
            if *left == 0 {
                return Err(io::Error::other("no power"));
            }
            *left -= 1;
        }
        Ok(())
    }

    fn file(&self, path: &Path) -> io::Result<usize> {
        match self.seen.get(text(path)) {
            Some(MemoryEntry::File(number)) => Ok(*number),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// The names below a directory, at any depth: they follow each other in the order of texts.
fn below<'names>(
    names: &'names BTreeMap<String, MemoryEntry>,
    directory: &str,
) -> impl Iterator<Item = &'names String> {
    let start = if directory.is_empty() { String::new() } else { format!("{directory}/") };
    let from = names.range::<str, _>((Bound::Included(&*start), Bound::Unbounded));
    from.map(|(name, _)| name).take_while(move |name| name.starts_with(&start))
}

/// The text of a path. Checkpoints have no other names.
fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

fn apply(names: &mut BTreeMap<String, MemoryEntry>, change: &NameChange) {
    match change {
        NameChange::Made(path, node) => {
            names.insert(path.clone(), node.clone());
        }
        NameChange::Removed(path) => {
            names.remove(path);
        }
        NameChange::Renamed(from, to) => {
            let inside: Vec<String> = below(names, from).cloned().collect();
            for name in std::iter::once(from.clone()).chain(inside) {
                if let Some(node) = names.remove(&name) {
                    names.insert(format!("{to}{}", &name[from.len()..]), node);
                }
            }
        }
    }
}

/// The directory that a name is in; empty: the root.
fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// The directory whose sync makes a change safe.
fn directory_of(change: &NameChange) -> &str {
    let (NameChange::Made(name, _) | NameChange::Removed(name) | NameChange::Renamed(_, name)) =
        change;
    parent(name)
}

/// The file system; clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct MemoryFiles(Arc<Mutex<MemoryTree>>);

impl MemoryFiles {
    /// An empty file system. The seed decides which unsynced changes survive a loss of power.
    pub fn new(seed: u64) -> Self {
        let disk = Self::default();
        disk.tree().random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        disk
    }

    fn tree(&self) -> MutexGuard<'_, MemoryTree> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails every change after this many.
    pub fn cut_after(&self, operations: u64) {
        self.tree().left = Some(operations);
    }

    /// Number of changes so far: writes, syncs, and changes of names.
    pub fn operations(&self) -> u64 {
        self.tree().operations
    }

    /// Makes the disk full, or makes room again.
    pub fn fill(&self, is_full: bool) {
        self.tree().is_full = is_full;
    }

    /// Loses power, and has it back: synced content is left, with some of the rest.
    pub fn lose_power(&self) {
        let mut disk = self.tree();
        let mut by_directory: BTreeMap<String, Vec<NameChange>> = BTreeMap::new();
        for change in std::mem::take(&mut disk.changes) {
            by_directory.entry(directory_of(&change).to_owned()).or_default().push(change);
        }
        for changes in by_directory.into_values() {
            let kept = disk.next(changes.len() + 1);
            for change in changes.iter().take(kept) {
                apply(&mut disk.safe, change);
            }
        }
        let is_orphaned = |name: &&String| {
            let directory = parent(name);
            !directory.is_empty() && !disk.safe.contains_key(directory)
        };
        let orphaned: Vec<String> = disk.safe.keys().filter(is_orphaned).cloned().collect();
        for name in orphaned {
            disk.safe.remove(&name);
        }
        for number in 0..disk.contents.len() {
            if disk.contents[number].seen == disk.contents[number].safe {
                continue;
            }
            let MemoryFile { mut seen, safe } = disk.contents[number].clone();
            let survives = match disk.next(3) {
                0 => safe,
                1 => seen,
                _ => {
                    let length = disk.next(seen.len() + 1);
                    seen[length / 2..].fill(0);
                    seen.truncate(length);
                    seen
                }
            };
            disk.contents[number] = MemoryFile { seen: survives.clone(), safe: survives };
        }
        disk.seen = disk.safe.clone();
        disk.left = None;
    }

    /// Changes a file's bytes, as rot does.
    ///
    /// # Errors
    /// There is no such file.
    pub fn change(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut disk = self.tree();
        let number = disk.file(path)?;
        let content = &mut disk.contents[number];
        change(&mut content.seen);
        content.safe = content.seen.clone();
        Ok(())
    }

    /// All files, by their paths.
    pub fn files(&self) -> Vec<PathBuf> {
        let disk = self.tree();
        let files = disk.seen.iter().filter(|(_, node)| matches!(node, MemoryEntry::File(_)));
        files.map(|(name, _)| PathBuf::from(name)).collect()
    }

    fn change_names(&self, change: NameChange) -> io::Result<()> {
        let mut disk = self.tree();
        disk.step()?;
        apply(&mut disk.seen, &change);
        disk.changes.push(change);
        Ok(())
    }
}

struct MemoryWriter(MemoryFiles, usize);

impl Write for MemoryWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut disk = self.0.tree();
        disk.step()?;
        if disk.is_full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        disk.contents[self.1].seen.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SyncedWrite for MemoryWriter {
    fn sync(&mut self) -> io::Result<()> {
        let mut disk = self.0.tree();
        disk.step()?;
        let content = &mut disk.contents[self.1];
        content.safe.clone_from(&content.seen);
        Ok(())
    }
}

impl FileSystem for MemoryFiles {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        let above: Vec<&Path> = path.ancestors().collect();
        for path in above.into_iter().rev().filter(|path| !path.as_os_str().is_empty()) {
            if !self.tree().seen.contains_key(text(path)) {
                let name = text(path).to_owned();
                self.change_names(NameChange::Made(name, MemoryEntry::Directory))?;
            }
        }
        Ok(())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let disk = self.tree();
        let directory = text(directory);
        if !directory.is_empty() && !disk.seen.contains_key(directory) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inside = below(&disk.seen, directory).filter(|name| parent(name) == directory);
        let own_name = |name: &String| name.rsplit('/').next().unwrap_or_default().to_owned();
        Ok(inside.map(own_name).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn SyncedWrite>> {
        let known = self.tree().file(path);
        let number = match known {
            Ok(number) => {
                let mut disk = self.tree();
                disk.step()?;
                disk.contents[number].seen.clear();
                number
            }
            Err(_) => {
                let number = self.tree().contents.len();
                self.tree().contents.push(MemoryFile::default());
                self.change_names(NameChange::Made(
                    text(path).to_owned(),
                    MemoryEntry::File(number),
                ))?;
                number
            }
        };
        Ok(Box::new(MemoryWriter(self.clone(), number)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn SeekableRead>> {
        let disk = self.tree();
        let number = disk.file(path)?;
        Ok(Box::new(io::Cursor::new(disk.contents[number].seen.clone())))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change_names(NameChange::Renamed(text(from).to_owned(), text(to).to_owned()))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.tree().file(path)?;
        self.change_names(NameChange::Removed(text(path).to_owned()))
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        if !self.list(path)?.is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        self.change_names(NameChange::Removed(text(path).to_owned()))
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.tree();
        disk.step()?;
        let (of_this, others): (Vec<NameChange>, Vec<NameChange>) =
            std::mem::take(&mut disk.changes)
                .into_iter()
                .partition(|c| directory_of(c) == text(path));
        for change in &of_this {
            apply(&mut disk.safe, change);
        }
        disk.changes = others;
        Ok(())
    }
}
