//! Removal of the remains of a writer's saves. A save that fails, that is given up, or whose process dies leaves files in a
//! directory without a manifest, and so takes the room that the next save needs. Each writer removes its own files: when a
//! part fails, and before it writes the next one. Called by `part`.
//!
//! An earlier attempt may still be sealed meanwhile: its sealer has read all records and is about to give the manifest its
//! name. No manifest may name a file that is removed. So a writer removes a part's record first, looks for a manifest then, and
//! removes data only if there is none. A sealer looks for the records once its manifest has its name, and takes it back
//! if one is gone (`seal`). One of the two sees the other, whatever their order is.

use std::io;
use std::path::Path;

use crate::file_system::FileSystem;
use crate::manifest::{MANIFEST, UNSEALED};
use crate::part_file::{PartFile, PartFileKind};
use crate::snapshot::SaveAttempt;
use crate::{step_directory, step_of};

/// The most directories that are looked at before a part is written: those of the steps next to its own. Remains are of the
/// saves just before, and each save removes those that it finds.
const LOOKED_AT_MAX: usize = 16;

/// Removes the remains of earlier attempts of writer `rank`. `names` are the names in the directory of all checkpoints. A
/// file that cannot be removed stays: if it leaves too little room, the save fails with that reason.
pub(crate) fn clear_remains(
    files: &dyn FileSystem,
    directory: &Path,
    names: &[String],
    attempt: &SaveAttempt,
    rank: u32,
) {
    let mut steps: Vec<u64> = names.iter().filter_map(|name| step_of(name)).collect();
    steps.sort_unstable_by_key(|step| (step.abs_diff(attempt.step), *step));
    for step in steps.into_iter().take(LOOKED_AT_MAX) {
        let of_step = directory.join(step_directory(step));
        let own = remains_in(files, &of_step, step, attempt, rank);
        if own.is_empty() {
            continue;
        }
        discard(files, &of_step, &own);
        // The others of this attempt write into the directory of their step.
        if step != attempt.step {
            let _ = files.remove_directory(&of_step);
        }
    }
}

/// The files that earlier attempts of writer `rank` have left in the directory of a step; none if it has a manifest.
fn remains_in(
    files: &dyn FileSystem,
    of_step: &Path,
    step: u64,
    attempt: &SaveAttempt,
    rank: u32,
) -> Vec<String> {
    let names = files.list(of_step).unwrap_or_default();
    if names.iter().any(|name| name == MANIFEST) || files.is_link(of_step) {
        return Vec::new();
    }
    let is_earlier = |file: &PartFile| {
        (file.term, file.generation, step) < (attempt.term, attempt.generation, attempt.step)
    };
    // The ranks of a larger world are divided among the writers that there are now.
    let is_own = |file: &PartFile| file.rank % attempt.world_size.max(1) == rank;
    let is_over = names.iter().filter_map(|name| PartFile::of(name)).all(|file| is_earlier(&file));
    let is_remainder = |name: &String| match PartFile::of(name) {
        Some(file) => is_earlier(&file) && is_own(&file),
        // The sealer is rank 0. Without this file, a seal that is under way fails.
        None => name == UNSEALED && rank == 0 && is_over,
    };
    names.into_iter().filter(is_remainder).collect()
}

/// Removes these files of one writer from the directory of a step, as far as no manifest may name them.
pub(crate) fn discard(files: &dyn FileSystem, of_step: &Path, names: &[String]) {
    let is_record =
        |name: &&String| PartFile::of(name).is_some_and(|it| it.kind == PartFileKind::Record);
    let (records, others): (Vec<&String>, Vec<&String>) = names.iter().partition(is_record);
    for record in records {
        match files.remove_file(&of_step.join(record)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return,
            _ => {}
        }
    }
    let manifest = files.open(&of_step.join(MANIFEST));
    if !matches!(manifest, Err(error) if error.kind() == io::ErrorKind::NotFound) {
        return;
    }
    for name in others {
        let _ = files.remove_file(&of_step.join(name));
    }
}

#[cfg(test)]
mod tests;
