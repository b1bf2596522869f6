//! Kills by the kernel's OOM killer. A process that was killed for want of memory ends by SIGKILL, like any killed
//! process. Only counters of the kernel tell the cause. Called by `starting` before a process begins, and by `system`
//! after its end.

use std::fs;
use std::path::{Path, PathBuf};

use super::cgroup;

/// The counter of all OOM kills of the machine.
const MACHINE: &str = "/proc/vmstat";

/// The OOM kills that one counter of the kernel had counted before a process began.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct OomKills {
    /// The file with the counter: the narrowest that could be read.
    file: PathBuf,
    /// Whether the counter is that of a control group, and not of the whole machine.
    of_group: bool,
    count: u64,
}

impl OomKills {
    /// The counter for a process in this control group; without one, that of the agent's group, or of the machine.
    /// `None` where the kernel has none of them.
    pub(super) fn read(group: Option<&Path>) -> Option<Self> {
        let own = cgroup::own_folder();
        let groups = group.into_iter().chain(own.as_deref());
        let files = groups.map(|folder| (folder.join("memory.events"), true));
        let files = files.chain([(PathBuf::from(MACHINE), false)]);
        files.into_iter().find_map(|(file, of_group)| {
            let count = count(&fs::read_to_string(&file).ok()?)?;
            Some(Self { file, of_group, count })
        })
    }

    /// Explanation for a process that has ended by SIGKILL, if the OOM killer has killed a process since.
    pub(super) fn explain(&self) -> Option<String> {
        let counted = count(&fs::read_to_string(&self.file).ok()?)?;
        let killed = counted.checked_sub(self.count).filter(|killed| *killed > 0)?;
        let file = self.file.display();
        Some(if self.of_group {
            format!(
                "killed for want of memory: the control group's memory was used up, and the kernel's OOM killer \
                 struck ({killed} in {file} since this process began)"
            )
        } else {
            format!(
                "probably killed for want of memory: the kernel's OOM killer has struck on this machine since this \
                 process began (oom_kill in {file}: {killed} more)"
            )
        })
    }
}

/// The value of `oom_kill` among lines of names and numbers.
fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_12_the_counter_is_found_among_others() {
        assert_eq!(count("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n"), Some(3));
        assert_eq!(count("pgfault 1\noom_kill 0\n"), Some(0));
        assert_eq!(count("pgfault 1\n"), None);
    }

    #[test]
    fn s_12_only_kills_since_the_process_began_explain_its_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let events = folder.path().join("memory.events");
        fs::write(&events, "oom_kill 3\n").expect("written");
        let before = OomKills::read(Some(folder.path())).expect("a counter");
        assert_eq!(before.explain(), None);
        fs::write(&events, "oom_kill 4\n").expect("written");
        let why = before.explain().expect("a reason");
        assert!(why.starts_with("killed for want of memory") && why.contains("(1 in "), "{why}");
        fs::remove_file(&events).expect("removed");
        assert_eq!(before.explain(), None, "a group that is gone tells nothing");
    }
}
