//! The part of `torture` with logical shards: digits with eight shards under kills, joins, a driver's death and a
//! kill of everything. The weights must be those of one undisturbed worker, bit for bit.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use tempfile::TempDir;

use super::job::TortureJob;
use super::{TortureOptions, say};
use crate::process::{elastic_node, example, now, pause};

/// Slots of the hosts that join one after the other; with the first host's slot, worlds of 1 to 7.
const JOINS: [u32; 5] = [1, 1, 1, 1, 2];

/// Slots of the only host after everything was killed.
const SLOTS_AGAIN: u32 = 6;

/// Commits from one checkpoint to the next.
const EVERY: &str = "20";

/// Images of a shard's batch.
const BATCH: &str = "16";

/// Most time for the rest of a training.
const PATIENCE: Duration = Duration::from_secs(1_800);

/// Numbers of disturbances, and results.
#[derive(Debug, Serialize)]
pub(super) struct ShardsReport {
    kills: u32,
    joins: usize,
    driver_deaths: u32,
    kills_of_everything: u32,
    /// The step from which the job went on after that.
    resumed_from: u64,
    world_sizes: BTreeSet<u64>,
    generations: usize,
    steps: u64,
    seconds: f64,
    sha256: String,
}

/// A disturbance.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Kill,
    Join(u32),
    DriverDeath,
    KillEverything,
}

pub(super) fn run(options: &TortureOptions) -> anyhow::Result<ShardsReport> {
    let digits = example("digits")?;
    // Before the clock runs.
    elastic_node()?;
    let folder = TempDir::with_prefix("elastic-node-torture-")?;
    let at = |name: &str| folder.path().join(name);
    let training = |step_ms: u64, save: &Path| -> Vec<String> {
        let (epochs, step_ms) = (options.epochs.to_string(), step_ms.to_string());
        let digits = digits.display().to_string();
        let save = save.display().to_string();
        [&digits, "--shards", "8", "--batch-size", BATCH, "--epochs", &epochs]
            .into_iter()
            .chain(["--step-ms", &step_ms, "--save", &save])
            .map(ToOwned::to_owned)
            .collect()
    };
    let alone = training(0, &at("undisturbed"));
    let output = Command::new(&alone[0])
        .args(&alone[1..])
        .stdin(Stdio::null())
        .output()
        .context("digits")?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let sha256 = stdout.lines().find_map(|line| line.strip_prefix("sha256 "));
    let sha256 = sha256.context("digits prints its digest")?.to_owned();
    say(options, &format!("undisturbed: sha256 {sha256}"));

    let began = now();
    let flags: Vec<String> = ["--np", "1", "--checkpoint-every", EVERY, "--checkpoint"]
        .into_iter()
        .map(ToOwned::to_owned)
        .chain([at("checkpoints").display().to_string()])
        .collect();
    let program = training(options.step_ms, &at("weights"));
    let mut random = ChaCha8Rng::seed_from_u64(options.seed);
    let mut job = TortureJob::start(&at("first"), &flags, &program)?;
    job.add_host(1)?;
    wait_for_step(&mut job, 1)?;
    let (mut world_sizes, mut generations) = (BTreeSet::new(), 0);
    let mut take_sizes = |job: &TortureJob| {
        let running = job.events_of("generation_running");
        generations += running.len();
        world_sizes.extend(running.iter().filter_map(|event| event["world_size"].as_u64()));
    };
    let (mut wanted, mut resumed_from) = (1, 0);
    for (number, disturbance) in draw(options, &mut random).into_iter().enumerate() {
        pause(Duration::from_millis(random.random_range(0..400)));
        let before = job.step().unwrap_or_default();
        match disturbance {
            Disturbance::Kill => {
                let pick = random.random_range(0..64);
                job.wait("a worker to kill", |job| job.kill_worker(pick).ok()?.then_some(()))?;
            }
            Disturbance::Join(slots) => {
                job.add_host(slots)?;
                wanted += slots;
                wait_for_world(&mut job, wanted)?;
            }
            Disturbance::DriverDeath => {
                let away = Duration::from_millis(random.random_range(0..3_000));
                job.replace_driver(away)?;
            }
            Disturbance::KillEverything => {
                job.wait("a checkpoint", |job| job.events_of("checkpoint_saved").pop())?;
                job.kill_everything(|| random.random())?;
                take_sizes(&job);
                job = TortureJob::start(&at("again"), &flags, &program)?;
                job.add_host(SLOTS_AGAIN)?;
                wanted = SLOTS_AGAIN;
                let loaded =
                    job.wait("the checkpoint", |job| job.events_of("checkpoint_loaded").pop())?;
                resumed_from = loaded["step"].as_u64().context("it begins from a checkpoint")?;
                wait_for_world(&mut job, wanted)?;
            }
        }
        let after = if matches!(disturbance, Disturbance::KillEverything) { 0 } else { before };
        wait_for_step(&mut job, after + 1)?;
        say(options, &format!("{number}: {disturbance:?} after step {before}"));
    }
    let steps = job.step().unwrap_or_default();
    job.end(PATIENCE)?;
    take_sizes(&job);
    ensure!(
        fs::read(at("weights"))? == fs::read(at("undisturbed"))?,
        "the weights are not those of one undisturbed worker"
    );
    Ok(ShardsReport {
        kills: options.kills,
        joins: JOINS.len(),
        driver_deaths: 1,
        kills_of_everything: 1,
        resumed_from,
        world_sizes,
        generations,
        steps,
        seconds: began.elapsed().as_secs_f64(),
        sha256,
    })
}

/// The disturbances in the order in which they come. The hosts join before everything is killed, and the driver dies once.
fn draw(options: &TortureOptions, random: &mut ChaCha8Rng) -> Vec<Disturbance> {
    let before = options.kills * 3 / 4;
    let mut first: Vec<Disturbance> = (0..before).map(|_| Disturbance::Kill).collect();
    first.push(Disturbance::DriverDeath);
    first.extend(JOINS.map(Disturbance::Join));
    first.shuffle(random);
    first.push(Disturbance::KillEverything);
    first.extend((before..options.kills).map(|_| Disturbance::Kill));
    first
}

fn wait_for_step(job: &mut TortureJob, step: u64) -> anyhow::Result<()> {
    job.wait(&format!("step {step}"), |job| (job.step()? >= step).then_some(()))
}

fn wait_for_world(job: &mut TortureJob, size: u32) -> anyhow::Result<()> {
    job.wait(&format!("a world of {size}"), |job| {
        let status = job.status()?;
        (status["world_size"] == size && status["phase"] == "run").then_some(())
    })
}
