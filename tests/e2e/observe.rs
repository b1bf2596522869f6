//! The operator's view of real jobs: goodput that adds up, and explanations of incidents.

use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Job, binary, signal};

/// Rounding of the event log's times to milliseconds, and of the sum of floating-point numbers, in slot-seconds.
const ROUNDING_S: f64 = 0.01;

fn pair(flags: &[&str]) -> Job {
    let mut all = vec!["-H", "a:1,b:1", "--launcher", "local"];
    if !flags.contains(&"--min-np") {
        all.extend(["--min-np", "1"]);
    }
    all.extend(flags);
    let mut job = Job::start(&all, &[]);
    job.wait_for_sizes(&[2]);
    job
}

pub(crate) fn run_explain(job: &Job, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(binary())
        .arg("explain")
        .args(arguments)
        .stdin(Stdio::null())
        .arg(job.path("state"))
        .output()
        .expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

pub(crate) fn explanation(job: &Job, what: &str) -> Value {
    let (code, stdout, stderr) = run_explain(job, &["--json", what]);
    assert_eq!(code, Some(0), "{stderr}");
    serde_json::from_str(&stdout).expect("one object")
}

/// Waits for the explanation of a reset that is complete and has this way and this word in its cause.
fn wait_for_reset(job: &mut Job, way: &str, words: &str) -> Value {
    let what = format!("a reset by {way} for {words:?}");
    let generation = job.wait(&what, |job| {
        let done = job.events_of("reset_done");
        let is_it = |it: &&Value| it["cause"].as_str().is_some_and(|cause| cause.contains(words));
        done.iter().find(is_it)?["from"].as_u64()
    });
    let explained = explanation(job, &generation.to_string());
    assert_eq!(explained["way"], way, "{explained}");
    assert_eq!(explained["generation"], generation);
    assert!(explained["ms"]["total"].as_f64().is_some_and(|ms| ms > 0.0), "{explained}");
    let cost = explained["cost"].as_object().expect("buckets");
    assert!(cost.values().any(|seconds| seconds.as_f64() > Some(0.0)), "{explained}");
    explained
}

fn seconds_since_1970() -> f64 {
    #[expect(clippy::disallowed_methods, reason = "the event log has the wall clock's time")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64()
}

/// The goodput of a status, checked: the buckets add up to the time of the slots.
fn checked_goodput(job: &mut Job, slots: f64) -> Value {
    let listed = job.events_of("hosts_changed")[0]["t"].as_str().map(ToOwned::to_owned);
    let listed = humantime::parse_rfc3339(&listed.expect("a time")).expect("RFC 3339");
    let listed = listed.duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let before = seconds_since_1970();
    let status = job.wait("a status", |job| job.status());
    let after = seconds_since_1970();
    let goodput = status["goodput"].clone();
    let buckets = goodput["buckets"].as_object().expect("buckets");
    let sum: f64 = buckets.values().filter_map(Value::as_f64).sum();
    let slot_seconds = goodput["slot_seconds"].as_f64().expect("a number");
    assert!((sum - slot_seconds).abs() < ROUNDING_S, "{sum}: {goodput}");
    let (least, most) = ((before - listed) * slots, (after - listed) * slots);
    assert!(
        least - ROUNDING_S <= sum && sum <= most + ROUNDING_S,
        "{sum} is not between {least} and {most}: {goodput}"
    );
    goodput
}

#[test]
fn o_1_slot_seconds_add_up_to_the_wall_clock_times_the_slots_over_two_drivers() {
    let mut job = pair(&[]);
    let goodput = checked_goodput(&mut job, 2.0);
    assert!(goodput["buckets"]["training"].as_f64() > Some(0.0), "{goodput}");
    signal(job.pid("b", 0), Signal::SIGKILL);
    job.wait("the refill", |job| {
        (job.sizes().len() > 1 && job.sizes().ends_with(&[2])).then_some(())
    });
    checked_goodput(&mut job, 2.0);
    job.kill_driver();
    job.start_driver_again();
    job.wait("the takeover", |job| (!job.events_of("takeover_done").is_empty()).then_some(()));
    let goodput = checked_goodput(&mut job, 2.0);
    assert!(goodput["buckets"]["driver_away"].is_null(), "the workers trained on: {goodput}");
    let shares = [&goodput["since_start"], &goodput["last_10_min"]];
    assert!(
        shares.iter().all(|it| (0.0..=1.0).contains(&it.as_f64().unwrap_or(-1.0))),
        "{goodput}"
    );
    assert_eq!(job.finish(), 0);
}

#[test]
fn o_1_slot_seconds_add_up_through_thirty_faults_and_three_drivers() {
    // So many slots that none fails often enough for a long back-off.
    let flags = ["-H", "a:4,b:4", "--launcher", "local", "--min-np", "1", "--max-restarts", "99"];
    let mut job = Job::start(&flags, &[]);
    job.wait_for_sizes(&[8]);
    for fault in 1..=30 {
        let resets = job.events_of("reset_done").len();
        match fault {
            10 | 20 => {
                job.kill_driver();
                job.start_driver_again();
                let takeovers = fault / 10;
                job.wait("the takeover", |job| {
                    (job.events_of("takeover_done").len() == takeovers).then_some(())
                });
            }
            _ => {
                let victim = if fault % 2 == 0 { "a" } else { "b" };
                signal(job.pid(victim, (fault / 2 % 4) as u64), Signal::SIGKILL);
                job.wait("the reset", |job| {
                    (job.events_of("reset_done").len() > resets).then_some(())
                });
            }
        }
        checked_goodput(&mut job, 8.0);
    }
    assert_eq!(job.status().expect("a status")["term"], 3);
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn explain_names_a_killed_worker_its_cost_and_what_kills_while_the_job_runs_and_after() {
    let mut job = pair(&[]);
    signal(job.pid("b", 0), Signal::SIGKILL);
    let explained = wait_for_reset(&mut job, "abort", "b[0]");
    assert_eq!(explained["host"], "b", "{explained}");
    assert!(explained["worker"].as_str().is_some_and(|it| it.starts_with("b[0]#")), "{explained}");
    let generation = explained["generation"].to_string();
    assert_eq!(job.finish(), 0);
    // A finished job leaves its event log.
    let (code, text, stderr) = run_explain(&job, &[&generation]);
    assert_eq!(code, Some(0), "{stderr}");
    for words in ["signal 9 (SIGKILL)", "slot-seconds", "dmesg on host b"] {
        assert!(text.contains(words), "{words:?} is missing in:\n{text}");
    }
}

#[test]
fn explain_names_a_worker_that_raises() {
    let mut job = pair(&[]);
    job.control("raise.0");
    let explained = wait_for_reset(&mut job, "abort", "a[0]");
    assert_eq!(explained["host"], "a", "{explained}");
    assert!(
        explained["advice"].as_str().is_some_and(|it| it.contains("--max-restarts")),
        "{explained}"
    );
}

#[test]
fn explain_names_a_worker_that_stood_still() {
    let mut job = pair(&[]);
    signal(job.pid("b", 0), Signal::SIGSTOP);
    let explained = wait_for_reset(&mut job, "abort", "not heard for");
    assert_eq!(explained["host"], "b", "{explained}");
    assert!(explained["cost"]["detecting"].as_f64() > Some(0.0), "{explained}");
}

#[test]
fn explain_names_a_host_whose_agent_was_killed_and_says_what_is_waited_for() {
    let mut job = Job::start(&["-n", "2", "--min-np", "2"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    job.kill_agent("b");
    let now = job.wait("a job that waits", |job| {
        let now = explanation(job, "now");
        now["cause"].as_str().is_some_and(|cause| cause.contains("it waits")).then_some(now)
    });
    assert_eq!(now["way"], "now");
    job.wait("time that is booked as waiting for hosts", |job| {
        (job.status()?["goodput"]["buckets"]["idle"].as_f64() > Some(0.0)).then_some(())
    });
    job.agent("c", 1);
    job.wait("both", |job| (job.sizes() == [2, 2]).then_some(()));
    let generation = job.first_reset()["from"].to_string();
    let explained = explanation(&job, &generation);
    assert_eq!(explained["host"], "b", "{explained}");
    let now = explanation(&job, "now");
    assert!(now["cause"].as_str().is_some_and(|cause| cause.contains("trains on 2")), "{now}");
    assert_eq!(job.finish(), 0);
}

#[test]
fn explain_calls_a_worker_that_leaves_a_planned_end() {
    let mut job = pair(&[]);
    signal(job.pid("b", 0), Signal::SIGTERM);
    let explained = wait_for_reset(&mut job, "interrupt", "b[0]");
    assert_eq!((&explained["host"], &explained["steps_lost"]), (&"b".into(), &0.into()));
    assert!(explained["advice"].is_null(), "{explained}");
}

#[test]
fn explain_names_the_host_that_came() {
    let mut job = Job::start(&["-n", "1", "--min-np", "1"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    job.agent("late", 1);
    let explained = wait_for_reset(&mut job, "interrupt", "added late[0]");
    assert_eq!((&explained["host"], &explained["next_generation"]), (&"late".into(), &2.into()));
    assert_eq!(job.finish(), 0);
}

#[test]
fn explain_names_the_failure_that_blacklists_a_host() {
    let mut job = pair(&["--on-failure", "blacklist"]);
    signal(job.pid("b", 0), Signal::SIGKILL);
    let explained = wait_for_reset(&mut job, "abort", "b");
    assert_eq!(explained["host"], "b", "{explained}");
    let now = job.wait("host b is out", |job| {
        let now = explanation(job, "now");
        now["cost"]["blacklisted"].is_number().then_some(now)
    });
    assert_eq!(now["cost"]["blacklisted"], 1.0, "{now}");
    let (_, text, _) = run_explain(&job, &["now"]);
    assert!(text.contains("b:0 are of blacklisted hosts"), "{text}");
}

#[test]
fn explain_names_why_a_job_failed() {
    let cases = [
        (
            &["--min-np", "2", "--elastic-timeout", "10", "--max-restarts", "0"][..],
            "elastic timeout",
            "--elastic-timeout",
        ),
        (
            &["--on-failure", "blacklist", "--min-np", "2", "--elastic-timeout", "10"],
            "elastic timeout",
            "--min-np",
        ),
        (&["--reset-limit", "0"], "limit of 0 resets", "--reset-limit"),
    ];
    for (flags, words, advice) in cases {
        let mut job = pair(flags);
        signal(job.pid("b", 0), Signal::SIGKILL);
        assert_eq!(job.end(), 1);
        let explained = explanation(&job, "last");
        let cause = explained["cause"].as_str().unwrap_or_default();
        assert!(cause.contains(words), "{explained}");
        assert_eq!((&explained["way"], &explained["host"]), (&"end".into(), &"b".into()));
        let said = explained["advice"].as_str().unwrap_or_default();
        assert!(said.contains(advice), "{advice} is missing: {explained}");
    }
}

#[test]
fn explain_says_what_is_not_there() {
    let mut job = pair(&[]);
    let (code, _, stderr) = run_explain(&job, &["7"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("the end of generation 7 is not on record"), "{stderr}");
    let (code, _, stderr) = run_explain(&job, &["yesterday"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert_eq!(job.finish(), 0);
    let nowhere =
        Command::new(binary()).args(["explain", "last", "/nowhere"]).output().expect("it runs");
    let stderr = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert_eq!(nowhere.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("/nowhere/events.jsonl") && stderr.contains("hint:"), "{stderr}");
}

#[test]
fn the_timeline_of_a_job_shows_its_workers_its_resets_and_who_began_them() {
    let mut job = pair(&[]);
    let victim = job.pid("b", 0);
    signal(victim, Signal::SIGKILL);
    let reset = job.first_reset();
    job.wait_for_sizes(&[2, 1, 2]);
    assert_eq!(job.finish(), 0);
    let printed = Command::new(binary()).arg("timeline").arg(job.path("state")).output();
    let printed = printed.expect("it runs");
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let trace: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    let entries = trace["traceEvents"].as_array().expect("a list");
    let of_kind = |kind: &'static str| entries.iter().filter(move |entry| entry["ph"] == kind);
    let killed = of_kind("X").find(|it| it["args"]["end"] == "signal 9 (SIGKILL)");
    let killed = killed.expect("the worker that was killed");
    let host = of_kind("M").find(|it| it["pid"] == killed["pid"]).expect("its host has a name");
    assert_eq!(host["args"]["name"], "host b");
    let cause = reset["cause"].as_str().expect("a cause");
    let (_, ended) = cause.split_once(' ').expect("its worker, and how it ended");
    let name = format!("reset: b:0 {ended}");
    let mut resets = of_kind("X").filter(|it| it["name"] == name.as_str());
    let reset = resets.next().expect("the reset");
    let from_killed = |it: &&Value| (&it["pid"], &it["tid"]) == (&killed["pid"], &killed["tid"]);
    let flow = of_kind("s").find(from_killed).expect("a flow from the worker");
    let step = of_kind("t").find(|it| it["id"] == flow["id"]).expect("the flow leads on");
    let [at, began, lasts] = [&step["ts"], &reset["ts"], &reset["dur"]].map(Value::as_u64);
    assert_eq!(step["tid"], reset["tid"]);
    assert!(began <= at && at <= began.zip(lasts).map(|(at, lasts)| at + lasts), "to the reset");
    assert!(of_kind("f").any(|it| it["id"] == flow["id"]), "the flow ends at the next generation");
    let sizes: Vec<u64> = of_kind("C").filter_map(|it| it["args"]["workers"].as_u64()).collect();
    assert!(sizes.starts_with(&[2, 0, 1]), "{sizes:?}");
    assert!(of_kind("X").all(|it| it["dur"].as_f64() >= Some(0.0)), "{entries:?}");
}
