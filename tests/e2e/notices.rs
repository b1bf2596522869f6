//! Notices to hosts without which no generation can go on: the state is saved before they leave (C-1).

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::checkpoints::{last_step_of, newest_of};
use crate::incidents::agent_pid;
use crate::support::{Job, signal};

/// Starts a job on two hosts whose next checkpoint lies far ahead. Returns it when it has trained.
fn trained(folder: &Path, more: &[&str]) -> Job {
    let folder = folder.display().to_string();
    let flags = ["-n", "2", "--checkpoint", &folder, "--checkpoint-every", "1000000"];
    let mut job = Job::start(&[&flags, more].concat(), &["--samples", "960"]);
    for host in ["h0", "h1"] {
        job.agent(host, 1);
    }
    job.wait_for_sizes(&[2]);
    job.wait("steps", |job| last_step_of(job).filter(|it| *it > 20));
    job
}

fn notice(job: &Job, host: &str) {
    signal(agent_pid(job, host), Signal::SIGTERM);
}

fn wait_for_end_of(job: &mut Job, host: &'static str) {
    job.wait("the agent's end", |job| {
        job.agents.get_mut(host)?.try_wait().expect("a child").map(|_| ())
    });
}

#[test]
fn c_1_a_host_on_notice_without_which_too_few_are_left_goes_once_a_commit_is_saved() {
    let shared = TempDir::new().expect("a folder");
    let mut job = trained(shared.path(), &[]);
    let before = last_step_of(&job);
    notice(&job, "h1");
    wait_for_end_of(&mut job, "h1");
    let newest = newest_of(shared.path());
    assert!(newest >= before, "step {newest:?} is saved, {before:?} had been reached");
    // Another one comes, and training goes on from the memory of the host that stayed.
    job.agent("h2", 1);
    job.wait_for_sizes(&[2, 2]);
    assert_eq!(job.finish(), 0, "{}", job.stderr());
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the time between two faults, and no wait")]
fn c_1_notices_to_all_hosts_that_come_one_after_the_other_lose_no_step() {
    let shared = TempDir::new().expect("a folder");
    for apart_ms in [0, 8, 16, 32] {
        let folder = shared.path().join(apart_ms.to_string());
        let mut job = trained(&folder, &["--min-np", "1"]);
        let before = last_step_of(&job);
        notice(&job, "h1");
        sleep(Duration::from_millis(apart_ms));
        notice(&job, "h0");
        for host in ["h0", "h1"] {
            wait_for_end_of(&mut job, host);
        }
        job.kill_driver();
        let newest = newest_of(&folder);
        assert!(newest >= before, "{apart_ms} ms: {newest:?} is saved, {before:?} was reached");
    }
}
