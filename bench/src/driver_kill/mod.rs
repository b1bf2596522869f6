//! `bench driver-kill`: the effect of its driver's deaths on a job.
//!
//! Digits is trained twice, with the same number of workers and epochs: once undisturbed, and once while its driver
//! is killed (`kill -9`) at random moments and started again after a random time. With `--store`, others stand by,
//! and one of them takes its place. The final parameters are compared, and forbidden events are counted: a worker
//! that was started again, a reset, a lost step.

mod job;

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use self::job::{KillJob, KillPlan};
use crate::process::{elastic_node, example, now, pause};
use crate::statistics::{median, percentile};

/// Steps of an epoch of digits, of all workers together, with its batches of 32 images.
const BATCHES: u64 = 45;

/// Length of the training for each kill, in milliseconds: rather too long than too short. A takeover includes the
/// wait for the lease.
const TRAINING_MS_PER_KILL: u64 = 8_000;
const TRAINING_MS_PER_TAKEOVER: u64 = 12_000;

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct DriverKillOptions {
    /// How often the driver is killed.
    #[arg(long, default_value_t = 100)]
    kills: usize,
    /// Workers, each with an agent of its own.
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Least time of a step in milliseconds while drivers are killed.
    #[arg(long, default_value_t = 20)]
    step_ms: u64,
    /// At most so many milliseconds pass until the driver is started again.
    #[arg(long, default_value_t = 5_000)]
    away_ms: u64,
    /// At most so many milliseconds a driver lives; with --store, after everybody was back.
    #[arg(long, default_value_t = 3_000)]
    alive_ms: u64,
    /// An etcd (`etcd://HOST:PORT/NAME`, a name that no other job has): two more drivers stand by there.
    #[arg(long)]
    store: Option<String>,
    /// Draws the moments.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize)]
struct DriverKillReport {
    kills: usize,
    workers: u32,
    epochs: u64,
    workers_restarted: usize,
    resets: usize,
    steps_lost: u64,
    /// Drivers that lived long enough to have everybody back.
    takeovers: usize,
    /// From a kill until another driver acts, with several.
    acts_after_kill: Option<Milliseconds>,
    /// From a new driver's beginning until everybody was back; with several, from the kill.
    reattach: Milliseconds,
    /// Whether the same parameters came out, bit for bit, as without kills.
    same_result: bool,
    accuracy: String,
}

/// Measurements in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Milliseconds {
    median: f64,
    p99: f64,
    max: f64,
}

impl Milliseconds {
    fn of(values: &[f64]) -> Option<Self> {
        let at = |share| percentile(values, share);
        Some(Self { median: median(values)?, p99: at(0.99)?, max: at(1.0)? })
    }
}

/// Measures and prints.
pub(crate) fn run(options: &DriverKillOptions) -> anyhow::Result<()> {
    ensure!(options.kills > 0 && options.workers > 0, "there must be kills and workers");
    let (program, digits) = (elastic_node()?, example("digits")?);
    let ms_per_kill = match options.store {
        Some(_) => TRAINING_MS_PER_TAKEOVER,
        None => TRAINING_MS_PER_KILL,
    };
    let steps = options.kills as u64 * ms_per_kill / options.step_ms.max(1);
    let epochs = steps.div_ceil(BATCHES.div_ceil(u64::from(options.workers)));
    let workers = options.workers;
    let plan = |step_ms, flags| KillPlan {
        program: &program,
        digits: &digits,
        workers,
        epochs,
        step_ms,
        flags,
    };
    let mut undisturbed = KillJob::start(&plan(0, Vec::new()))?;
    let expected = undisturbed.end()?;
    say(options, &format!("undisturbed: {}, {epochs} epochs", expected.accuracy))?;

    let store = options.store.iter().flat_map(|store| ["--store".to_owned(), store.clone()]);
    let mut job = KillJob::start(&plan(options.step_ms, store.collect()))?;
    job.wait("the training", |job| (job.count("generation_running") > 0).then_some(()))?;
    let (acts, reattached) = match options.store {
        Some(_) => kill_the_acting(options, &mut job)?,
        None => (Vec::new(), kill_and_start_again(options, &mut job)?),
    };
    let outcome = job.end()?;
    let done = job.events_of("reset_done");
    let report = DriverKillReport {
        kills: options.kills,
        workers,
        epochs,
        workers_restarted: job.count("worker_started") - workers as usize,
        resets: job.count("reset_decided"),
        steps_lost: done.iter().filter_map(|event| event["steps_lost"].as_u64()).sum(),
        takeovers: reattached.len(),
        acts_after_kill: Milliseconds::of(&acts),
        reattach: Milliseconds::of(&reattached).context("no driver had everybody back")?,
        same_result: outcome.parameters == expected.parameters,
        accuracy: outcome.accuracy,
    };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

/// Kills the driver and starts it again; returns the milliseconds until all were back, where it lived so long.
fn kill_and_start_again(
    options: &DriverKillOptions,
    job: &mut KillJob,
) -> anyhow::Result<Vec<f64>> {
    let mut random = ChaCha8Rng::seed_from_u64(options.seed);
    for number in 1..=options.kills {
        pause(Duration::from_millis(random.random_range(0..=options.alive_ms)));
        job.kill_driver(0).with_context(|| format!("kill {number} of {}", options.kills))?;
        pause(Duration::from_millis(random.random_range(0..=options.away_ms)));
        job.start_driver(0, &[])?;
        tell_of(options, job, number)?;
    }
    // The last one too, if the training lasts.
    job.wait("the last takeover", |job| {
        let term = job.acting()?.1;
        let is_done = job.events_of("takeover_done").pop()?["term"] == term;
        (is_done || job.count("job_ended") > 0).then_some(())
    })?;
    let done = job.events_of("takeover_done");
    Ok(done.iter().filter_map(|event| event["ms"].as_f64()).collect())
}

/// Three drivers; the milliseconds from each kill until another acts, and until everybody is back.
fn kill_the_acting(
    options: &DriverKillOptions,
    job: &mut KillJob,
) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let mut random = ChaCha8Rng::seed_from_u64(options.seed);
    let (mut acts, mut back) = (Vec::new(), Vec::new());
    job.add_standby()?;
    job.add_standby()?;
    for number in 1..=options.kills {
        job.wait_for_standbys()?;
        pause(Duration::from_millis(random.random_range(0..=options.alive_ms)));
        let (place, term) = job.acting().context("a driver acts")?;
        let killed_at = now();
        job.kill_driver(place).with_context(|| format!("kill {number} of {}", options.kills))?;
        job.wait("another driver", |job| (job.acting()?.1 > term).then_some(()))?;
        acts.push(ms_since(killed_at));
        job.wait("everybody", |job| {
            let done = job.events_of("takeover_done").pop()?;
            (done["term"].as_u64()? > term).then_some(())
        })?;
        back.push(ms_since(killed_at));
        job.start_driver(place, &["--standby"])?;
        tell_of(options, job, number)?;
    }
    Ok((acts, back))
}

fn ms_since(moment: Instant) -> f64 {
    now().duration_since(moment).as_secs_f64() * 1e3
}

fn tell_of(options: &DriverKillOptions, job: &KillJob, kill: usize) -> anyhow::Result<()> {
    match kill % 10 {
        0 => say(options, &format!("kill {kill}: {} resets", job.count("reset_decided"))),
        _ => Ok(()),
    }
}

fn say(options: &DriverKillOptions, text: &str) -> anyhow::Result<()> {
    if !options.json {
        writeln!(std::io::stderr(), "{text}")?;
    }
    Ok(())
}
