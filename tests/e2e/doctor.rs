//! `elastic-node doctor --join`: the way from a host to a driver, step by step.

use std::net::UdpSocket;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::clock::faketime;
use crate::data_path::agent_at;
use crate::network::Network;
use crate::support::{Job, binary, signal};

/// An address of this host at which nothing listens.
const NOBODY: &str = "127.7.7.7:7";

/// Runs the doctor for this driver; returns its exit code and its findings.
fn doctor(driver: &str, token_file: &str) -> (Option<i32>, Value) {
    let output = Command::new(binary())
        .args(["doctor", "--json", "--join", driver, "--token-file", token_file])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let found = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (output.status.code(), found)
}

#[test]
fn x_19_a_clock_that_differs_from_the_driver_s_is_told_and_does_not_keep_the_host_out() {
    let Some(library) = faketime() else { return };
    let mut job = Job::start(&["-n", "1"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    let token = job.path("state").join("token");
    for (shift, words) in [("+2h", "s ahead of the driver's"), ("-2h", "s behind the driver's")] {
        let output = Command::new(binary())
            .args(["doctor", "--json", "--join", &job.address, "--token-file"])
            .arg(&token)
            .env("LD_PRELOAD", &library)
            .env("FAKETIME", shift)
            .output()
            .expect("it runs");
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            (output.status.code(), &found["join"]["is_joined"]),
            (Some(0), &true.into()),
            "{found}"
        );
        let ahead_s = found["join"]["clock_ahead_ms"].as_i64().expect("a time") / 1_000;
        assert!((7_100..=7_300).contains(&ahead_s.abs()), "{found}");
        assert!(found["problems"].to_string().contains(words), "{found}");
    }
    assert_eq!(job.finish(), 0);
}

#[test]
fn s_2_few_descriptors_are_told_by_the_doctor() {
    let output = Command::new("prlimit")
        .args(["--nofile=512:512", binary(), "doctor", "--json"])
        .output()
        .expect("util-linux");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(found["open_files"]["hard"], 512, "{found}");
    let problems = found["problems"].as_array().expect("a list");
    let of_files = |it: &&Value| it["what"] == "a process may have at most 512 files open";
    let problem = problems.iter().find(of_files).expect("it is one");
    assert_eq!(problem["is_fatal"], false);
    assert!(problem["hint"].as_str().is_some_and(|hint| hint.contains("ulimit -Hn")), "{found}");
}

/// The only fatal problem, with its way out.
fn problem(found: &Value) -> (String, String) {
    let problems = found["problems"].as_array().expect("a list");
    let fatal: Vec<&Value> = problems.iter().filter(|it| it["is_fatal"] == true).collect();
    let [only] = fatal[..] else { panic!("one problem: {found}") };
    let text = |name: &str| only[name].as_str().expect("a text").to_owned();
    (text("what"), text("hint"))
}

#[test]
fn the_doctor_joins_a_driver_as_an_agent_would_and_disturbs_nobody() {
    let mut job = Job::start(&["-n", "1"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    let token = job.path("state").join("token").display().to_string();
    let (code, found) = doctor(&job.address, &token);
    assert_eq!(code, Some(0), "{found}");
    let join = &found["join"];
    assert_eq!((&join["is_joined"], &join["from"]), (&true.into(), &"127.0.0.1".into()));
    assert_eq!(join["job"], job.status().expect("a status")["job"]);
    assert!(join["answer_ms"].as_f64() > Some(0.0), "{found}");
    let ahead = join["clock_ahead_ms"].as_i64().expect("the driver said its time");
    assert!(ahead.abs() < 60_000, "one machine, one clock: {found}");
    let data = &join["data"];
    assert_eq!(
        (&data["address"], &data["is_answered"]),
        (&"127.0.0.1".into(), &true.into()),
        "{found}"
    );
    assert_eq!((&data["can_listen"], &data["interface"]), (&true.into(), &"lo".into()), "{found}");
    assert_eq!(data["hosts"]["reached"], serde_json::json!(["a"]), "{found}");

    // The first of two drivers is away: that is a warning.
    let (code, found) = doctor(&format!("{NOBODY},{}", job.address), &token);
    assert_eq!((code, &found["join"]["is_joined"]), (Some(0), &true.into()), "{found}");
    assert!(found["problems"].to_string().contains("nothing listens"), "{found}");
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [1], "no reset");
}

#[test]
fn each_obstacle_on_the_way_to_a_driver_is_named_with_the_way_out() {
    let mut job = Job::start(&["-n", "1"], &[]);
    let other = Job::start(&["-n", "1"], &[]);
    let token_of = |job: &Job| job.path("state").join("token").display().to_string();
    job.agent("a", 1);
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let silent_at = silent.local_addr().expect("bound").to_string();
    for (driver, token, what, hint) in [
        (
            "nowhere.invalid:7070",
            token_of(&job),
            "the name of nowhere.invalid:7070 cannot be resolved",
            "DNS",
        ),
        (NOBODY, token_of(&job), "nothing listens on the UDP port", "start the driver"),
        (&silent_at, token_of(&job), "nobody answers on the UDP port", "firewalls"),
        (&job.address, token_of(&other), "is not of this token's job", "copy the token file"),
        (
            &job.address,
            "/nope/token".to_owned(),
            "/nope/token cannot be used",
            "a copy of the driver's",
        ),
    ] {
        let (code, found) = doctor(driver, &token);
        assert_eq!(code, Some(1), "{found}");
        let (said, way_out) = problem(&found);
        assert!(said.contains(what) && way_out.contains(hint), "{driver}: {said:?} {way_out:?}");
        assert_eq!(found["join"]["is_joined"], false);
    }
}

#[test]
fn a_firewall_between_two_hosts_is_named_with_its_direction_and_protocol() {
    let Some(network) = Network::enter(3) else { return };
    let job = Job::start_at(network.place(0), &["-n", "2"]);
    let mut job = job;
    agent_at(&mut job, "a", network.place(1));
    job.wait("the agent is there", |job| {
        let status = job.status()?;
        status["hosts"].to_string().contains("active").then_some(())
    });
    let token = job.path("state").join("token").display().to_string();
    let look = |job: &Job| {
        let wrapper = network.place(2).wrapper();
        let output = Command::new(&wrapper[0])
            .args(&wrapper[1..])
            .arg(binary())
            .args(["doctor", "--json", "--join", &job.address, "--token-file", &token])
            .output()
            .expect("it runs");
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let found = look(&job);
    assert_eq!(found["join"]["data"]["hosts"]["reached"], serde_json::json!(["a"]), "{found}");

    // From here on, what a host asks of the doctor's over TCP is dropped; answers pass.
    if !network.place(2).refuse_connections() {
        return;
    }
    let found = look(&job);
    let cut = found["join"]["data"]["hosts"]["cut"].as_array().expect("a list");
    let [cut] = &cut[..] else { panic!("one direction of one protocol: {found}") };
    assert_eq!(
        (&cut["from"], &cut["to"], &cut["protocol"]),
        (&"a".into(), &"this host".into(), &"TCP".into()),
        "{found}"
    );
    let problems = found["problems"].to_string();
    assert!(problems.contains("a does not reach this host over TCP"), "{problems}");
    assert!(problems.contains("let TCP pass from a"), "{problems}");
}

#[test]
fn g_9_a_host_that_stands_still_is_named_as_one_that_did_not_say() {
    let mut job = Job::start(&["-n", "1"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    let token = job.path("state").join("token").display().to_string();
    let agent = i32::try_from(job.agents["a"].id()).expect("a process id");
    signal(agent, Signal::SIGSTOP);
    let (_, found) = doctor(&job.address, &token);
    signal(agent, Signal::SIGCONT);
    let hosts = &found["join"]["data"]["hosts"];
    let expected = serde_json::json!({ "reached": [], "cut": [], "silent": ["a"] });
    // A host that has been silent for long enough is not asked at all.
    let nobody = serde_json::json!({ "reached": [], "cut": [], "silent": [] });
    assert!(*hosts == expected || *hosts == nobody, "{found}");
    assert_eq!(job.finish(), 0);
}
