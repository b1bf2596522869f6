//! Orphans: processes that workers leave behind outside of their process groups. Called by `system`. The agent
//! becomes the parent of such orphans (as it does as process 1 of a container). It reaps those that have ended,
//! and kills those of a worker that has ended. This runs on the lane of processes, as starts do, so that no
//! child is taken for an orphan.

use std::collections::BTreeMap;
use std::fs;

use elastic_protocol::environment;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getpid};

use super::proc_files::ProcessStat;
use super::starting::Starter;

/// The most searches for the orphans of a worker. Each search may find processes that a killed orphan has left.
const LOOKS_MAX: u32 = 8;

/// Makes this process the parent of orphans from now on.
pub(super) fn adopt() {
    if let Err(error) = prctl::set_child_subreaper(true) {
        tracing::warn!(%error, "processes that leave their worker's group will outlive it");
    }
}

/// Reaps orphans that have ended, and replaces a guard that has.
pub(super) fn reap(starter: &Starter) {
    starter.children().keep_guarded();
    let me = getpid().as_raw();
    let ended = processes().into_iter().filter(|(_, seen)| seen.parent == me && seen.has_ended());
    let ended: Vec<(i32, ProcessStat)> = ended.collect();
    let own = {
        let children = starter.children();
        if children.starting > 0 {
            // One of them may be a child that is just being started. Its own end brings the next look.
            return;
        }
        children.pids.clone()
    };
    let ended = ended.into_iter();
    for (pid, _) in ended.filter(|(pid, _)| !own.contains(pid)) {
        // An error means that other code has reaped it meanwhile.
        let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
    }
}

/// Kills the orphans of a worker that has ended, with all processes that they have started. `worker` is the
/// worker's name in their environment.
pub(super) fn end_orphans(starter: &Starter, worker: &str) {
    let (own, me) = (starter.children().pids.clone(), getpid().as_raw());
    for _ in 0..LOOKS_MAX {
        let all = processes();
        let orphans = all.iter().filter(|(pid, seen)| {
            seen.parent == me && !seen.has_ended() && !own.contains(pid) && is_of(**pid, worker)
        });
        let mut found: Vec<i32> = orphans.map(|(pid, _)| *pid).collect();
        if found.is_empty() {
            break;
        }
        let mut next = 0;
        while let Some(parent) = found.get(next).copied() {
            let children = all.iter().filter(|(_, seen)| seen.parent == parent);
            found.extend(children.map(|(pid, _)| *pid));
            next += 1;
        }
        tracing::info!(
            worker,
            ?found,
            "processes that have left their worker's session are killed"
        );
        for pid in found {
            // An error means that it has ended by itself.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        reap(starter);
    }
}

/// Whether a process was started by this worker or one of its descendants: the environment is inherited.
fn is_of(pid: i32, worker: &str) -> bool {
    let entry = format!("{}={worker}", environment::WORKER);
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|it| it == entry.as_bytes())
}

/// All processes that `/proc` shows, by process id.
fn processes() -> BTreeMap<i32, ProcessStat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, ProcessStat::of(pid)?))).collect()
}
