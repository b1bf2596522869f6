//! One turn of a contestant: a job that trains and saves, and a job that resumes. Called by `checkpoint`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use super::contestant::CheckpointContestant;
use super::measured::{ResumeSample, SaveSample, TrainedJob};
use super::{CheckpointOptions, RANKS};
use crate::process::{now, pause, terminate};

/// Most time for a job, less its steps.
const PATIENCE: Duration = Duration::from_secs(240);

/// Grace period for a job that is asked to end.
const FAREWELL: Duration = Duration::from_secs(15);

/// Interval between checks for a job's end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A rank's record of a resume, in seconds since 1970.
#[derive(Debug, Deserialize)]
struct ResumedRank {
    ready: f64,
    /// Time at which it had joined its job, and made its arrays.
    built: f64,
    resumed: f64,
    /// Seconds of a processor from `ready` to `resumed`.
    cpu_s: f64,
    cycle: u64,
}

/// Measures one turn.
pub(super) fn take_turn(
    options: &CheckpointOptions,
    contestant: CheckpointContestant,
) -> anyhow::Result<SaveSample> {
    let prefix = "elastic-node-bench-";
    let folder = match &options.folder {
        Some(folder) => TempDir::with_prefix_in(prefix, folder)?,
        None => TempDir::with_prefix(prefix)?,
    };
    fs::create_dir(folder.path().join("checkpoints"))?;
    fs::create_dir(folder.path().join("records"))?;
    let cycles = options.every * (options.saves + 2);
    let steps = Duration::from_millis(options.step_ms * options.steps * cycles);
    let arguments = |more: &[&str]| -> anyhow::Result<Vec<OsString>> {
        let ranks = if more.is_empty() { RANKS } else { options.resume_world };
        let (python, every) = (&options.python, options.every);
        let mut line = contestant.launcher(python, folder.path(), ranks, every)?;
        for (flag, number) in [
            ("--state-bytes", options.state),
            ("--step-ms", options.step_ms),
            ("--steps", options.steps),
            ("--cycles", cycles),
            ("--every", options.every),
        ] {
            line.extend([flag.into(), number.to_string().into()]);
        }
        line.extend(["--records".into(), folder.path().join("records").into()]);
        line.extend(["--folder".into(), folder.path().join("checkpoints").into()]);
        line.extend(more.iter().map(Into::into));
        Ok(line)
    };
    run(&arguments(&[])?, folder.path(), PATIENCE + steps * 4)?;
    let mut trained: TrainedJob =
        serde_json::from_slice(&fs::read(folder.path().join("records/trained"))?)?;
    if contestant == CheckpointContestant::Ours {
        trained.saves = saves_of_ours(&trained, folder.path())?;
        // Another job goes on from the folder of checkpoints.
        fs::remove_dir_all(folder.path().join("state"))?;
    }
    run(&arguments(&["--resume"])?, folder.path(), PATIENCE)?;
    let ranks: Vec<ResumedRank> = (0..options.resume_world)
        .map(|rank| {
            let file = folder.path().join(format!("records/resumed.{rank}"));
            Ok(serde_json::from_slice(&fs::read(file)?)?)
        })
        .collect::<anyhow::Result<_>>()?;
    ensure!(ranks.iter().all(|rank| rank.cycle > 0), "it began from the start: {ranks:?}");
    let last = |of: fn(&ResumedRank) -> f64| ranks.iter().map(of).fold(0.0, f64::max);
    let ready = last(|rank| rank.ready);
    let resume = ResumeSample {
        resume_s: last(|rank| rank.resumed) - ready,
        build_s: last(|rank| rank.built) - ready,
        cpu_s: ranks.iter().map(|rank| rank.cpu_s).sum(),
    };
    SaveSample::of(&trained, resume)
}

/// Begin and end of our saves: a commit is made at the begin of its cycle, and the driver tells of checkpoints that are whole.
fn saves_of_ours(trained: &TrainedJob, folder: &Path) -> anyhow::Result<Vec<[f64; 2]>> {
    let text = fs::read_to_string(folder.join("state/events.jsonl"))?;
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut saves = Vec::new();
    for event in events.filter(|event| event["kind"] == "checkpoint_saved") {
        let commit = event["step"].as_u64().context("a checkpoint has a step")?;
        let at = humantime::parse_rfc3339(event["t"].as_str().unwrap_or_default())?;
        let at = at.duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
        let is_first = |step: &&(u64, u64, f64, f64)| step.0 + 1 == commit && step.1 == 0;
        if let Some((_, _, began, _)) = trained.steps.iter().find(is_first) {
            saves.push([*began, at]);
        }
    }
    Ok(saves)
}

/// Runs a job to its end.
fn run(command: &[OsString], folder: &Path, patience: Duration) -> anyhow::Result<()> {
    let log = File::create(folder.join("log"))?;
    let (program, arguments) = command.split_first().context("a command has a program")?;
    let mut launcher = Command::new(program)
        .args(arguments)
        // As torchrun sets it: the ranks share the machine's cores.
        .env("OMP_NUM_THREADS", "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("{} cannot be started", program.display()))?;
    let ended = wait(&mut launcher, patience)?;
    let text = || fs::read_to_string(folder.join("log")).unwrap_or_default();
    match ended {
        Some(true) => Ok(()),
        Some(false) => bail!("the job failed\n{}", text()),
        None => {
            // It may have ended by now.
            let _ = terminate(launcher.id());
            if wait(&mut launcher, FAREWELL)?.is_none() {
                launcher.kill()?;
                launcher.wait()?;
            }
            bail!("the job has not ended after {} s\n{}", patience.as_secs(), text())
        }
    }
}

/// Whether the process has succeeded; none if it has not ended.
fn wait(child: &mut Child, patience: Duration) -> anyhow::Result<Option<bool>> {
    let deadline = now() + patience;
    while now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        pause(LOOK_EVERY);
    }
    Ok(None)
}
