//! `bench steps`: the cost of observation for the training thread in each step: its position among its collectives
//! (by which hangs are named), and the times of its steps with their parts (by which stragglers are). A world of one
//! makes the calls of a step with both and without, in turns, so that nothing else is measured. The readings of the
//! clock for each large message of another host (by which slow links are named) are not among them, and not measured.

use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use clap::Args;
use elastic_collectives::{
    AsyncCommunicator, CommunicatorExt as _, OperationWatch, ProgressThread, SoloCommunicator,
};
use elastic_worker::state::training::StepSamples;

use crate::monotonic::now_ns;
use crate::statistics::median;

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct StepsOptions {
    /// Collective calls of a step.
    #[arg(long, default_value_t = 4)]
    calls: u32,
    /// Steps of a turn.
    #[arg(long, default_value_t = 20_000)]
    steps: u32,
    /// Turns with, and as many without.
    #[arg(long, default_value_t = 25)]
    turns: u32,
    /// The step of which the share is told, in milliseconds.
    #[arg(long, default_value_t = 5.0)]
    step_ms: f64,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub(crate) fn run(options: &StepsOptions) -> anyhow::Result<()> {
    let (mut off, mut on) = (Vec::new(), Vec::new());
    let watch = OperationWatch::default();
    for _turn in 0..options.turns {
        off.push(turn(options, None)?);
        on.push(turn(options, Some(&watch))?);
    }
    let (off_us, on_us) = median(&off).zip(median(&on)).context("--turns is zero")?;
    let extra_us = on_us - off_us;
    let share = extra_us / 1e3 / options.step_ms;
    if !options.json {
        writeln!(
            std::io::stderr(),
            "the {} calls of a step take {off_us:.2} us, known {on_us:.2} us: {:.3} % of a step of {} ms",
            options.calls,
            share * 1e2,
            options.step_ms
        )?;
    }
    let result = serde_json::json!({
        "calls": options.calls, "off_us": off_us, "on_us": on_us, "extra_us": extra_us,
        "step_ms": options.step_ms, "share": share,
    });
    writeln!(std::io::stdout(), "{result}")?;
    Ok(())
}

/// Notes for a step with a batch of data and a commit, as the training thread makes them: the time of each, and the
/// step's end.
fn note_step(watch: &OperationWatch, samples: &Mutex<StepSamples>) {
    let locked = || samples.lock().unwrap_or_else(PoisonError::into_inner);
    let waits = watch.waited().at;
    let waited = watch.waited().at.saturating_sub(waits);
    locked().note_data(waited);
    let commits = watch.waited().at;
    let took = watch.waited().at.saturating_sub(commits);
    locked().note_commit(took);
    locked().end_steps(watch.waited(), 1, true);
}

/// Microseconds of a step's calls, as a mean over a turn.
fn turn(options: &StepsOptions, watch: Option<&OperationWatch>) -> anyhow::Result<f64> {
    let progress = ProgressThread::new();
    let group = watch.map(OperationWatch::over_all);
    let group =
        AsyncCommunicator::watched(Box::new(SoloCommunicator::new()), None, &progress, group);
    // The actor's thread reads the samples, so they are behind a lock.
    let samples = Mutex::new(StepSamples::default());
    let began = now_ns()?;
    for _step in 0..options.steps {
        for _call in 0..options.calls {
            group.call(|group| group.barrier())?;
        }
        if let Some(watch) = watch {
            note_step(watch, &samples);
        }
    }
    let passed = now_ns()? - began;
    Ok(passed as f64 / 1e3 / f64::from(options.steps.max(1)))
}
