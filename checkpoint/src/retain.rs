//! Removal of old checkpoints, and of leftovers of failed saves. A checkpoint loses its manifest first. After a loss of
//! power it is therefore partial, never damaged. Called by `seal`, and by a resume. `set_aside` has the checkpoints that are
//! later than the step of a resume.

use std::io;
use std::path::Path;

use elastic_protocol::planted::{Bug, is_planted};

use crate::file_system::FileSystem;
use crate::manifest::MANIFEST;
use crate::{step_directory, step_of};

/// The checkpoints that stay when a later one is whole.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Retention {
    /// Number of the newest ones.
    pub keep: usize,
    /// The step of one that stays beside them.
    pub spared: Option<u64>,
}

impl Retention {
    /// So many of the newest ones, and no other.
    pub const fn newest(keep: usize) -> Self {
        Self { keep, spared: None }
    }
}

/// Removes all but the newest checkpoints up to `newest` and the one that is spared, and partial ones before `newest`. A link is
/// no checkpoint of ours: it stays, with its target. Returns troubles, in words.
pub(crate) fn retain(
    files: &dyn FileSystem,
    directory: &Path,
    Retention { keep, spared }: Retention,
    newest: u64,
) -> Vec<String> {
    let mut steps = match steps(files, directory) {
        Ok(steps) => steps,
        Err(error) => return vec![unlisted(directory, &error)],
    };
    let is_own = |step: &u64| !files.is_link(&directory.join(step_directory(*step)));
    steps.retain(|step| *step <= newest && is_own(step));
    let (mut kept, mut troubles) = (0, Vec::new());
    for step in steps.into_iter().rev() {
        let of_step = directory.join(step_directory(step));
        // A directory that cannot be listed stays, and does not count: it may be whole or not.
        let Some(names) = names_in(files, &of_step, &mut troubles) else { continue };
        let is_sealed = names.iter().any(|name| name == MANIFEST);
        if is_sealed && kept < keep {
            kept += 1;
        } else if is_sealed && spared == Some(step) {
            // It is kept, whatever its place in the order is.
        } else if is_sealed || step < newest {
            troubles.extend(remove(files, directory, &of_step, names).err());
        }
    }
    troubles
}

/// Removes the leftovers of saves that did not end. Called before training begins, when nobody writes. Returns
/// troubles, in words.
pub fn clear_partial(files: &dyn FileSystem, directory: &Path) -> Vec<String> {
    let steps = match steps(files, directory) {
        Ok(steps) => steps,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => return vec![unlisted(directory, &error)],
    };
    let mut troubles = Vec::new();
    for step in steps {
        let of_step = directory.join(step_directory(step));
        let Some(names) = names_in(files, &of_step, &mut troubles) else { continue };
        if !names.iter().any(|name| name == MANIFEST) && !files.is_link(&of_step) {
            troubles.extend(remove(files, directory, &of_step, names).err());
        }
    }
    troubles
}

/// The names in a directory; none, and one more trouble, if it cannot be listed.
fn names_in(
    files: &dyn FileSystem,
    directory: &Path,
    troubles: &mut Vec<String>,
) -> Option<Vec<String>> {
    let names = files.list(directory);
    names.map_err(|error| troubles.push(unlisted(directory, &error))).ok()
}

pub(crate) fn unlisted(directory: &Path, error: &io::Error) -> String {
    format!("{} cannot be listed: {error}", directory.display())
}

/// The steps that have a directory, in order.
pub(crate) fn steps(files: &dyn FileSystem, directory: &Path) -> io::Result<Vec<u64>> {
    let names = files.list(directory)?;
    let mut steps: Vec<u64> = names.iter().filter_map(|name| step_of(name)).collect();
    steps.sort_unstable();
    Ok(steps)
}

fn remove(
    files: &dyn FileSystem,
    directory: &Path,
    of_step: &Path,
    mut names: Vec<String>,
) -> Result<(), String> {
    let in_words = |error: io::Error| format!("{} cannot be removed: {error}", of_step.display());
    let manifest = names.iter().position(|name| name == MANIFEST);
    if is_planted(Bug::DataRemovedBeforeManifest) {
        names.sort_by_key(|name| name == MANIFEST);
    }
    if let Some(index) = manifest.filter(|_| !is_planted(Bug::DataRemovedBeforeManifest)) {
        files.remove_file(&of_step.join(names.swap_remove(index))).map_err(in_words)?;
        files.sync_directory(of_step).map_err(in_words)?;
    }
    for name in names {
        files.remove_file(&of_step.join(name)).map_err(in_words)?;
    }
    files.remove_directory(of_step).map_err(in_words)?;
    files.sync_directory(directory).map_err(in_words)
}
