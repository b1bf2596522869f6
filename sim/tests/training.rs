//! Seeds that every change must pass in mode *training*: a sweep, each seed twice.

use sim::{Recording, RunOptions, RunVerdict, SimulationMode};

#[test]
fn sixty_seeds_of_training_threads() {
    let (mut resets, mut commits) = (0, 0);
    for seed in 0..60 {
        let options = RunOptions { mode: SimulationMode::Training, ..RunOptions::new(seed) };
        let report = sim::run_twice(&options);
        if report.verdict() != RunVerdict::Ok {
            let recording = Recording { keep: 40, ..Recording::default() };
            let again = sim::run(&options, recording);
            panic!(
                "{}\nseed {seed} failed ({}): {}\nrepeat: {}",
                again.last_events.join("\n"),
                report.verdict().name(),
                report.reason().unwrap_or_default(),
                options.command()
            );
        }
        resets += report.resets;
        commits += report.commits;
    }
    assert!(resets > 60, "the faults do something: {resets} resets");
    assert!(commits > 600, "and the jobs train: {commits} commits");
}
