//! The processes that a process has started, and those that these have started. Called by `reading`.

use std::fs;

use crate::process::proc_files::ProcessStat;

/// Most processes that one look takes in: a program that starts processes without end must not hold up the lane.
const PROCESSES_MAX: usize = 1024;

/// The living descendants of a process, and those that have ended and were not waited for. A system that does not list
/// children (`CONFIG_PROC_CHILDREN`) shows none.
pub(super) fn descendants(pid: i32) -> Vec<(i32, ProcessStat)> {
    let mut found = Vec::new();
    let mut unseen = children(pid);
    while let Some(child) = unseen.pop().filter(|_| found.len() < PROCESSES_MAX) {
        // A process that is gone was waited for.
        let Some(stat) = ProcessStat::of(child) else { continue };
        unseen.extend(children(child));
        found.push((child, stat));
    }
    found
}

/// The children of each thread: a thread's list has those that it has started itself.
fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().filter_map(Result::ok);
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>())
        .collect()
}
