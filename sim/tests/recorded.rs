//! Tests of runs that go on from a recorded job (`--from`): from each record on at which a driver may die, under other faults.

use std::sync::Arc;

use elastic_driver::ElasticMode;
use elastic_driver::recording::moment::{MomentError, RecordedMoment, moment};
use sim::{
    Bug, DRAWS, Recording, RunOptions, RunVerdict, SIMULATED_MESSAGES, UnsimulatedMoment, plant,
    recorded_shape,
};

/// A small job to record.
fn recorded(seed: u64) -> Vec<Vec<String>> {
    let options = RunOptions { hosts: 3, seconds: 20, draws: DRAWS, ..RunOptions::new(seed) };
    sim::run(&options, Recording { drivers: true, ..Recording::default() }).recordings
}

/// The last record that a recording leads to, and the first.
fn records(life: &[String]) -> (u64, u64) {
    let last = moment(life, SIMULATED_MESSAGES, None).expect("it was just recorded").record;
    match moment(life, SIMULATED_MESSAGES, Some(u64::MAX)) {
        Err(MomentError::NoRecord { first, .. }) => (first, last),
        other => panic!("there is no such record: {other:?}"),
    }
}

/// A run from there, under the faults of a seed.
fn goes_on(from: RecordedMoment, seed: u64) -> RunOptions {
    let (hosts, slots) = recorded_shape(&from).expect("only such moments are taken");
    let from = Some(Arc::new(from));
    RunOptions { hosts, slots, seconds: 15, draws: DRAWS, from, ..RunOptions::new(seed) }
}

/// Moments of jobs that are not over.
fn moments(seeds: std::ops::Range<u64>, every: usize) -> Vec<RecordedMoment> {
    let mut moments = Vec::new();
    for life in seeds.flat_map(recorded) {
        let (first, last) = records(&life);
        for record in (first..=last).step_by(every) {
            let moment =
                moment(&life, SIMULATED_MESSAGES, Some(record)).expect("it has this record");
            assert_eq!(moment.record, record);
            match recorded_shape(&moment) {
                Ok(_) => moments.push(moment),
                Err(UnsimulatedMoment::Over { .. } | UnsimulatedMoment::TooFewSlots { .. }) => {}
                // Until the first worker attaches.
                Err(UnsimulatedMoment::ByRestart { .. })
                    if moment.config.mode == ElasticMode::Auto => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    moments
}

#[test]
fn a_run_goes_on_from_each_record_of_a_recorded_job_under_other_faults() {
    let moments = moments(20..28, 8);
    assert!(moments.len() > 25, "{} moments", moments.len());
    let (mut trained, mut failed) = (0, Vec::new());
    for (seed, moment) in (0..).zip(moments) {
        let record = moment.record;
        let options = goes_on(moment, seed);
        let report = sim::run(&options, Recording::default());
        if report.verdict() != RunVerdict::Ok {
            failed.push(format!("seed {seed}, record {record}: {:?}", report.reason()));
        }
        trained += u64::from(report.commits > 0);
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(trained > 20, "{trained} went on training");
}

#[test]
fn a_run_from_a_recording_is_repeated_from_its_regression_file() {
    let moment = moments(3..4, 7).pop().expect("a moment");
    let options = goes_on(moment, 1);
    let first = sim::run(&options, Recording::default());
    let text = serde_json::to_string(&options).expect("options are written");
    let again: RunOptions = serde_json::from_str(&text).expect("and read");
    let second = sim::run(&again, Recording::default());
    assert_eq!((first.hash, first.events), (second.hash, second.events));
}

#[test]
fn a_planted_bug_is_found_from_a_recording() {
    let moments = moments(0..6, 9);
    // One that the driver's own check does not see: in debug builds that ends the process.
    plant(Some(Bug::IncarnationsBeginAnew));
    let found = moments.into_iter().any(|moment| {
        sim::run(&goes_on(moment, 1), Recording::default()).verdict() == RunVerdict::Safety
    });
    plant(None);
    assert!(found);
}
