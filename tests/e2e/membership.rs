//! Hosts that come and go as planned (section H).

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Job, signal};

/// A driver that discovers its hosts by a script, with an agent on this machine for each.
fn discovered(hosts: &str, flags: &[&str]) -> (tempfile::TempDir, Job) {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let script = Job::discovery_script(folder.path(), hosts).display().to_string();
    let mut all = vec!["--host-discovery-script", &script, "--launcher", "local"];
    all.extend(flags);
    let job = Job::start(&all, &[]);
    (folder, job)
}

fn list_hosts(folder: &tempfile::TempDir, hosts: &str) {
    // Renamed into place, so that the script never prints half of the file.
    let fresh = folder.path().join("hosts.new");
    fs::write(&fresh, hosts).expect("a file");
    fs::rename(fresh, folder.path().join("hosts")).expect("a file");
}

fn entered(job: &Job, generation: u64) -> Vec<Value> {
    let mut lines: Vec<Value> = job
        .log()
        .into_iter()
        .filter(|line| line["event"] == "enter" && line["generation"] == generation)
        .collect();
    lines.sort_by_key(|line| line["rank"].as_u64());
    lines
}

fn numbers(lines: &[Value], name: &str) -> Vec<u64> {
    lines.iter().filter_map(|line| line[name].as_u64()).collect()
}

#[test]
fn h_1_ranks_host_by_host() {
    let mut job = Job::start(
        &["-H", "h1:2,h2:2", "--launcher", "local", "--min-np", "2", "--max-np", "4"],
        &[],
    );
    job.wait_for_sizes(&[4]);
    let lines = entered(&job, 1);
    assert_eq!(numbers(&lines, "rank"), [0, 1, 2, 3]);
    assert_eq!(numbers(&lines, "local_rank"), [0, 1, 0, 1]);
    assert_eq!(numbers(&lines, "cross_rank"), [0, 0, 1, 1]);
    assert_eq!(numbers(&lines, "local_size"), [2; 4]);
    assert_eq!(numbers(&lines, "cross_size"), [2; 4]);
    assert_eq!(job.finish(), 0);
    let exits = job.events_of("worker_exited");
    assert_eq!(exits.len(), 4);
    assert!(exits.iter().all(|exit| exit["status"] == "exit code 0"), "{exits:?}");
    job.assert_exact();
}

#[test]
fn h_2_unequal_hosts() {
    let mut job = Job::start(&["-H", "w0:1,w1:2", "--launcher", "local"], &[]);
    job.wait_for_sizes(&[3]);
    let lines = entered(&job, 1);
    assert_eq!(numbers(&lines, "local_rank"), [0, 0, 1]);
    assert_eq!(numbers(&lines, "cross_rank"), [0, 1, 0]);
    assert_eq!(numbers(&lines, "cross_size"), [2, 2, 1]);
    assert_eq!(job.finish(), 0);
}

#[test]
fn h_3_the_slot_beyond_the_cap_is_spare_until_one_is_lost() {
    let flags =
        ["-H", "a:2,b:2", "--launcher", "local", "--np", "3", "--max-np", "3", "--min-np", "1"];
    let mut job = Job::start(&flags, &[]);
    job.wait_for_sizes(&[3]);
    let spare = |job: &Job| {
        let status = job.status()?;
        let spare = status["workers"].as_array()?.iter().find(|w| w["state"] == "spare")?;
        Some((spare["host"].as_str()?.to_owned(), spare["slot"].as_u64()?))
    };
    // The spare slot is the second one of the host whose agent came last.
    let (host, slot) = job.wait("the spare slot", |job| spare(job));
    let other = if host == "a" { "b" } else { "a" };
    assert_eq!(slot, 1);
    let victim = job.pid(other, 1);
    signal(victim, Signal::SIGKILL);
    // The spare worker may be ready before the survivors have arrived: then it enters with them.
    job.wait("three again", |job| {
        let sizes = job.sizes();
        (sizes.len() > 1 && sizes.ends_with(&[3])).then_some(())
    });
    job.pid(&host, 1);
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn h_4_h_5_a_host_is_added_and_removed() {
    let (hosts, mut job) = discovered("a:2\n", &["--min-np", "1"]);
    job.wait_for_sizes(&[2]);
    list_hosts(&hosts, "a:2\nb:2\n");
    job.wait_for_sizes(&[2, 4]);
    let after = entered(&job, 2);
    let before = entered(&job, 1);
    assert_eq!(numbers(&after, "pid")[..2], numbers(&before, "pid")[..], "old ranks are kept");
    list_hosts(&hosts, "a:2\n");
    job.wait_for_sizes(&[2, 4, 2]);
    let started = job.events_of("worker_started").len();
    assert_eq!(started, 4, "survivors are never restarted");
    let leavers = job.wait_for_exits(2);
    assert!(leavers.iter().all(|exit| exit["status"] == "exit code 0"), "G-11: {leavers:?}");
    let resets = job.events_of("reset_done");
    assert!(resets.iter().all(|reset| reset["steps_lost"] == 0), "no rollback: {resets:?}");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn h_6_from_host_to_host() {
    let (hosts, mut job) = discovered("a:1\n", &["--min-np", "1"]);
    job.wait_for_sizes(&[1]);
    list_hosts(&hosts, "a:1\nb:2\n");
    job.wait_for_sizes(&[1, 3]);
    list_hosts(&hosts, "b:2\n");
    job.wait_for_sizes(&[1, 3, 2]);
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn h_20_a_host_is_replaced_at_once() {
    let (hosts, mut job) = discovered("a:1\n", &["--min-np", "1"]);
    job.wait_for_sizes(&[1]);
    list_hosts(&hosts, "b:1\n");
    job.wait("b alone", |job| {
        (job.sizes().last() == Some(&1) && job.sizes().len() > 1).then_some(())
    });
    job.wait_for_progress();
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn h_19_an_unused_host_comes_and_goes() {
    let (hosts, mut job) = discovered("a:2\n", &["--np", "2", "--max-np", "2"]);
    job.wait_for_sizes(&[2]);
    list_hosts(&hosts, "a:2\nb:2\n");
    job.wait("the spare host", |job| {
        let status = job.status()?;
        let hosts = status["hosts"].as_array()?.len();
        let spare = status["workers"].as_array()?.iter().filter(|w| w["state"] == "spare").count();
        (hosts == 2 && spare == 2).then_some(())
    });
    list_hosts(&hosts, "a:2\n");
    job.wait("its going", |job| (job.status()?["hosts"].as_array()?.len() == 1).then_some(()));
    job.wait_for_progress();
    assert_eq!(job.sizes(), [2], "no reset");
    assert_eq!(job.finish(), 0);
    assert!(job.events_of("reset_decided").is_empty());
}

#[test]
fn h_15_the_first_discovery_fails() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let script = Job::discovery_script(folder.path(), "");
    fs::write(&script, "#!/bin/sh\necho no route to the scheduler >&2\nexit 3\n").expect("a file");
    let script = script.display().to_string();
    let mut job = Job::start(&["--host-discovery-script", &script, "--launcher", "local"], &[]);
    assert_eq!(job.end(), 1);
    assert!(job.stderr().contains("no route to the scheduler"), "{}", job.stderr());
}

#[test]
fn h_15_a_later_discovery_fails_and_works_again() {
    let (hosts, mut job) = discovered("a:1\n", &[]);
    job.wait_for_sizes(&[1]);
    fs::remove_file(hosts.path().join("hosts")).expect("a file");
    job.wait("a warning in status", |job| {
        (!job.status()?["warnings"].as_array()?.is_empty()).then_some(())
    });
    list_hosts(&hosts, "a:1\n");
    job.wait("the warning's end", |job| {
        job.status()?["warnings"].as_array()?.is_empty().then_some(())
    });
    assert_eq!(job.sizes(), [1], "hosts were kept");
    assert_eq!(job.finish(), 0);
}

#[test]
fn h_16_waits_until_np_slots_are_there() {
    let (hosts, mut job) = discovered("a:1\n", &["--np", "3", "--min-np", "1"]);
    list_hosts(&hosts, "a:1\nb:1\n");
    job.wait("two workers", |job| (job.events_of("worker_attached").len() == 2).then_some(()));
    assert!(job.sizes().is_empty());
    list_hosts(&hosts, "a:1\nb:1\nc:1\n");
    job.wait_for_sizes(&[3]);
    assert_eq!(job.finish(), 0);
}

#[test]
fn x_3_a_host_that_comes_before_anyone_has_registered_counts() {
    let (hosts, mut job) = discovered("a:1\n", &["--np", "1", "--min-np", "1"]);
    list_hosts(&hosts, "a:1\nb:1\n");
    job.wait("both hosts' workers at one time", |job| {
        (job.sizes().last() == Some(&2)).then_some(())
    });
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn x_5_below_min_and_back() {
    let (hosts, mut job) = discovered("a:1\nb:1\n", &["--min-np", "2"]);
    job.wait_for_sizes(&[2]);
    list_hosts(&hosts, "a:1\n");
    job.wait("the gather", |job| (job.status()?["phase"] == "gather").then_some(()));
    list_hosts(&hosts, "a:1\nc:1\n");
    job.wait_for_sizes(&[2, 2]);
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn x_4_a_host_is_added_one_removed_and_a_worker_killed_at_once() {
    let (hosts, mut job) = discovered("a:2\nb:1\n", &["--min-np", "1"]);
    job.wait_for_sizes(&[3]);
    let victim = job.pid("a", 1);
    list_hosts(&hosts, "a:2\nc:1\n");
    signal(victim, Signal::SIGKILL);
    job.wait("a and c with all their slots", |job| {
        let status = job.status()?;
        let members = status["workers"].as_array()?.iter().filter(|w| w["rank"].is_u64());
        let mut hosts: Vec<&str> = members.filter_map(|w| w["host"].as_str()).collect();
        hosts.sort_unstable();
        (status["phase"] == "run" && hosts == ["a", "a", "c"]).then_some(())
    });
    job.wait_for_progress();
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}
