//! Control groups: each worker's process begins in a group of its own, below the agent's, if the agent may make one
//! (cgroup v2, Linux 5.14). All descendants of a worker stay in its group, whatever their session, and the kernel kills
//! the whole group at once. Without such a group, `orphans` looks for processes that are left. Called by `starting` and
//! `system`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use nix::unistd::getpid;

use super::control_groups::ControlGroups;
use super::polling::poll_within;

/// Time limit for the processes of a killed group to be gone. A process in a system call that does not return stays
/// longer, and its group with it.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// The group of an agent, with a group for each of its workers in it. Removed with this value.
#[derive(Debug)]
pub(super) struct AgentGroup {
    folder: PathBuf,
}

impl AgentGroup {
    /// The group; `None` where this process may not make one.
    pub(super) fn make() -> Option<Self> {
        // In a container every agent is process 1.
        let unique = uuid::Uuid::new_v4().simple();
        let name = format!("elastic-node-{}-{unique}", std::process::id());
        let folder = own_folder()?.join(name);
        let is_plain = !folder.to_string_lossy().contains(char::is_whitespace);
        if !is_plain || fs::create_dir(&folder).is_err() {
            return None;
        }
        let group = Self { folder };
        // Older kernels cannot kill a group; dropping this value removes the folder.
        group.folder.join("cgroup.kill").exists().then_some(group)
    }

    /// A group for one process. `None` if it cannot be made any more.
    pub(super) fn worker(&self, name: &str) -> Option<WorkerGroup> {
        let folder = self.folder.join(name);
        fs::create_dir(&folder).ok()?;
        let group = WorkerGroup { folder };
        let entry = OpenOptions::new().write(true).open(group.folder.join("cgroup.procs"));
        entry.is_ok().then_some(group)
    }
}

impl Drop for AgentGroup {
    fn drop(&mut self) {
        // A group whose processes could not be killed stays.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The group of one worker. Dropping it kills all processes that are left in it.
#[derive(Debug)]
pub(super) struct WorkerGroup {
    folder: PathBuf,
}

impl WorkerGroup {
    /// The file to which a process writes `0` to enter the group.
    pub(super) fn entry(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.folder.join("cgroup.procs"))
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn kill(&self) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.folder.join("cgroup.kill"))?.write_all(b"1")
    }

    /// Whether a process is left that is no zombie.
    fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.folder.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 1")
    }

    fn wait_until_empty(&self) -> io::Result<()> {
        let events = File::open(self.folder.join("cgroup.events"))?;
        let mut polled = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
        // The file tells of changes since it was read last.
        io::read_to_string(&events)?;
        if self.is_populated() {
            poll_within(&mut polled, GONE_WITHIN)?;
        }
        Ok(())
    }
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        let ended = self.kill().and_then(|()| self.wait_until_empty());
        if let Err(error) = ended.and_then(|()| fs::remove_dir(&self.folder)) {
            tracing::warn!(group = %self.folder.display(), %error, "a worker's processes may be left");
        }
    }
}

/// The folder of this process's own group, under cgroup v2.
pub(super) fn own_folder() -> Option<PathBuf> {
    ControlGroups::of(getpid().as_raw()).own().map(Path::to_owned)
}

/// The id of a process's control group (version 2), as the kernel tells it of sockets; `None` where it is not to be seen.
pub fn control_group_id(pid: u32) -> Option<u64> {
    let groups = ControlGroups::of(pid.cast_signed());
    Some(fs::metadata(groups.own()?).ok()?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files that never change, as those of a group whose process is in a system call that does not return.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "measures a wait for the kernel")]
    fn g_9_a_killed_group_whose_processes_stay_is_waited_for_and_then_left() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = place.path().join("stuck");
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("cgroup.kill"), "").expect("it is written");
        fs::write(folder.join("cgroup.events"), "populated 1\nfrozen 0\n").expect("it is written");
        let begun = std::time::Instant::now();
        drop(WorkerGroup { folder: folder.clone() });
        let waited = begun.elapsed();
        assert!(waited >= GONE_WITHIN, "it was left after {waited:?}");
        assert_eq!(fs::read_to_string(folder.join("cgroup.kill")).expect("it is there"), "1");
        assert!(folder.exists(), "a group with processes in it cannot be removed");
    }
}
