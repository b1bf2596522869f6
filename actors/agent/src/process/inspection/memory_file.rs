//! Files in memory (memfd) through which a process passes data to its agent. The Python package makes them, and the
//! agent finds them by their names among the process's descriptors. Called by `stack_file` and `recorded`.

use std::fs;
use std::path::PathBuf;

/// The path of a process's file in memory of this name. No name of a file on a disk can be taken for it.
pub(super) fn path_of(pid: i32, name: &str) -> Option<PathBuf> {
    let link = format!("/memfd:{name} (deleted)");
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let mut paths = open.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| fs::read_link(path).is_ok_and(|it| it.as_os_str() == link.as_str()))
}
