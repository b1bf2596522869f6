//! The job under measurement: `elastic-node run` with four workers, and what its files tell.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use tempfile::TempDir;

/// Workers of the job.
pub(crate) const WORKERS: u32 = 4;

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A line of the event log, as far as it matters here.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Event {
    pub(crate) t: String,
    pub(crate) kind: String,
    pub(crate) pid: Option<u32>,
    pub(crate) cause: Option<String>,
    pub(crate) from: Option<u64>,
    pub(crate) generation: u64,
    pub(crate) ms: Option<PhaseMs>,
}

/// Milliseconds of a reset, by phase.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct PhaseMs {
    pub(crate) form: f64,
    pub(crate) sync: f64,
}

impl Event {
    /// When it was written.
    pub(crate) fn at(&self) -> anyhow::Result<SystemTime> {
        humantime::parse_rfc3339(&self.t).with_context(|| format!("{:?} is no time", self.t))
    }
}

/// A running job; dropped, it is stopped.
pub(crate) struct Cluster {
    folder: TempDir,
    driver: Child,
}

impl Cluster {
    /// Builds `elastic-node` where it is missing or old, and starts the job.
    /// `program` is the training program and its first arguments; told where its records go, and how long a step is.
    pub(crate) fn start(program: &[OsString], step_ms: u64) -> anyhow::Result<Self> {
        let elastic_node = build()?;
        let folder = TempDir::with_prefix("elastic-node-bench-")?;
        fs::create_dir(folder.path().join("records"))?;
        let log = fs::File::create(folder.path().join("driver.log"))?;
        let driver = Command::new(elastic_node)
            .args(["run", "--np", &WORKERS.to_string(), "--min-np", "1", "--mode", "in-process"])
            .args(["--state-dir"])
            .arg(folder.path().join("state"))
            .args(["--max-restarts", "1000000", "--"])
            .args(program)
            .args(["--step-ms", &step_ms.to_string(), "--records"])
            .arg(folder.path().join("records"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("elastic-node cannot be started")?;
        Ok(Self { folder, driver })
    }

    /// Where workers' records are.
    pub(crate) fn records(&self) -> PathBuf {
        self.folder.path().join("records")
    }

    /// The event log so far.
    pub(crate) fn events(&self) -> Vec<Event> {
        let path = self.folder.path().join("state").join("events.jsonl");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Process ids of the workers that have attached, oldest first.
    pub(crate) fn attached(&self) -> Vec<u32> {
        let events = self.events().into_iter();
        events.filter(|event| event.kind == "worker_attached").filter_map(|it| it.pid).collect()
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
            if let Some(status) = self.driver.try_wait()? {
                bail!("the job ended ({status}) before there was {what}\n{}", self.log());
            }
            ensure!(now() < deadline, "waited in vain for {what}\n{}", self.log());
            pause(LOOK_EVERY);
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("driver.log")).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It may have ended already; then there is nobody to stop or to wait for.
        if let Ok(pid) = i32::try_from(self.driver.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
        }
        let _ = self.driver.wait();
    }
}

/// `kill -9`.
pub(crate) fn kill_9(pid: u32) -> anyhow::Result<()> {
    Ok(kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?)
}

/// The binary, from the profile that this program is of.
fn build() -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--package", "elastic-node", "--bin", "elastic-node"])
        .args(["--profile", profile, "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"))
        .status()
        .context("cargo cannot be started")?;
    ensure!(built.success(), "elastic-node cannot be built");
    let here = std::env::current_exe()?;
    let folder = here.parent().context("this program lies in a folder")?;
    Ok(folder.join("elastic-node"))
}

#[expect(clippy::disallowed_methods, reason = "a benchmark waits in real time")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark waits in real time")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
