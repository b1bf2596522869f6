//! Seeds that every change must pass in mode *store*: a sweep, each seed twice.

use sim::{Recording, RunOptions, RunVerdict, SimulationMode};

#[test]
fn two_hundred_seeds_of_the_key_value_store() {
    let (mut driver_deaths, mut answers) = (0, 0);
    for seed in 0..200 {
        let options = RunOptions { mode: SimulationMode::Store, ..RunOptions::new(seed) };
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
        driver_deaths += report.resets;
        answers += report.commits;
    }
    assert!(driver_deaths > 100, "the faults do something: {driver_deaths} drivers died");
    assert!(answers > 2_000, "and the clients ask: {answers} answers");
}
