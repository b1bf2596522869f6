//! A commit that stays in a checkpoint's files until it is needed, and is then read straight into its final memory.
//! Used by workers that resume and whose arrays have memory already. A resume of a large state would otherwise wait
//! mostly for the memory of one more copy.

use std::fmt;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::{CheckpointLoadError, Damage};
use crate::file_system::{FileSystem, SeekableRead};
use crate::layout::{CommitLayout, CommitStretch, inconsistent, open_whole, unreadable};

/// The files of a checkpoint, which were opened and have the right lengths. They stay open: a file that is removed by somebody can
/// still be read.
pub struct OpenedCommit {
    path: PathBuf,
    files: Vec<OpenFile>,
    /// The stretches of the commit, in the order of the chunks.
    stretches: Vec<CommitStretch>,
    length: usize,
    rest: Option<usize>,
}

struct OpenFile {
    name: String,
    content: Mutex<Box<dyn SeekableRead>>,
}

impl OpenFile {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Damage> {
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        let read = content.seek(SeekFrom::Start(offset)).and_then(|_| content.read_exact(into));
        read.map_err(|error| unreadable(&self.name, &error))
    }
}

impl OpenedCommit {
    /// Opens the files of a checkpoint.
    ///
    /// # Errors
    /// A file is missing, cannot be opened, or has another length.
    pub fn open(
        files: &dyn FileSystem,
        of_step: &Path,
        layout: &CommitLayout<'_>,
    ) -> Result<Self, Damage> {
        let manifest = layout.manifest();
        let opened = manifest.files.iter().map(|record| {
            let content = Mutex::new(open_whole(files, of_step, record)?);
            Ok(OpenFile { name: record.name.clone(), content })
        });
        let number = |name: &String| manifest.files.iter().position(|file| file.name == *name);
        Ok(Self {
            path: of_step.to_owned(),
            files: opened.collect::<Result<_, Damage>>()?,
            stretches: layout.stretches(0..layout.chunks()).collect(),
            length: layout.length(),
            rest: manifest.rest.as_ref().and_then(number),
        })
    }

    /// Reads the commit from its begin to its end, and gives its XXH3-64. `count` is told the number of bytes after each piece.
    ///
    /// # Errors
    /// A file cannot be read; or the manifest's arrays overlap.
    pub fn digest(&self, count: &mut dyn FnMut(usize)) -> Result<u64, Damage> {
        let mut in_order: Vec<&CommitStretch> = self.stretches.iter().collect();
        in_order.sort_by_key(|stretch| stretch.in_commit.start);
        let (mut digest, mut memory, mut at) = (Xxh3::new(), Vec::new(), 0);
        for CommitStretch { file, offset, in_commit } in in_order {
            if in_commit.start != at {
                return Err(inconsistent());
            }
            at = in_commit.end;
            memory.resize(in_commit.len(), 0);
            self.files[*file].read(*offset, &mut memory)?;
            digest.update(&memory);
            count(memory.len());
        }
        if at == self.length { Ok(digest.digest()) } else { Err(inconsistent()) }
    }

    /// The commit, of which every chunk was checked: with the checksums that [`CommitLayout::check`] gave, in the order of the
    /// chunks.
    ///
    /// # Errors
    /// It is another number of checksums.
    pub fn checked(self, sums: Vec<u64>) -> Result<StoredCommit, Damage> {
        let Self { path, files, stretches, rest, .. } = self;
        if sums.len() != stretches.len() {
            return Err(inconsistent());
        }
        let mut parts: Vec<(CommitStretch, u64)> = stretches.into_iter().zip(sums).collect();
        parts.sort_by_key(|(stretch, _)| stretch.in_commit.start);
        Ok(StoredCommit { path, files, parts, rest })
    }
}

/// A commit in the files of a checkpoint. Bytes that are read from it are compared with the content that was checked.
pub struct StoredCommit {
    path: PathBuf,
    files: Vec<OpenFile>,
    /// The stretches of the commit, ordered by their places in it, with their checksums.
    parts: Vec<(CommitStretch, u64)>,
    /// The file of the bytes that belong to no array.
    rest: Option<usize>,
}

impl StoredCommit {
    /// The parts that a range of the commit has something of.
    fn parts_of(&self, range: &Range<usize>) -> &[(CommitStretch, u64)] {
        let first = self.parts.partition_point(|(it, _)| it.in_commit.end <= range.start);
        let end = self.parts.partition_point(|(it, _)| it.in_commit.start < range.end);
        &self.parts[first..end.max(first)]
    }

    /// Whether a range of the commit has something of an array.
    pub fn has_arrays_in(&self, range: &Range<usize>) -> bool {
        self.parts_of(range).iter().any(|(stretch, _)| Some(stretch.file) != self.rest)
    }

    /// Reads a range of the commit.
    ///
    /// # Errors
    /// [`CheckpointLoadError::Damaged`]: the files have changed since they were checked, or cannot be read any more.
    /// The content of `into` is then undefined.
    pub fn read(&self, range: &Range<usize>, into: &mut [u8]) -> Result<(), CheckpointLoadError> {
        let mut memory = Vec::new();
        for (stretch, sum) in self.parts_of(range) {
            let part = &stretch.in_commit;
            let wanted = part.start.max(range.start)..part.end.min(range.end);
            let target = &mut into[wanted.start - range.start..wanted.end - range.start];
            if wanted == *part {
                self.read_part(stretch, *sum, target)?;
            } else {
                memory.resize(part.len(), 0);
                self.read_part(stretch, *sum, &mut memory)?;
                let from = wanted.start - part.start;
                target.copy_from_slice(&memory[from..from + wanted.len()]);
            }
        }
        Ok(())
    }

    /// Reads the bytes that belong to no array into their places in `commit`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_rest(&self, commit: &mut [u8]) -> Result<(), CheckpointLoadError> {
        let rest = self.parts.iter().filter(|(stretch, _)| Some(stretch.file) == self.rest);
        for (stretch, sum) in rest {
            self.read_part(stretch, *sum, &mut commit[stretch.in_commit.clone()])?;
        }
        Ok(())
    }

    fn read_part(
        &self,
        stretch: &CommitStretch,
        sum: u64,
        into: &mut [u8],
    ) -> Result<(), CheckpointLoadError> {
        let file = &self.files[stretch.file];
        let read = file.read(stretch.offset, into).and_then(|()| {
            let changed = || Damage::Content { file: file.name.clone(), offset: stretch.offset };
            (xxh3_64(into) == sum).then_some(()).ok_or_else(changed)
        });
        read.map_err(|damage| CheckpointLoadError::Damaged { path: self.path.clone(), damage })
    }
}

impl fmt::Debug for OpenedCommit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "OpenedCommit({})", self.path.display())
    }
}

impl fmt::Debug for StoredCommit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "StoredCommit({})", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use safetensors::Dtype;
    use serde_json::Value;

    use super::*;
    use crate::{
        CheckpointTensor, Manifest, MemoryFiles, SaveAttempt, Snapshot, list, seal, write_part,
    };

    /// A commit with arrays of two types, which its writers order by their types, some longer than a stretch and a chunk.
    fn commit() -> (Vec<u8>, Vec<CheckpointTensor>) {
        let shapes = [(Dtype::F32, 5 << 20), (Dtype::U8, 3), (Dtype::F64, 200_000), (Dtype::U8, 9)];
        let (mut tensors, mut offset) = (Vec::new(), 11);
        for (number, (dtype, elements)) in shapes.into_iter().enumerate() {
            let (name, shape) = (format!("t{number}"), vec![elements]);
            tensors.push(CheckpointTensor { name, dtype, shape, offset });
            offset += tensors[number].bytes() + number;
        }
        ((0..offset).map(|place| (place * 7 % 251) as u8).collect(), tensors)
    }

    fn saved(bytes: &[u8], tensors: &[CheckpointTensor]) -> (MemoryFiles, PathBuf, Manifest) {
        let (disk, root) = (MemoryFiles::new(1), Path::new("checkpoints"));
        let job = "9d1f".to_owned();
        let attempt = SaveAttempt {
            job,
            name: None,
            term: 1,
            generation: 1,
            step: 7,
            world_size: 2,
            fields: None,
        };
        let snapshot = Snapshot { bytes, tensors, position: &Value::Null };
        for rank in 0..2 {
            write_part(&disk, root, &attempt, rank, &snapshot, &mut |_| Ok(())).expect("written");
        }
        seal(&disk, root, &attempt, 0, crate::Retention::newest(1)).expect("sealed");
        let found = list(&disk, root).expect("listed").remove(0);
        (disk, found.path, found.manifest.expect("whole"))
    }

    /// Checks all chunks, as so many readers do, and stores the commit.
    fn stored(disk: &MemoryFiles, path: &Path, manifest: &Manifest, readers: u32) -> StoredCommit {
        let layout = CommitLayout::new(manifest).expect("it fits");
        let mut sums = Vec::new();
        for reader in 0..readers {
            let share = layout.share(reader, readers);
            let of_share = layout.check(disk, path, share.clone(), &mut |_| {}).expect("whole");
            assert_eq!(of_share.len(), layout.checksums(share));
            sums.extend(of_share);
        }
        OpenedCommit::open(disk, path, &layout).and_then(|it| it.checked(sums)).expect("whole")
    }

    #[test]
    fn any_range_that_is_read_from_the_files_is_what_was_saved() {
        let (bytes, tensors) = commit();
        let (disk, path, manifest) = saved(&bytes, &tensors);
        for readers in [1, 2, 5] {
            let stored = stored(&disk, &path, &manifest, readers);
            let (first, last) = (tensors[0].offset, tensors[3].offset + tensors[3].bytes());
            for range in [0..bytes.len(), first..last, 3..14, 5..5, 1 << 20..(3 << 20) + 1] {
                let mut into = vec![0; range.len()];
                stored.read(&range, &mut into).expect("it is as it was");
                assert_eq!(into, bytes[range.clone()], "{range:?}");
            }
            let mut sparse = vec![0; bytes.len()];
            stored.read_rest(&mut sparse).expect("it is as it was");
            assert_eq!((&sparse[..11], &sparse[11..20]), (&bytes[..11], &[0; 9][..]));
            assert!(!stored.has_arrays_in(&(0..11)) && stored.has_arrays_in(&(0..12)));
        }
    }

    #[test]
    fn the_digest_is_that_of_the_commit_whatever_the_order_in_the_files() {
        let (bytes, tensors) = commit();
        let (disk, path, manifest) = saved(&bytes, &tensors);
        let layout = CommitLayout::new(&manifest).expect("it fits");
        let opened = OpenedCommit::open(&disk, &path, &layout).expect("whole");
        let mut read = 0;
        let digest = opened.digest(&mut |bytes| read += bytes).expect("it is read");
        assert_eq!((digest, read), (xxh3_64(&bytes), bytes.len()));
        manifest.check_digest(digest).expect("as it was saved");
    }

    #[test]
    fn content_that_changes_after_it_was_checked_is_found_when_it_is_read() {
        let (bytes, tensors) = commit();
        let (disk, path, manifest) = saved(&bytes, &tensors);
        let layout = CommitLayout::new(&manifest).expect("it fits");
        let sums = layout.check(&disk, &path, 0..layout.chunks(), &mut |_| {}).expect("whole");
        // The file of the largest array.
        let file =
            path.join(&manifest.files.iter().max_by_key(|file| file.bytes).expect("one").name);
        disk.change(&file, |content| content[9 << 20] ^= 1).expect("it is there");
        let opened = OpenedCommit::open(&disk, &path, &layout).expect("of the same length");
        let stored = opened.checked(sums).expect("as many");
        let mut into = vec![0; bytes.len()];
        let error = stored.read(&(0..bytes.len()), &mut into).expect_err("a bit has flipped");
        assert!(error.to_string().contains("has other content than was written"), "{error}");
        let damage = layout.check(&disk, &path, 0..layout.chunks(), &mut |_| {});
        assert!(matches!(damage, Err(Damage::Content { .. })), "{damage:?}");
    }
}
