//! `bench rebalance`: the cost of a slow worker for a job with logical shards, by the answer to it.
//!
//! Workers train by shards, each of which takes a fixed time of a worker's own. The first rank is slowed to half
//! (SIGSTOP and SIGCONT in turns), once with `--on-straggler tell` and once with `rebalance`. Steps per second are
//! measured before that, and once the answer has been given. The final weights of both are compared with those of one
//! worker alone.

mod slowed;
mod worker;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use serde::Serialize;
use tempfile::TempDir;

use self::slowed::SlowedProcess;
pub(crate) use self::worker::{RebalanceWorkerOptions, run as run_worker};
use self::worker::{TRAINED, TRAINED_BYTES};
use crate::monotonic::now_ns;
use crate::process::{elastic_node, pause};
use crate::record;
use crate::recovery::contestant::{RecoveryContestant, Survivors};
use crate::recovery::job::RecoveryJob;

/// Commits of each worker before anything is measured.
const WARM_UP: usize = 50;

/// Time from the answer until its effect is measured.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct RebalanceOptions {
    /// Workers, each on a host of its own.
    #[arg(long, default_value_t = 3)]
    workers: u32,
    /// Logical shards.
    #[arg(long, default_value_t = 8)]
    shards: u32,
    /// Least time of a shard in milliseconds.
    #[arg(long, default_value_t = 20)]
    shard_ms: u64,
    /// Steps of each training: enough for both measurements.
    #[arg(long, default_value_t = 1_000)]
    steps: u64,
    /// How long steps are counted, in seconds: before a worker is slow, and after the answer.
    #[arg(long, default_value_t = 15)]
    window_s: u64,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize)]
struct RebalanceReport {
    workers: u32,
    shards: u32,
    shard_ms: u64,
    tell: AnswerReport,
    rebalance: AnswerReport,
    /// Steps per second with `rebalance` for one with `tell`, while a worker is slow.
    speedup: f64,
    /// Whether the weights are those of one worker alone, bit for bit, with both answers.
    same_weights: bool,
}

/// Measurements with one answer.
#[derive(Debug, Serialize)]
struct AnswerReport {
    /// Steps per second before a worker was slow.
    undisturbed_steps_per_s: f64,
    /// Steps per second while one was, after the answer.
    slowed_steps_per_s: f64,
    /// Time from the slowing to the answer, in seconds.
    answered_s: f64,
    /// The number of shards of each rank at the end; none where they are dealt evenly.
    shard_counts: Option<Vec<u32>>,
}

/// Measures and prints.
pub(crate) fn run(options: &RebalanceOptions) -> anyhow::Result<()> {
    ensure!(options.workers > 1 && options.shards >= options.workers, "shards for several workers");
    let expected = alone(options)?;
    let (tell, by_tell) = measure(options, "tell", "straggler_found")?;
    let (rebalance, by_rebalance) = measure(options, "rebalance", "shards_rebalanced")?;
    let report = RebalanceReport {
        workers: options.workers,
        shards: options.shards,
        shard_ms: options.shard_ms,
        speedup: rebalance.slowed_steps_per_s / tell.slowed_steps_per_s,
        same_weights: by_tell == expected && by_rebalance == expected,
        tell,
        rebalance,
    };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

/// The weights that one worker trains without a driver.
fn alone(options: &RebalanceOptions) -> anyhow::Result<Vec<u8>> {
    let folder = TempDir::with_prefix("elastic-node-bench-")?;
    let status = Command::new(std::env::current_exe()?)
        .args(training(options))
        .args(["--step-ms", "0", "--records"])
        .arg(folder.path())
        .stdin(Stdio::null())
        .status()?;
    ensure!(status.success(), "one worker alone failed: {status}");
    Ok(fs::read(folder.path().join(TRAINED))?)
}

/// The training program, without the flags that every one here has.
fn training(options: &RebalanceOptions) -> [String; 5] {
    let (steps, shards) = (options.steps.to_string(), options.shards.to_string());
    ["rebalance-worker".into(), "--steps".into(), steps, "--shards".into(), shards]
}

/// Trains with this answer, and slows the first rank. The event says that the answer has been given.
fn measure(
    options: &RebalanceOptions,
    answer: &str,
    event: &str,
) -> anyhow::Result<(AnswerReport, Vec<u8>)> {
    let window = Duration::from_secs(options.window_s);
    let (mut job, _) =
        RecoveryJob::start(options.shard_ms, |folder| contestant(options, answer, folder))?;
    let first = job.wait("the first steps of all", |job| {
        let records = record::all(&job.records());
        let all = records.iter().filter(|(_, records)| records.len() >= WARM_UP);
        let first =
            records.iter().find(|(_, records)| records.last().is_some_and(|it| it.rank == 0));
        (all.count() == options.workers as usize).then_some(first?.0)
    })?;
    let undisturbed_steps_per_s = steps_per_s(&mut job, window)?;
    let began_ns = now_ns()?;
    let slowed = SlowedProcess::begin(first)?;
    job.wait(event, |job| job.events().iter().any(|it| it.kind == event).then_some(()))?;
    let answered_s = now_ns()?.saturating_sub(began_ns) as f64 / 1e9;
    pause(SETTLED_AFTER);
    let slowed_steps_per_s = steps_per_s(&mut job, window)?;
    slowed.end();
    let dealt = job.events().into_iter().rev().find_map(|it| it.shard_counts);
    let trained = job.records().join(TRAINED);
    let weights = job.wait("the weights", |_| {
        fs::read(&trained).ok().filter(|bytes| bytes.len() == TRAINED_BYTES)
    })?;
    let report = AnswerReport {
        undisturbed_steps_per_s,
        slowed_steps_per_s,
        answered_s,
        shard_counts: dealt,
    };
    if !options.json {
        writeln!(std::io::stderr(), "{answer}: {report:?}")?;
    }
    Ok((report, weights))
}

/// Steps that all have committed, per second, in the time from now on.
fn steps_per_s(job: &mut RecoveryJob, window: Duration) -> anyhow::Result<f64> {
    let (from_ns, from) = (now_ns()?, last_step(job)?);
    pause(window);
    let (to_ns, to) = (now_ns()?, last_step(job)?);
    ensure!(!job.records().join(TRAINED).exists(), "the training is over: give it more --steps");
    Ok((to - from) as f64 / ((to_ns - from_ns) as f64 / 1e9))
}

/// The last step that all have committed.
fn last_step(job: &RecoveryJob) -> anyhow::Result<u64> {
    let records = record::all(&job.records());
    let steps = records.iter().filter_map(|(_, records)| Some(records.last()?.step));
    steps.min().context("nobody has committed")
}

fn contestant(
    options: &RebalanceOptions,
    answer: &str,
    folder: &Path,
) -> anyhow::Result<RecoveryContestant> {
    let hosts: Vec<String> = (0..options.workers).map(|number| format!("h{number}:1")).collect();
    let (workers, shards) = (options.workers.to_string(), options.shards.to_string());
    let mut command = vec![elastic_node()?.into()];
    command.extend(["run", "--mode", "in-process", "--launcher", "local", "-H"].map(Into::into));
    command.extend([&hosts.join(","), "--np", &workers, "--shards", &shards].map(Into::into));
    command.extend(["--on-straggler", answer, "--state-dir"].map(Into::into));
    command.extend([folder.join("state").into(), "--".into(), std::env::current_exe()?.into()]);
    command.extend(training(options).map(Into::into));
    let environment = Vec::new();
    Ok(RecoveryContestant { command, environment, survivors: Survivors::Stay, has_events: true })
}
