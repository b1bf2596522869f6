//! The limits of this process's control group (cgroup v2), which the workers of this host share. Called by `doctor`.

use std::path::{Path, PathBuf};

use serde::Serialize;

/// The folder in which the kernel shows control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// Least memory for each slot, in bytes (1 GiB): a Python program that imports a framework needs half of it.
const MEMORY_WANTED: u64 = 1 << 30;

/// Fewest processes and threads for each slot.
const TASKS_WANTED: u64 = 64;

/// The limits of the group and of those above it, the smallest of each; `None`: no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct GroupLimits {
    /// Of memory (`memory.max`), in bytes.
    memory_bytes: Option<u64>,
    /// Of processor time (`cpu.max`), in processors.
    cpus: Option<f64>,
    /// Of processes and threads (`pids.max`).
    tasks: Option<u64>,
}

impl GroupLimits {
    /// The limits of this process; `None` if the host has no cgroup v2.
    pub(super) fn own() -> Option<Self> {
        let read = |path: &Path| std::fs::read_to_string(path).ok();
        Self::of(&read(Path::new("/proc/self/cgroup"))?, &read)
    }

    /// The limits by the text of `/proc/self/cgroup` and the files of groups.
    fn of(own: &str, read: &dyn Fn(&Path) -> Option<String>) -> Option<Self> {
        let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        let root = Path::new(ROOT);
        read(&root.join("cgroup.controllers"))?;
        let group = root.join(path.trim_start_matches('/'));
        let groups: Vec<PathBuf> = group
            .ancestors()
            .take_while(|folder| folder.starts_with(root))
            .map(Path::to_owned)
            .collect();
        let files = |name: &str| -> Vec<String> {
            groups.iter().filter_map(|folder| read(&folder.join(name))).collect()
        };
        let number = |text: &String| text.trim().parse::<u64>().ok();
        let memory_bytes = files("memory.max").iter().filter_map(number).min();
        let tasks = files("pids.max").iter().filter_map(number).min();
        let cpus = files("cpu.max").iter().filter_map(|text| cpus(text)).reduce(f64::min);
        Some(Self { memory_bytes, cpus, tasks })
    }

    /// Limits that are too small for these slots, each with a remedy.
    pub(super) fn shortages(&self, slots: u32) -> Vec<(String, String)> {
        let allows = |what: String| format!("the control group allows {what} for {slots} slots");
        let hint =
            |more: &str, why: &str| format!("give it more ({more}), or offer fewer --slots: {why}");
        let mut found = Vec::new();
        if let Some(bytes) = self.memory_bytes.filter(|it| *it < MEMORY_WANTED * u64::from(slots)) {
            let names =
                "memory.max: MemoryMax= of a unit, --memory of a container, limits of a pod";
            found.push((
                allows(format!("{} MiB of memory", bytes >> 20)),
                hint(names, "the kernel kills a worker that needs more"),
            ));
        }
        if let Some(cpus) = self.cpus.filter(|it| *it < f64::from(slots)) {
            let names = "cpu.max: CPUQuota= of a unit, --cpus of a container, limits of a pod";
            found.push((
                allows(format!("{cpus:.1} processors")),
                hint(names, "the kernel halts all of its workers for a part of each period"),
            ));
        }
        if let Some(tasks) = self.tasks.filter(|it| *it < TASKS_WANTED * u64::from(slots)) {
            let names = "pids.max: TasksMax= of a unit, --pids-limit of a container";
            found.push((
                allows(format!("{tasks} processes and threads")),
                hint(names, "a worker that cannot start a thread fails"),
            ));
        }
        found
    }

    /// A few words.
    pub(super) fn describe(&self) -> String {
        let limits = [
            self.memory_bytes.map(|bytes| format!("{} MiB of memory", bytes >> 20)),
            self.cpus.map(|cpus| format!("{cpus:.1} processors")),
            self.tasks.map(|tasks| format!("{tasks} processes and threads")),
        ];
        let limits: Vec<String> = limits.into_iter().flatten().collect();
        if limits.is_empty() {
            "no limits".to_owned()
        } else {
            format!("at most {}", limits.join(", "))
        }
    }
}

/// Processors of `cpu.max`: time in each period, and the period, in microseconds; none without a limit.
fn cpus(text: &str) -> Option<f64> {
    let (time, period) = text.trim().split_once(' ')?;
    let (time, period): (f64, f64) = (time.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then(|| time / period)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn limits(own: &str, files: &[(&str, &str)]) -> Option<GroupLimits> {
        let files: BTreeMap<PathBuf, &str> =
            files.iter().map(|(path, text)| (Path::new(ROOT).join(path), *text)).collect();
        GroupLimits::of(own, &|path| files.get(path).map(|text| (*text).to_owned()))
    }

    #[test]
    fn the_smallest_limit_of_the_group_and_those_above_it_counts() {
        let files = [
            ("cgroup.controllers", "cpu memory pids\n"),
            ("a/memory.max", "2147483648\n"),
            ("a/b/memory.max", "max\n"),
            ("a/cpu.max", "max 100000\n"),
            ("a/b/cpu.max", "150000 100000\n"),
            ("a/b/pids.max", "100\n"),
        ];
        let found = limits("1:name=x:/y\n0::/a/b\n", &files).expect("cgroup v2");
        let expected =
            GroupLimits { memory_bytes: Some(2 << 30), cpus: Some(1.5), tasks: Some(100) };
        assert_eq!(found, expected);
        assert_eq!(
            found.describe(),
            "at most 2048 MiB of memory, 1.5 processors, 100 processes and threads"
        );
        assert_eq!(found.shortages(1), []);
        let words: Vec<String> = found.shortages(4).into_iter().map(|(what, _)| what).collect();
        let allows = |what: &str| format!("the control group allows {what} for 4 slots");
        let all = ["2048 MiB of memory", "1.5 processors", "100 processes and threads"];
        assert_eq!(words, all.map(allows));
    }

    #[test]
    fn a_group_without_limits_and_a_host_without_cgroup_v2_are_told_apart() {
        let found = limits("0::/\n", &[("cgroup.controllers", "")]).expect("cgroup v2");
        assert_eq!((found.describe().as_str(), found.shortages(64).len()), ("no limits", 0));
        assert_eq!(limits("0::/\n", &[]), None);
        assert_eq!(limits("4:memory:/a\n", &[("cgroup.controllers", "")]), None);
    }
}
