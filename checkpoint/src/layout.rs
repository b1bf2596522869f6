//! Layout of a checkpoint: the place of each chunk's content in the commit, and the division of the chunks among
//! several readers. Used by `read` and `stored`, and by workers that resume together, each of which reads a share.

use std::collections::BTreeMap;
use std::io::{self, SeekFrom};
use std::ops::Range;
use std::path::Path;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::Damage;
use crate::file_system::{FileSystem, SeekableRead};
use crate::hex;
use crate::manifest::{FileRecord, Manifest};
use crate::snapshot::{CheckpointTensor, rest};

/// Bytes read at a time, between two words about them. A processor's cache still holds them when their checksum is computed.
const PIECE_BYTES: usize = 1 << 20;

/// A part of a commit that stands in one file without a gap, at most [`PIECE_BYTES`] long.
#[derive(Clone, Debug)]
pub(crate) struct CommitStretch {
    /// The file's index in the manifest.
    pub(crate) file: usize,
    /// Its offset in its file.
    pub(crate) offset: u64,
    pub(crate) in_commit: Range<usize>,
}

/// The chunks of a checkpoint's files, in the order of the manifest's files, and the place of each in the commit.
#[derive(Debug)]
pub struct CommitLayout<'a> {
    manifest: &'a Manifest,
    chunks: Vec<Chunk>,
    length: usize,
}

/// A chunk of a file: the bytes that one checksum covers.
#[derive(Debug)]
struct Chunk {
    /// The file's index in the manifest.
    file: usize,
    /// The chunk's number within its file.
    number: usize,
    /// Its offset in its file.
    offset: u64,
    bytes: usize,
    /// Its parts that belong to the commit, in order. The rest of it is a header.
    pieces: Vec<ChunkPiece>,
}

/// A part of a chunk that belongs to the commit.
#[derive(Debug)]
struct ChunkPiece {
    /// Its offset in its chunk.
    at: usize,
    in_commit: Range<usize>,
}

impl ChunkPiece {
    /// Its stretches, as offsets from its begin.
    fn stretches(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let length = self.in_commit.len();
        (0..length).step_by(PIECE_BYTES).map(move |from| from..(from + PIECE_BYTES).min(length))
    }
}

impl<'a> CommitLayout<'a> {
    /// The layout of a checkpoint.
    ///
    /// # Errors
    /// [`Damage::Manifest`]: the manifest's arrays and files do not fit each other.
    pub fn new(manifest: &'a Manifest) -> Result<Self, Damage> {
        let length = usize::try_from(manifest.length)
            .map_err(|_| wrong("its commit does not fit into memory"))?;
        let mut spans = spans(manifest, length).ok_or_else(inconsistent)?;
        let mut chunks = Vec::new();
        for (index, record) in manifest.files.iter().enumerate() {
            let first = chunks.len();
            chunks.extend(chunks_of(index, record).ok_or_else(inconsistent)?);
            let of_file = spans.remove(record.name.as_str()).unwrap_or_default();
            place(&mut chunks[first..], record, of_file).ok_or_else(inconsistent)?;
        }
        if spans.is_empty() { Ok(Self { manifest, chunks, length }) } else { Err(inconsistent()) }
    }

    /// The commit's length, in bytes.
    pub const fn length(&self) -> usize {
        self.length
    }

    /// The number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// The chunks that one of several readers reads: near-equal numbers, none twice.
    pub fn share(&self, reader: u32, readers: u32) -> Range<usize> {
        let bound = |reader: u32| {
            let chunks = self.chunks.len() as u128 * u128::from(reader);
            // At most the number of chunks.
            (chunks / u128::from(readers.max(1))) as usize
        };
        bound(reader)..bound(reader + 1)
    }

    /// Bytes of these chunks in their files.
    pub fn bytes(&self, chunks: Range<usize>) -> u64 {
        self.chunks[chunks].iter().map(|chunk| chunk.bytes as u64).sum()
    }

    /// The ranges of the commit that these chunks hold, in the chunks' order.
    pub fn ranges(&self, chunks: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        self.chunks[chunks].iter().flat_map(|chunk| &chunk.pieces).map(|it| it.in_commit.clone())
    }

    pub(crate) const fn manifest(&self) -> &'a Manifest {
        self.manifest
    }

    /// The stretches of the commit that these chunks hold, in the chunks' order.
    pub(crate) fn stretches(&self, chunks: Range<usize>) -> impl Iterator<Item = CommitStretch> {
        self.chunks[chunks].iter().flat_map(|chunk| {
            chunk.pieces.iter().flat_map(move |piece| {
                piece.stretches().map(move |part| CommitStretch {
                    file: chunk.file,
                    offset: chunk.offset + (piece.at + part.start) as u64,
                    in_commit: piece.in_commit.start + part.start..piece.in_commit.start + part.end,
                })
            })
        })
    }

    /// The number of checksums that [`check`](Self::check) gives of these chunks.
    pub fn checksums(&self, chunks: Range<usize>) -> usize {
        self.stretches(chunks).count()
    }

    /// Reads these chunks, compares each with its checksum, and puts their content into its place in `commit`, which has the
    /// commit's [length](Self::length). `count` is told the number of bytes after each piece that was read.
    ///
    /// # Errors
    /// The first [`Damage`]. The content of `commit` in the places of these chunks is then undefined.
    pub fn read(
        &self,
        files: &dyn FileSystem,
        of_step: &Path,
        chunks: Range<usize>,
        commit: &mut [u8],
        count: &mut dyn FnMut(usize),
    ) -> Result<(), Damage> {
        self.walk(files, of_step, chunks, count, &mut |file, piece, count| {
            file.read(&mut commit[piece.in_commit.clone()], count)
        })
    }

    /// Reads these chunks, compares each with its checksum, and keeps nothing but a checksum of each stretch of the commit, by
    /// which [`StoredCommit`](crate::StoredCommit) compares it when it is read again. `count` as of [`read`](Self::read).
    ///
    /// # Errors
    /// The first [`Damage`].
    pub fn check(
        &self,
        files: &dyn FileSystem,
        of_step: &Path,
        chunks: Range<usize>,
        count: &mut dyn FnMut(usize),
    ) -> Result<Vec<u64>, Damage> {
        let (mut sums, mut memory) = (Vec::new(), Vec::new());
        self.walk(files, of_step, chunks, count, &mut |file, piece, count| {
            for part in piece.stretches() {
                memory.resize(part.len(), 0);
                file.read(&mut memory, count)?;
                sums.push(xxh3_64(&memory));
            }
            Ok(())
        })?;
        Ok(sums)
    }

    /// Reads these chunks, and compares each with its checksum. `read` is given the place of each of their pieces, and reads it.
    fn walk(
        &self,
        files: &dyn FileSystem,
        of_step: &Path,
        chunks: Range<usize>,
        count: &mut dyn FnMut(usize),
        read: &mut ReadPiece<'_>,
    ) -> Result<(), Damage> {
        let mut opened: Option<(usize, OpenedFile<'_>)> = None;
        for chunk in &self.chunks[chunks] {
            let record = &self.manifest.files[chunk.file];
            let file = match &mut opened {
                Some((index, file)) if *index == chunk.file => file,
                _ => {
                    let file = OpenedFile::open(files, of_step, record, chunk.offset)?;
                    &mut opened.insert((chunk.file, file)).1
                }
            };
            let mut at = 0;
            for piece in &chunk.pieces {
                file.skip(piece.at - at, count)?;
                read(file, piece, count)?;
                at = piece.at + piece.in_commit.len();
            }
            file.skip(chunk.bytes - at, count)?;
            if record.chunks[chunk.number] != file.take_checksum() {
                let (file, offset) = (record.name.clone(), chunk.offset);
                return Err(Damage::Content { file, offset });
            }
        }
        Ok(())
    }
}

/// Reads a piece of a chunk from its file, and counts the bytes.
type ReadPiece<'a> =
    dyn FnMut(&mut OpenedFile<'_>, &ChunkPiece, &mut dyn FnMut(usize)) -> Result<(), Damage> + 'a;

fn wrong(reason: &str) -> Damage {
    Damage::Manifest { reason: reason.to_owned() }
}

pub(crate) fn inconsistent() -> Damage {
    wrong("its arrays do not fit its files")
}

/// Ranges of the commit by where they begin in a file.
type Spans = BTreeMap<u64, Range<usize>>;

/// Each file's ranges of the commit; none if the manifest contradicts itself.
fn spans(manifest: &Manifest, length: usize) -> Option<BTreeMap<&str, Spans>> {
    let mut spans: BTreeMap<&str, Spans> = BTreeMap::new();
    let mut tensors = Vec::with_capacity(manifest.tensors.len());
    for record in &manifest.tensors {
        let offset = usize::try_from(record.offset).ok()?;
        let bytes = usize::try_from(record.bytes).ok()?;
        let (name, shape) = (record.name.clone(), record.shape.clone());
        let tensor = CheckpointTensor { name, dtype: record.dtype, shape, offset };
        let range = offset..offset.checked_add(bytes).filter(|end| *end <= length)?;
        if tensor.bytes() != bytes {
            return None;
        }
        if bytes > 0 {
            let of_file = spans.entry(&record.file).or_default();
            if of_file.insert(record.file_offset, range).is_some() {
                return None;
            }
        }
        tensors.push(tensor);
    }
    let mut at = 0;
    for range in rest(&tensors, length) {
        let name = manifest.rest.as_deref()?;
        let bytes = range.len() as u64;
        spans.entry(name).or_default().insert(at, range);
        at += bytes;
    }
    let of_rest = manifest.files.iter().find(|file| Some(&file.name) == manifest.rest.as_ref());
    (of_rest.map_or(0, |file| file.bytes) == at).then_some(spans)
}

/// A file's chunks, without their places; none if it has another number of checksums.
fn chunks_of(index: usize, record: &FileRecord) -> Option<Vec<Chunk>> {
    let chunk_bytes = record.chunk_bytes.max(1);
    let chunks = (0..record.bytes.div_ceil(chunk_bytes)).map(|number| {
        let offset = number * chunk_bytes;
        let bytes = usize::try_from((record.bytes - offset).min(chunk_bytes)).ok()?;
        let number = usize::try_from(number).ok()?;
        Some(Chunk { file: index, number, offset, bytes, pieces: Vec::new() })
    });
    let chunks: Vec<Chunk> = chunks.collect::<Option<_>>()?;
    (chunks.len() == record.chunks.len()).then_some(chunks)
}

/// Gives a file's chunks their pieces; none if ranges overlap or lie outside of the file.
fn place(chunks: &mut [Chunk], record: &FileRecord, spans: Spans) -> Option<()> {
    let mut free_from = 0;
    for (offset, range) in spans {
        let end = offset.checked_add(range.len() as u64).filter(|end| *end <= record.bytes)?;
        if offset < free_from {
            return None;
        }
        free_from = end;
        let first = usize::try_from(offset / record.chunk_bytes.max(1)).ok()?;
        let mut from = range.start;
        for chunk in &mut chunks[first..] {
            if from == range.end {
                break;
            }
            let at = (offset + (from - range.start) as u64 - chunk.offset) as usize;
            let to = range.end.min(from + chunk.bytes - at);
            chunk.pieces.push(ChunkPiece { at, in_commit: from..to });
            from = to;
        }
    }
    Some(())
}

/// A file of the length that its record says, and the checksum of the bytes read since the last chunk began.
struct OpenedFile<'a> {
    name: &'a str,
    content: Box<dyn SeekableRead>,
    checksum: Xxh3,
    skipped: Vec<u8>,
}

impl<'a> OpenedFile<'a> {
    fn open(
        files: &dyn FileSystem,
        of_step: &Path,
        record: &'a FileRecord,
        offset: u64,
    ) -> Result<Self, Damage> {
        let name = record.name.as_str();
        let mut content = open_whole(files, of_step, record)?;
        content.seek(SeekFrom::Start(offset)).map_err(|error| unreadable(name, &error))?;
        Ok(Self { name, content, checksum: Xxh3::new(), skipped: Vec::new() })
    }

    fn read(&mut self, into: &mut [u8], count: &mut dyn FnMut(usize)) -> Result<(), Damage> {
        for piece in into.chunks_mut(PIECE_BYTES) {
            self.content.read_exact(piece).map_err(|error| unreadable(self.name, &error))?;
            self.checksum.update(piece);
            count(piece.len());
        }
        Ok(())
    }

    /// Reads bytes that are not part of the commit.
    fn skip(&mut self, bytes: usize, count: &mut dyn FnMut(usize)) -> Result<(), Damage> {
        let mut skipped = std::mem::take(&mut self.skipped);
        skipped.resize(bytes, 0);
        let read = self.read(&mut skipped, count);
        self.skipped = skipped;
        read
    }

    fn take_checksum(&mut self) -> String {
        let checksum = hex(self.checksum.digest());
        self.checksum.reset();
        checksum
    }
}

/// Opens a file that has the length that its record says.
pub(crate) fn open_whole(
    files: &dyn FileSystem,
    of_step: &Path,
    record: &FileRecord,
) -> Result<Box<dyn SeekableRead>, Damage> {
    let name = record.name.as_str();
    let mut content = files.open(&of_step.join(name)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Damage::Missing { file: name.to_owned() },
        _ => unreadable(name, &error),
    })?;
    let found = content.seek(SeekFrom::End(0)).map_err(|error| unreadable(name, &error))?;
    if found != record.bytes {
        let (file, written) = (name.to_owned(), record.bytes);
        return Err(Damage::Length { file, found, written });
    }
    Ok(content)
}

pub(crate) fn unreadable(file: &str, error: &io::Error) -> Damage {
    Damage::Unreadable { file: file.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::TensorRecord;
    use safetensors::Dtype;
    use serde_json::Value;

    /// Two files of arrays with chunks of 8 bytes and headers of 5 bytes, and a rest of 3 bytes.
    fn manifest() -> Manifest {
        let file = |name: &str, bytes: u64| FileRecord {
            name: name.to_owned(),
            bytes,
            chunk_bytes: 8,
            chunks: vec![String::new(); bytes.div_ceil(8) as usize],
        };
        let tensor = |offset, bytes: u64, file: &str, file_offset| TensorRecord {
            name: format!("t{offset}"),
            dtype: Dtype::U8,
            shape: vec![bytes as usize],
            offset,
            bytes,
            file: file.to_owned(),
            file_offset,
        };
        Manifest {
            version: 1,
            job: String::new(),
            name: None,
            step: 1,
            term: 1,
            generation: 1,
            world_size: 2,
            saved_at_ms: 0,
            length: 60,
            digest: String::new(),
            position: Value::Null,
            fields: None,
            field_types: None,
            files: vec![file("a", 35), file("b", 32), file("rest", 3)],
            tensors: vec![tensor(1, 20, "a", 15), tensor(21, 10, "a", 5), tensor(31, 27, "b", 5)],
            rest: Some("rest".to_owned()),
            checksum: String::new(),
        }
    }

    #[test]
    fn a_manifest_that_leads_out_of_its_directory_or_to_no_step_is_refused() {
        let decoded = |change: fn(&mut Manifest)| {
            let mut manifest = manifest();
            change(&mut manifest);
            Manifest::decode(&manifest.encode()).map_err(|damage| damage.to_string())
        };
        assert!(decoded(|_| {}).is_ok());
        assert!(decoded(|it| it.step = 1 << 62).is_ok());
        let too_far = decoded(|it| it.step = (1 << 62) + 1).expect_err("nobody comes there");
        assert!(too_far.contains("no training comes to step"), "{too_far}");
        for name in ["../a", "/etc/passwd", "a/b", "..", ""] {
            let mut outside = manifest();
            outside.files[0].name = name.to_owned();
            let refused = Manifest::decode(&outside.encode()).expect_err(name).to_string();
            assert!(refused.contains("does not lie beside it"), "{refused}");
        }
        let rest = decoded(|it| it.rest = Some("../rest".to_owned())).expect_err("outside");
        assert!(rest.contains("does not lie beside it"), "{rest}");
    }

    #[test]
    fn shares_of_any_number_of_readers_cover_the_commit_once() {
        let manifest = manifest();
        let layout = CommitLayout::new(&manifest).expect("it fits");
        for readers in 1..12 {
            let mut covered = [0; 60];
            for reader in 0..readers {
                let share = layout.share(reader, readers);
                layout.ranges(share).flatten().for_each(|byte| covered[byte] += 1);
            }
            assert_eq!(covered, [1; 60], "{readers} readers");
        }
        assert_eq!(layout.bytes(0..layout.chunks()), 70);
    }

    #[test]
    fn a_manifest_that_contradicts_itself_is_refused() {
        type Harm = fn(&mut Manifest);
        let harms: [(&str, Harm); 9] = [
            ("an array beyond its file", |it| it.tensors[0].file_offset = 16),
            ("an array beyond the commit", |it| it.tensors[2].offset = 34),
            ("an array of another length", |it| it.tensors[0].bytes = 19),
            ("arrays that overlap in a file", |it| it.tensors[1].file_offset = 6),
            ("an array in no file", |it| it.tensors[0].file = "c".to_owned()),
            ("a checksum too few", |it| drop(it.files[0].chunks.pop())),
            ("a rest that is too long", |it| it.files[2].bytes = 4),
            ("a rest in no file", |it| it.rest = Some("c".to_owned())),
            ("no rest", |it| it.rest = None),
        ];
        for (what, harm) in harms {
            let mut manifest = manifest();
            harm(&mut manifest);
            let refused = CommitLayout::new(&manifest).map(|layout| layout.length());
            assert!(matches!(refused, Err(Damage::Manifest { .. })), "{what}: {refused:?}");
        }
    }
}
