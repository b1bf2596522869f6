//! The real actors in the simulated cluster: a sweep, double runs, and the same seed in many processes.

mod judged;

use std::collections::BTreeSet;
use std::process::Command;

use sim::{DRAWS, Recording, RunOptions, RunReport, RunVerdict, SimulationMode};

use self::judged::clean;

fn options(seed: u64) -> RunOptions {
    RunOptions { mode: SimulationMode::Actors, draws: DRAWS, seconds: 10, ..RunOptions::new(seed) }
}

fn passes(options: &RunOptions) -> RunReport {
    clean(sim::run(options, Recording::default()))
}

#[test]
fn forty_seeds() {
    let reports: Vec<RunReport> = (0..40).map(|seed| passes(&options(seed))).collect();
    let resets: u64 = reports.iter().map(|report| report.resets).sum();
    let commits: u64 = reports.iter().map(|report| report.commits).sum();
    assert!(resets > 40, "the faults do something: {resets} resets");
    assert!(commits > 2_000, "and the jobs train: {commits} commits");
}

#[test]
fn a_calm_cluster_resets_only_to_grow() {
    for seed in 0..5 {
        let report = passes(&RunOptions { calm: true, seconds: 5, ..options(seed) });
        assert!(report.resets <= report.generations, "{report:?}");
    }
}

#[test]
fn two_runs_of_a_seed_are_one() {
    let mut hashes = BTreeSet::new();
    for seed in 0..10 {
        let report = sim::run_twice(&options(seed));
        assert_ne!(report.verdict(), RunVerdict::Nondeterministic, "{:?}", report.reason());
        hashes.insert(report.hash);
    }
    assert_eq!(hashes.len(), 10, "different seeds are different runs");
}

#[test]
fn a_seed_is_the_same_in_twenty_processes() {
    let lines: BTreeSet<String> = (0..20)
        .map(|_| {
            let output = Command::new(env!("CARGO_BIN_EXE_sim"))
                .args("run --mode actors --seed 3 --sim-seconds 5 --json".split(' '))
                .output()
                .expect("the binary runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let mut line: serde_json::Value =
                serde_json::from_slice(&output.stdout).expect("one JSON object");
            line["seconds"].take();
            line.to_string()
        })
        .collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
}
