//! A job under torture: a driver, agents and workers of this machine, all of which are found by a variable in their
//! environment. Used by `shards` and `total`.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::process::{elastic_node, now, pause};

/// Most time for any wait, on a machine that does other work.
const PATIENCE: Duration = Duration::from_secs(120);

/// Interval between looks at files and processes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The variable that all processes of a job have, with the job's folder.
const MARK: &str = "ELASTIC_BENCH_TORTURE";

/// A job, or one life of it; dropped, all of its processes are killed.
pub(super) struct TortureJob {
    folder: PathBuf,
    program: PathBuf,
    address: String,
    /// The driver's command line.
    command: Vec<String>,
    driver: Child,
    agents: Vec<Child>,
}

impl TortureJob {
    /// Starts a driver in an empty folder, with these flags and this program.
    pub(super) fn start(
        folder: &Path,
        flags: &[String],
        program: &[String],
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(folder.join("state"))?;
        let port = std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let state = folder.join("state").display().to_string();
        let own = ["--role", "driver", "--bind", &address, "--state-dir", &state];
        let own = [&own[..], &["--mode", "in-process", "--min-np", "1"]].concat();
        let own = [&own[..], &["--max-restarts", "1000000"]].concat();
        let command = own.into_iter().map(ToOwned::to_owned).chain(flags.iter().cloned());
        let command: Vec<String> =
            command.chain(["--".to_owned()]).chain(program.iter().cloned()).collect();
        let (program, folder) = (elastic_node()?, folder.to_owned());
        let driver = spawn(&folder, &program, &command, "driver")?;
        let agents = Vec::new();
        let mut job = Self { folder, program, address, command, driver, agents };
        job.wait("the driver's token", |job| {
            job.folder.join("state/token").exists().then_some(())
        })?;
        Ok(job)
    }

    /// Adds a host.
    pub(super) fn add_host(&mut self, slots: u32) -> anyhow::Result<()> {
        let (name, slots) = (format!("h{}", self.agents.len()), slots.to_string());
        let token = self.folder.join("state/token").display().to_string();
        let flags =
            ["--role", "worker", "--join", &self.address, "--host", &name, "--slots", &slots];
        let flags = [&flags[..], &["--token-file", &token]].concat();
        let flags: Vec<String> = flags.into_iter().map(ToOwned::to_owned).collect();
        self.agents.push(spawn(&self.folder, &self.program, &flags, &name)?);
        Ok(())
    }

    /// `kill -9` to the driver, and a new one after a while.
    pub(super) fn replace_driver(&mut self, away: Duration) -> anyhow::Result<()> {
        self.driver.kill()?;
        self.driver.wait()?;
        pause(away);
        self.driver = spawn(&self.folder, &self.program, &self.command, "driver")?;
        Ok(())
    }

    /// `kill -9` to every process, in the order of these numbers; returns once all are gone.
    pub(super) fn kill_everything(&mut self, mut draw: impl FnMut() -> u32) -> anyhow::Result<()> {
        let deadline = now() + PATIENCE;
        loop {
            let mut all = self.processes();
            all.sort_by_cached_key(|_| draw());
            if all.is_empty() {
                return self.reap();
            }
            ensure!(now() < deadline, "processes {all:?} do not end");
            for pid in all {
                kill_if_there(pid)?;
            }
            // Those of this process are gone for others when it has waited for them.
            self.reap()?;
        }
    }

    fn reap(&mut self) -> anyhow::Result<()> {
        for child in self.agents.iter_mut().chain([&mut self.driver]) {
            child.try_wait()?;
        }
        Ok(())
    }

    /// Processes of the job that run.
    fn processes(&self) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.folder.display());
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_own = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|it| it == mark.as_bytes())
        };
        pids.filter(is_own).collect()
    }

    /// `kill -9` to one of the workers; false if there is none.
    pub(super) fn kill_worker(&self, draw: usize) -> anyhow::Result<bool> {
        let status = self.status().unwrap_or_default();
        let workers = status["workers"].as_array().cloned().unwrap_or_default();
        let pids: Vec<u64> = workers.iter().filter_map(|worker| worker["pid"].as_u64()).collect();
        match pids.get(draw % pids.len().max(1)) {
            Some(pid) => kill_if_there(u32::try_from(*pid)?).map(|()| true),
            None => Ok(false),
        }
    }

    /// The largest step of any worker.
    pub(super) fn step(&self) -> Option<u64> {
        let status = self.status()?;
        let workers = status["workers"].as_array()?;
        workers.iter().filter_map(|worker| worker["step"].as_u64()).max()
    }

    pub(super) fn status(&self) -> Option<Value> {
        let output = Command::new(&self.program)
            .args(["status", "--json", "--driver", &self.address, "--token-file"])
            .arg(self.folder.join("state/token"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    pub(super) fn events_of(&self, kind: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.join("state/events.jsonl")).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter(|event| event["kind"] == kind).collect()
    }

    /// Waits for a condition while the driver lives.
    pub(super) fn wait<T>(
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
                bail!("the job ended ({status}) before there was {what}\n{}", self.last_words());
            }
            ensure!(now() < deadline, "waited in vain for {what}\n{}", self.last_words());
            pause(LOOK_EVERY);
        }
    }

    /// Waits for the job's success.
    pub(super) fn end(&mut self, patience: Duration) -> anyhow::Result<()> {
        let deadline = now() + patience;
        loop {
            if let Some(status) = self.driver.try_wait()? {
                ensure!(status.success(), "the job failed ({status})\n{}", self.last_words());
                return Ok(());
            }
            ensure!(now() < deadline, "the job does not end\n{}", self.last_words());
            pause(LOOK_EVERY);
        }
    }

    /// The end of the driver's stderr, for errors.
    fn last_words(&self) -> String {
        let bytes = fs::read(self.folder.join("driver.stderr")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let lines: Vec<&str> = text.lines().rev().take(40).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for TortureJob {
    fn drop(&mut self) {
        // Processes that survive this are not reported: the bench ends, too.
        let _ = self.kill_everything(|| 0);
    }
}

fn spawn(folder: &Path, program: &Path, flags: &[String], name: &str) -> anyhow::Result<Child> {
    let file = |name: String| -> std::io::Result<File> {
        OpenOptions::new().create(true).append(true).open(folder.join(name))
    };
    Command::new(program)
        .args(flags)
        .env(MARK, folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file(format!("{name}.stderr"))?)
        .spawn()
        .with_context(|| format!("{name} cannot be started"))
}

/// Kills a process that may have ended meanwhile.
fn kill_if_there(pid: u32) -> anyhow::Result<()> {
    match kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
