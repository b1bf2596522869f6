//! `bench recovery`: how long training stands still when a worker is killed.
//!
//! Four workers train, one is killed; the time is that from the kill to the first commit that the last of the
//! three survivors made in a later generation. Workers take it themselves, on the machine's monotonic clock.
//! Detection is from the kill to the driver's decision, as the event log has it; forming and syncing are
//! the event log's; what is left is the first step itself.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::cluster::{Cluster, Event, PhaseMs, WORKERS, kill_9, pause};
use crate::monotonic::now_ns;
use crate::record::{self, Record};
use crate::statistics::{median, percentile};

/// Steps that all four commit before the next kill.
const STEPS_BETWEEN: u64 = 20;

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// How many workers are killed, one after the other.
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// Least time of a step in milliseconds.
    #[arg(long, default_value_t = 5)]
    step_ms: u64,
    /// The training program: in Rust, or in Python with torch's DistributedDataParallel.
    #[arg(long, value_enum, default_value_t = Mode::InProcess)]
    mode: Mode,
    /// The interpreter of `--mode python`, which has `elastic_node` and torch.
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Which program trains.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// The Rust API, in process.
    InProcess,
    /// The Python package, in process, with torch.
    Python,
}

impl Options {
    fn program(&self) -> anyhow::Result<Vec<OsString>> {
        Ok(match self.mode {
            Mode::InProcess => vec![std::env::current_exe()?.into(), "worker".into()],
            Mode::Python => {
                let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/worker.py");
                vec![self.python.clone().into(), script.into()]
            }
        })
    }
}

/// The result.
#[derive(Debug, Serialize)]
struct Report {
    kills: usize,
    median_ms: f64,
    p99_ms: f64,
    phases_ms: Phases,
}

/// Medians by phase, in milliseconds.
#[derive(Debug, Serialize)]
struct Phases {
    detect: f64,
    form: f64,
    sync: f64,
    step: f64,
}

/// One kill.
#[derive(Clone, Copy, Debug)]
struct Sample {
    total_ms: f64,
    detect_ms: f64,
    form_ms: f64,
    sync_ms: f64,
}

/// Measures and prints.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.kills > 0, "--kills must be at least 1");
    let mut cluster = Cluster::start(&options.program()?, options.step_ms)?;
    let mut samples = Vec::with_capacity(options.kills);
    for number in 0..options.kills {
        let sample = measure(&mut cluster, number)?;
        if !options.json {
            let Sample { total_ms, detect_ms, form_ms, sync_ms } = sample;
            let mut stderr = std::io::stderr();
            writeln!(
                stderr,
                "kill {}: {total_ms:.1} ms (detect {detect_ms:.1}, form {form_ms:.1}, sync {sync_ms:.1})",
                number + 1
            )?;
        }
        samples.push(sample);
    }
    let report = report(&samples).context("there are measurements")?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

/// Waits until four workers train together, kills one of them, and takes the time.
fn measure(cluster: &mut Cluster, number: usize) -> anyhow::Result<Sample> {
    let (generation, members) = cluster.wait("four workers that train together", together)?;
    // Each rank in turn, and at different moments of a step.
    let victim_rank = u32::try_from(number)? % WORKERS;
    pause(Duration::from_micros(number as u64 * 700 % 5_000));
    let victim = *members.get(&victim_rank).context("every rank has a worker")?;
    let survivors: Vec<u32> = members.values().copied().filter(|pid| *pid != victim).collect();
    let killed_at = wall_clock();
    let killed_ns = now_ns()?;
    kill_9(victim)?;
    let resumed_ns = cluster.wait("a step of all survivors", |cluster| {
        let folder = cluster.records();
        let first = |pid: &u32| {
            let records = record::read(&folder, *pid).into_iter();
            records.filter(|it| it.generation > generation).map(|it| it.at_ns).min()
        };
        survivors.iter().map(first).collect::<Option<Vec<_>>>()?.into_iter().max()
    })?;
    let (decided, ms) =
        cluster.wait("the reset in the event log", |it| reset_of(it, generation))?;
    let detect = decided.at()?.duration_since(killed_at).unwrap_or_default();
    Ok(Sample {
        total_ms: (resumed_ns - killed_ns) as f64 / 1e6,
        detect_ms: detect.as_secs_f64() * 1e3,
        form_ms: ms.form,
        sync_ms: ms.sync,
    })
}

/// The newest generation and its members by rank, if it has all four, and they have made a few steps.
fn together(cluster: &Cluster) -> Option<(u64, BTreeMap<u32, u32>)> {
    let folder = cluster.records();
    let mut newest = (0, BTreeMap::new());
    let mut steps = u64::MAX;
    for pid in cluster.attached() {
        let records = record::read(&folder, pid);
        let Some(last) = records.last() else { continue };
        if last.generation > newest.0 {
            newest = (last.generation, BTreeMap::new());
            steps = u64::MAX;
        }
        if last.generation == newest.0 && last.world_size == WORKERS {
            newest.1.insert(last.rank, pid);
            steps = steps.min(steps_in(&records, last.generation));
        }
    }
    let are_all_there = newest.1.len() == WORKERS as usize;
    (are_all_there && steps >= STEPS_BETWEEN).then_some(newest)
}

fn steps_in(records: &[Record], generation: u64) -> u64 {
    records.iter().filter(|record| record.generation == generation).count() as u64
}

/// The decision to end this generation, and how long the phases of that reset took.
fn reset_of(cluster: &Cluster, generation: u64) -> Option<(Event, PhaseMs)> {
    let events = cluster.events();
    let done = events.iter().find(|event| event.from == Some(generation))?;
    let ms = done.ms?;
    let decided = events.into_iter().find(|event| {
        event.kind == "reset_decided" && event.generation == generation && event.cause.is_some()
    })?;
    Some((decided, ms))
}

fn report(samples: &[Sample]) -> Option<Report> {
    let of = |value: fn(&Sample) -> f64| samples.iter().map(value).collect::<Vec<_>>();
    let totals = of(|sample| sample.total_ms);
    let step = |it: &Sample| (it.total_ms - it.detect_ms - it.form_ms - it.sync_ms).max(0.0);
    Some(Report {
        kills: samples.len(),
        median_ms: median(&totals)?,
        p99_ms: percentile(&totals, 0.99)?,
        phases_ms: Phases {
            detect: median(&of(|sample| sample.detect_ms))?,
            form: median(&of(|sample| sample.form_ms))?,
            sync: median(&of(|sample| sample.sync_ms))?,
            step: median(&of(step))?,
        },
    })
}

#[expect(clippy::disallowed_methods, reason = "compared with the event log's wall clock")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
