//! Orphans: processes that workers leave behind outside of their process groups. Called by `system`. The agent
//! becomes the parent of such orphans (as it does as process 1 of a container). It reaps those that have ended,
//! and kills those of a worker that has ended. This runs on the lane of processes, as starts do, so that no
//! child is taken for an orphan.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use elastic_protocol::environment;
use elastic_runtime::OffloadPort;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getpid};

use super::proc_files::ProcessStat;
use super::starting::Starter;

/// The most searches for the orphans of a worker. Each search may find processes that a killed orphan has left.
const LOOKS_MAX: u32 = 8;

/// Timeout for reading the environment of an orphan.
const READ_WITHIN: Duration = Duration::from_millis(500);

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

/// The mark of a worker's processes in their environment.
pub(super) fn mark_of_worker(worker: &str) -> String {
    format!("{}={worker}", environment::WORKER)
}

/// Has the lane end orphans; see [`end_orphans`].
pub(super) fn end_on(lane: &OffloadPort, starter: &Starter, mark: String) {
    let starter = starter.clone();
    drop(lane.run("end orphans", move || end_orphans(&starter, &mark)));
}

/// Kills the orphans of a worker or a health check that has ended, with all processes that they have started. `mark` is
/// an entry of their environment.
fn end_orphans(starter: &Starter, mark: &str) {
    let (own, me) = (starter.children().pids.clone(), getpid().as_raw());
    for _ in 0..LOOKS_MAX {
        let all = processes();
        let orphans = all.iter().filter(|(pid, seen)| {
            seen.parent == me
                && !seen.has_ended()
                && !own.contains(pid)
                && is_of(**pid, seen.started, mark)
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
        tracing::info!(of = mark, ?found, "processes that have left their session are killed");
        for pid in found {
            // An error means that it has ended by itself.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        reap(starter);
    }
}

/// Whether a process was started by the one with this mark or one of its descendants: the environment is inherited.
fn is_of(pid: i32, started: u64, mark: &str) -> bool {
    let read = move || fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let Some(environment) = read_in_time((pid, started), read) else {
        tracing::warn!(
            pid,
            of = mark,
            "it is not known whose process this is: its memory does not answer"
        );
        return false;
    };
    environment.split(|byte| *byte == 0).any(|it| it == mark.as_bytes())
}

/// Reads of a process's memory that have not returned, each on a thread of its own, by process id and time of its start.
static HANGING: Mutex<BTreeSet<(i32, u64)>> = Mutex::new(BTreeSet::new());

/// Reads from a process's memory; none if that takes too long. A reader waits where one thread of the process waits for a disk
/// that hangs, and another one changes the memory's map.
fn read_in_time(
    process: (i32, u64),
    read: impl FnOnce() -> Vec<u8> + Send + 'static,
) -> Option<Vec<u8>> {
    let hanging = || HANGING.lock().unwrap_or_else(PoisonError::into_inner);
    if !hanging().insert(process) {
        return None;
    }
    let (tell, told) = sync_channel(1);
    let reading = move || {
        let read = read();
        HANGING.lock().unwrap_or_else(PoisonError::into_inner).remove(&process);
        drop(tell.send(read));
    };
    if thread::Builder::new().name("environment".to_owned()).spawn(reading).is_err() {
        hanging().remove(&process);
        return None;
    }
    told.recv_timeout(READ_WITHIN).ok()
}

/// All processes that `/proc` shows, by process id. This takes milliseconds of processor time, while the survivors of a
/// worker form their next generation. It therefore yields the processor to other threads before each process.
fn processes() -> BTreeMap<i32, ProcessStat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let stat = |pid| {
        thread::yield_now();
        Some((pid, ProcessStat::of(pid)?))
    };
    pids.filter_map(stat).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g_9_a_process_whose_memory_does_not_answer_is_waited_for_once_and_no_longer_than_its_time() {
        let (answer, hangs) = sync_channel::<()>(0);
        let process = (i32::MAX, 1);
        let read = move || {
            let _ = hangs.recv();
            Vec::new()
        };
        assert_eq!(read_in_time(process, read), None);
        assert_eq!(read_in_time(process, || vec![1]), None, "the first reading still hangs");
        assert_eq!(read_in_time((i32::MAX, 2), || vec![2]), Some(vec![2]), "another process");
        drop(answer);
        while HANGING.lock().expect("no test panics with it").contains(&process) {
            thread::yield_now();
        }
        assert_eq!(read_in_time(process, || vec![3]), Some(vec![3]));
    }
}
