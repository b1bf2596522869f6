//! Writes one writer's part of a checkpoint. Called by every worker, beside training.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::SaveError;
use crate::file_system::{FileSystem, SyncedWrite};
use crate::manifest::{CHUNK_BYTES, FileRecord, PartRecord, TensorRecord, text};
use crate::part_file::PartFileKind;
use crate::remains::{clear_remains, discard};
use crate::snapshot::{CheckpointTensor, SaveAttempt, Snapshot, divide, rest};
use crate::{hex, step_directory};
use elastic_protocol::planted::{Bug, is_planted};

/// Size of a written part.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PartSummary {
    /// Bytes written.
    pub bytes: u64,
}

/// Bytes written at a time, between two calls of `pace`.
const PIECE_BYTES: usize = 1 << 20;

/// Writes the part of writer `rank`, and makes it safe. Before that it removes what earlier attempts of this writer have left
/// behind. `pace` is called with the number of bytes that were written since the last call: it may wait, to bound the
/// bandwidth, and it may give the save up with an error. It is asked before each file, too, with 0 bytes.
///
/// # Errors
/// [`SaveError`]. Files that were written so far are removed, if the file system allows that.
pub fn write_part(
    files: &dyn FileSystem,
    directory: &Path,
    attempt: &SaveAttempt,
    rank: u32,
    snapshot: &Snapshot<'_>,
    pace: &mut dyn FnMut(usize) -> Result<(), SaveError>,
) -> Result<PartSummary, SaveError> {
    check(snapshot)?;
    let names = make_root(files, directory)?;
    clear_remains(files, directory, &names, attempt, rank);
    let of_step = directory.join(step_directory(attempt.step));
    files.make_directory(&of_step).map_err(SaveError::io("making the directory", &of_step))?;
    let mut output = PartOutput { files, of_step: &of_step, made: Vec::new(), pace };
    // The directory's own name: a loss of power would take the part with it.
    let written = sync_directory(files, directory)
        .and_then(|()| output.write(attempt, rank, snapshot))
        .and_then(|summary| sync_directory(files, &of_step).map(|()| summary));
    if written.is_err() {
        discard(files, &of_step, &output.made);
        // Another writer's files keep it.
        let _ = files.remove_directory(&of_step);
    }
    written
}

/// The files of a part that is being written.
struct PartOutput<'a> {
    files: &'a dyn FileSystem,
    of_step: &'a Path,
    /// The names of the files that were made, or could not be.
    made: Vec<String>,
    pace: &'a mut dyn FnMut(usize) -> Result<(), SaveError>,
}

impl PartOutput<'_> {
    fn create(&mut self, name: &str) -> Result<PacedFile<'_>, SaveError> {
        (self.pace)(0)?;
        self.made.push(name.to_owned());
        let path = self.of_step.join(name);
        let created = match self.files.create(&path) {
            // A writer that gives up an earlier save of this step has removed the directory, which was empty just then. The seal
            // makes its name safe again.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = self.files.make_directory(self.of_step);
                made.map_err(SaveError::io("making the directory", self.of_step))?;
                self.files.create(&path)
            }
            created => created,
        };
        let file = created.map_err(SaveError::io("making", &path))?;
        Ok(PacedFile::of(file, path, name.to_owned(), self.pace))
    }

    fn write(
        &mut self,
        attempt: &SaveAttempt,
        rank: u32,
        snapshot: &Snapshot<'_>,
    ) -> Result<PartSummary, SaveError> {
        let rest = rest(snapshot.tensors, snapshot.bytes.len());
        let rest_bytes = rest.iter().map(|range| range.len()).sum();
        let writer = if is_planted(Bug::PartOfAnotherRank) { 0 } else { rank };
        let own =
            divide(snapshot.tensors, rest_bytes, attempt.world_size).swap_remove(writer as usize);
        let mut record = PartRecord {
            job: attempt.job.clone(),
            step: attempt.step,
            length: snapshot.bytes.len() as u64,
            digest: hex(xxh3_64(snapshot.bytes)),
            position: snapshot.position.clone(),
            files: Vec::new(),
            tensors: Vec::new(),
            rest: None,
        };
        if !own.is_empty() {
            let name = attempt.file(PartFileKind::Tensors, rank);
            let own: Vec<&CheckpointTensor> =
                own.iter().map(|index| &snapshot.tensors[*index]).collect();
            let header = header(&own)?;
            let mut file = self.create(&name)?;
            file.write(&header)?;
            for tensor in own {
                record.tensors.push(TensorRecord {
                    name: tensor.name.clone(),
                    dtype: tensor.dtype,
                    shape: tensor.shape.clone(),
                    offset: tensor.offset as u64,
                    bytes: tensor.bytes() as u64,
                    file: name.clone(),
                    file_offset: file.written,
                });
                file.write(&snapshot.bytes[tensor.offset..tensor.offset + tensor.bytes()])?;
            }
            record.files.push(file.finish()?);
        }
        if rank == 0 && rest_bytes > 0 {
            let name = attempt.file(PartFileKind::Rest, rank);
            let mut file = self.create(&name)?;
            for range in rest {
                file.write(&snapshot.bytes[range])?;
            }
            record.files.push(file.finish()?);
            record.rest = Some(name);
        }
        let bytes = record.files.iter().map(|file| file.bytes).sum();
        let mut file = self.create(&attempt.file(PartFileKind::Record, rank))?;
        file.write(&text(&record))?;
        file.finish()?;
        Ok(PartSummary { bytes })
    }
}

/// The bytes of a commit that writer `rank` writes, without headers and records.
pub fn part_bytes(snapshot: &Snapshot<'_>, world_size: u32, rank: u32) -> u64 {
    let rest = rest(snapshot.tensors, snapshot.bytes.len());
    let rest_bytes = rest.iter().map(|range| range.len()).sum();
    let own = divide(snapshot.tensors, rest_bytes, world_size);
    let own = own.get(rank as usize).into_iter().flatten();
    let arrays: usize = own.map(|index| snapshot.tensors[*index].bytes()).sum();
    (arrays + if rank == 0 { rest_bytes } else { 0 }) as u64
}

/// Makes the directory of all checkpoints, and its name safe, if it does not exist yet. Returns the names in it; none if it may
/// not be read.
fn make_root(files: &dyn FileSystem, directory: &Path) -> Result<Vec<String>, SaveError> {
    let (mut missing, mut names): (Vec<&Path>, _) = (Vec::new(), Vec::new());
    for path in directory.ancestors() {
        match files.list(path) {
            Ok(found) => {
                if path == directory {
                    names = found;
                }
                break;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => missing.push(path),
            // A directory that may not be read is there.
            Err(error) if error.kind() != ErrorKind::PermissionDenied => {
                return Err(SaveError::io("listing the directory", path)(error));
            }
            Err(_) => break,
        }
    }
    for path in missing.into_iter().rev().filter(|path| !path.as_os_str().is_empty()) {
        files.make_directory(path).map_err(|error| match files.is_link(path) {
            true => SaveError::DanglingLink { path: path.to_owned() },
            false => SaveError::io("making the directory", path)(error),
        })?;
        sync_directory(files, path.parent().unwrap_or(Path::new("/")))?;
    }
    Ok(names)
}

/// Makes the names in a directory safe.
pub(crate) fn sync_directory(files: &dyn FileSystem, path: &Path) -> Result<(), SaveError> {
    if is_planted(Bug::CheckpointNotSynced) {
        return Ok(());
    }
    files.sync_directory(path).map_err(SaveError::io("syncing the directory", path))
}

/// Checks that the arrays lie within the bytes, one after the other, with names of their own.
fn check(snapshot: &Snapshot<'_>) -> Result<(), SaveError> {
    let mut names = std::collections::BTreeSet::new();
    let mut at = 0;
    for tensor in snapshot.tensors {
        let wrong = |reason: &str| SaveError::Tensor {
            name: tensor.name.clone(),
            reason: reason.to_owned(),
        };
        let end = tensor.offset.checked_add(tensor.bytes());
        if tensor.offset < at || end.is_none_or(|end| end > snapshot.bytes.len()) {
            return Err(wrong("its range is not within the commit, after the array before it"));
        }
        if !names.insert(tensor.name.as_str()) {
            return Err(wrong("another array has the same name"));
        }
        at = tensor.offset + tensor.bytes();
    }
    Ok(())
}

/// The header of a safetensors file, with its length in front, padded so that the data is aligned.
pub(crate) fn header(tensors: &[&CheckpointTensor]) -> Result<Vec<u8>, SaveError> {
    let mut at = 0;
    let infos = tensors.iter().map(|tensor| {
        let begin = at;
        at += tensor.bytes();
        let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
        (tensor.name.clone(), TensorInfo { dtype, shape, data_offsets: (begin, at) })
    });
    // Readers such as transformers ask for this entry.
    let about = std::iter::once(("format".to_owned(), "pt".to_owned())).collect();
    let metadata = Metadata::new(Some(about), infos.collect()).map_err(|error| {
        let name = tensors.first().map_or_else(String::new, |tensor| tensor.name.clone());
        SaveError::Tensor { name, reason: error.to_string() }
    })?;
    let mut text = serde_json::to_vec(&metadata).expect("names are strings: nothing is refused");
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend_from_slice(&text);
    Ok(header)
}

/// A file that is written with its checksums.
pub(crate) struct PacedFile<'a> {
    file: Box<dyn SyncedWrite>,
    path: PathBuf,
    name: String,
    written: u64,
    chunks: Vec<String>,
    chunk: xxhash_rust::xxh3::Xxh3,
    in_chunk: usize,
    pace: &'a mut dyn FnMut(usize) -> Result<(), SaveError>,
}

impl<'a> PacedFile<'a> {
    pub(crate) fn create(
        files: &dyn FileSystem,
        directory: &Path,
        name: String,
        pace: &'a mut dyn FnMut(usize) -> Result<(), SaveError>,
    ) -> Result<Self, SaveError> {
        let path = directory.join(&name);
        let file = files.create(&path).map_err(SaveError::io("making", &path))?;
        Ok(Self::of(file, path, name, pace))
    }

    fn of(
        file: Box<dyn SyncedWrite>,
        path: PathBuf,
        name: String,
        pace: &'a mut dyn FnMut(usize) -> Result<(), SaveError>,
    ) -> Self {
        let chunk = xxhash_rust::xxh3::Xxh3::new();
        Self { file, path, name, written: 0, chunks: Vec::new(), chunk, in_chunk: 0, pace }
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), SaveError> {
        while !bytes.is_empty() {
            let (piece, rest) =
                bytes.split_at(bytes.len().min(PIECE_BYTES).min(CHUNK_BYTES - self.in_chunk));
            self.file.write_all(piece).map_err(SaveError::io("writing", &self.path))?;
            self.chunk.update(piece);
            self.written += piece.len() as u64;
            self.in_chunk += piece.len();
            if self.in_chunk == CHUNK_BYTES {
                self.end_chunk();
            }
            (self.pace)(piece.len())?;
            bytes = rest;
        }
        Ok(())
    }

    fn end_chunk(&mut self) {
        self.chunks.push(hex(self.chunk.digest()));
        self.chunk.reset();
        self.in_chunk = 0;
    }

    /// Makes the file's content safe.
    pub(crate) fn finish(mut self) -> Result<FileRecord, SaveError> {
        if self.in_chunk > 0 {
            self.end_chunk();
        }
        if !is_planted(Bug::ManifestBeforeData) {
            self.file.sync().map_err(SaveError::io("syncing", &self.path))?;
        }
        let Self { name, written: bytes, chunks, .. } = self;
        Ok(FileRecord { name, bytes, chunk_bytes: CHUNK_BYTES as u64, chunks })
    }
}
