//! Seeds that every change must pass: a sweep, and double runs.

use sim::{Options, Recording, Verdict};

fn passes(options: &Options) -> sim::Report {
    let report = sim::run(options, Recording::default());
    if report.verdict() != Verdict::Ok {
        let again = sim::run(options, Recording { keep: 60, words: true, file: None });
        panic!(
            "{}\nseed {} failed ({}): {}\nrepeat: {}",
            again.last_events.join("\n"),
            options.seed,
            report.verdict().name(),
            report.reason().unwrap_or_default(),
            options.command()
        );
    }
    report
}

#[test]
fn two_hundred_seeds() {
    let mut resets = 0;
    let mut commits = 0;
    for seed in 0..200 {
        let report = passes(&Options { seconds: 15, ..Options::new(seed) });
        resets += report.resets;
        commits += report.commits;
    }
    assert!(resets > 200, "the faults do something: {resets} resets");
    assert!(commits > 10_000, "and the jobs train: {commits} commits");
}

#[test]
fn a_calm_cluster_resets_only_to_grow() {
    for seed in 0..20 {
        let report = passes(&Options { calm: true, seconds: 10, ..Options::new(seed) });
        assert!(report.resets <= report.generations, "{report:?}");
    }
}

#[test]
fn a_larger_cluster() {
    for seed in 0..3 {
        passes(&Options { hosts: 20, slots: 4, seconds: 10, ..Options::new(seed) });
    }
}

#[test]
fn two_runs_of_a_seed_are_one() {
    let mut hashes = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let options = Options { seconds: 10, ..Options::new(seed) };
        let report = sim::run_twice(&options);
        assert_ne!(report.verdict(), Verdict::Nondeterministic, "{:?}", report.reason());
        hashes.insert(report.hash);
    }
    assert_eq!(hashes.len(), 20, "different seeds are different runs");
}
