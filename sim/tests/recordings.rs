//! Tests of `--record` and `replay`: the drivers of simulated jobs are recorded, and the same core decides the same when
//! it is given the recorded inputs. A changed decision is found.

use elastic_driver::recording::redact::redact;
use elastic_driver::recording::replay::{ReplayDifference, ReplayReport, replay};
use sim::{Bug, Recording, RunOptions, RunReport, SIMULATED_MESSAGES, Shape, plant};

/// Small clusters of drawn shapes, cores and actors, in process and by restart.
fn options(seed: u64) -> RunOptions {
    let Shape { hosts, slots, mode, job, .. } = Shape::draw(seed, None);
    let (hosts, slots) = (hosts.clamp(2, 5), slots.min(2));
    RunOptions { hosts, slots, seconds: 20, mode, job, ..RunOptions::new(seed) }
}

fn recorded(options: &RunOptions) -> RunReport {
    sim::run(options, Recording { drivers: true, ..Recording::default() })
}

fn replayed(segments: &[String]) -> ReplayReport {
    replay(segments, SIMULATED_MESSAGES).expect("it was just recorded")
}

#[test]
fn the_core_decides_the_same_about_recorded_inputs_from_each_segment_on() {
    let (mut inputs, mut outputs, mut segments, mut lives) = (0, 0, 0, 0);
    for seed in 0..50 {
        let options = options(seed);
        let alone = sim::run(&options, Recording::default());
        let with = recorded(&options);
        assert_eq!((alone.hash, alone.events), (with.hash, with.events), "seed {seed}");
        for life in &with.recordings {
            let report = replayed(life);
            assert!(report.is_same, "seed {seed}: {:#?}", report.difference);
            assert_eq!(report.steps_missing, 0, "seed {seed}");
            (inputs, outputs) = (inputs + report.inputs, outputs + report.outputs);
            (segments, lives) = (segments + report.segments, lives + 1);
            // A segment stands for itself when those before it are gone.
            if let Some((last, former)) = life.split_last().filter(|(_, former)| !former.is_empty())
            {
                assert_eq!(former.len() + 1, report.segments, "seed {seed}");
                let alone = replayed(std::slice::from_ref(last));
                assert!(alone.is_same && alone.steps_missing > 0, "seed {seed}: {alone:?}");
            }
        }
    }
    assert!(lives > 50 && segments > lives + 50, "{lives} lives, {segments} segments");
    assert!(inputs > 10_000 && outputs > 5_000, "{inputs} inputs, {outputs} outputs");
}

#[test]
fn a_changed_decision_is_found_with_its_input_and_both_decisions() {
    let bugs =
        [Bug::RootIsRankZero, Bug::DeltaToNewcomer, Bug::PauseNotToldToAll, Bug::LostHostNotTold];
    let recordings: Vec<Vec<String>> =
        (100..124).flat_map(|seed| recorded(&options(seed)).recordings).collect();
    for bug in bugs {
        plant(Some(bug));
        let reports: Vec<ReplayReport> = recordings.iter().map(|life| replayed(life)).collect();
        plant(None);
        let found = reports.into_iter().zip(&recordings).find(|(report, _)| !report.is_same);
        let (report, life) = found.unwrap_or_else(|| panic!("{} is not found", bug.name()));
        let difference = report.difference.expect("it is not the same");
        assert_ne!(difference.recorded, difference.replayed, "{}", bug.name());
        assert!(difference.inputs_needed > 0, "{}", bug.name());
        // A copy without names shows the same difference at the same input.
        plant(Some(bug));
        let copy = redact(life, SIMULATED_MESSAGES).expect("it can be replayed");
        let again = replayed(&[copy]).difference.expect("it still differs");
        plant(None);
        let place = |it: &ReplayDifference| (it.step, it.kind, it.inputs_needed);
        assert_eq!(place(&again), place(&difference), "{}", bug.name());
    }
}

#[test]
fn a_copy_without_names_decides_the_same() {
    for seed in 200..208 {
        for life in recorded(&options(seed)).recordings {
            let report = replayed(&life);
            let copy = redact(&life, SIMULATED_MESSAGES).expect("it can be replayed");
            let again = replayed(std::slice::from_ref(&copy));
            assert!(again.is_same, "seed {seed}: {:#?}", again.difference);
            assert_eq!((again.inputs, again.outputs), (report.inputs, report.outputs), "{seed}");
            for text in ["\"h0\"", "h0[", "h1[", "10.0."] {
                assert!(!copy.contains(text), "seed {seed} has {text}");
            }
        }
    }
}
