//! Setting aside of the checkpoints that are later than a resume's step: training will write steps of the same numbers with
//! other content. They are renamed and not removed: the user may take one back by its former name. Called by a resume.

use std::io;
use std::path::Path;

use crate::error::CheckpointLoadError;
use crate::file_system::FileSystem;
use crate::manifest::MANIFEST;
use crate::retain::unlisted;
use crate::step_of;

/// Renames the checkpoints after `step`; none: all of them. Returns their new names, and troubles, in words.
pub fn set_aside_after(
    files: &dyn FileSystem,
    directory: &Path,
    step: Option<u64>,
) -> (Vec<String>, Vec<String>) {
    let all = match names_in(files, directory) {
        Ok(all) => all,
        Err(error) => return (Vec::new(), vec![unlisted(directory, &error)]),
    };
    let (mut set_aside, mut troubles) = (Vec::new(), Vec::new());
    for name in later(&all, step) {
        match rename(files, directory, name, &all) {
            Ok(new) => set_aside.push(new),
            Err(error) => troubles.push(not_renamed(name, &error)),
        }
    }
    troubles.extend(sync(files, directory, &set_aside));
    (set_aside, troubles)
}

/// As [`set_aside_after`], for a step that the user has chosen. After a loss of all workers the newest checkpoint counts, so
/// none of the later ones may stay. If one cannot be renamed, all get their names back. A partial one may stay.
///
/// # Errors
/// [`CheckpointLoadError::InTheWay`], or [`CheckpointLoadError::List`].
pub fn set_aside_all_after(
    files: &dyn FileSystem,
    directory: &Path,
    step: Option<u64>,
) -> Result<(Vec<String>, Vec<String>), CheckpointLoadError> {
    let list = |source| CheckpointLoadError::List { path: directory.to_owned(), source };
    let all = names_in(files, directory).map_err(list)?;
    let (mut renamed, mut troubles) = (Vec::new(), Vec::new());
    for name in later(&all, step) {
        match rename(files, directory, name, &all) {
            Ok(new) => renamed.push((name, new)),
            Err(source) if may_be_whole(files, &directory.join(name)) => {
                for (former, new) in renamed {
                    let _ = files.rename(&directory.join(new), &directory.join(former));
                }
                let path = directory.join(name);
                return Err(CheckpointLoadError::InTheWay { path, source });
            }
            Err(error) => troubles.push(not_renamed(name, &error)),
        }
    }
    let set_aside: Vec<String> = renamed.into_iter().map(|(_, new)| new).collect();
    troubles.extend(sync(files, directory, &set_aside));
    Ok((set_aside, troubles))
}

/// The names in a directory. One that does not exist has none.
fn names_in(files: &dyn FileSystem, directory: &Path) -> io::Result<Vec<String>> {
    match files.list(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        names => names,
    }
}

/// The names of the steps' directories after `step`.
fn later(all: &[String], step: Option<u64>) -> impl Iterator<Item = &String> {
    all.iter().filter(move |name| step_of(name).is_some_and(|other| Some(other) > step))
}

/// Gives a step's directory a name that none of `all` has. Returns that name.
fn rename(
    files: &dyn FileSystem,
    directory: &Path,
    name: &str,
    all: &[String],
) -> io::Result<String> {
    let aside = |number: u32| format!("set-aside-{number}-{name}");
    let number = (1..).find(|number| !all.contains(&aside(*number))).unwrap_or(1);
    let new = aside(number);
    files.rename(&directory.join(name), &directory.join(&new)).map(|()| new)
}

/// Whether a directory holds a checkpoint that a search could take. One that was renamed in spite of an error does not exist.
fn may_be_whole(files: &dyn FileSystem, of_step: &Path) -> bool {
    match files.list(of_step) {
        Ok(names) => names.iter().any(|name| name == MANIFEST),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

fn not_renamed(name: &str, error: &io::Error) -> String {
    format!("{name} cannot be renamed: {error}")
}

/// Makes the new names safe. Returns the trouble with that, in words.
fn sync(files: &dyn FileSystem, directory: &Path, set_aside: &[String]) -> Option<String> {
    if set_aside.is_empty() {
        return None;
    }
    files.sync_directory(directory).err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupted::Interrupted;
    use crate::{MemoryFiles, step_directory};

    fn root() -> &'static Path {
        Path::new("checkpoints")
    }

    /// Step directories, of which those after the second are whole.
    fn disk() -> MemoryFiles {
        let disk = MemoryFiles::new(1);
        for step in 1..=5 {
            let of_step = root().join(step_directory(step));
            disk.make_directory(&of_step).expect("ours");
            if step > 2 {
                disk.create(&of_step.join(MANIFEST)).expect("ours");
            }
        }
        disk
    }

    #[test]
    fn c_2_a_later_checkpoint_that_cannot_be_set_aside_is_named_and_all_stay_as_they_were() {
        let mut in_the_way = std::collections::BTreeSet::new();
        for at in 0.. {
            let disk = disk();
            let before = disk.files();
            let failing =
                Interrupted::new(&disk, at, |_| Err(io::ErrorKind::CrossesDevices.into()));
            match set_aside_all_after(&failing, root(), Some(1)) {
                Err(CheckpointLoadError::InTheWay { path, source }) => {
                    assert_eq!(source.kind(), io::ErrorKind::CrossesDevices);
                    assert_eq!(disk.files(), before);
                    in_the_way.insert(path);
                }
                Err(CheckpointLoadError::List { .. }) => assert_eq!(at, 0),
                Err(error) => panic!("{error}"),
                // The partial one stays, or the new names are not safe.
                Ok((set_aside, troubles)) if failing.has_come() => {
                    assert!(set_aside.len() >= 3 && troubles.len() == 1, "{troubles:?}");
                }
                Ok((set_aside, troubles)) => {
                    assert_eq!((set_aside.len(), troubles.len()), (4, 0));
                    break;
                }
            }
        }
        let whole = (3..=5).map(|step| root().join(step_directory(step)));
        assert_eq!(in_the_way, whole.collect(), "a partial one is in nobody's way");
    }

    #[test]
    fn what_is_renamed_in_spite_of_an_error_is_not_in_the_way() {
        let disk = disk();
        let aside = |step: u64| root().join(format!("set-aside-1-{}", step_directory(step)));
        // After the listing and two renames comes that of step 4.
        let renamed = Interrupted::new(&disk, 3, move |disk| {
            disk.rename(&root().join(step_directory(4)), &aside(4))?;
            Err(io::Error::other("a server that answers late"))
        });
        let (set_aside, troubles) = set_aside_all_after(&renamed, root(), Some(1)).expect("gone");
        assert_eq!((set_aside.len(), troubles.len()), (3, 1));
    }
}
