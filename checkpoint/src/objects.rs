//! A store of objects behind [`FileSystem`], like object storage: names without directories, objects that appear whole
//! or not at all, no renaming but a copy and a removal, and requests that fail at any time. Test-only: it shows that
//! the order of a save and the search for the newest checkpoint need no more than that.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Cursor, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::file_system::{FileSystem, SeekableRead, SyncedWrite};

#[derive(Debug, Default)]
struct Bucket {
    objects: BTreeMap<PathBuf, Vec<u8>>,
    requests: u64,
    /// Changes until none takes place any more.
    left: Option<u64>,
}

impl Bucket {
    /// Counts a request that changes something.
    fn request(&mut self) -> io::Result<()> {
        self.requests += 1;
        match &mut self.left {
            Some(0) => return Err(io::ErrorKind::ConnectionReset.into()),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }

    fn put(&mut self, path: &Path, content: Vec<u8>) -> io::Result<()> {
        self.request()?;
        self.objects.insert(path.to_owned(), content);
        Ok(())
    }

    fn delete(&mut self, path: &Path) -> io::Result<()> {
        self.request()?;
        self.objects.remove(path);
        Ok(())
    }
}

/// The store; clones are the same one.
#[derive(Clone, Debug, Default)]
struct Objects(Rc<RefCell<Bucket>>);

/// An object that is being uploaded.
struct Upload {
    store: Objects,
    path: PathBuf,
    content: Vec<u8>,
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.content.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SyncedWrite for Upload {
    fn sync(&mut self) -> io::Result<()> {
        self.store.0.borrow_mut().put(&self.path, self.content.clone())
    }
}

impl FileSystem for Objects {
    fn make_directory(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let bucket = self.0.borrow();
        let within = bucket.objects.keys().filter_map(|path| path.strip_prefix(directory).ok());
        let first = |path: &Path| {
            path.components().next().map(|name| name.as_os_str().to_string_lossy().into_owned())
        };
        let names: BTreeSet<String> = within.filter_map(first).collect();
        if names.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(names.into_iter().collect())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn SyncedWrite>> {
        let (store, path) = (self.clone(), path.to_owned());
        Ok(Box::new(Upload { store, path, content: Vec::new() }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn SeekableRead>> {
        let content = self.0.borrow().objects.get(path).cloned();
        Ok(Box::new(Cursor::new(content.ok_or(io::ErrorKind::NotFound)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut bucket = self.0.borrow_mut();
        let moved: Vec<(PathBuf, Vec<u8>)> = bucket
            .objects
            .iter()
            .filter(|(path, _)| path.starts_with(from))
            .map(|(path, content)| (path.clone(), content.clone()))
            .collect();
        for (path, content) in &moved {
            let rest = path.strip_prefix(from).map_err(io::Error::other)?;
            let new = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
            bucket.put(&new, content.clone())?;
        }
        // The manifest's name is the first in the order. If the removals fail half-way, the old checkpoint is therefore
        // partial.
        moved.iter().try_for_each(|(path, _)| bucket.delete(path))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.0.borrow_mut().delete(path)
    }

    fn remove_directory(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::commit;
    use crate::*;

    const WRITERS: u32 = 3;
    const KEEP: Retention = Retention::newest(2);

    fn root() -> &'static Path {
        Path::new("bucket/run-7")
    }

    fn save(store: &Objects, step: u64) -> Result<(), SaveError> {
        let (bytes, tensors) = commit(step);
        let position = json!({ "consumed": step });
        let snapshot = Snapshot { bytes: &bytes, tensors: &tensors, position: &position };
        let job = "9d1f".to_owned();
        let world_size = WRITERS;
        let attempt =
            SaveAttempt { job, name: None, term: 1, generation: 1, step, world_size, fields: None };
        for rank in 0..WRITERS {
            write_part(store, root(), &attempt, rank, &snapshot, &mut |_| Ok(()))?;
        }
        seal(store, root(), &attempt, 0, KEEP).map(|_| ())
    }

    fn store_with(steps: std::ops::RangeInclusive<u64>) -> Objects {
        let store = Objects::default();
        steps.for_each(|step| save(&store, step).expect("all requests are answered"));
        store
    }

    /// The step of the newest sealed checkpoint. Checks that it has the saved content, and that all sealed ones are
    /// whole.
    fn newest_of(store: &Objects) -> u64 {
        for candidate in list(store, root()).expect("it is there") {
            if let Ok(manifest) = candidate.manifest {
                verify(store, &candidate.path, &manifest).expect("a sealed one is whole");
            }
        }
        let (found, _) = newest(store, root(), None).expect("there are some");
        let found = found.expect("there is one");
        assert_eq!(found.bytes, commit(found.manifest.step).0);
        found.manifest.step
    }

    #[test]
    fn c_1_object_storage_that_fails_at_any_request_has_the_old_checkpoint_or_the_new_one() {
        let store = store_with(1..=3);
        let before = store.0.borrow().requests;
        save(&store, 4).expect("all requests are answered");
        let requests = store.0.borrow().requests - before;
        assert_eq!(
            list(&store, root()).expect("it is there").len(),
            KEEP.keep,
            "older ones are removed"
        );
        for cut in 0..=requests {
            let store = store_with(1..=3);
            store.0.borrow_mut().left = Some(cut);
            let is_saved = save(&store, 4).is_ok();
            store.0.borrow_mut().left = None;
            let newest = newest_of(&store);
            assert!(newest == 4 || (newest == 3 && !is_saved), "{newest} after {cut} requests");
            // Leftovers of the failed save do not disturb a later one.
            save(&store, 5).expect("all requests are answered");
            assert_eq!(newest_of(&store), 5);
        }
    }

    #[test]
    fn checkpoints_after_the_one_that_is_loaded_are_set_aside_whatever_fails() {
        let requests = {
            let store = store_with(1..=2);
            let before = store.0.borrow().requests;
            let (set_aside, troubles) = set_aside_after(&store, root(), Some(1));
            assert_eq!(set_aside, ["set-aside-1-step-0000000002"]);
            assert_eq!(troubles, Vec::<String>::new());
            assert_eq!(newest_of(&store), 1);
            store.0.borrow().requests - before
        };
        for cut in 0..requests {
            let store = store_with(1..=2);
            store.0.borrow_mut().left = Some(cut);
            let (_, troubles) = set_aside_after(&store, root(), Some(1));
            assert_eq!(troubles.len(), 1, "{troubles:?}");
            store.0.borrow_mut().left = None;
            // It is still whole, or partial, and then cleared away.
            newest_of(&store);
            assert_eq!(clear_partial(&store, root()), Vec::<String>::new());
            set_aside_after(&store, root(), Some(1));
            assert_eq!(newest_of(&store), 1, "after {cut} requests");
        }
    }
}
