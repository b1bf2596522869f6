//! Reads checkpoints: lists them, verifies each byte, and finds the newest whole one. Called by the worker from which
//! the others take their state, and by `elastic-node checkpoint`.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{CheckpointLoadError, Damage};
use crate::file_system::FileSystem;
use crate::manifest::{FileRecord, MANIFEST, MANIFEST_BYTES_MAX, Manifest};
use crate::retain::steps;
use crate::snapshot::{CheckpointTensor, rest};
use crate::{checksum, hex, step_directory, step_of};

/// Bytes read at a time, between two words about them.
const PIECE_BYTES: u64 = 4 << 20;

/// A step's directory.
#[derive(Clone, Debug)]
pub struct CheckpointCandidate {
    /// The step that its name says.
    pub step: u64,
    /// The directory.
    pub path: PathBuf,
    /// Its manifest, or why it cannot be taken. Its files have not been looked at.
    pub manifest: Result<Manifest, Damage>,
}

/// A commit that was read, all of whose bytes are as they were written.
#[derive(Clone, Debug)]
pub struct LoadedCheckpoint {
    /// Its manifest.
    pub manifest: Manifest,
    /// Its directory.
    pub path: PathBuf,
    /// The commit.
    pub bytes: Vec<u8>,
}

/// All steps' directories, the oldest first. A directory that does not exist holds none.
///
/// # Errors
/// [`CheckpointLoadError::List`].
pub fn list(
    files: &dyn FileSystem,
    directory: &Path,
) -> Result<Vec<CheckpointCandidate>, CheckpointLoadError> {
    let steps = match steps(files, directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        steps => steps
            .map_err(|source| CheckpointLoadError::List { path: directory.to_owned(), source })?,
    };
    let candidate = |step| {
        let path = directory.join(step_directory(step));
        let manifest = read_manifest(files, &path, step);
        CheckpointCandidate { step, path, manifest }
    };
    Ok(steps.into_iter().map(candidate).collect())
}

fn read_manifest(files: &dyn FileSystem, of_step: &Path, step: u64) -> Result<Manifest, Damage> {
    let unreadable = |error: io::Error| Damage::Unreadable {
        file: MANIFEST.to_owned(),
        reason: error.to_string(),
    };
    let file = files.open(&of_step.join(MANIFEST)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Damage::Partial,
        _ => unreadable(error),
    })?;
    let mut text = Vec::new();
    file.take(MANIFEST_BYTES_MAX).read_to_end(&mut text).map_err(unreadable)?;
    let manifest = Manifest::decode(&text)?;
    if manifest.step != step {
        let (found, named) = (manifest.step, step_directory(step));
        return Err(Damage::Foreign {
            reason: format!("it is of step {found}, and is named {named}"),
        });
    }
    Ok(manifest)
}

/// Checks a whole checkpoint: each chunk of each file, and the commit that the files make.
///
/// # Errors
/// The first [`Damage`].
pub fn verify(files: &dyn FileSystem, of_step: &Path, manifest: &Manifest) -> Result<(), Damage> {
    read_commit(files, of_step, manifest, &mut |_, _| {}).map(|_bytes| ())
}

/// The newest whole checkpoint that `fits`, with those that were passed over on the way to it and why. None if there is none at
/// all, or only partial ones. `read` is told how many bytes of one were read, of how many.
///
/// # Errors
/// [`CheckpointLoadError::NoneWhole`] if there are sealed ones, and none is whole: training from the beginning is nothing to begin
/// unasked.
#[expect(clippy::type_complexity, reason = "two results, and no third place that needs them")]
pub fn newest(
    files: &dyn FileSystem,
    directory: &Path,
    name: Option<&str>,
    fits: &dyn Fn(&LoadedCheckpoint) -> Result<(), Damage>,
    read: &mut dyn FnMut(u64, u64),
) -> Result<(Option<LoadedCheckpoint>, Vec<(String, Damage)>), CheckpointLoadError> {
    let mut passed_over = Vec::new();
    for candidate in list(files, directory)?.into_iter().rev() {
        let taken = candidate.manifest.and_then(|manifest| {
            of_job(&manifest, name)?;
            let bytes = read_commit(files, &candidate.path, &manifest, read)?;
            let loaded = LoadedCheckpoint { manifest, path: candidate.path.clone(), bytes };
            fits(&loaded)?;
            Ok(loaded)
        });
        match taken {
            Ok(loaded) => return Ok((Some(loaded), passed_over)),
            Err(damage) => passed_over.push((step_directory(candidate.step), damage)),
        }
    }
    if passed_over.iter().all(|(_, damage)| *damage == Damage::Partial) {
        return Ok((None, passed_over));
    }
    let damages: Vec<String> =
        passed_over.iter().map(|(name, damage)| format!("{name}: {damage}")).collect();
    let (path, damages) = (directory.to_owned(), damages.join("; "));
    Err(CheckpointLoadError::NoneWhole { path, damages })
}

/// Reads the checkpoint in this step's directory. `read` is told how many bytes were read, of how many.
///
/// # Errors
/// [`CheckpointLoadError::Damaged`].
pub fn load(
    files: &dyn FileSystem,
    of_step: &Path,
    read: &mut dyn FnMut(u64, u64),
) -> Result<LoadedCheckpoint, CheckpointLoadError> {
    let step = of_step.file_name().and_then(|name| step_of(name.to_str()?));
    let foreign =
        || Damage::Foreign { reason: "its name is not that of a step's directory".to_owned() };
    let loaded = step.ok_or_else(foreign).and_then(|step| {
        let manifest = read_manifest(files, of_step, step)?;
        let bytes = read_commit(files, of_step, &manifest, read)?;
        Ok(LoadedCheckpoint { manifest, path: of_step.to_owned(), bytes })
    });
    loaded.map_err(|damage| CheckpointLoadError::Damaged { path: of_step.to_owned(), damage })
}

/// Checks that a checkpoint is of a job of this name.
fn of_job(manifest: &Manifest, name: Option<&str>) -> Result<(), Damage> {
    match (name, &manifest.name) {
        (Some(ours), Some(theirs)) if ours != theirs => {
            Err(Damage::Foreign { reason: format!("it is of the job {theirs:?}, not of {ours:?}") })
        }
        _ => Ok(()),
    }
}

/// Reads a checkpoint's files, checks them, and puts the commit together.
fn read_commit(
    files: &dyn FileSystem,
    of_step: &Path,
    manifest: &Manifest,
    read: &mut dyn FnMut(u64, u64),
) -> Result<Vec<u8>, Damage> {
    let total = manifest.files.iter().map(|file| file.bytes).sum();
    let mut done = 0;
    let mut count = |bytes: usize| {
        done += bytes as u64;
        read(done, total);
    };
    let wrong = |reason: &str| Damage::Manifest { reason: reason.to_owned() };
    let too_large = || wrong("its commit does not fit into memory");
    let mut contents = std::collections::BTreeMap::new();
    for file in &manifest.files {
        contents.insert(file.name.as_str(), read_file(files, of_step, file, &mut count)?);
    }
    let length = usize::try_from(manifest.length).map_err(|_| too_large())?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| too_large())?;
    bytes.resize(length, 0);
    let inconsistent = || wrong("its arrays do not fit its files");
    let mut tensors = Vec::with_capacity(manifest.tensors.len());
    for record in &manifest.tensors {
        let content = contents.get(record.file.as_str()).ok_or_else(inconsistent)?;
        let part = range(record.file_offset, record.bytes)
            .and_then(|range| content.get(range))
            .ok_or_else(inconsistent)?;
        let into = range(record.offset, record.bytes)
            .and_then(|range| bytes.get_mut(range))
            .ok_or_else(inconsistent)?;
        into.copy_from_slice(part);
        let (name, shape) = (record.name.clone(), record.shape.clone());
        let tensor =
            CheckpointTensor { name, dtype: record.dtype, shape, offset: record.offset as usize };
        if tensor.bytes() as u64 != record.bytes {
            return Err(inconsistent());
        }
        tensors.push(tensor);
    }
    let mut left: &[u8] = match &manifest.rest {
        Some(name) => contents.get(name.as_str()).ok_or_else(inconsistent)?,
        None => &[],
    };
    for range in rest(&tensors, length) {
        let (part, others) = left.split_at_checked(range.len()).ok_or_else(inconsistent)?;
        bytes[range].copy_from_slice(part);
        left = others;
    }
    if !left.is_empty() {
        return Err(inconsistent());
    }
    if hex(xxh3_64(&bytes)) != manifest.digest {
        return Err(wrong("its files do not make the commit that it names"));
    }
    Ok(bytes)
}

fn range(offset: u64, length: u64) -> Option<std::ops::Range<usize>> {
    let offset = usize::try_from(offset).ok()?;
    Some(offset..offset.checked_add(usize::try_from(length).ok()?)?)
}

/// Reads a file, and compares each chunk with its checksum.
fn read_file(
    files: &dyn FileSystem,
    of_step: &Path,
    record: &FileRecord,
    count: &mut dyn FnMut(usize),
) -> Result<Vec<u8>, Damage> {
    let file = || record.name.clone();
    let mut opened =
        files.open(&of_step.join(&record.name)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Damage::Missing { file: file() },
            _ => Damage::Unreadable { file: file(), reason: error.to_string() },
        })?;
    let mut content = Vec::new();
    // One byte more than was written shows that the file has grown.
    let mut left = record.bytes.saturating_add(1);
    loop {
        let piece = (&mut opened).take(left.min(PIECE_BYTES)).read_to_end(&mut content);
        let piece = piece
            .map_err(|error| Damage::Unreadable { file: file(), reason: error.to_string() })?;
        left -= piece as u64;
        count(piece);
        if piece == 0 || left == 0 {
            break;
        }
    }
    if content.len() as u64 != record.bytes {
        let (found, written) = (content.len() as u64, record.bytes);
        return Err(Damage::Length { file: file(), found, written });
    }
    let chunk_bytes = usize::try_from(record.chunk_bytes).unwrap_or(usize::MAX).max(1);
    let mut checksums = record.chunks.iter();
    for (number, chunk) in content.chunks(chunk_bytes).enumerate() {
        if checksums.next() != Some(&checksum(chunk)) {
            return Err(Damage::Content { file: file(), offset: (number * chunk_bytes) as u64 });
        }
    }
    Ok(content)
}
