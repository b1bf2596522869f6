//! Seeds that every change must pass in mode *cores*: a sweep, and double runs.

mod judged;

use sim::{DRAWS, Recording, RunOptions, RunVerdict};

use self::judged::clean;

fn passes(options: &RunOptions) -> sim::RunReport {
    clean(sim::run(options, Recording::default()))
}

#[test]
fn two_hundred_seeds() {
    let mut resets = 0;
    let mut commits = 0;
    for seed in 0..200 {
        let report = passes(&RunOptions { draws: DRAWS, seconds: 15, ..RunOptions::new(seed) });
        resets += report.resets;
        commits += report.commits;
    }
    assert!(resets > 200, "the faults do something: {resets} resets");
    assert!(commits > 10_000, "and the jobs train: {commits} commits");
}

#[test]
fn a_calm_cluster_resets_only_to_grow() {
    for seed in 0..20 {
        let report =
            passes(&RunOptions { calm: true, draws: DRAWS, seconds: 10, ..RunOptions::new(seed) });
        assert!(report.resets <= report.generations, "{report:?}");
    }
}

#[test]
fn a_larger_cluster() {
    for seed in 0..3 {
        passes(&RunOptions {
            hosts: 20,
            slots: 4,
            draws: DRAWS,
            seconds: 10,
            ..RunOptions::new(seed)
        });
    }
}

#[test]
fn two_runs_of_a_seed_are_one() {
    let mut hashes = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let options = RunOptions { draws: DRAWS, seconds: 10, ..RunOptions::new(seed) };
        let report = sim::run_twice(&options);
        assert_ne!(report.verdict(), RunVerdict::Nondeterministic, "{:?}", report.reason());
        hashes.insert(report.hash);
    }
    assert_eq!(hashes.len(), 20, "different seeds are different runs");
}
