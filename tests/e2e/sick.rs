//! Faults without a death: a component that hangs, fills up or goes silent takes no other one with it (the rows S-n of
//! docs/faults.md).

use std::io::ErrorKind::ConnectionReset;
use std::io::Read as _;
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::disk::limit_files;
use crate::etcd::Etcd;
use crate::sickness::{Disk, HeldProgram, Sickness, StoodStill, TaskGroup, small_pipe};
use crate::support::{Job, PATIENCE, binary, is_running, now, signal};

/// Tolerance for slow test machines, added to the times that the product promises.
const SLOW_MACHINE: Duration = Duration::from_secs(2);

fn with_two_agents(mut job: Job) -> Job {
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    job
}

fn wait_for_warning(job: &mut Job, of: &str) {
    job.wait(&format!("the warning of {of}"), |job| {
        job.status()?["warnings"].to_string().contains(of).then_some(())
    });
}

/// Kills a worker, and waits until another generation of two trains.
fn kill_until_another_generation(job: &mut Job, victim: i32) {
    let before = job.generation();
    signal(victim, Signal::SIGKILL);
    job.wait("two workers of another generation", |job| {
        let status = job.status()?;
        let is_back = status["world_size"] == 2 && status["phase"] == "run";
        (is_back && status["generation"].as_u64() > Some(before)).then_some(())
    });
    job.wait_for_steps();
}

#[test]
fn s_1_a_frozen_state_directory_stops_neither_training_nor_status() {
    let Some(disk) = Disk::make("state") else { return };
    let sickness = Sickness { disk: Some(disk), ..Sickness::default() };
    let mut job = with_two_agents(Job::start_sick(sickness, &["-n", "2", "--min-np", "1"]));
    let (address, victim) = (job.address.clone(), job.pid("b", 0));
    job.disk.as_ref().expect("it has one").freeze();
    signal(victim, Signal::SIGKILL);
    // The next decisions wait for the journal, which `status` reports; no node leaves for it.
    wait_for_warning(&mut job, "journal: not answered for");
    let status = job.status().expect("a status");
    let lanes = status["lanes"].as_array().expect("a list");
    let journal = lanes.iter().find(|lane| lane["name"] == "journal").expect("it is one");
    assert!(journal["hanging_ms"].as_u64() > journal["answers_within_ms"].as_u64(), "{journal}");
    for agent in job.agents.values_mut() {
        assert!(agent.try_wait().expect("it is ours").is_none(), "an agent has left");
    }
    job.disk.as_ref().expect("it has one").thaw();
    job.wait("two workers again", |job| {
        let status = job.status()?;
        (status["world_size"] == 2 && status["generation"].as_u64() > Some(1)).then_some(())
    });
    assert_eq!(job.address, address);
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_1_with_the_journal_in_etcd_a_frozen_state_directory_costs_events_only() {
    let (Some(etcd), Some(disk)) = (Etcd::start(), Disk::make("state")) else { return };
    let store = etcd.address().to_string();
    let sickness = Sickness { disk: Some(disk), ..Sickness::default() };
    let flags = ["-n", "2", "--lease-timeout", "3", "--store", &store];
    let mut job = with_two_agents(Job::start_sick(sickness, &flags));
    let victim = job.pid("b", 0);
    job.disk.as_ref().expect("it has one").freeze();
    kill_until_another_generation(&mut job, victim);
    wait_for_warning(&mut job, "event log: not written for");
    assert_eq!(job.status().expect("a status")["term"], 1, "the same driver leads");
    job.disk.as_ref().expect("it has one").thaw();
    assert_eq!(job.finish(), 0);
    assert!(!job.stderr().contains("has stopped leading"), "the job is over");
    job.assert_exact();
}

#[test]
fn s_1_a_driver_whose_actors_stand_still_loses_its_lease() {
    const LEASE: Duration = Duration::from_secs(3);
    let Some(etcd) = Etcd::start() else { return };
    let store = etcd.address().to_string();
    let flags = ["-n", "2", "--lease-timeout", "3", "--store", &store];
    let mut job = with_two_agents(Job::start(&flags, &[]));
    job.standby("second", &[]);
    let status = job.status().expect("a status");
    let actors = &status["lanes"][0];
    assert_eq!((&actors["name"], &actors["answers_within_ms"]), (&"actors".into(), &375.into()));
    let stood_still = StoodStill::main_thread_of(job.driver.id());
    let begun = now();
    job.wait("the event of the second driver", |job| {
        job.events_in("state-second").into_iter().find(|event| event["kind"] == "driver_started")
    });
    let took = begun.elapsed();
    assert!(took < LEASE + Duration::from_secs(1) + SLOW_MACHINE, "{took:?}");
    job.wait_for_term(2);
    job.wait_for_steps();
    drop(stood_still);
    job.wait("the end of the former driver's term", |job| job.events_of("abandoned").pop());
    assert_eq!(job.sizes(), [2], "D-3");
    job.control("finish");
    assert_eq!((job.standby_end("second"), job.end()), (0, 0));
}

#[test]
fn s_1_a_stderr_that_nobody_reads_stops_nothing() {
    let (reader, writer) = small_pipe();
    let sickness = Sickness { stderr: Some(writer.into()), ..Sickness::default() };
    let flags = ["-n", "2", "--log", "debug"];
    let mut job = with_two_agents(Job::start_sick(sickness, &flags));
    wait_for_warning(&mut job, "log: not written for");
    let victim = job.pid("b", 0);
    kill_until_another_generation(&mut job, victim);
    // The last log lines are not read either: their timeout costs 1 s.
    let begun = now();
    assert_eq!(job.finish(), 0);
    assert!(begun.elapsed() < Duration::from_secs(5) + SLOW_MACHINE);
    job.assert_exact();
    drop(reader);
}

#[test]
fn s_1_a_second_signal_ends_a_driver_whose_actors_stand_still() {
    let mut job = with_two_agents(Job::start(&["-n", "2"], &[]));
    let stood_still = StoodStill::main_thread_of(job.driver.id());
    let driver = job.driver_pid();
    signal(driver, Signal::SIGINT);
    // Two signals that are pending together count as one.
    job.wait("the first signal to be taken", |_| is_taken(driver, Signal::SIGINT).then_some(()));
    let begun = now();
    signal(driver, Signal::SIGINT);
    assert_eq!(job.end(), 128 + 2);
    assert!(begun.elapsed() < SLOW_MACHINE, "{:?}", begun.elapsed());
    drop(stood_still);
}

#[test]
fn s_2_a_driver_that_is_started_again_without_threads_goes_on_once_there_are_some() {
    let Some(group) = TaskGroup::make() else { return };
    let mut job = with_two_agents(Job::start(&["-n", "2", "--min-np", "1"], &[]));
    job.kill_driver();
    // Room for its main thread, that of its log lines and that of signals, beside this one.
    group.limit("4");
    group.within(|| job.start_driver_again());
    job.wait("the warning", |job| {
        let stderr = job.stderr();
        let is_told = stderr.contains("the job waits for its driver");
        (is_told && stderr.contains("pids.max of the control group")).then_some(())
    });
    job.wait_for_steps();
    group.limit("max");
    job.wait("the takeover", |job| job.events_of("takeover_done").pop());
    job.wait_for_steps();
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [2], "no reset");
    job.assert_exact();
    // A job that begins waits for nothing.
    group.limit("4");
    let state = job.path("another").display().to_string();
    let flags = ["--role", "driver", "--bind", "127.0.0.1:0", "--state-dir", &state, "--", "true"];
    let refused = group.within(|| Command::new(binary()).args(flags).output().expect("it starts"));
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the driver has no threads") && stderr.contains("hint:"), "{stderr}");
}

#[test]
fn s_2_too_few_descriptors_to_start_are_an_error_with_the_reason() {
    for flags in [
        &["--role", "driver", "--bind", "127.0.0.1:0", "--state-dir", "/nowhere", "--", "true"][..],
        &["--role", "worker", "--join", "127.0.0.1:1", "--token-file", "/dev/null"],
    ] {
        let mut command = Command::new("prlimit");
        let output = command.args(["--nofile=8", binary()]).args(flags).output();
        let output = output.expect("util-linux");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("Too many open files") && stderr.contains("ulimit -n"), "{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn s_4_a_stranger_with_a_hundred_connections_to_the_store_costs_nobody_a_host() {
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/script.py");
    let program = [SCRIPT, "CONTROL", "LOG"].map(ToOwned::to_owned);
    let mut job = Job::start_program(&["-n", "1", "--mode", "restart"], &program);
    job.agent("a", 1);
    let port = job.wait("the store's port", |job| {
        let log = job.log();
        log.iter().find(|line| line["event"] == "met")?;
        let start = log.iter().find(|line| line["event"] == "start")?;
        start["environment"]["MASTER_PORT"].as_str()?.parse::<u16>().ok()
    });
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
    let strangers: Vec<TcpStream> = (0..100).map(|_| connect()).collect();
    // Each stranger is disconnected, and the agent goes on meanwhile.
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let read = stranger.read(&mut [0]);
        assert!(!matches!(&read, Ok(1..)), "{read:?}");
        let is_closed =
            read.as_ref().map_or_else(|error| error.kind() == ConnectionReset, |_| true);
        assert!(is_closed, "{read:?}");
    }
    assert_eq!(job.events_of("host_lost").len(), 0);
    assert_eq!(job.finish(), 0);
}

#[test]
fn s_5_a_host_file_that_hangs_stops_neither_forming_nor_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let hosts = folder.path().join("hosts");
    std::fs::write(&hosts, "a:1\nb:1\n").expect("a file");
    let flags = ["-n", "2", "--hostfile", &hosts.display().to_string()];
    let mut job = with_two_agents(Job::start(&flags, &[]));
    // Opening a pipe for reading waits for a writer, and so hangs like a mount.
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    std::fs::rename(&pipe, &hosts).expect("it takes the file's place");
    wait_for_warning(&mut job, "discovery: not answered for");
    let victim = job.pid("b", 0);
    kill_until_another_generation(&mut job, victim);
    assert_eq!(reads_under_way(&job), 1, "a second read was started");
    let begun = now();
    assert_eq!(job.finish(), 0);
    assert!(begun.elapsed() < Duration::from_secs(5) + SLOW_MACHINE, "{:?}", begun.elapsed());
    job.assert_exact();
}

#[test]
fn s_5_a_discovery_script_whose_start_hangs_stops_neither_forming_nor_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = Job::discovery_script(folder.path(), "a:1\nb:1");
    let text = std::fs::read_to_string(&script).expect("it was written");
    let flags = ["-n", "2", "--host-discovery-script", &script.display().to_string()];
    let mut job = with_two_agents(Job::start(&flags, &[]));
    let Some(held) = HeldProgram::put(&script, &text) else { return };
    wait_for_warning(&mut job, "discovery: not answered for");
    let victim = job.pid("b", 0);
    kill_until_another_generation(&mut job, victim);
    let begun = now();
    assert_eq!(job.finish(), 0);
    assert!(begun.elapsed() < Duration::from_secs(5) + SLOW_MACHINE, "{:?}", begun.elapsed());
    job.assert_exact();
    drop(held);
}

#[test]
fn s_5_an_agent_whose_start_hangs_holds_up_neither_status_nor_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    // In the place of ssh: runs what it was told on this machine.
    let text = "#!/bin/sh\nfor line; do :; done\nexec sh -c \"$line\"\n";
    let Some(held) = HeldProgram::put(&folder.path().join("ssh"), text) else { return };
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").expect("a path"));
    let flags = ["-H", "a:1,b:1", "--launcher", "ssh"];
    let mut job = Job::start_in(&[("PATH", &path)], &flags, &[]);
    wait_for_warning(&mut job, "agents: not answered for");
    drop(held);
    job.wait_for_sizes(&[2]);
    assert_eq!(job.finish(), 0);
    job.assert_exact();
    let Some(held) = HeldProgram::put(&folder.path().join("ssh"), text) else { return };
    let mut job = Job::start_in(&[("PATH", &path)], &flags, &[]);
    wait_for_warning(&mut job, "agents: not answered for");
    let begun = now();
    signal(job.driver_pid(), Signal::SIGTERM);
    assert_eq!(job.end(), 143);
    assert!(begun.elapsed() < Duration::from_secs(20) + SLOW_MACHINE, "{:?}", begun.elapsed());
    drop(held);
}

/// The number of threads in the driver's lane of discovery.
fn reads_under_way(job: &Job) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", job.driver.id())).expect("it runs");
    let names =
        tasks.flatten().filter_map(|it| std::fs::read_to_string(it.path().join("comm")).ok());
    names.filter(|name| name.trim() == "discovery").count()
}

#[test]
fn s_6_a_frozen_output_directory_loses_no_host() {
    let Some(disk) = Disk::make("out") else { return };
    let sickness = Sickness { disk: Some(disk), ..Sickness::default() };
    let flags = ["-n", "2", "--output-dir", "DIR/out"];
    let mut job = with_two_agents(Job::start_sick(sickness, &flags));
    let (victim, healthy) = (job.pid("b", 0), job.pid("a", 0));
    job.disk.as_ref().expect("it has one").freeze();
    kill_until_another_generation(&mut job, victim);
    assert_eq!(job.pid("a", 0), healthy, "the healthy worker was lost");
    assert_eq!(job.events_of("host_lost").len(), 0);
    let hanging = |job: &mut Job| {
        let hosts = job.status()?["hosts"].as_array()?.clone();
        let lanes = |host: &Value| host["lanes"].as_array().is_some_and(|it| !it.is_empty());
        Some(hosts.iter().filter(|host| lanes(host)).count())
    };
    job.wait("the agents' lanes that hang in the status", |job| (hanging(job)? > 0).then_some(()));
    job.disk.as_ref().expect("it has one").thaw();
    job.wait("lanes that answer", |job| (hanging(job)? == 0).then_some(()));
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_6_output_that_cannot_be_written_for_a_while_is_stored_later() {
    let gates = tempfile::tempdir().expect("a folder");
    let at = |name: &str| gates.path().join(name);
    let wait_at =
        |name: &str| format!("while [ ! -e '{}' ]; do sleep 0.05; done", at(name).display());
    let begun = at("begun").display().to_string();
    let (full, free) = (wait_at("full"), wait_at("free"));
    let text = format!("echo first; touch '{begun}'; {full}; echo second; {free}; echo third");
    let flags = ["-n", "1", "--mode", "restart", "--output-dir", "DIR/out"];
    let program = ["/bin/sh", "-c", &text].map(ToOwned::to_owned);
    let mut job = Job::start_program(&flags, &program);
    job.agent("a", 1);
    job.wait("a worker that writes", |_| at("begun").exists().then_some(()));
    let agent = job.agents["a"].id();
    // As on a full disk: a file takes no further byte.
    limit_files(agent, "0");
    std::fs::write(at("full"), "").expect("ours");
    let is_behind = |job: &mut Job| {
        let lanes = job.status()?["hosts"][0]["lanes"].to_string();
        lanes.contains("output file").then_some(())
    };
    job.wait("the lane that is behind in the status", is_behind);
    limit_files(agent, "unlimited");
    std::fs::write(at("free"), "").expect("ours");
    assert_eq!(job.end(), 0);
    let mut logs = Command::new(binary());
    logs.arg("logs").arg(job.path("state")).args(["--rank", "0"]);
    let logs = logs.output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&logs.stdout), "first\nsecond\nthird\n");
}

#[test]
fn s_6_an_output_directory_that_takes_no_files_takes_no_host_out() {
    let flags = ["-n", "2", "--output-dir", "DIR/out"];
    let mut job = with_two_agents(Job::start(&flags, &[]));
    let victim = job.pid("b", 0);
    std::fs::rename(job.path("out"), job.path("former")).expect("it is there");
    std::fs::write(job.path("out"), "").expect("a file in its place");
    kill_until_another_generation(&mut job, victim);
    let words = std::fs::read_to_string(job.path("agent.b.stderr")).expect("the agent's log");
    assert!(words.contains("its stdout is only shown"), "{words}");
    assert!(job.events_of("worker_not_started").is_empty());
    std::fs::remove_file(job.path("out")).expect("it is there");
    let victim = job.pid("b", 0);
    kill_until_another_generation(&mut job, victim);
    let stored = std::fs::read_dir(job.path("out")).expect("it is made again").count();
    assert_eq!(stored, 2, "both streams of the last process");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_6_two_jobs_that_live_do_not_write_into_one_output_directory() {
    let mut first = Job::start(&["-n", "1", "--output-dir", "DIR/out"], &[]);
    let out = first.path("out");
    let flags = ["-n", "2", "--output-dir", out.to_str().expect("UTF-8")];
    // Before a worker of either job has written.
    let mut second = Job::start(&flags, &[]);
    first.agent("a", 1);
    first.wait_for_sizes(&[1]);
    second.agent("a", 2);
    second.wait_for_sizes(&[2]);
    let names: Vec<_> =
        std::fs::read_dir(&out).expect("it is there").flatten().map(|it| it.file_name()).collect();
    assert_eq!(names.len(), 3, "the first job's streams, and whose they are: {names:?}");
    let words = std::fs::read_to_string(second.path("agent.a.stderr")).expect("the agent's log");
    assert!(words.contains("holds the output of the job"), "{words}");
    let third = Command::new(binary())
        .args(["run", "-n", "1", "--bind", "127.0.0.1:0", "--state-dir"])
        .arg(second.path("third"))
        .args(["--output-dir", flags[3], "--", "true"])
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&third.stderr);
    assert_eq!(third.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(flags[3]) && stderr.contains("give each job"), "{stderr}");
    // The first one goes on to write there when its driver is started again, and the folder is free at its end.
    first.kill_driver();
    first.start_driver_again();
    first.wait_for_term(2);
    assert_eq!(first.finish(), 0);
    first.agent_end("a");
    let victim = second.pid("a", 0);
    kill_until_another_generation(&mut second, victim);
    let names = std::fs::read_dir(&out).expect("it is there").flatten().count();
    assert_eq!(names, 5, "the second job's next process stores its output");
    assert_eq!(second.finish(), 0);
}

/// A job whose one worker, on host `a`, is this script of the shell.
fn job_of_a_script(script: &str) -> Job {
    let program = ["/bin/sh", "-c", script].map(ToOwned::to_owned);
    let mut job = Job::start_program(&["-n", "1"], &program);
    job.agent("a", 1);
    job
}

/// The process that a script has named in the file `orphan`.
fn orphan(job: &mut Job) -> Option<i32> {
    std::fs::read_to_string(job.path("orphan")).ok()?.trim().parse().ok()
}

#[test]
fn s_10_orphans_are_reaped_and_end_with_their_worker() {
    let script = "for i in 1 2 3 4 5; do (setsid sh -c 'exit 0' &) ; done; \
                  setsid sh -c 'sleep 1000 & echo $! > DIR/orphan; wait' & \
                  while [ ! -e CONTROL/finish ]; do sleep 0.05; done";
    let mut job = job_of_a_script(script);
    let pid = job.wait("an orphan", orphan);
    let agent = job.agents["a"].id();
    job.wait("no zombies", |_| (zombies_of(agent) == 0).then_some(()));
    assert!(is_running(pid));
    std::fs::remove_file(job.path("orphan")).expect("it is there");
    let worker = job.wait("the worker", |job| {
        job.status()?["workers"].as_array()?.iter().find_map(|it| it["pid"].as_i64())
    });
    signal(i32::try_from(worker).expect("a process id"), Signal::SIGKILL);
    job.wait("the end of the orphan", |_| (!is_running(pid)).then_some(()));
    job.wait("the next worker's orphan", orphan);
    assert_eq!(job.finish(), 0);
}

/// The control groups of an agent's workers.
fn groups_of(agent: u32) -> Vec<std::path::PathBuf> {
    let name = format!("elastic-node-{agent}-");
    let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let folders = places.iter().flat_map(|place| walk(std::path::Path::new(place), 6));
    let is_ours = |folder: &std::path::PathBuf| {
        folder.file_name().is_some_and(|it| it.to_string_lossy().starts_with(&name))
    };
    folders.filter(is_ours).collect()
}

/// The folders below one, so many levels deep.
fn walk(folder: &std::path::Path, depth: u32) -> Vec<std::path::PathBuf> {
    let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir()));
    folders.flat_map(|entry| [vec![entry.path()], walk(&entry.path(), depth)].concat()).collect()
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
fn s_10_what_has_left_its_worker_s_session_ends_with_a_killed_agent() {
    // Without the mark in its environment, only the control group tells whose it is.
    let script = "setsid env -u ELASTIC_WORKER sh -c 'echo $$ > DIR/orphan; sleep 1000' & \
                  while [ ! -e CONTROL/finish ]; do sleep 0.05; done";
    let mut job = job_of_a_script(script);
    let pid = job.wait("an orphan", orphan);
    let agent = job.agents["a"].id();
    if groups_of(agent).is_empty() {
        signal(pid, Signal::SIGKILL);
        return eprintln!("not shown: this user may not make control groups of version 2");
    }
    job.kill_agent("a");
    job.wait("the end of the orphan", |_| (!is_running(pid)).then_some(()));
    job.wait("the end of the groups", |_| groups_of(agent).is_empty().then_some(()));
    std::fs::remove_file(job.path("orphan")).expect("it is there");
    job.agent("a", 1);
    let pid = job.wait("the next agent's", orphan);
    assert_eq!(job.finish(), 0);
    job.wait("the end of the last orphan", |_| (!is_running(pid)).then_some(()));
    let agent = job.agents["a"].id();
    assert_eq!(job.agent_end("a").code(), Some(0));
    job.wait("the end of its groups", |_| groups_of(agent).is_empty().then_some(()));
}

/// The process ids of an agent's guards.
fn guards_of(agent: u32) -> Vec<i32> {
    let mut all = Vec::new();
    let tasks = std::fs::read_dir(format!("/proc/{agent}/task")).expect("it runs").flatten();
    for task in tasks {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|it| it.parse::<i32>().ok()));
    }
    all.retain(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("elastic-node-guard")
    });
    all
}

#[test]
fn s_10_a_guard_that_was_killed_is_replaced_before_its_agent_is_killed() {
    let script = "sh -c 'echo $$ > DIR/orphan; sleep 1000' & \
                  while [ ! -e CONTROL/finish ]; do sleep 0.05; done";
    let mut job = job_of_a_script(script);
    let pid = job.wait("a child of the worker", orphan);
    let agent = job.agents["a"].id();
    let first = job.wait("the guard", |_| guards_of(agent).pop());
    signal(first, Signal::SIGKILL);
    job.wait("another guard", |_| guards_of(agent).into_iter().find(|guard| *guard != first));
    job.kill_agent("a");
    job.wait("the end of the worker's child", |_| (!is_running(pid)).then_some(()));
}

#[test]
fn s_10_an_agent_that_was_killed_leaves_no_folder_for_temporary_files() {
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/script.py");
    let place = tempfile::tempdir().expect("a folder");
    // With a space, as any path may have.
    let temporary = place.path().join("of the agent");
    std::fs::create_dir(&temporary).expect("a folder");
    let kept = place.path().join("kept");
    std::fs::write(&kept, "").expect("a file");
    let program = [SCRIPT, "CONTROL", "LOG"].map(ToOwned::to_owned);
    let mut job = Job::start_program(&["-n", "1", "--mode", "restart"], &program);
    let agent = job.agent_command("a", 1).env("TMPDIR", &temporary).spawn();
    job.agents.insert("a".to_owned(), agent.expect("the agent starts"));
    job.wait("the worker", |job| job.log().iter().any(|it| it["event"] == "met").then_some(()));
    let folders = || std::fs::read_dir(&temporary).expect("it is there").flatten();
    let is_ours =
        |it: &std::fs::DirEntry| it.file_name().to_string_lossy().starts_with("elastic-node-");
    let folder = folders().find(is_ours).expect("the agent's").path();
    assert!(std::fs::read_dir(&folder).is_ok_and(|inner| inner.count() > 0), "nothing was shown");
    // A worker's link to elsewhere.
    std::os::unix::fs::symlink(place.path(), folder.join("link")).expect("a link");
    job.kill_agent("a");
    job.wait("the end of the folder", |_| (!folder.exists()).then_some(()));
    assert!(kept.exists(), "a link was followed");
}

#[test]
fn s_12_a_token_from_the_environment_does_not_stand_in_proc() {
    let mut job = Job::start(&["-n", "1"], &[]);
    let file = job.path("state/token");
    let written = |_: &mut Job| std::fs::read_to_string(&file).ok().filter(|it| !it.is_empty());
    let token = job.wait("the token", written);
    // An environment may have a variable twice, which programs other than this one leave alone.
    let twice = "import ctypes, os, sys\n\
        text = os.environ.pop('ELASTIC_TOKEN')\n\
        values = [f'{key}={value}' for key, value in os.environ.items()] + 2 * ['ELASTIC_TOKEN=' + text]\n\
        array = lambda of: (ctypes.c_char_p * (len(of) + 1))(*[each.encode() for each in of], None)\n\
        ctypes.CDLL(None).execve(sys.argv[1].encode(), array(sys.argv[1:]), array(values))";
    let agent = Command::new("python3")
        .args(["-c", twice, binary()])
        .args(["--role", "worker", "--join", &job.address, "--host", "a", "--slots", "1"])
        .env("ELASTIC_TOKEN", token.trim())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    job.agents.insert("a".to_owned(), agent.expect("the agent starts"));
    job.wait_for_sizes(&[1]);
    let secret = token.trim().as_bytes();
    let environment = std::fs::read(format!("/proc/{}/environ", job.agents["a"].id()));
    let environment = environment.expect("it runs");
    assert!(!environment.windows(secret.len()).any(|part| part == secret));
    assert_eq!(job.finish(), 0);
}

#[test]
fn s_10_an_orphan_whose_memory_does_not_answer_keeps_no_worker_from_its_host() {
    const STUCK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/stuck.py");
    const LEAVES_ONE: &str = "case $ELASTIC_WORKER in b*) [ -e \"$0\" ] || { touch \"$0\"; setsid -f \
        python3 \"$1\" \"$2\" \"$3\" >/dev/null 2>&1; };; esac; shift 3; exec \"$@\"";
    let Some(disk) = Disk::make("unused") else { return };
    let on_disk = disk.path().join("file");
    std::fs::write(&on_disk, vec![0; 2 << 20]).expect("there is room");
    let folder = tempfile::tempdir().expect("a folder");
    let (once, hangs) = (folder.path().join("once"), folder.path().join("hangs"));
    let text = |path: &std::path::Path| path.display().to_string();
    let trainer = crate::support::program("trainer");
    let words = [text(&once), STUCK.to_owned(), text(&on_disk), text(&hangs), text(&trainer)];
    let flags = ["--control", "CONTROL", "--log", "LOG"].map(str::to_owned);
    let program = [&["sh", "-c", LEAVES_ONE].map(str::to_owned)[..], &words, &flags].concat();
    let mut job = with_two_agents(Job::start_program(&["-n", "2", "--min-np", "1"], &program));
    let orphan = job.wait("the orphan", |_| std::fs::read_to_string(&hangs).ok());
    disk.freeze();
    std::fs::remove_file(&hangs).expect("it is there");
    let task = format!("/proc/{}/task", orphan.trim());
    job.wait("both of its threads to wait", |_| {
        let tasks = std::fs::read_dir(&task).ok()?.flatten();
        let stats = tasks.filter_map(|it| std::fs::read_to_string(it.path().join("stat")).ok());
        (stats.filter(|stat| stat.contains(") D ")).count() == 2).then_some(())
    });
    let victim = job.pid("b", 0);
    kill_until_another_generation(&mut job, victim);
    assert_eq!(job.finish(), 0);
    job.assert_exact();
    drop(disk);
}

pub(crate) fn zombies_of(parent: u32) -> usize {
    let processes = std::fs::read_dir("/proc").expect("Linux").flatten();
    let stats = processes.filter_map(|it| std::fs::read_to_string(it.path().join("stat")).ok());
    let is_zombie = |stat: &String| {
        let mut words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        words.next() == Some("Z") && words.next() == Some(&parent.to_string())
    };
    stats.filter(is_zombie).count()
}

/// Whether the process has taken the signal: it is not pending any more.
pub(crate) fn is_taken(pid: i32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let mask = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (signal as i32 - 1) == 0)
}
