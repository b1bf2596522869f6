//! Seeds that every change must pass in mode *training*: a sweep, and those that have found a bug, each seed twice.

mod judged;

use sim::{RunOptions, RunReport, SimulationMode};

use self::judged::clean;

/// Runs a seed of this set of draws twice. It must break no rule.
fn passes_twice(seed: u64, draws: u32) -> RunReport {
    let options = RunOptions { mode: SimulationMode::Training, draws, ..RunOptions::new(seed) };
    clean(sim::run_twice(&options))
}

#[test]
fn sixty_seeds_of_training_threads() {
    let (mut resets, mut commits) = (0, 0);
    for seed in 0..60 {
        let report = passes_twice(seed, 0);
        resets += report.resets;
        commits += report.commits;
    }
    assert!(resets > 60, "the faults do something: {resets} resets");
    assert!(commits > 600, "and the jobs train: {commits} commits");
}

#[test]
fn seeds_that_have_found_a_bug() {
    let found = [
        (395, 0, "a rank goes on from live state whose commit was lost on the GPU"),
        (548, 0, "a deadline in a sub-group blames the sub-group's own number of a rank"),
        (913, 0, "the same of a rank that is lost"),
        (2345, 0, "where the last commit is lost, the end is saved as the commit before"),
        (3165, 0, "a last save that is ordered anew is not answered"),
        (
            2797,
            16,
            "a directory of checkpoints that could not be listed was made, and its name was never safe",
        ),
    ];
    for (seed, draws, bug) in found {
        let report = passes_twice(seed, draws);
        assert!(report.result.is_some(), "seed {seed}: {bug}");
    }
}
