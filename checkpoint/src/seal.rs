//! Makes a checkpoint whole once all its parts are safe: collects the parts' records into the manifest, and gives the
//! manifest its name. Called by one writer, at the driver's order.

use std::cmp::Ordering;
use std::io::{ErrorKind, Read};
use std::path::Path;

use elastic_protocol::planted::{Bug, is_planted};
use serde::Deserialize;

use crate::error::SaveError;
use crate::file_system::FileSystem;
use crate::manifest::{MANIFEST, MANIFEST_BYTES_MAX, Manifest, PartRecord, UNSEALED};
use crate::part::{PacedFile, sync_directory};
use crate::part_file::PartFileKind;
use crate::retain::{Retention, retain, steps};
use crate::snapshot::SaveAttempt;
use crate::step_directory;

/// The most checkpoints whose savers are looked at.
const SAVERS_MAX: usize = 8;

/// A checkpoint that is whole.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SealSummary {
    /// Bytes of all files.
    pub bytes: u64,
    /// Troubles that do not touch this one: another job saves to its directory, or an old one cannot be removed.
    pub troubles: Vec<String>,
}

/// Makes the checkpoint whole, and then removes all but those that are retained. The checkpoint is safe when this
/// returns.
///
/// # Errors
/// [`SaveError`]: the checkpoint has no manifest, or its manifest may not be safe yet; older ones are untouched.
pub fn seal(
    files: &dyn FileSystem,
    directory: &Path,
    attempt: &SaveAttempt,
    saved_at_ms: u64,
    retention: Retention,
) -> Result<SealSummary, SaveError> {
    if is_planted(Bug::OldCheckpointRemovedFirst) {
        retain(files, directory, Retention { keep: 0, ..retention }, attempt.step);
    }
    let of_step = directory.join(step_directory(attempt.step));
    let mut manifest = collect(files, &of_step, attempt)?;
    manifest.saved_at_ms = saved_at_ms;
    if let Err(error) = give_name(files, &of_step, &manifest) {
        let _ = files.remove_file(&of_step.join(UNSEALED));
        return Err(error);
    }
    sync_directory(files, &of_step)?;
    take_back_if_removed(files, &of_step, attempt)?;
    sync_directory(files, directory)?;
    let bytes = manifest.files.iter().map(|file| file.bytes).sum();
    let mut troubles: Vec<String> = other_saver(files, directory, &manifest).into_iter().collect();
    troubles.extend(retain(files, directory, retention, attempt.step));
    troubles.extend(remove_unnamed(files, &of_step, &manifest));
    Ok(SealSummary { bytes, troubles })
}

/// Writes the manifest, makes it and the data safe, and gives it its name.
fn give_name(files: &dyn FileSystem, of_step: &Path, manifest: &Manifest) -> Result<(), SaveError> {
    let (unsealed, sealed) = (of_step.join(UNSEALED), of_step.join(MANIFEST));
    let mut pace = |_| Ok(());
    let mut file = PacedFile::create(files, of_step, UNSEALED.to_owned(), &mut pace)?;
    file.write(&manifest.encode())?;
    file.finish()?;
    sync_directory(files, of_step)?;
    files.rename(&unsealed, &sealed).map_err(SaveError::io("renaming", &unsealed))
}

/// Takes the manifest back if a part was removed before the manifest had its name: a later save clears the remains of this one,
/// which counts as given up (`remains`).
fn take_back_if_removed(
    files: &dyn FileSystem,
    of_step: &Path,
    attempt: &SaveAttempt,
) -> Result<(), SaveError> {
    let is_removed = |rank: &u32| {
        let record = of_step.join(attempt.file(PartFileKind::Record, *rank));
        matches!(files.open(&record), Err(error) if error.kind() == ErrorKind::NotFound)
    };
    let Some(rank) = (0..attempt.world_size).find(is_removed) else { return Ok(()) };
    let manifest = of_step.join(MANIFEST);
    files.remove_file(&manifest).map_err(SaveError::io("removing", &manifest))?;
    sync_directory(files, of_step)?;
    Err(SaveError::PartRemoved { rank, directory: of_step.to_owned() })
}

/// The manifest, from the records of all parts.
fn collect(
    files: &dyn FileSystem,
    of_step: &Path,
    attempt: &SaveAttempt,
) -> Result<Manifest, SaveError> {
    let mut manifest: Option<Manifest> = None;
    for rank in 0..attempt.world_size {
        let part = read_part(files, of_step, attempt, rank)?;
        let manifest = manifest.get_or_insert_with(|| Manifest {
            version: Manifest::VERSION,
            job: attempt.job.clone(),
            name: attempt.name.clone(),
            step: attempt.step,
            term: attempt.term,
            generation: attempt.generation,
            world_size: attempt.world_size,
            saved_at_ms: 0,
            length: part.length,
            digest: part.digest.clone(),
            position: part.position.clone(),
            fields: attempt.fields.as_ref().map(|fields| fields.names.clone()),
            field_types: attempt.fields.as_ref().map(|fields| fields.types.clone()),
            files: Vec::new(),
            tensors: Vec::new(),
            rest: None,
            checksum: String::new(),
        });
        let differ = |what| Err(SaveError::PartsDiffer { rank, what });
        if !is_planted(Bug::PartsNotCompared) {
            if (&part.job, part.step) != (&manifest.job, manifest.step) {
                return differ("their jobs or steps");
            }
            if part.position != manifest.position {
                return differ("their places in the data");
            }
            if (part.length, &part.digest) != (manifest.length, &manifest.digest) {
                return differ("the contents of the commits");
            }
        }
        manifest.files.extend(part.files);
        manifest.tensors.extend(part.tensors);
        manifest.rest = manifest.rest.take().or(part.rest);
    }
    let mut manifest = manifest.ok_or(SaveError::PartMissing {
        rank: 0,
        world_size: 0,
        directory: of_step.to_owned(),
    })?;
    manifest.tensors.sort_by_key(|tensor| tensor.offset);
    Ok(manifest)
}

fn read_part(
    files: &dyn FileSystem,
    of_step: &Path,
    attempt: &SaveAttempt,
    rank: u32,
) -> Result<PartRecord, SaveError> {
    let path = of_step.join(attempt.file(PartFileKind::Record, rank));
    let file = files.open(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => SaveError::PartMissing {
            rank,
            world_size: attempt.world_size,
            directory: of_step.to_owned(),
        },
        _ => SaveError::Io { action: "opening", path: path.clone(), source: error },
    })?;
    let mut text = Vec::new();
    file.take(MANIFEST_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(SaveError::io("reading", &path))?;
    serde_json::from_slice(&text).map_err(|error| SaveError::Io {
        action: "reading",
        path,
        source: error.into(),
    })
}

/// The entry of a manifest that identifies its saver.
#[derive(Deserialize)]
struct Saver {
    job: String,
    term: u64,
}

/// Another job that has saved to this directory since this one has: each removes the checkpoints of the other. The steps tell,
/// and no clock: a job goes on from the newest step of its directory, or sets the later ones aside, so those of a former job
/// are before all of its own. Of two jobs that save, the one that is behind finds the other.
fn other_saver(files: &dyn FileSystem, directory: &Path, ours: &Manifest) -> Option<String> {
    let saver = |step: u64| -> Option<(u64, Saver)> {
        let file = files.open(&directory.join(step_directory(step)).join(MANIFEST)).ok()?;
        Some((step, serde_json::from_reader(file.take(MANIFEST_BYTES_MAX)).ok()?))
    };
    let newest = steps(files, directory).ok()?.into_iter().rev().take(SAVERS_MAX);
    let savers: Vec<(u64, Saver)> = newest.filter_map(saver).collect();
    let (own, others): (Vec<_>, Vec<_>) =
        savers.into_iter().partition(|(_, saver)| saver.job == ours.job);
    let first = own.iter().map(|(step, _)| *step).fold(ours.step, u64::min);
    let directory = directory.display();
    if let Some((step, other)) = others.into_iter().find(|(step, _)| *step > first) {
        return Some(format!(
            "the job {} saves to {directory}, too (step {step}): each removes the checkpoints of the other; give each \
             job a directory of its own",
            other.job
        ));
    }
    let (step, copy) = copy_of_job(&own, ours)?;
    Some(format!(
        "another copy of this job saves to {directory}, too (step {step}, term {} of its driver, and this is term {}): each \
         removes the checkpoints of the other; was the state directory copied? end one of both, or give each a directory of \
         its own",
        copy.term, ours.term
    ))
}

/// Another copy of this job, from a copied state directory: its driver has another term, and their steps alternate. A driver
/// that takes over saves later steps than its predecessor, and no earlier ones.
fn copy_of_job<'a>(own: &'a [(u64, Saver)], ours: &Manifest) -> Option<&'a (u64, Saver)> {
    let of_term = own.iter().filter(|(_, saver)| saver.term == ours.term);
    let first = of_term.map(|(step, _)| *step).fold(ours.step, u64::min);
    own.iter().find(|(step, saver)| match saver.term.cmp(&ours.term) {
        Ordering::Less => *step > first,
        Ordering::Equal => false,
        Ordering::Greater => *step < ours.step,
    })
}

/// Removes files that do not belong to a whole checkpoint from its directory: the parts' records, and files of attempts
/// that did not end.
fn remove_unnamed(files: &dyn FileSystem, of_step: &Path, manifest: &Manifest) -> Vec<String> {
    if files.is_link(of_step) {
        return Vec::new();
    }
    let names = files.list(of_step).unwrap_or_default();
    let is_named =
        |name: &String| name == MANIFEST || manifest.files.iter().any(|file| file.name == *name);
    let unnamed = names.into_iter().filter(|name| !is_named(name));
    let removed = unnamed.map(|name| {
        let path = of_step.join(name);
        let in_words = |error| format!("{} cannot be removed: {error}", path.display());
        files.remove_file(&path).map_err(in_words)
    });
    removed.filter_map(Result::err).collect()
}
