//! Findings: causes of a wait that two readings show, such as a child that has ended, beside the activity itself. Called
//! by `reading`.

use std::fs;

use elastic_protocol::messages::ProcessSight;
use nix::sys::signal::Signal;

use super::activity::PART_OF_TIME;
use super::pressure::pressed;
use super::reading::Reading;
use super::texts::bounded;
use crate::process::proc_files::ProcessStat;

/// Page faults in a look that are worth a finding: a program reads some of its code late without harm.
const MAJOR_FAULTS_MIN: u64 = 20;

/// The findings, at most [`ProcessSight::FINDINGS_MAX`], the surest first.
pub(super) fn findings(first: &Reading, second: &Reading, watched_ms: u64) -> Vec<String> {
    let alone = second.stat.has_ended() && second.status.number("Threads") > 1;
    let alone = alone.then(|| "its main thread alone: other threads of it go on".to_owned());
    let ended = alone.into_iter().chain(ended(first, second));
    let faults = second.stat.major_faults.saturating_sub(first.stat.major_faults);
    let held_back_us = second.held_back_us.saturating_sub(first.held_back_us);
    let others = [
        debugger(second.status.number("TracerPid")),
        slow_pages(faults, second.status.number("VmSwap"), watched_ms),
        held_back(held_back_us / 1_000, watched_ms),
    ];
    let peer = second
        .waits_for
        .iter()
        .map(|(descriptor, peer)| format!("file descriptor {descriptor} is connected to {peer}"));
    let all = ended.chain(stopped(first, second)).chain(others.into_iter().flatten()).chain(peer);
    let kept_waiting_ms = second.kept_waiting_ns.saturating_sub(first.kept_waiting_ns) / 1_000_000;
    let is_kept_waiting = kept_waiting_ms * PART_OF_TIME >= watched_ms;
    let all = all.chain(pressed(&second.groups, is_kept_waiting).filter(|_| watched_ms > 0));
    all.take(ProcessSight::FINDINGS_MAX).map(|finding| bounded(&finding)).collect()
}

/// Functions of Python's interpreter in which a thread waits for its lock (the GIL).
const WAITS_FOR_PYTHON: [&str; 4] =
    ["take_gil ", "PyEval_RestoreThread ", "PyEval_AcquireThread ", "PyGILState_Ensure "];

/// Number of innermost calls among which such a function is looked for: the thread waits in functions of the C library
/// that it calls.
const CALLS_OF_A_WAIT: usize = 6;

/// Adds the lock of Python's interpreter where the native stack shows that the main thread waits for it.
pub(super) fn add_lock_of_python(sight: &mut ProcessSight) {
    let mut innermost = sight.native_stack.lines().take(CALLS_OF_A_WAIT);
    let waits = innermost.any(|call| WAITS_FOR_PYTHON.iter().any(|it| call.starts_with(it)));
    if waits {
        sight.findings.truncate(ProcessSight::FINDINGS_MAX - 1);
        let finding =
            "its main thread waits for Python's lock (the GIL), which another thread keeps";
        sight.findings.insert(0, finding.to_owned());
    }
}

/// Children that had ended at the first reading, and were not waited for at the second.
fn ended<'a>(first: &'a Reading, second: &'a Reading) -> impl Iterator<Item = String> + use<'a> {
    let ended = second.descendants.iter().filter(|(_, stat)| stat.has_ended());
    let for_long = ended.filter(|(pid, stat)| {
        let before = first.descendants.iter().find(|(it, _)| it == pid);
        before.is_some_and(|(_, it)| it.has_ended() && it.started == stat.started)
    });
    for_long.map(|(pid, stat)| {
        format!("{} has ended{} and was not waited for", child(second, *pid, stat), how(stat.exit))
    })
}

/// Children that a signal or a debugger had stopped at both readings, as a loader of data may be.
fn stopped<'a>(first: &'a Reading, second: &'a Reading) -> impl Iterator<Item = String> + use<'a> {
    let is_stopped = |stat: &ProcessStat| matches!(stat.state, 'T' | 't');
    let stopped = second.descendants.iter().filter(move |(_, stat)| is_stopped(stat));
    let for_long = stopped.filter(move |(pid, stat)| {
        let before = first.descendants.iter().find(|(it, _)| it == pid);
        before.is_some_and(|(_, it)| is_stopped(it) && it.started == stat.started)
    });
    for_long.map(|(pid, stat)| {
        format!("{} is stopped by a signal or a debugger", child(second, *pid, stat))
    })
}

/// A descendant by its process id, name and parent.
fn child(reading: &Reading, pid: i32, stat: &ProcessStat) -> String {
    let ProcessStat { name, parent, .. } = stat;
    match *parent == reading.pid {
        true => format!("its child process {pid} ({name})"),
        false => format!("the child process {pid} ({name}) of its process {parent}"),
    }
}

/// The words that follow `has ended` for a process, from its status in the encoding of wait(2). They are empty for a
/// success. An end whose status is not visible counts as a success.
fn how(exit: i32) -> String {
    match (libc::WIFSIGNALED(exit), libc::WTERMSIG(exit), libc::WEXITSTATUS(exit)) {
        (true, signal, _) => match Signal::try_from(signal) {
            Ok(signal) => format!(" by {signal}"),
            Err(_real_time) => format!(" by signal {signal}"),
        },
        (false, _, 0) => String::new(),
        (false, _, code) => format!(" with code {code}"),
    }
}

fn debugger(tracer: u64) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
    (tracer > 0)
        .then(|| format!("process {tracer} ({}) traces it, as a debugger does", name.trim()))
}

fn slow_pages(faults: u64, swapped_kib: u64, watched_ms: u64) -> Option<String> {
    let cause = match swapped_kib {
        0 => "it waits for its pages from a disk",
        _ => "it is swapping",
    };
    let has_many = faults >= MAJOR_FAULTS_MIN;
    has_many.then(|| format!("{cause}: {faults} major page faults in {watched_ms} ms"))
}

/// `denied_ms` is a sum over all processors, so it may exceed the time watched.
fn held_back(denied_ms: u64, watched_ms: u64) -> Option<String> {
    let has_cost = denied_ms > 0 && denied_ms * PART_OF_TIME >= watched_ms;
    let cause = "its control group's CPU limit held it back for";
    has_cost.then(|| format!("{cause} {} ms", denied_ms.min(watched_ms)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_by_its_signal_or_its_code() {
        let cases =
            [(0, ""), (3 << 8, " with code 3"), (9, " by SIGKILL"), (11 | 0x80, " by SIGSEGV")];
        for (exit, words) in cases {
            assert_eq!(how(exit), words);
        }
        assert_eq!(how(61), " by signal 61");
    }

    #[test]
    fn pages_and_limits_are_told_from_where_they_cost_time() {
        assert_eq!(slow_pages(19, 4, 200), None);
        let swapping = "it is swapping: 20 major page faults in 200 ms";
        assert_eq!(slow_pages(20, 4, 200).as_deref(), Some(swapping));
        let reading = "it waits for its pages from a disk: 20 major page faults in 200 ms";
        assert_eq!(slow_pages(20, 0, 200).as_deref(), Some(reading));
        assert_eq!(held_back(19, 200), None);
        let limited = "its control group's CPU limit held it back for 200 ms";
        assert_eq!(held_back(700, 200).as_deref(), Some(limited), "of several processors");
    }
}
