//! `--launcher ssh`, against real sshds on the loopback: agents get onto hosts, are started again, and leave no
//! process or file there (G-11); a host that cannot be reached is a failing host, not a failed job.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::sshd::Sshds;
use crate::support::{Job, binary, is_running, now, signal, wait_until};

/// The agents of a driver, over ssh or not, as (process, host).
fn agents(address: &str) -> Vec<(i32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("Linux").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let words: Vec<&str> = line.split('\0').collect();
        let value = |flag| words.iter().position(|word| *word == flag).map(|at| words[at + 1]);
        if words[0] == binary() && value("--join") == Some(address) && is_running(pid) {
            found.push((pid, value("--host").unwrap_or_default().to_owned()));
        }
    }
    found
}

fn agent_of(address: &str, host: &str) -> i32 {
    wait_until(&format!("an agent of {host}"), || {
        agents(address).into_iter().find(|(_, name)| name == host).map(|(pid, _)| pid)
    })
}

fn wait_until_gone(address: &str) {
    wait_until("the end of all agents", || agents(address).is_empty().then_some(()));
}

/// Whether any process has this text on its command line.
fn is_on_a_command_line(text: &str) -> bool {
    fs::read_dir("/proc").expect("Linux").flatten().any(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text)
    })
}

#[test]
fn agents_get_onto_hosts_and_are_started_again_and_leave_nothing_there() {
    let Some(mut sshds) = Sshds::new() else { return };
    sshds.host("a");
    sshds.host("b");
    let path = sshds.search_path();
    let flags = ["-H", "a:2,b:1", "--launcher", "ssh", "--min-np", "1"];
    let mut job = Job::start_in(&[("PATH", &path)], &flags, &[]);
    job.wait_for_sizes(&[3]);
    let token = fs::read_to_string(job.path("state/token")).expect("a token");
    assert!(!is_on_a_command_line(token.trim()));
    let victim = agent_of(&job.address, "b");
    signal(victim, Signal::SIGKILL);
    job.wait_for_sizes(&[3, 2, 3]);
    assert_ne!(agent_of(&job.address, "b"), victim);
    let address = job.address.clone();
    assert_eq!(job.finish(), 0);
    wait_until_gone(&address);
    job.assert_exact();
}

#[test]
fn a_host_that_was_away_has_an_agent_again() {
    let Some(mut sshds) = Sshds::new() else { return };
    sshds.host("a");
    sshds.host("b");
    let path = sshds.search_path();
    let flags = ["-H", "a:1,b:1", "--launcher", "ssh", "--min-np", "1", "--max-restarts", "0"];
    let mut job = Job::start_in(&[("PATH", &path)], &flags, &[]);
    job.wait_for_sizes(&[2]);
    sshds.stop(1);
    signal(agent_of(&job.address, "b"), Signal::SIGKILL);
    job.wait_for_sizes(&[2, 1]);
    job.wait("ssh's own words", |job| job.stderr().contains("Connection refused").then_some(()));
    sshds.start_again(1);
    job.wait_for_sizes(&[2, 1, 2]);
    assert_eq!(job.finish(), 0);
}

#[test]
fn a_host_that_does_not_let_us_in_is_blacklisted_and_the_job_goes_on() {
    let Some(mut sshds) = Sshds::new() else { return };
    sshds.host("a");
    sshds.hosts_that_refuse("unknown", "denied");
    let path = sshds.search_path();
    let hosts = ["-H", "a:1,unknown:1,denied:1", "--launcher", "ssh", "--max-restarts", "0"];
    let flags = [&hosts[..], &["--np", "1", "--min-np", "1"]].concat();
    let mut job = Job::start_in(&[("PATH", &path)], &flags, &[]);
    job.wait_for_sizes(&[1]);
    job.wait("two blacklisted hosts", |job| {
        let status = job.status()?;
        let out = status["hosts"].as_array()?.iter().filter(|host| host["state"] == "blacklisted");
        (out.count() == 2).then_some(())
    });
    let warnings: Vec<String> =
        job.events_of("warning").iter().map(|event| event["message"].to_string()).collect();
    for (host, said) in
        [("unknown", "Host key verification failed"), ("denied", "Permission denied")]
    {
        let is_told =
            |text: &String| text.contains(&format!("host {host}:")) && text.contains(said);
        assert!(warnings.iter().any(is_told), "{host}: {warnings:?}");
    }
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [1]);
}

#[test]
fn when_no_host_lets_us_in_the_reason_is_what_ssh_said() {
    let Some(mut sshds) = Sshds::new() else { return };
    sshds.host("a");
    sshds.hosts_that_refuse("unknown", "denied");
    let path = sshds.search_path();
    let flags = ["-H", "denied:1", "--launcher", "ssh", "--max-restarts", "0"];
    let mut job = Job::start_in(&[("PATH", &path)], &flags, &[]);
    assert_eq!(job.end(), 1);
    let stderr = job.stderr();
    assert!(stderr.contains("every host is blacklisted: denied"), "{stderr}");
    assert!(stderr.contains("Permission denied"), "{stderr}");
}

#[test]
fn s_12_a_worker_that_babbles_does_not_fill_the_driver_s_log() {
    let Some(mut sshds) = Sshds::new() else { return };
    sshds.host("a");
    let path = sshds.search_path();
    let flags = ["-H", "a:1", "--launcher", "ssh", "--mode", "restart"];
    // With pauses: an agent whose ssh is slow drops lines by itself, and the launcher would have too few.
    let megabyte = format!("yes {} | head -c 1000000; sleep 0.1", "x".repeat(500));
    let babble = format!("for each in $(seq 40); do {megabyte}; done");
    let program = ["/bin/sh", "-c", &babble].map(ToOwned::to_owned);
    let mut job = Job::start_program_in(&[("PATH", &path)], &flags, &program);
    assert_eq!(job.end(), 0);
    let log = fs::read(job.path("driver.stdout")).expect("a log");
    let bytes = log.len();
    assert!((10 << 20..36 << 20).contains(&bytes), "16 MiB at once, then 1 MiB a second: {bytes}");
    let missing = String::from_utf8_lossy(&log);
    assert!(missing.contains("lines are not shown: more output than a launcher passes on"));
}

#[test]
fn the_agent_of_a_host_that_left_the_list_goes() {
    let Some(mut sshds) = Sshds::new() else { return };
    sshds.host("a");
    sshds.host("b");
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let script = Job::discovery_script(folder.path(), "a:1\nb:1\n").display().to_string();
    let path = sshds.search_path();
    let flags = ["--host-discovery-script", &script, "--launcher", "ssh", "--min-np", "1"];
    let mut job = Job::start_in(&[("PATH", &path)], &flags, &[]);
    job.wait_for_sizes(&[2]);
    let agent = agent_of(&job.address, "b");
    fs::write(folder.path().join("hosts"), "a:1\n").expect("a file");
    job.wait_for_sizes(&[2, 1]);
    wait_until("the end of its agent", || (!is_running(agent)).then_some(()));
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn a_driver_that_is_started_again_finds_its_agents() {
    let Some(mut sshds) = Sshds::new() else { return };
    sshds.host("a");
    let path = sshds.search_path();
    let flags = ["-H", "a:2", "--launcher", "ssh"];
    let mut job = Job::start_in(&[("PATH", &path)], &flags, &[]);
    job.wait_for_sizes(&[2]);
    let agent = agent_of(&job.address, "a");
    job.kill_driver();
    job.start_driver_again();
    job.wait("the takeover", |job| (!job.events_of("takeover_done").is_empty()).then_some(()));
    job.wait_for_progress();
    assert_eq!(agent_of(&job.address, "a"), agent);
    let address = job.address.clone();
    assert_eq!(job.finish(), 0);
    wait_until_gone(&address);
}

#[test]
fn g_11_a_driver_that_nobody_succeeds_leaves_no_agent_behind() {
    let Some(mut sshds) = Sshds::new() else { return };
    sshds.host("a");
    let path = sshds.search_path();
    let flags = ["-H", "a:1", "--launcher", "ssh"];
    let program = ["/bin/sleep", "1000"].map(ToOwned::to_owned);
    let mut job = Job::start_program_in(
        &[("PATH", &path)],
        &[&flags[..], &["--mode", "restart", "--orphan-timeout", "2"]].concat(),
        &program,
    );
    job.wait("a running group", |job| (job.sizes() == [1]).then_some(()));
    let address = job.address.clone();
    assert_eq!(agents(&address).len(), 1);
    job.kill_driver();
    wait_until_gone(&address);
}

#[test]
fn g_9_an_agent_that_has_lost_its_launcher_waits_5_s_for_its_driver_and_leaves() {
    let mut job = Job::start(&["-n", "1"], &[]);
    let file = job.path("state/token");
    let token =
        wait_until("the token", || fs::read_to_string(&file).ok().filter(|it| !it.is_empty()));
    let mut agent = Command::new(binary())
        .args(["--role", "worker", "--join", &job.address, "--host", "a", "--slots", "1"])
        .args(["--leash", "tight"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the agent starts");
    let mut leash = agent.stdin.take().expect("it is a pipe");
    leash.write_all(format!("{}\n", token.trim()).as_bytes()).expect("it reads");
    job.agents.insert("a".to_owned(), agent);
    job.wait_for_sizes(&[1]);
    let driver = i32::try_from(job.driver.id()).expect("a process id");
    signal(driver, Signal::SIGSTOP);
    let begun = now();
    drop(leash);
    assert_eq!(job.agent_end("a").code(), Some(1));
    assert!(begun.elapsed() >= Duration::from_secs(5), "its driver had its time");
    signal(driver, Signal::SIGCONT);
}
