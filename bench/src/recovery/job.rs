//! A job under measurement: one process that has started all others, and the contents of its files. Used by
//! `recovery`, `faults`, `detect` and `rebalance`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use tempfile::TempDir;

use super::contestant::RecoveryContestant;
use crate::process::{now, pause, terminate};

/// Most time for any wait.
const PATIENCE: Duration = Duration::from_secs(300);

/// Grace period of a launcher that is asked to end, before it is killed.
const FAREWELL: Duration = Duration::from_secs(30);

/// Interval between looks at files.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A line of the event log, as far as it matters here.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LoggedEvent {
    pub(crate) t: String,
    pub(crate) kind: String,
    pub(crate) cause: Option<String>,
    pub(crate) from: Option<u64>,
    pub(crate) generation: u64,
    pub(crate) ms: Option<ResetPhases>,
    /// The number of shards of each rank, of events that deal them.
    pub(crate) shard_counts: Option<Vec<u32>>,
}

/// Milliseconds of a reset, by phase.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct ResetPhases {
    pub(crate) form: f64,
    pub(crate) sync: f64,
}

impl LoggedEvent {
    /// Time at which it was written.
    pub(crate) fn at(&self) -> anyhow::Result<SystemTime> {
        humantime::parse_rfc3339(&self.t).with_context(|| format!("{:?} is no time", self.t))
    }
}

/// A running job; dropped, it is stopped.
pub(crate) struct RecoveryJob {
    folder: TempDir,
    launcher: Child,
}

impl RecoveryJob {
    /// Starts the job that `contestant` describes for its folder. The training program is told where its records go,
    /// and how long a step is.
    pub(crate) fn start(
        step_ms: u64,
        contestant: impl FnOnce(&Path) -> anyhow::Result<RecoveryContestant>,
    ) -> anyhow::Result<(Self, RecoveryContestant)> {
        Self::start_to(None, step_ms, contestant)
    }

    /// The same with another stdout than its log.
    pub(crate) fn start_to(
        stdout: Option<Stdio>,
        step_ms: u64,
        contestant: impl FnOnce(&Path) -> anyhow::Result<RecoveryContestant>,
    ) -> anyhow::Result<(Self, RecoveryContestant)> {
        let folder = TempDir::with_prefix("elastic-node-bench-")?;
        fs::create_dir(folder.path().join("records"))?;
        let log = fs::File::create(folder.path().join("log"))?;
        let contestant = contestant(folder.path())?;
        let (program, arguments) =
            contestant.command.split_first().context("a command has a program")?;
        let launcher = Command::new(program)
            .args(arguments)
            .args(["--step-ms", &step_ms.to_string(), "--records"])
            .arg(folder.path().join("records"))
            // As torchrun sets it: they share the machine's cores.
            .env("OMP_NUM_THREADS", "1")
            .envs(contestant.environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(stdout.map_or_else(|| log.try_clone().map(Into::into), Ok)?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{} cannot be started", program.display()))?;
        Ok((Self { folder, launcher }, contestant))
    }

    /// Process id of the process that has started all others.
    pub(crate) fn launcher_pid(&self) -> u32 {
        self.launcher.id()
    }

    /// The folder of the workers' records.
    pub(crate) fn records(&self) -> PathBuf {
        self.folder.path().join("records")
    }

    /// `elastic-node`'s event log so far.
    pub(crate) fn events(&self) -> Vec<LoggedEvent> {
        let path = self.folder.path().join("state").join("events.jsonl");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for a condition on the files.
    pub(crate) fn wait<T>(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&Self) -> Option<T>,
    ) -> anyhow::Result<T> {
        let deadline = now() + PATIENCE;
        loop {
            if let Some(value) = condition(self) {
                return Ok(value);
            }
            if let Some(status) = self.launcher.try_wait()? {
                bail!("the job ended ({status}) before there was {what}\n{}", self.log());
            }
            ensure!(now() < deadline, "waited in vain for {what}\n{}", self.log());
            pause(LOOK_EVERY);
        }
    }

    /// The output of the launcher and its workers so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for RecoveryJob {
    fn drop(&mut self) {
        // The launcher may have ended already; then there is nothing to stop or to wait for.
        let _ = terminate(self.launcher.id());
        let deadline = now() + FAREWELL;
        while now() < deadline {
            if !matches!(self.launcher.try_wait(), Ok(None)) {
                return;
            }
            pause(LOOK_EVERY);
        }
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}
