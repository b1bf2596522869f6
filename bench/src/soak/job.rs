//! The job of the soak: a driver, agents that are restarted when they end, and workers.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::network::{self, HERE, Network};
use super::program::{FINISH, RECORDS};
use crate::disk::FaultyDisk;
use crate::process::{elastic_node, now, pause};

/// Interval of polling while waiting.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Time for which an agent that has ended stays away.
const AWAY: Duration = Duration::from_millis(700);

/// Age up to which a commit is a worker's last one, rather than that of a worker which trains no more.
const FRESH: Duration = Duration::from_secs(1);

/// Time limit of the job's end.
const END: Duration = Duration::from_secs(90);

/// A process that is restarted when it ends.
#[derive(Default)]
struct RestartedProcess {
    child: Option<Child>,
    starts_at: Option<Instant>,
}

/// Trouble of the driver's disk, which has one at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DiskTrouble {
    #[default]
    None,
    Full,
    Frozen,
}

/// The job; all of its processes are killed when it is dropped.
pub(super) struct SoakJob {
    // Dropped after the processes in it.
    network: Option<Network>,
    missing: Option<String>,
    /// The driver's disk, unless its state is in a folder like any other. Dropped before the folder in which it is mounted.
    disk: Option<FaultyDisk>,
    folder: TempDir,
    disk_trouble: DiskTrouble,
    program: PathBuf,
    /// The driver's command line.
    command: Vec<String>,
    address: String,
    slots: u32,
    driver: RestartedProcess,
    agents: Vec<RestartedProcess>,
    /// Hosts that nobody reaches at the moment.
    cut: BTreeSet<u8>,
}

impl SoakJob {
    pub(super) fn start(hosts: u8, slots: u32, step_ms: u64) -> anyhow::Result<Self> {
        let program = elastic_node()?;
        let (network, mut missing) = match Network::enter(hosts) {
            Ok(network) => (Some(network), None),
            Err(error) => (None, Some(format!("cuts, full and frozen disks: {error:#}"))),
        };
        let folder = TempDir::with_prefix("elastic-node-soak-")?;
        fs::create_dir(folder.path().join(RECORDS))?;
        let state = folder.path().join("state");
        // Outside a mount namespace of its own, the disk would outlive a soak that is killed.
        let disk = network.as_ref().and_then(|_| {
            let mounted = FaultyDisk::mount(&folder.path().join("image"), state.clone());
            let refused = |error| missing = Some(format!("full and frozen disks: {error:#}"));
            mounted.map_err(refused).ok()
        });
        if disk.is_none() {
            fs::create_dir_all(&state)?;
        }
        let here = if network.is_some() { HERE.to_string() } else { "127.0.0.1".to_owned() };
        let port = std::net::UdpSocket::bind((here.as_str(), 0))?.local_addr()?.port();
        let address = format!("{here}:{port}");
        let workers = (u32::from(hosts) * slots).to_string();
        let (state, step_ms) = (state.display().to_string(), step_ms.to_string());
        let at = folder.path().display().to_string();
        let own = std::env::current_exe()?.display().to_string();
        let command = [
            &["--role", "driver", "--bind", &address, "--state-dir", &state][..],
            &["--mode", "in-process", "--np", &workers, "--min-np", "1"],
            &["--max-restarts", "1000000", "--elastic-timeout", "300", "--"],
            &[&own, "soak-worker", "--folder", &at, "--step-ms", &step_ms],
        ];
        let command = command.concat().into_iter().map(ToOwned::to_owned).collect();
        let agents =
            (0..hosts).map(|_| RestartedProcess { child: None, starts_at: Some(now()) }).collect();
        let driver = RestartedProcess { child: None, starts_at: Some(now()) };
        let mut job = Self {
            network,
            missing,
            disk,
            folder,
            disk_trouble: DiskTrouble::None,
            program,
            command,
            address,
            slots,
            driver,
            agents,
            cut: BTreeSet::new(),
        };
        job.tend_driver()?;
        job.wait("the driver's token", END, |job| {
            Ok(job.folder.path().join("state").join("token").exists())
        })?;
        Ok(job)
    }

    /// The features that this machine refuses, if any.
    pub(super) fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    pub(super) fn has_network(&self) -> bool {
        self.network.is_some()
    }

    /// Whether the driver's disk can have a fault, and has none now: a writer to a frozen disk waits until it thaws.
    pub(super) fn is_disk_well(&self) -> bool {
        self.disk.is_some() && self.disk_trouble == DiskTrouble::None
    }

    /// Whether the driver can be killed at once: a process that waits for a frozen disk cannot.
    pub(super) fn is_driver_mortal(&self) -> bool {
        self.disk_trouble != DiskTrouble::Frozen
    }

    /// Writes until the driver's disk is full.
    pub(super) fn fill_disk(&mut self) -> anyhow::Result<()> {
        let block = vec![0_u8; 64 << 10];
        let mut file = File::create(self.filler())?;
        while file.write_all(&block).is_ok() {}
        self.disk_trouble = DiskTrouble::Full;
        Ok(())
    }

    /// Freezes the driver's disk: any writer to it waits.
    pub(super) fn freeze_disk(&mut self) -> anyhow::Result<()> {
        self.disk.as_ref().map_or(Ok(()), FaultyDisk::freeze)?;
        self.disk_trouble = DiskTrouble::Frozen;
        Ok(())
    }

    /// Ends the fault of the driver's disk.
    pub(super) fn mend_disk(&mut self) -> anyhow::Result<()> {
        match std::mem::take(&mut self.disk_trouble) {
            DiskTrouble::None => Ok(()),
            DiskTrouble::Full => Ok(fs::remove_file(self.filler())?),
            DiskTrouble::Frozen => self.disk.as_ref().map_or(Ok(()), FaultyDisk::thaw),
        }
    }

    fn filler(&self) -> PathBuf {
        self.state().join("filler")
    }

    pub(super) fn hosts(&self) -> u8 {
        self.agents.len() as u8
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Restarts the processes that have ended, once their time has come.
    pub(super) fn tend(&mut self) -> anyhow::Result<()> {
        self.tend_driver()?;
        for host in 0..self.hosts() {
            let agent = &mut self.agents[usize::from(host)];
            if let Some(child) = &mut agent.child
                && child.try_wait()?.is_some()
            {
                *agent = RestartedProcess { child: None, starts_at: Some(now() + AWAY) };
            }
            if agent.starts_at.is_some_and(|at| at <= now()) {
                let child = self.spawn_agent(host)?;
                self.agents[usize::from(host)] =
                    RestartedProcess { child: Some(child), starts_at: None };
            }
        }
        Ok(())
    }

    fn tend_driver(&mut self) -> anyhow::Result<()> {
        if let Some(child) = &mut self.driver.child
            && let Some(status) = child.try_wait()?
        {
            bail!("the driver has ended by itself ({status})\n{}", self.last_words());
        }
        if self.driver.starts_at.is_some_and(|at| at <= now()) {
            let child = self.spawn(None, &self.command, "driver")?;
            self.driver = RestartedProcess { child: Some(child), starts_at: None };
        }
        Ok(())
    }

    fn spawn_agent(&self, host: u8) -> anyhow::Result<Child> {
        let (name, slots) = (format!("h{host}"), self.slots.to_string());
        let token = self.state().join("token").display().to_string();
        let flags =
            ["--role", "worker", "--join", &self.address, "--host", &name, "--slots", &slots];
        let flags = [&flags[..], &["--token-file", &token]].concat();
        let flags: Vec<String> = flags.into_iter().map(ToOwned::to_owned).collect();
        self.spawn(Some(host), &flags, &name)
    }

    fn spawn(&self, host: Option<u8>, flags: &[String], name: &str) -> anyhow::Result<Child> {
        let wrapper = match (&self.network, host) {
            (Some(network), Some(host)) => network.wrapper(host).to_vec(),
            _ => Vec::new(),
        };
        let mut line = wrapper;
        line.push(self.program.display().to_string());
        line.extend_from_slice(flags);
        let file = |name: String| -> std::io::Result<File> {
            OpenOptions::new().create(true).append(true).open(self.folder.path().join(name))
        };
        Command::new(&line[0])
            .args(&line[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file(format!("{name}.stderr"))?)
            .spawn()
            .with_context(|| format!("{name} cannot be started"))
    }

    pub(super) fn kill_driver(&mut self, away: Duration) -> anyhow::Result<()> {
        kill_child(&mut self.driver, away)
    }

    pub(super) fn kill_agent(&mut self, host: u8, away: Duration) -> anyhow::Result<()> {
        kill_child(&mut self.agents[usize::from(host)], away)
    }

    pub(super) fn driver_pid(&self) -> Option<u32> {
        Some(self.driver.child.as_ref()?.id())
    }

    pub(super) fn agent_pid(&self, host: u8) -> Option<u32> {
        Some(self.agents[usize::from(host)].child.as_ref()?.id())
    }

    /// Sends a signal; a process that has ended meanwhile is no error.
    pub(super) fn signal(&self, pid: u32, signal: Signal) -> anyhow::Result<()> {
        match kill(Pid::from_raw(i32::try_from(pid)?), signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Process ids of the workers; unless `all` is set, without the worker that is spared.
    pub(super) fn workers(&self, all: bool) -> Vec<u32> {
        let workers =
            self.own_processes().into_iter().filter(|(name, _)| name.starts_with("worker "));
        let spared = |name: &str| name.starts_with("worker h0[0]");
        workers.filter(|(name, _)| all || !spared(name)).map(|(_, pid)| pid).collect()
    }

    /// Takes the host off the network.
    pub(super) fn cut(&mut self, host: u8) -> anyhow::Result<()> {
        self.cut.insert(host);
        network::cut(host)
    }

    /// Puts the host back.
    pub(super) fn mend(&mut self, host: u8) -> anyhow::Result<()> {
        self.cut.remove(&host);
        network::mend(host)
    }

    /// The workers that have just committed and go on, with their hosts.
    pub(super) fn holders(&self) -> Vec<(u8, u32)> {
        let is_well = |host: u8| {
            !self.cut.contains(&host) && self.agent_pid(host).is_some_and(|pid| !is_stopped(pid))
        };
        let workers = self.own_processes().into_iter().filter_map(|(name, pid)| {
            let (host, _) = name.strip_prefix("worker h")?.split_once('[')?;
            Some((host.parse().ok()?, pid))
        });
        let trains = |(host, pid): &(u8, u32)| {
            is_well(*host) && !is_stopped(*pid) && self.committed_lately(*pid)
        };
        workers.filter(trains).collect()
    }

    fn committed_lately(&self, pid: u32) -> bool {
        let records = self.folder.path().join(RECORDS).join(pid.to_string());
        let Ok(found) = fs::metadata(records) else { return false };
        let age = found.modified().ok().and_then(|at| at.elapsed().ok());
        // A process makes its file before it has a part in a generation.
        found.len() > 0 && age.is_some_and(|age| age < FRESH)
    }

    /// All processes that are measured, with their names.
    pub(super) fn processes(&self) -> Vec<(String, u32)> {
        let mut processes = self.own_processes();
        processes.extend(self.driver_pid().map(|pid| ("driver".to_owned(), pid)));
        let agents = (0..self.hosts()).filter_map(|host| Some((host, self.agent_pid(host)?)));
        processes.extend(agents.map(|(host, pid)| (format!("agent h{host}"), pid)));
        processes
    }

    /// The workers' processes, by the name in their environment.
    fn own_processes(&self) -> Vec<(String, u32)> {
        let folder = self.folder.path().display().to_string();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let worker = |pid: u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).into_owned();
            let is_own = line.contains("soak-worker") && line.contains(&folder);
            let starts_so = line.split('\0').nth(1) == Some("soak-worker");
            if !is_own || !starts_so {
                return None;
            }
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let environment = String::from_utf8_lossy(&environment).into_owned();
            let name = environment.split('\0').find_map(|it| it.strip_prefix("ELASTIC_WORKER="))?;
            Some((format!("worker {name}"), pid))
        };
        pids.filter_map(worker).collect()
    }

    /// Waits until all slots have a worker that trains.
    pub(super) fn wait_for_all(&mut self, patience: Duration) -> anyhow::Result<()> {
        let wanted = u64::from(self.hosts()) * u64::from(self.slots);
        self.wait("all workers", patience, |job| {
            job.tend()?;
            let status = job.status().unwrap_or_default();
            Ok(status["world_size"] == wanted && status["phase"] == "run")
        })
    }

    fn wait(
        &mut self,
        what: &str,
        patience: Duration,
        mut condition: impl FnMut(&mut Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let deadline = now() + patience;
        while !condition(self)? {
            ensure!(
                now() < deadline,
                "waited in vain for {what}\n{}\n{}",
                self.status().unwrap_or_default(),
                self.last_words()
            );
            pause(LOOK_EVERY);
        }
        Ok(())
    }

    fn status(&self) -> Option<Value> {
        let output = Command::new(&self.program)
            .args(["status", "--json", "--driver", &self.address, "--token-file"])
            .arg(self.state().join("token"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Lets the job finish; none of its processes may be left.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        File::create(self.folder.path().join(FINISH))?;
        let mut driver = self.driver.child.take().context("the driver runs")?;
        let mut ended = None;
        self.wait("the driver's end", END, |_| {
            ended = driver.try_wait()?;
            Ok(ended.is_some())
        })?;
        let status = ended.context("it has ended")?;
        ensure!(status.success(), "the job failed ({status})\n{}", self.last_words());
        self.wait("the agents' end", END, |job| {
            for agent in &mut job.agents {
                if let Some(child) = &mut agent.child
                    && child.try_wait()?.is_none()
                {
                    return Ok(false);
                }
            }
            Ok(job.workers(true).is_empty())
        })
    }

    /// The last generation's number, and how many resets were decided.
    pub(super) fn generations_and_resets(&self) -> (u64, usize) {
        let text = fs::read_to_string(self.state().join("events.jsonl")).unwrap_or_default();
        let events: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let generations = events.iter().filter_map(|event| event["generation"].as_u64()).max();
        let resets = events.iter().filter(|event| event["kind"] == "reset_decided").count();
        (generations.unwrap_or_default(), resets)
    }

    /// The end of the driver's stderr, for errors.
    fn last_words(&self) -> String {
        let bytes = fs::read(self.folder.path().join("driver.stderr")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let lines: Vec<&str> = text.lines().rev().take(40).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

/// Whether the process is stopped by a signal (proc(5)).
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

fn kill_child(kept: &mut RestartedProcess, away: Duration) -> anyhow::Result<()> {
    if let Some(mut child) = kept.child.take() {
        child.kill()?;
        child.wait()?;
        kept.starts_at = Some(now() + away);
    }
    Ok(())
}

impl Drop for SoakJob {
    fn drop(&mut self) {
        // A process that waits for a frozen disk cannot be killed.
        let _ = self.mend_disk();
        let kept = self.agents.iter_mut().chain([&mut self.driver]);
        for child in kept.filter_map(|kept| kept.child.as_mut()) {
            // The process may have ended already. Workers end with their agents.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
