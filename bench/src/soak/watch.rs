//! Measures memory, descriptors and threads of the soak's processes. Processes that live through most of the soak
//! must not grow. Called by `soak`.

use std::collections::BTreeMap;
use std::fs;

use anyhow::ensure;
use serde::Serialize;

/// Fewest measurements of a process whose growth is judged.
const MEASUREMENTS_MIN: usize = 12;

/// Growth in memory, in KiB, that is allowed between the second quarter of a life and the last; a share of the
/// memory is allowed if that is more.
const MEMORY_SLACK_KIB: u64 = 6 << 10;
const MEMORY_SLACK_SHARE: f64 = 0.15;

/// Largest growth in descriptors, and in threads, that is allowed.
const COUNT_SLACK: u64 = 6;

/// The size of a process.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct ProcessSize {
    pub(super) memory_kib: u64,
    pub(super) descriptors: u64,
    pub(super) threads: u64,
}

impl ProcessSize {
    fn of(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let number = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
        Some(Self { memory_kib: number("VmRSS")?, descriptors, threads: number("Threads")? })
    }

    fn most(self, other: Self) -> Self {
        Self {
            memory_kib: self.memory_kib.max(other.memory_kib),
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
        }
    }
}

/// All measurements.
#[derive(Default)]
pub(super) struct SizeWatch {
    /// Measurements by the process's name and id.
    lives: BTreeMap<(String, u32), Vec<ProcessSize>>,
}

/// Growth of a process that lived on: the medians of the second quarter of its life, and of the last.
#[derive(Debug, Serialize)]
pub(super) struct Growth {
    process: String,
    measurements: usize,
    before: ProcessSize,
    after: ProcessSize,
}

impl SizeWatch {
    /// Measures these processes, given by name and id.
    pub(super) fn measure(&mut self, processes: &[(String, u32)]) {
        for (name, pid) in processes {
            if let Some(size) = ProcessSize::of(*pid) {
                self.lives.entry((name.clone(), *pid)).or_default().push(size);
            }
        }
    }

    /// Growth of the longest-lived process of each kind.
    pub(super) fn growth(&self) -> Vec<Growth> {
        let mut longest: BTreeMap<&str, &Vec<ProcessSize>> = BTreeMap::new();
        for ((name, _), sizes) in &self.lives {
            let kind = name.split(' ').next().unwrap_or(name);
            let now = longest.entry(kind).or_insert(sizes);
            if sizes.len() > now.len() {
                *now = sizes;
            }
        }
        let lived = longest.into_iter().filter(|(_, sizes)| sizes.len() >= MEASUREMENTS_MIN);
        lived
            .map(|(kind, sizes)| {
                let quarter = sizes.len() / 4;
                Growth {
                    process: kind.to_owned(),
                    measurements: sizes.len(),
                    before: median(&sizes[quarter..2 * quarter]),
                    after: median(&sizes[3 * quarter..]),
                }
            })
            .collect()
    }

    /// The largest sizes of any process.
    pub(super) fn most(&self) -> ProcessSize {
        self.lives.values().flatten().fold(ProcessSize::default(), |most, size| most.most(*size))
    }
}

fn median(sizes: &[ProcessSize]) -> ProcessSize {
    let half = |what: fn(&ProcessSize) -> u64| {
        let mut values: Vec<u64> = sizes.iter().map(what).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    ProcessSize {
        memory_kib: half(|size| size.memory_kib),
        descriptors: half(|size| size.descriptors),
        threads: half(|size| size.threads),
    }
}

impl Growth {
    /// Fails if the process has grown. A worker holds connections to the members on other hosts, at most so many: they are more
    /// where more of them train.
    pub(super) fn check(&self, connections_max: u64) -> anyhow::Result<()> {
        let Self { process, before, after, .. } = self;
        let slack = MEMORY_SLACK_KIB.max((before.memory_kib as f64 * MEMORY_SLACK_SHARE) as u64);
        ensure!(
            after.memory_kib <= before.memory_kib + slack,
            "{process}'s memory grows: {self:?}"
        );
        let is_more = |before: u64, after: u64| after > before + COUNT_SLACK;
        let connections = if process.starts_with("worker") { connections_max } else { 0 };
        let files_before = before.descriptors + connections;
        ensure!(!is_more(files_before, after.descriptors), "{process} keeps files: {self:?}");
        ensure!(!is_more(before.threads, after.threads), "{process} keeps threads: {self:?}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(memory_kib: impl Fn(u64) -> u64) -> SizeWatch {
        let size = |at| ProcessSize { memory_kib: memory_kib(at), descriptors: 10, threads: 2 };
        SizeWatch {
            lives: BTreeMap::from([(("agent h0".to_owned(), 1), (0..40).map(size).collect())]),
        }
    }

    #[test]
    fn a_process_that_grows_is_seen() {
        let growth = life(|at| 20_000 + at * 1_000).growth();
        growth[0].check(0).expect_err("it has grown by half");
        let flat = life(|at| if at < 5 { at } else { 20_000 + at % 3 }).growth();
        flat[0].check(0).expect("it is flat");
    }
}
