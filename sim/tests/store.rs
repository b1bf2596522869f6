//! Seeds that every change must pass in mode *store*: a sweep, each seed twice.

mod judged;

use sim::{RunOptions, SimulationMode};

use self::judged::clean;

#[test]
fn two_hundred_seeds_of_the_key_value_store() {
    let (mut driver_deaths, mut answers) = (0, 0);
    for seed in 0..200 {
        let options = RunOptions { mode: SimulationMode::Store, ..RunOptions::new(seed) };
        let report = clean(sim::run_twice(&options));
        driver_deaths += report.resets;
        answers += report.commits;
    }
    assert!(driver_deaths > 100, "the faults do something: {driver_deaths} drivers died");
    assert!(answers > 2_000, "and the clients ask: {answers} answers");
}
