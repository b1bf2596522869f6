//! `--record` and `replay`: the driver of a real job is recorded, and its core decides the same again.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Job, binary, signal};

/// Exit code, stdout and stderr of `replay`.
fn replay(path: &Path, flags: &[&str]) -> (i32, String, String) {
    let output = Command::new(binary()).arg("replay").arg(path).args(flags).output();
    let output = output.expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

fn report(path: &Path) -> Value {
    let (code, stdout, stderr) = replay(path, &["--json"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    serde_json::from_str(&stdout).expect("one object")
}

/// Waits until the generation formed last has this size and trains.
fn wait_for_size(job: &mut Job, generations: usize, size: u64) {
    job.wait(&format!("a generation of {size}"), |job| {
        let sizes = job.sizes();
        (sizes.len() > generations && sizes.last() == Some(&size)).then_some(())
    });
    job.wait_for_progress();
}

/// A job that loses a worker, gains a host, lets it go, and is taken over by a new driver. Returns it and its token.
fn recorded_job() -> (Job, String) {
    let flags = ["-n", "2", "--min-np", "1", "--max-restarts", "100", "--record"];
    let mut job = Job::start(&flags, &[]);
    job.agent("morning", 1);
    job.agent("evening", 1);
    job.wait_for_sizes(&[2]);
    let token = fs::read_to_string(job.path("state/token")).expect("a token");
    signal(job.pid("evening", 0), Signal::SIGKILL);
    wait_for_size(&mut job, 1, 2);
    let generations = job.sizes().len();
    job.agent("noon", 1);
    wait_for_size(&mut job, generations, 3);
    let generations = job.sizes().len();
    signal(job.agents["noon"].id() as i32, Signal::SIGTERM);
    wait_for_size(&mut job, generations, 2);
    let generations = job.sizes().len();
    job.kill_driver();
    job.start_driver_again();
    job.wait("the takeover", |job| job.events_of("takeover_done").pop());
    job.kill_agent("evening");
    wait_for_size(&mut job, generations, 1);
    assert_eq!(job.finish(), 0);
    (job, token)
}

#[test]
fn a_recorded_job_is_replayed_to_the_same_decisions_and_a_changed_one_is_found() {
    let (job, token) = recorded_job();
    let state = job.path("state");
    let found = report(&state);
    assert_eq!(found["is_same"], true, "{found}");
    assert_eq!((&found["lives"], &found["steps_missing"]), (&2.into(), &0.into()), "{found}");
    let counts = |report: &Value| (report["inputs"].as_u64(), report["outputs"].as_u64());
    assert!(counts(&found) > (Some(60), Some(60)), "{found}");

    let (code, stdout, stderr) = replay(&state, &[]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    assert!(stdout.starts_with("the same: "), "{stdout}");

    let segments = recorded(&state.join("recording"));
    assert_eq!(segments.len(), 2, "one of each driver");
    let secret = &token.trim()[token.trim().len() - 24..];
    for (path, text) in &segments {
        assert_eq!(fs::metadata(path).expect("there").permissions().mode() & 0o777, 0o600);
        assert!(!text.contains(token.trim()) && !text.contains(secret), "it has the token");
        assert!(!text.contains("--control"), "it has the program's arguments");
    }

    let copy = job.path("copy.jsonl");
    let at = copy.display().to_string();
    let (code, _, stderr) = replay(&state, &["--export", &at, "--redact"]);
    assert_eq!(code, 0, "{stderr}");
    let text = fs::read_to_string(&copy).expect("written");
    for name in ["morning", "evening", "noon"] {
        assert!(!text.contains(name), "{name} is in the copy");
    }
    let again = report(&copy);
    assert_eq!((&again["is_same"], counts(&again)), (&true.into(), counts(&found)), "{again}");

    // As if this program decided another thing than the one that recorded.
    let (path, text) = &segments[0];
    let changed = text.replacen("\"world_size\":3", "\"world_size\":4", 1);
    assert_ne!(*text, changed);
    fs::write(path, changed).expect("ours");
    let (code, stdout, stderr) = replay(&state, &[]);
    assert_eq!(code, 1, "{stdout}{stderr}");
    for part in ["not the same", "AllSynced", "\"world_size\":4", "\"world_size\":3", "show it"] {
        assert!(stdout.contains(part), "{part} is not in {stdout}");
    }
    let found = serde_json::from_str::<Value>(&replay(&state, &["--json"]).1).expect("an object");
    assert_eq!(found["difference"]["kind"], "output", "{found}");

    let others = text.replace("\"protocol\":\"elastic/", "\"protocol\":\"other/");
    fs::write(path, others).expect("ours");
    let (code, _, stderr) = replay(&state, &[]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("messages other/") && stderr.contains("hint:"), "{stderr}");
}

#[test]
fn s_12_a_recording_that_is_removed_under_its_driver_begins_anew() {
    let flags = ["-n", "2", "--min-np", "1", "--max-restarts", "100", "--record"];
    let mut job = Job::start(&flags, &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    let recording = job.path("state/recording");
    fs::remove_dir_all(&recording).expect("it is there");
    signal(job.pid("b", 0), Signal::SIGKILL);
    wait_for_size(&mut job, 1, 2);
    job.wait("the recording", |_| recording.is_dir().then_some(()));
    assert!(job.stderr().contains("the recording was removed"), "{}", job.stderr());
    assert_eq!(job.finish(), 0);
    let found = report(&job.path("state"));
    assert_eq!(found["is_same"], true, "{found}");
    assert!(found["steps"].as_u64() > Some(0), "{found}");
}

#[test]
fn a_job_is_recorded_only_if_that_is_asked_for() {
    let mut job = Job::start(&["-n", "1"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    assert_eq!(job.finish(), 0);
    assert!(!job.path("state/recording").exists());
    let (code, _, stderr) = replay(&job.path("state"), &[]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("no recording") && stderr.contains("--record"), "{stderr}");
}

fn recorded(folder: &Path) -> Vec<(std::path::PathBuf, String)> {
    let files = fs::read_dir(folder).expect("a recording").flatten().map(|entry| entry.path());
    let mut segments: Vec<_> = files
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a segment");
            (path, text)
        })
        .collect();
    segments.sort();
    segments
}
