//! Tests of the driver's lives: its process is killed and started again, or replaced while it stands still. In both
//! modes the job goes on unchanged (D-3). If its state directory is lost, the next job trains, and no process of the
//! former one stays for ever.

use serde_json::{Value, json};
use sim::{FaultPlan, Recording, RunOptions, RunReport, RunVerdict, SimulationMode};

/// By then all hosts are there, and nothing has happened for a while.
const QUIET_AT_US: u64 = 24_000_000;

fn plan(faults: &[(u64, Value)]) -> FaultPlan {
    let planned = |(at, fault): &(u64, Value)| json!({ "moment": { "at": at }, "fault": fault });
    let faults: Vec<Value> = faults.iter().map(planned).collect();
    serde_json::from_value(Value::Array(faults)).expect("faults")
}

fn passes(mode: SimulationMode, seed: u64, faults: &[(u64, Value)]) -> RunReport {
    let calm = RunOptions { mode, seconds: 36, draws: 0, ..RunOptions::new(seed) };
    let options = RunOptions { plan: Some(plan(faults)), ..calm };
    let report = sim::run(&options, Recording { keep: 40, words: true, ..Recording::default() });
    let why = report.reason().unwrap_or_default();
    let last = report.last_events.join("\n");
    assert_eq!(report.verdict(), RunVerdict::Ok, "{mode:?} seed {seed} {faults:?}: {why}\n{last}");
    assert!(report.commits > 0, "{mode:?} seed {seed}");
    report
}

/// Checks that the driver's faults change neither the resets nor the generations.
fn changes_nothing(faults: &[(u64, Value)]) {
    for mode in [SimulationMode::Cores, SimulationMode::Actors] {
        let mut alone = 0;
        for seed in 0..8 {
            let without = passes(mode, seed, &[]);
            let with = passes(mode, seed, faults);
            alone += with.interregna;
            let counts = |report: &RunReport| (report.resets, report.generations);
            if with.interregna > 0 {
                assert_eq!(counts(&with), counts(&without), "{mode:?} seed {seed} {faults:?}");
            }
        }
        assert!(alone > 3, "{mode:?}: it died {alone} times while nothing else happened");
    }
}

#[test]
fn d_3_a_driver_that_is_started_again_is_no_reset() {
    for for_us in [50_000, 1_000_000, 3_000_000] {
        changes_nothing(&[(QUIET_AT_US, json!({ "crash_driver": { "for_us": for_us } }))]);
    }
}

#[test]
fn d_3_nor_is_one_that_dies_amid_its_words_or_is_killed_while_it_takes_over() {
    let crash = json!({ "crash_driver": { "for_us": 200_000 } });
    let midway = json!({ "crash_driver_midway": { "outputs": 3, "for_us": 300_000 } });
    changes_nothing(&[
        (QUIET_AT_US, crash.clone()),
        (QUIET_AT_US + 250_000, midway),
        (QUIET_AT_US + 1_500_000, crash),
    ]);
}

#[test]
fn d_2_a_driver_that_was_replaced_and_goes_on_does_no_harm() {
    for for_us in [500_000, 6_000_000] {
        for mode in [SimulationMode::Cores, SimulationMode::Actors] {
            for seed in 0..8 {
                let replace = json!({ "replace_driver": { "for_us": for_us } });
                passes(mode, seed, &[(QUIET_AT_US, replace)]);
            }
        }
    }
}

#[test]
fn a_driver_and_a_worker_or_a_host_that_die_at_one_moment_are_survived() {
    for fault in [
        json!({ "crash_driver_and_worker": { "host": 0, "slot": 0, "for_us": 900_000 } }),
        json!({ "crash_driver_and_host": { "host": 1, "for_us": 2_500_000 } }),
    ] {
        for mode in [SimulationMode::Cores, SimulationMode::Actors] {
            for seed in 0..8 {
                passes(mode, seed, &[(QUIET_AT_US, fault.clone())]);
            }
        }
    }
}

#[test]
fn a_disk_that_is_full_for_a_while_stops_nobody() {
    for condition in ["slow", "full", "read_only", "fails_syncs"] {
        let disk = json!({ "disk": { "fault": condition, "for_us": 3_000_000 } });
        let crash = json!({ "crash_driver": { "for_us": 400_000 } });
        changes_nothing(&[(QUIET_AT_US, disk), (QUIET_AT_US + 500_000, crash)]);
    }
}

#[test]
fn a_driver_without_its_state_directory_begins_a_job_that_trains() {
    for mode in [SimulationMode::Cores, SimulationMode::Actors] {
        for seed in 0..8 {
            passes(mode, seed, &[(4_000_000, json!({ "lose_driver": { "for_us": 1_000_000 } }))]);
        }
    }
}
