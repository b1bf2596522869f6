//! The part of `torture` with total losses: a job whose every process is killed again and again, half of the times
//! while a checkpoint is written. The job goes on from the newest checkpoint that is whole; each sample is trained
//! once an epoch over the job's whole life.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use serde_json::Value;
use tempfile::TempDir;

use super::job::TortureJob;
use super::{TortureOptions, say};
use crate::process::{elastic_node, now, pause};
use crate::soak::{FINISH, JobRecords};
use crate::statistics::median;

/// Most workers of a life.
const WORKERS_MAX: u32 = 4;

/// The longest life before a kill at a random moment, after the first step.
const LIFE_MS: u64 = 3_000;

/// The longest time from the begin of a save until the kill.
const INTO_SAVE_MS: u64 = 30;

/// Interval between looks at the folder for a checkpoint that is being written.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Most time for a checkpoint that is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// Time for which a save may be under way before its folder is there: its thread has the lowest priority.
const UNSEEN_MS: u64 = 2_000;

/// Numbers of kills, and results.
#[derive(Debug, Serialize)]
pub(super) struct TotalReport {
    kills: u32,
    /// Kills after which a checkpoint existed that is not whole.
    partial: u32,
    every: u64,
    epochs: u64,
    commits: u64,
    /// Steps between the last commit of a life and the first of the next.
    steps_lost_median: f64,
    steps_lost_max: f64,
    /// Intervals between checkpoints that these are at most, with the interval that was being saved.
    intervals_lost_max: f64,
    /// Largest share of the permitted loss that was lost: at most 1.
    share_of_bound_max: f64,
    seconds: f64,
}

pub(super) fn run(options: &TortureOptions) -> anyhow::Result<TotalReport> {
    let began = now();
    let folder = TempDir::with_prefix("elastic-node-torture-")?;
    let checkpoints = folder.path().join("checkpoints");
    let mut random = ChaCha8Rng::seed_from_u64(options.seed);
    let mut records = JobRecords::default();
    let (mut partial, mut lost) = (0, Vec::new());
    let (mut bound, mut share_max) = (LossBound::new(options), 0.0_f64);
    // Highest step of the lives before, and the newest checkpoint that is whole.
    let (mut reached, mut newest) = (0_u64, None);
    for life in 0..=options.total_kills {
        let is_last = life == options.total_kills;
        let at = folder.path().join(format!("life-{life}"));
        let workers = random.random_range(1..=WORKERS_MAX);
        let mut job = start(options, &at, &checkpoints, workers)?;
        let loaded = job.wait("the begin", |job| job.events_of("checkpoint_loaded").pop())?;
        let from = loaded["step"].as_u64();
        ensure!(from == newest, "life {life} begins from {loaded}, and {newest:?} is the newest");
        if life > 0 {
            let steps = reached.saturating_sub(from.unwrap_or_default());
            let allowed = bound.steps(from.unwrap_or_default(), reached);
            ensure!(steps <= allowed, "life {life}: {steps} steps are lost, and {allowed} may be");
            lost.push(steps as f64);
            share_max = share_max.max(steps as f64 / allowed as f64);
        }
        job.wait("a step", |job| (job.step()? > from.unwrap_or_default()).then_some(()))?;
        if is_last {
            fs::write(at.join(FINISH), [])?;
            job.end(PATIENCE)?;
            records.add_life(&at)?;
            break;
        }
        if life % 2 == 0 {
            pause(Duration::from_millis(random.random_range(0..LIFE_MS)));
        } else {
            wait_for_a_save(&checkpoints)?;
            pause(Duration::from_millis(random.random_range(0..INTO_SAVE_MS)));
        }
        job.kill_everything(|| random.random())?;
        let begun = folders(&checkpoints);
        bound.note(from.unwrap_or_default(), &job.events_of("checkpoint_saved"), &begun);
        reached = records.add_life(&at)?.max(from.unwrap_or_default());
        let (whole, others) = verified(&checkpoints)?;
        partial += u32::from(others > 0);
        newest = whole;
        say(
            options,
            &format!("life {life} of {workers}: steps {from:?} to {reached}, {others} partial"),
        );
    }
    let checked = records.check()?;
    let lost_max = lost.iter().copied().fold(0.0, f64::max);
    let intervals = lost_max / options.every as f64;
    Ok(TotalReport {
        kills: options.total_kills,
        partial,
        every: options.every,
        epochs: checked.epochs,
        commits: checked.commits,
        steps_lost_median: median(&lost).context("there were kills")?,
        steps_lost_max: lost_max,
        intervals_lost_max: intervals,
        share_of_bound_max: share_max,
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// Most steps that may be lost with a kill of everything (docs/checkpoints.md): those of an interval, those made
/// while the newest checkpoint was saved, and those made since the commit that was being saved at the kill. An order
/// that comes too late for a multiple takes the next one.
#[derive(Debug)]
struct LossBound {
    every: u64,
    step_ms: u64,
    /// The step that the life began with.
    began_from: u64,
    /// Durations of the saves of the life that were reported to be whole, by step.
    took_ms: BTreeMap<u64, u64>,
    /// The steps of checkpoints that were begun.
    begun: BTreeSet<u64>,
}

impl LossBound {
    fn new(options: &TortureOptions) -> Self {
        Self {
            every: options.every,
            step_ms: options.step_ms.max(1),
            began_from: 0,
            took_ms: BTreeMap::new(),
            begun: BTreeSet::new(),
        }
    }

    /// Takes the events and folders that a life has left behind.
    fn note(&mut self, began_from: u64, saved: &[Value], folders: &[PathBuf]) {
        let took =
            |event: &Value| Some((event["step"].as_u64()?, event["ms"].as_f64()?.ceil() as u64));
        self.began_from = began_from;
        self.took_ms = saved.iter().filter_map(took).collect();
        let step = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok();
        self.begun = folders.iter().filter_map(step).collect();
    }

    /// The most steps from the newest checkpoint to the step that the life reached.
    fn steps(&self, newest: u64, reached: u64) -> u64 {
        // No step takes less time than that.
        let steps_in = |ms: u64| ms.div_ceil(self.step_ms);
        let before = match self.took_ms.get(&newest) {
            Some(took_ms) => steps_in(*took_ms),
            None if newest == self.began_from => 0,
            // It was just made whole when everything was killed.
            None => return 2 * self.every + reached.saturating_sub(newest),
        };
        let under_way = self.begun.iter().copied().find(|step| *step > newest);
        let since = under_way.map_or(steps_in(UNSEEN_MS), |step| reached.saturating_sub(step));
        2 * self.every + before + since
    }
}

/// One life of the job: a new driver, which knows the checkpoints only.
fn start(
    options: &TortureOptions,
    at: &Path,
    checkpoints: &Path,
    workers: u32,
) -> anyhow::Result<TortureJob> {
    fs::create_dir_all(JobRecords::folder(at))?;
    let (np, every) = (workers.to_string(), options.every.to_string());
    let checkpoints = checkpoints.display().to_string();
    let flags = ["--np", &np, "--checkpoint", &checkpoints, "--checkpoint-every", &every];
    let flags = flags.map(ToOwned::to_owned);
    let own = std::env::current_exe()?.display().to_string();
    let (folder, step_ms) = (at.display().to_string(), options.step_ms.to_string());
    let program = [&own, "soak-worker", "--folder", &folder, "--step-ms", &step_ms];
    let mut job = TortureJob::start(at, &flags, &program.map(ToOwned::to_owned))?;
    job.add_host(workers)?;
    Ok(job)
}

/// The folders of checkpoints, whole or not.
fn folders(checkpoints: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(checkpoints).into_iter().flatten().flatten();
    let is_step = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-"))
    };
    entries.map(|entry| entry.path()).filter(is_step).collect()
}

/// Waits until a checkpoint is being written.
fn wait_for_a_save(checkpoints: &Path) -> anyhow::Result<()> {
    let known = folders(checkpoints);
    let deadline = now() + PATIENCE;
    let is_new = |path: &PathBuf| !known.contains(path) && !path.join("manifest.json").exists();
    while !folders(checkpoints).iter().any(is_new) {
        ensure!(now() < deadline, "no checkpoint is written");
        pause(LOOK_EVERY);
    }
    Ok(())
}

/// The step of the newest checkpoint all of whose bytes are as written, and how many others there are.
fn verified(checkpoints: &Path) -> anyhow::Result<(Option<u64>, usize)> {
    let program = elastic_node()?;
    let (mut newest, mut others) = (None, 0);
    for folder in folders(checkpoints) {
        let verified = Command::new(&program)
            .args(["checkpoint", "verify"])
            .arg(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        // One without a manifest is partial, which is no damage.
        let manifest = folder.join("manifest.json");
        if !verified.success() || !manifest.exists() {
            others += 1;
            continue;
        }
        let manifest: Value = serde_json::from_slice(&fs::read(manifest)?)?;
        newest = newest.max(manifest["step"].as_u64());
    }
    Ok((newest, others))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound() -> LossBound {
        let event = |step: u64, ms: f64| serde_json::json!({ "step": step, "ms": ms });
        let (every, step_ms) = (20, 10);
        let (took_ms, begun) = (BTreeMap::new(), BTreeSet::new());
        let mut bound = LossBound { every, step_ms, began_from: 0, took_ms, begun };
        let folder = |step: u64| PathBuf::from(format!("checkpoints/step-{step:010}"));
        bound.note(
            20,
            &[event(40, 300.5), event(80, 49.5)],
            &[folder(40), folder(80), folder(100)],
        );
        bound
    }

    #[test]
    fn c_1_what_may_be_lost_is_two_intervals_and_the_steps_of_saves() {
        // 5 steps while the one of step 80 was saved, and 17 since the commit of step 100.
        assert_eq!(bound().steps(80, 117), 40 + 5 + 17);
        // It was just whole: all steps since were made while it was saved.
        assert_eq!(bound().steps(100, 110), 40 + 10);
        // The life has saved none.
        assert_eq!(bound().steps(20, 45), 40 + 5);
    }
}
