//! Logical shards: the weights of a job that lost workers, its driver or everything are those of one undisturbed worker, bit
//! for bit (C-2).

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::{Job, Random, binary, program, signal};

/// The training: 240 steps.
const TRAINING: [&str; 4] = ["--epochs", "20", "--batch-size", "16"];
/// The plan, said by the program itself.
const PLAN: [&str; 2] = ["--shards", "8"];
const STEPS: u64 = 240;
/// Least time of a step, so that there is time to disturb it.
const STEP_MS: &str = "30";

/// The SHA-256 that one worker prints without a driver.
pub(crate) fn undisturbed(training: &[&str]) -> String {
    let output = Command::new(program("digits")).args(training).args(PLAN).output();
    let output = output.expect("it runs");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = stdout.lines().find_map(|line| line.strip_prefix("sha256 "));
    line.unwrap_or_else(|| panic!("no digest: {stdout}")).to_owned()
}

/// Starts a driver of the digits with these flags; the weights are stored in `weights` at the end.
fn start(driver: &[&str], plan: &[&str]) -> Job {
    let digits = program("digits").display().to_string();
    let own = ["--step-ms", STEP_MS, "--save", "DIR/weights"];
    let words = [&[digits.as_str()], &TRAINING[..], &own, plan].concat();
    let words: Vec<String> = words.into_iter().map(ToOwned::to_owned).collect();
    Job::start_program(&[&["--mode", "in-process"], driver].concat(), &words)
}

pub(crate) fn weights(folder: &Path) -> String {
    let bytes = fs::read(folder).expect("rank 0 has stored them");
    let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Waits until a worker has made this many steps in all.
fn wait_for_step(job: &mut Job, step: u64) {
    job.wait(&format!("step {step}"), |job| {
        let status = job.status()?;
        let steps = status["workers"].as_array()?.iter().filter_map(|it| it["step"].as_u64());
        (steps.max() >= Some(step)).then_some(())
    });
}

fn wait_for_last_size(job: &mut Job, size: u64) {
    job.wait(&format!("a world of {size}"), |job| {
        (job.sizes().last() == Some(&size)).then_some(())
    });
}

#[test]
fn c_2_kills_joins_and_a_driver_killed_leave_the_weights_of_one_undisturbed_worker() {
    let mut job = start(&["-n", "3", "--min-np", "1"], &PLAN);
    for host in ["a", "b", "c"] {
        job.agent(host, 1);
    }
    wait_for_last_size(&mut job, 3);
    let mut random = Random::new(17);
    for host in ["b", "a", "c"] {
        let victim = job.pid(host, 0);
        job.pass_ms(random.below(150));
        signal(victim, Signal::SIGKILL);
        job.wait("the decision", |job| {
            job.events_of("reset_decided")
                .iter()
                .any(|it| it["cause"].to_string().contains(host))
                .then_some(())
        });
    }
    job.agent("d", 2);
    wait_for_last_size(&mut job, 5);
    job.kill_driver();
    job.pass_ms(random.below(300));
    job.start_driver_again();
    job.wait_for_term(2);
    job.kill_agent("a");
    wait_for_last_size(&mut job, 4);
    assert_eq!(job.end(), 0);
    assert_eq!(weights(&job.path("weights")), undisturbed(&TRAINING), "{:?}", job.sizes());
}

#[test]
fn c_2_a_job_whose_every_process_was_killed_resumes_at_other_world_sizes_with_the_same_bits() {
    let shared = TempDir::new().expect("a folder");
    let folder = shared.path().display().to_string();
    let mut before = 0;
    for workers in [1, 3, 2, 7] {
        let np = workers.to_string();
        let mut job = start(
            &["-n", &np, "--checkpoint", &folder, "--checkpoint-every", "10", "--shards", "8"],
            &[],
        );
        for host in 0..workers {
            job.agent(&format!("h{host}"), 1);
        }
        let loaded = job.wait("the checkpoint", |job| job.events_of("checkpoint_loaded").pop());
        assert_eq!(loaded["step"].as_u64().is_some(), before > 0, "{loaded}");
        if workers == 7 {
            assert_eq!(job.end(), 0);
            assert_eq!(weights(&job.path("weights")), undisturbed(&TRAINING));
            return;
        }
        assert_eq!(job.status().expect("it runs")["shards"], 8);
        before += STEPS / 5;
        wait_for_step(&mut job, before);
        job.kill_driver();
        let hosts: Vec<String> = job.agents.keys().cloned().collect();
        hosts.iter().for_each(|host| job.kill_agent(host));
        job.wait("the end of every process", |job| (!job.has_processes()).then_some(()));
    }
}

#[test]
fn c_2_a_resume_with_another_number_of_shards_is_refused_with_the_reason() {
    let shared = TempDir::new().expect("a folder");
    let folder = shared.path().display().to_string();
    let durable = ["-n", "1", "--checkpoint", &folder, "--checkpoint-every", "10"];
    let mut job = start(&durable, &PLAN);
    job.agent("a", 1);
    job.wait("a checkpoint", |job| job.events_of("checkpoint_saved").pop());
    job.kill_driver();
    job.kill_agent("a");
    let mut again = start(&[&durable[..], &["--shards", "4"]].concat(), &[]);
    again.agent("a", 1);
    assert_eq!(again.end(), 1);
    let stderr = again.stderr();
    let reason =
        "was trained with 8 shards of a global batch of 128, and the batch plan is now 4 shards";
    assert!(stderr.contains(reason), "{stderr}");
}

#[test]
fn c_2_worlds_of_1_to_7_train_the_same_weights_and_larger_ones_than_the_shards_are_refused() {
    let short = ["--epochs", "2", "--batch-size", "16"];
    let digits = program("digits").display().to_string();
    let run = |workers: u32, plan: &[&str]| {
        let np = workers.to_string();
        let line = [&["run", "-n", &np, "--", &digits][..], &short, plan].concat();
        let output = Command::new(binary()).args(line).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let due = undisturbed(&short);
    for workers in 1..=7 {
        let (code, stdout, stderr) = run(workers, &PLAN);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stdout.contains(&format!("sha256 {due}")), "{workers} workers: {stdout}");
    }
    let (code, _, stderr) = run(3, &["--shards", "2"]);
    assert_eq!(code, Some(1));
    let reason = "a world of 3 cannot carry 2 shards";
    assert!(stderr.contains(reason) && stderr.contains("--max-np 2"), "{stderr}");
}
