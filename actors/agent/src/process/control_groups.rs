//! The control groups (cgroups, version 1 or 2) of a process: whether one is frozen, and for how long their CPU limits
//! have held the process back. Called by `cgroup` and by `inspection`.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders of a process's control groups, its own first, then those above it. Empty where they are not to be seen.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct ControlGroups {
    unified: Vec<PathBuf>,
    freezer: Vec<PathBuf>,
    cpu: Vec<PathBuf>,
}

impl ControlGroups {
    pub(super) fn of(pid: i32) -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        Self::parse(&mounts, &groups)
    }

    fn parse(mounts: &str, groups: &str) -> Self {
        let folders = |controller| folders(mounts, groups, controller).unwrap_or_default();
        Self { unified: folders(""), freezer: folders("freezer"), cpu: folders("cpu") }
    }

    /// The process's own group, under version 2.
    pub(super) fn own(&self) -> Option<&Path> {
        self.unified.first().map(PathBuf::as_path)
    }

    /// Whether one of the groups is frozen: all that is below it is frozen then.
    pub(super) fn is_frozen(&self) -> bool {
        let of_version_2 = |folder: &PathBuf| number(&folder.join("cgroup.events"), "frozen");
        let state = |folder: &PathBuf| fs::read_to_string(folder.join("freezer.state")).ok();
        self.unified.iter().filter_map(of_version_2).any(|frozen| frozen == 1)
            || self.freezer.iter().filter_map(state).any(|state| state.trim() == "FROZEN")
    }

    /// Time for which CPU limits have throttled processes of the groups, in microseconds. This is the maximum over the
    /// groups, since only some of them keep the counter.
    pub(super) fn held_back_us(&self) -> u64 {
        let of = |folder: &PathBuf, name| number(&folder.join("cpu.stat"), name);
        let unified = self.unified.iter().filter_map(|it| of(it, "throttled_usec"));
        let cpu = self.cpu.iter().filter_map(|it| of(it, "throttled_time")).map(|ns| ns / 1_000);
        unified.chain(cpu).max().unwrap_or_default()
    }
}

impl ControlGroups {
    /// The pressure (PSI) of a resource in the process's own group; `None` where it has none of version 2, or that is the
    /// root, whose pressure is the host's.
    pub(super) fn pressure(&self, resource: &str) -> Option<String> {
        fs::read_to_string(self.own()?.join(format!("{resource}.pressure"))).ok()
    }
}

/// The folders of a controller's groups; without a name, those of version 2.
fn folders(mounts: &str, groups: &str, controller: &str) -> Option<Vec<PathBuf>> {
    let is_of = |list: &str| list.split(',').any(|it| it == controller);
    let mount = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (at, kind, options) = (words.next()?, words.next()?, words.next()?);
        let is_its = match kind {
            "cgroup2" => controller.is_empty(),
            "cgroup" => !controller.is_empty() && is_of(options),
            _ => false,
        };
        is_its.then(|| Path::new(at))
    })?;
    let group = groups.lines().find_map(|line| {
        let (_, named) = line.split_once(':')?;
        named.split_once(':').filter(|(list, _)| is_of(list)).map(|(_, group)| group)
    })?;
    // A group outside of this process's view of the hierarchy.
    if group.split('/').any(|part| part == "..") {
        return None;
    }
    // In a container without a namespace of its own for groups, the last of these folders are the only ones there.
    let own = mount.join(group.trim_start_matches('/'));
    Some(own.ancestors().take_while(|it| it.starts_with(mount)).map(Path::to_owned).collect())
}

/// The number behind a name in a file of such lines.
fn number(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.find(|(it, _)| *it == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_both_versions_are_found_up_to_where_they_are_mounted() {
        let mounts = "cgroup /sys/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                      cgroup /sys/freezer cgroup rw,freezer 0 0\n\
                      cgroup2 /sys/unified cgroup2 rw 0 0\n";
        let groups = "4:cpu,cpuacct:/a\n3:freezer:/../b\n0::/c/d\n";
        let found = ControlGroups::parse(mounts, groups);
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(found.unified, paths(&["/sys/unified/c/d", "/sys/unified/c", "/sys/unified"]));
        assert_eq!(found.cpu, paths(&["/sys/cpu,cpuacct/a", "/sys/cpu,cpuacct"]));
        assert_eq!(found.freezer, paths(&[]));
        assert_eq!(ControlGroups::parse("", groups), ControlGroups::default());
    }

    #[test]
    fn a_group_is_frozen_with_one_above_it_and_held_back_by_any() {
        let place = tempfile::tempdir().expect("a folder");
        let (above, own) = (place.path().to_owned(), place.path().join("own"));
        fs::create_dir(&own).expect("a folder");
        let write = |folder: &Path, file: &str, text: &str| {
            fs::write(folder.join(file), text).expect("it is written");
        };
        write(&own, "cgroup.events", "populated 1\nfrozen 0\n");
        write(&own, "cpu.stat", "usage_usec 7\n");
        write(&above, "cpu.stat", "usage_usec 7\nthrottled_usec 5000\n");
        let groups = ControlGroups { unified: vec![own.clone(), above.clone()], ..<_>::default() };
        assert!(!groups.is_frozen());
        assert_eq!(groups.held_back_us(), 5_000);
        write(&above, "cgroup.events", "populated 1\nfrozen 1\n");
        assert!(groups.is_frozen());
        write(&above, "freezer.state", "FROZEN\n");
        write(&above, "cpu.stat", "throttled_time 9000000\n");
        let groups =
            ControlGroups { freezer: vec![above.clone()], cpu: vec![above], ..<_>::default() };
        assert!(groups.is_frozen());
        assert_eq!(groups.held_back_us(), 9_000);
    }
}
