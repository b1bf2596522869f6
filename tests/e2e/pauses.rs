//! Processes that pause and continue (SIGSTOP, a suspended machine, a disk that hangs): a process that was paused
//! itself must not count that time against others (D-3).

use std::io::Read as _;

use nix::sys::signal::Signal;

use crate::sickness::{StarvingGroup, small_pipe};
use crate::support::{Job, binary, signal, wait_until};

fn job() -> Job {
    let mut job = Job::start(&["-n", "2"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    job
}

fn agent_pids(job: &Job) -> Vec<i32> {
    job.agents.values().map(|agent| i32::try_from(agent.id()).expect("a pid")).collect()
}

fn assert_undisturbed(mut job: Job, pids: [i32; 2]) {
    job.wait_for_steps();
    assert_eq!([job.pid("a", 0), job.pid("b", 0)], pids, "no worker was started again");
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [2], "D-3: no generation but the first; {}", job.stderr());
    assert!(job.events_of("reset_decided").is_empty(), "D-3");
    for host in ["a", "b"] {
        assert_eq!(job.agent_end(host).code(), Some(0), "agent {host}");
    }
    job.assert_exact();
}

#[test]
fn g_9_a_client_whose_driver_is_paused_after_its_answer_ends_without_a_goodbye() {
    let mut job = Job::start(&["-n", "1"], &[]);
    // So many that a status is longer than the pipe.
    const HOSTS: usize = 16;
    for number in 0..HOSTS {
        job.agent(&format!("a-host-with-a-rather-long-name-{number}"), 1);
    }
    job.wait("all agents", |job| {
        let hosts = job.status()?["hosts"].as_array()?.len();
        (hosts == HOSTS).then_some(())
    });
    let (mut reader, writer) = small_pipe();
    let mut client = std::process::Command::new(binary())
        .args(["status", "--json", "--driver", &job.address, "--token-file"])
        .arg(job.path("state/token"))
        .stdout(writer)
        .spawn()
        .expect("it is there");
    // With the first byte it has its answer; it waits for the rest to be read.
    let mut first = [0];
    reader.read_exact(&mut first).expect("an answer");
    signal(job.driver_pid(), Signal::SIGSTOP);
    let mut rest = String::new();
    reader.read_to_string(&mut rest).expect("the rest");
    assert!(rest.len() > 4096, "it was not held up: {}", rest.len());
    let status = wait_until("the client's end", || client.try_wait().expect("it is ours"));
    assert_eq!(status.code(), Some(0));
    signal(job.driver_pid(), Signal::SIGCONT);
    assert_eq!(job.finish(), 0);
}

fn a_paused_driver_resets_nobody(pause_ms: u64) {
    let mut job = job();
    let pids = [job.pid("a", 0), job.pid("b", 0)];
    signal(job.driver_pid(), Signal::SIGSTOP);
    job.pass_ms(pause_ms);
    signal(job.driver_pid(), Signal::SIGCONT);
    assert_undisturbed(job, pids);
}

#[test]
fn d_3_a_driver_that_was_paused_for_5_s_resets_nobody() {
    a_paused_driver_resets_nobody(5_000);
}

#[test]
fn d_3_a_driver_that_was_paused_for_20_s_resets_nobody() {
    a_paused_driver_resets_nobody(20_000);
}

/// A pause that is seen as silence of the worker, and shorter than what ends its session.
const SILENT_MS: u64 = 1_600;

#[test]
fn g_5_the_only_worker_may_stand_still_for_a_moment_and_goes_on_without_a_reset() {
    let mut job = Job::start(&["-n", "1"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    job.wait_for_steps();
    let pid = job.pid("a", 0);
    signal(pid, Signal::SIGSTOP);
    job.pass_ms(SILENT_MS);
    signal(pid, Signal::SIGCONT);
    job.wait_for_steps();
    assert_eq!(job.pid("a", 0), pid, "no worker was started again");
    assert_eq!(job.finish(), 0);
    assert!(job.events_of("state_lost").is_empty(), "G-5: {}", job.stderr());
    job.assert_exact();
}

#[test]
fn d_3_a_machine_that_was_suspended_goes_on_with_everything() {
    let mut job = job();
    let pids = [job.pid("a", 0), job.pid("b", 0)];
    let mut all = agent_pids(&job);
    all.extend(pids);
    all.push(job.driver_pid());
    all.iter().for_each(|pid| signal(*pid, Signal::SIGSTOP));
    job.pass_ms(5_000);
    all.iter().for_each(|pid| signal(*pid, Signal::SIGCONT));
    assert_undisturbed(job, pids);
}

#[test]
fn a_host_that_freezes_while_its_driver_is_paused_is_lost_all_the_same() {
    let mut job = job();
    let (frozen, worker) = (agent_pids(&job)[1], job.pid("b", 0));
    signal(job.driver_pid(), Signal::SIGSTOP);
    signal(frozen, Signal::SIGSTOP);
    signal(worker, Signal::SIGSTOP);
    job.pass_ms(4_000);
    signal(job.driver_pid(), Signal::SIGCONT);
    job.wait("a reset", |job| (!job.events_of("reset_decided").is_empty()).then_some(()));
    signal(worker, Signal::SIGKILL);
    signal(frozen, Signal::SIGKILL);
}

#[test]
fn g_9_a_driver_that_stands_still_is_not_waited_for_when_its_status_is_asked() {
    let job = job();
    signal(job.driver_pid(), Signal::SIGSTOP);
    let asked = std::process::Command::new(binary())
        .args(["status", "--driver", &job.address, "--token-file"])
        .arg(job.path("state/token"))
        .output()
        .expect("it runs");
    signal(job.driver_pid(), Signal::SIGCONT);
    let stderr = String::from_utf8_lossy(&asked.stderr);
    assert_eq!(asked.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: the driver cannot be asked"), "{stderr}");
    assert!(stderr.contains("hint: does the job still run there?"), "{stderr}");
}

#[test]
fn s_7_an_agent_on_the_driver_s_machine_that_gets_no_processor_is_not_lost() {
    let Some(group) = StarvingGroup::make() else { return };
    let mut job = job();
    let pids = [job.pid("a", 0), job.pid("b", 0)];
    let agent = job.agents["b"].id();
    group.take(agent);
    job.wait("the warning", |job| job.stderr().contains("it is starved").then_some(()));
    // Twice the silence after which a host is lost that nobody can look at.
    job.pass_ms(4_000);
    group.release(agent);
    assert_undisturbed(job, pids);
}
