//! This very program, to be started again as an agent: by its path, or as the kernel holds it if the file was removed
//! or replaced meanwhile, as an upgrade does. Another version would not be understood. Used by `launcher` and `node`.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The program of the process that opens it.
const RUNNING: &str = "/proc/self/exe";

/// The path by which a child of this process starts this program. Reads the file system.
///
/// # Errors
/// Neither is there.
pub(super) fn own_program() -> io::Result<PathBuf> {
    std::env::current_exe().map(|path| unchanged(&path, Path::new(RUNNING)))
}

/// `path` if it is still the file that runs, else `running`.
fn unchanged(path: &Path, running: &Path) -> PathBuf {
    let file = |path: &Path| fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    let is_same = file(path).is_some_and(|it| Some(it) == file(running));
    if is_same { path } else { running }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_removed_or_replaced_is_started_as_the_kernel_holds_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, running) = (folder.path().join("program"), folder.path().join("running"));
        fs::write(&path, "one version").expect("written");
        fs::hard_link(&path, &running).expect("the same file");
        assert_eq!(unchanged(&path, &running), path);
        fs::remove_file(&path).expect("removed");
        assert_eq!(unchanged(&path, &running), running);
        fs::write(&path, "another version").expect("written");
        assert_eq!(unchanged(&path, &running), running);
    }
}
