//! A training of digits whose drivers can be killed. Used by `driver-kill`.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::process::{kill_9, now, pause};

/// Most time for any wait, less the training itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval between looks at files.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The result of a training.
pub(super) struct TrainingResult {
    pub(super) parameters: Vec<u8>,
    pub(super) accuracy: String,
}

/// Settings of a job.
pub(super) struct KillPlan<'a> {
    pub(super) program: &'a Path,
    pub(super) digits: &'a Path,
    pub(super) workers: u32,
    pub(super) epochs: u64,
    pub(super) step_ms: u64,
    /// Flags of each driver, beside those of all jobs.
    pub(super) flags: Vec<String>,
}

/// A job on this machine, with one driver or several; dropped, it is stopped.
pub(super) struct KillJob {
    folder: TempDir,
    command: Vec<String>,
    program: PathBuf,
    /// Each has a state directory of its own, by its place here.
    drivers: Vec<Child>,
}

impl KillJob {
    /// Starts it, with one driver.
    pub(super) fn start(plan: &KillPlan<'_>) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("elastic-node-bench-")?;
        let at = |name: &str| folder.path().join(name).display().to_string();
        let hosts: Vec<String> =
            (0..plan.workers).map(|number| format!("host-{number}:1")).collect();
        let (np, hosts) = (plan.workers.to_string(), hosts.join(","));
        let (epochs, step_ms) = (plan.epochs.to_string(), plan.step_ms.to_string());
        let digits = plan.digits.to_str().context("a path that is UTF-8")?;
        let own = ["--mode", "in-process", "--hosts", &hosts, "--np", &np].map(ToOwned::to_owned);
        let training = ["--", digits, "--epochs", &epochs, "--step-ms", &step_ms, "--save"];
        let command = own.into_iter().chain(plan.flags.iter().cloned());
        let command = command.chain(training.map(ToOwned::to_owned)).chain([at("parameters")]);
        let (command, program) = (command.collect(), plan.program.to_owned());
        let mut job = Self { folder, command, program, drivers: Vec::new() };
        let first = job.spawn(0, &[])?;
        job.drivers.push(first);
        Ok(job)
    }

    /// Adds a driver that stands by; waits until the acting one has reported it.
    pub(super) fn add_standby(&mut self) -> anyhow::Result<()> {
        let standby = self.spawn(self.drivers.len(), &["--standby"])?;
        self.drivers.push(standby);
        self.wait_for_standbys()
    }

    /// Waits until all drivers but one stand by, as the one that acts tells.
    pub(super) fn wait_for_standbys(&self) -> anyhow::Result<()> {
        self.wait("drivers that stand by", |job| {
            let told = job.events_of("standbys_changed").pop()?;
            let acting = job.acting()?.1;
            let count = told["standbys"].as_array()?.len();
            (told["term"] == acting && count + 1 == job.drivers.len()).then_some(())
        })
    }

    /// The driver that has begun last, by its place, and its term.
    pub(super) fn acting(&self) -> Option<(usize, u64)> {
        let begun = |place: usize| {
            let started = self.events_in(place).into_iter().rev();
            let mut started = started.filter(|event| event["kind"] == "driver_started");
            Some((place, started.next()?["term"].as_u64()?))
        };
        (0..self.drivers.len()).filter_map(begun).max_by_key(|(_, term)| *term)
    }

    /// `kill -9` to a driver.
    pub(super) fn kill_driver(&mut self, place: usize) -> anyhow::Result<()> {
        if let Some(status) = self.drivers[place].try_wait()? {
            bail!("the job has ended ({status}) before the last kill\n{}", self.log());
        }
        kill_9(self.drivers[place].id())?;
        self.drivers[place].wait()?;
        Ok(())
    }

    /// Starts a killed driver again, with these flags more.
    pub(super) fn start_driver(&mut self, place: usize, flags: &[&str]) -> anyhow::Result<()> {
        self.drivers[place] = self.spawn(place, flags)?;
        Ok(())
    }

    fn spawn(&self, place: usize, flags: &[&str]) -> anyhow::Result<Child> {
        let file = |name: &str| -> std::io::Result<File> {
            OpenOptions::new().create(true).append(true).open(self.folder.path().join(name))
        };
        Command::new(&self.program)
            .args(["run", "--state-dir", &self.state(place)])
            .args(flags)
            .args(&self.command)
            .stdin(Stdio::null())
            .stdout(file("stdout")?)
            .stderr(file("stderr")?)
            .spawn()
            .context("elastic-node cannot be started")
    }

    fn state(&self, place: usize) -> String {
        self.folder.path().join(format!("state-{place}")).display().to_string()
    }

    /// Waits for the job's end, which is that of all drivers.
    pub(super) fn end(&mut self) -> anyhow::Result<TrainingResult> {
        for place in 0..self.drivers.len() {
            let status = self.drivers[place].wait()?;
            ensure!(status.success(), "the job failed ({status})\n{}", self.log());
        }
        let parameters = fs::read(self.folder.path().join("parameters"))?;
        let stdout = fs::read_to_string(self.folder.path().join("stdout"))?;
        let mut last_first = stdout.lines().rev();
        let accuracy = last_first.find_map(|line| Some(line.split_once("accuracy ")?.1));
        let accuracy = accuracy.context("rank 0 has told its accuracy")?.to_owned();
        Ok(TrainingResult { parameters, accuracy })
    }

    pub(super) fn wait<T>(
        &self,
        what: &str,
        mut condition: impl FnMut(&Self) -> Option<T>,
    ) -> anyhow::Result<T> {
        let deadline = now() + PATIENCE;
        loop {
            if let Some(value) = condition(self) {
                return Ok(value);
            }
            ensure!(now() < deadline, "waited in vain for {what}\n{}", self.log());
            pause(LOOK_EVERY);
        }
    }

    fn events_in(&self, place: usize) -> Vec<Value> {
        let path = Path::new(&self.state(place)).join("events.jsonl");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Of all drivers, in the order of terms.
    pub(super) fn events_of(&self, kind: &str) -> Vec<Value> {
        let mut events: Vec<Value> =
            (0..self.drivers.len()).flat_map(|place| self.events_in(place)).collect();
        events.retain(|event| event["kind"] == kind);
        events.sort_by_key(|event| event["term"].as_u64());
        events
    }

    pub(super) fn count(&self, kind: &str) -> usize {
        self.events_of(kind).len()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }
}

impl Drop for KillJob {
    fn drop(&mut self) {
        for driver in &mut self.drivers {
            // The driver may have ended already; then there is nothing to stop or to wait for.
            if let Ok(None) = driver.try_wait() {
                let _ = Command::new("kill").args(["-INT", &driver.id().to_string()]).status();
                let _ = driver.wait();
            }
        }
    }
}
