//! An agent as process 1 of a container: a PID namespace with a `/proc` of its own, in which nobody else reaps what
//! workers leave behind.

use std::fs;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::network::not_shown;
use crate::sick::zombies_of;
use crate::support::{Job, is_running, signal};

/// Starts an agent as process 1; returns the process id that it has outside.
fn agent_as_process_1(job: &mut Job) -> Option<i32> {
    if !nix::unistd::geteuid().is_root() {
        not_shown("a PID namespace needs root");
        return None;
    }
    let agent = job.agent_command("a", 1);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    let child = command.arg(agent.get_program()).args(agent.get_args()).spawn();
    let child = child.expect("util-linux");
    let parent = child.id();
    job.agents.insert("a".to_owned(), child);
    let children = format!("/proc/{parent}/task/{parent}/children");
    Some(job.wait("the agent", |_| fs::read_to_string(&children).ok()?.trim().parse().ok()))
}

/// The process ids outside of all processes in the agent's namespace that have this one inside.
fn outside(agent: i32, inside: i32) -> Option<i32> {
    let namespace = fs::read_link(format!("/proc/{agent}/ns/pid")).ok()?;
    let all = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        let is_it = line.split_whitespace().last() == Some(&inside.to_string());
        is_it && fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|it| it == namespace)
    })
}

/// Waits until there is a worker; returns the process id of it outside.
fn worker(job: &mut Job, agent: i32) -> i32 {
    job.wait("the worker", |job| {
        let inside =
            job.status()?["workers"].as_array()?.iter().find_map(|it| it["pid"].as_i64())?;
        outside(agent, i32::try_from(inside).ok()?)
    })
}

/// A worker whose grandchildren have left its session: some end at once, and one stays.
fn job() -> Job {
    let script = "for i in 1 2 3 4 5; do (setsid sh -c 'exit 0' &) ; done; \
                  setsid sh -c 'setsid sleep 1000 & echo $! > DIR/orphan' & \
                  while [ ! -e CONTROL/finish ]; do sleep 0.05; done";
    let program = ["/bin/sh", "-c", script].map(ToOwned::to_owned);
    Job::start_program(&["-n", "1"], &program)
}

fn orphan(job: &mut Job, agent: i32) -> i32 {
    let file = job.path("orphan");
    let found = job.wait("an orphan", |_| {
        outside(agent, fs::read_to_string(&file).ok()?.trim().parse().ok()?)
    });
    fs::remove_file(&file).expect("it is there");
    found
}

#[test]
fn s_10_an_agent_as_process_1_reaps_and_ends_what_a_worker_leaves_behind() {
    let mut job = job();
    let Some(agent) = agent_as_process_1(&mut job) else { return };
    let first = orphan(&mut job, agent);
    let as_id = u32::try_from(agent).expect("a process id");
    job.wait("no zombies", |_| (zombies_of(as_id) == 0).then_some(()));
    assert!(is_running(first), "it lives as long as its worker");
    let victim = worker(&mut job, agent);
    signal(victim, Signal::SIGKILL);
    job.wait("the end of the orphan", |_| (!is_running(first)).then_some(()));
    let second = orphan(&mut job, agent);
    assert_eq!(job.finish(), 0);
    job.wait("the end of all", |_| (!is_running(second) && !is_running(agent)).then_some(()));
}

#[test]
fn s_10_an_agent_as_process_1_heeds_sigterm_and_takes_all_along_when_it_is_killed() {
    let mut job = job();
    let Some(agent) = agent_as_process_1(&mut job) else { return };
    let (stays, trains) = (orphan(&mut job, agent), worker(&mut job, agent));
    // Without a handler the kernel keeps SIGTERM from process 1.
    signal(agent, Signal::SIGTERM);
    let gone = |pid: i32| (!is_running(pid)).then_some(());
    job.wait("the worker's end", |_| gone(trains));
    job.wait("the agent's end", |_| gone(agent));
    job.wait("the orphan's end", |_| gone(stays));
    job.agents.remove("a");
    let Some(agent) = agent_as_process_1(&mut job) else { return };
    let (stays, trains) = (orphan(&mut job, agent), worker(&mut job, agent));
    signal(agent, Signal::SIGKILL);
    job.wait("the end of all", |_| gone(trains).and(gone(stays)));
}

/// Starts a process in the agent's namespace that has this id there, in a session and group of its own.
fn take_id(agent: i32, inside: i32) {
    let script = format!(
        "for i in $(seq 100); do echo {} > /proc/sys/kernel/ns_last_pid; setsid sleep 1000 >&- 2>&- & \
         [ $! = {inside} ] && exit; kill -9 $!; done; exit 1",
        inside - 1
    );
    let target = format!("--target={agent}");
    let status = Command::new("nsenter")
        .args([&target, "--pid", "--mount", "/bin/sh", "-c", &script])
        .status();
    assert!(status.expect("util-linux").success(), "another process is always faster");
}

#[test]
fn x_2_a_process_that_has_the_id_of_a_former_worker_is_left_alone() {
    let mut job = job();
    let Some(agent) = agent_as_process_1(&mut job) else { return };
    let inside_of = |job: &Job| {
        let status = job.status()?;
        let pid = status["workers"].as_array()?.iter().find_map(|it| it["pid"].as_i64())?;
        i32::try_from(pid).ok()
    };
    let former = job.wait("the worker", |job| inside_of(job));
    signal(outside(agent, former).expect("it runs"), Signal::SIGKILL);
    let second = job.wait("the next worker", |job| {
        inside_of(job).filter(|pid| *pid != former).and_then(|pid| outside(agent, pid))
    });
    job.wait("the end of the former one", |_| outside(agent, former).is_none().then_some(()));
    take_id(agent, former);
    let stranger = job.wait("a stranger of the same id", |_| outside(agent, former));
    // Its slot's next end, and all that is cleaned up after it, does not concern the stranger.
    signal(second, Signal::SIGKILL);
    job.wait("the third worker", |job| (job.events_of("process_started").len() == 3).then_some(()));
    job.wait("the end of the second one", |_| (!is_running(second)).then_some(()));
    assert!(is_running(stranger));
    assert_eq!(job.finish(), 0);
}

#[test]
fn s_13_a_host_without_its_null_device_names_that_file_and_no_program() {
    if !nix::unistd::geteuid().is_root() {
        return not_shown("a mount namespace needs root");
    }
    let mut job = Job::start(&["-n", "1"], &[]);
    let agent = job.agent_command("a", 1);
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none /dev && exec \"$0\" \"$@\"";
    command.args(["--mount", "/bin/sh", "-c", script]);
    let child = command.arg(agent.get_program()).args(agent.get_args()).spawn();
    job.agents.insert("a".to_owned(), child.expect("util-linux"));
    let failed = job.wait("a failed start", |job| job.events_of("worker_not_started").pop());
    let reason = failed["reason"].to_string();
    assert!(reason.contains("/dev/null cannot be opened"), "{reason}");
    assert!(!reason.contains("PATH"), "{reason}");
}
