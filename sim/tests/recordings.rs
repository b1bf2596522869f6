//! Tests of `--record` and `replay`: the drivers of simulated jobs are recorded, and the same core decides the same when
//! it is given the recorded inputs. A changed decision is found.

use elastic_driver::recording::replay::{ReplayReport, replay};
use sim::{Recording, RunOptions, RunReport, SIMULATED_MESSAGES, Shape};

fn options(seed: u64) -> RunOptions {
    let Shape { hosts, slots, seconds, mode, job } = Shape::draw(seed, None);
    RunOptions { hosts, slots, seconds, mode, job, ..RunOptions::new(seed) }
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
                let alone = replayed(std::slice::from_ref(last));
                assert!(alone.is_same && alone.steps_missing > 0, "seed {seed}: {alone:?}");
                assert!(former.len() + 1 == report.segments, "seed {seed}");
            }
        }
    }
    println!("{lives} lives, {segments} segments, {inputs} inputs, {outputs} outputs");
    assert!(lives > 60 && segments > lives + 50, "{lives} lives, {segments} segments");
    assert!(inputs > 50_000 && outputs > 50_000, "{inputs} inputs, {outputs} outputs");
}
