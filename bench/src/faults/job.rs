//! The job that `faults` strikes: one driver or two, an agent on each of two hosts, two workers each.

use std::fs::{self, File, OpenOptions};
use std::io::PipeReader;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::fault::InjectedFault;
use super::reader::OutputReader;
use crate::disk::FaultyDisk;
use crate::monotonic::now_ns;
use crate::process::{elastic_node, now, pause};
use crate::record::{self, CommitRecord};
use crate::soak::network::{HERE, Network};

/// Number of hosts, each in a network namespace.
pub(super) const HOSTS: u8 = 2;

/// Workers on each host.
const SLOTS: u8 = 2;

/// Most time for any wait between two faults.
const PATIENCE: Duration = Duration::from_secs(180);

/// Interval between checks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Steps that all members commit in a generation before it is struck.
const STEPS: usize = 20;

/// Calls of `status` that fill a pipe of one page with their log lines.
const CALLS: usize = 40;

/// Bytes of the line that a worker prints at each step, where its output matters: 25 kB/s at 10 ms a step, so that a pipe
/// that nobody reads is full long before the end of the observation.
pub(super) const LINE_BYTES: usize = 256;

/// Process ids of the members of a generation, by host.
#[derive(Debug)]
pub(super) struct FaultsMembers(Vec<(String, u32)>);

impl FaultsMembers {
    /// The first worker on a host.
    pub(super) fn on(&self, host: u8) -> anyhow::Result<u32> {
        let name = name_of(host);
        let found = self.0.iter().find(|(of, _)| *of == name);
        Ok(found.with_context(|| format!("{name} has a worker"))?.1)
    }
}

fn name_of(host: u8) -> String {
    format!("h{host}")
}

/// A process that is started again when its time has come.
#[derive(Default)]
struct KeptProcess {
    child: Option<Child>,
    starts_at: Option<Instant>,
}

/// The job; all of its processes are killed when it is dropped.
pub(super) struct FaultsJob {
    program: PathBuf,
    /// The prefix of a command on each host.
    wrappers: Vec<[String; 2]>,
    /// The command line of each driver.
    commands: Vec<Vec<String>>,
    addresses: Vec<String>,
    drivers: Vec<KeptProcess>,
    agents: Vec<KeptProcess>,
    etcd: Option<Child>,
    /// The end of the driver's stderr that nobody reads.
    unread: Option<PipeReader>,
    /// The readers of the agents' stdout, where it is read.
    readers: Vec<OutputReader>,
    disk: Option<FaultyDisk>,
    folder: TempDir,
}

impl FaultsJob {
    /// Starts the job that a fault needs.
    pub(super) fn start(
        network: &Network,
        fault: InjectedFault,
        step_ms: u64,
    ) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("elastic-node-faults-")?;
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("records"))?;
        let disk = match fault.disk() {
            Some(name) => {
                let disk = FaultyDisk::mount(&at("image"), at("disk"))?;
                std::os::unix::fs::symlink(disk.path(), at(name))?;
                Some(disk)
            }
            None => None,
        };
        let (etcd, store) = match fault.needs_etcd().then(|| start_etcd(&at("etcd"))).transpose()? {
            Some((etcd, store)) => (Some(etcd), Some(store)),
            None => (None, None),
        };
        let number = if fault.needs_standby() { 2 } else { 1 };
        let (mut commands, mut addresses) = (Vec::new(), Vec::new());
        for driver in 0..number {
            let port = UdpSocket::bind((HERE, 0))?.local_addr()?.port();
            let address = format!("{HERE}:{port}");
            let state = at(if driver == 0 { "state" } else { "state-1" }).display().to_string();
            let workers = (HOSTS * SLOTS).to_string();
            let mut command: Vec<String> = ["--role", "driver", "--bind", &address]
                .into_iter()
                .chain(["--state-dir", &state, "--mode", "in-process", "--np", &workers])
                .chain(["--min-np", &SLOTS.to_string(), "--max-restarts", "1000000"])
                .chain(["--elastic-timeout", "600", "--blacklist-cooldown-range", "1", "2"])
                .map(ToOwned::to_owned)
                .collect();
            if let Some(store) = &store {
                command.extend(["--store", store, "--lease-timeout", "3"].map(ToOwned::to_owned));
            }
            if fault == InjectedFault::HungHostfile {
                let lines: Vec<String> =
                    (0..HOSTS).map(|host| format!("{}:{SLOTS}\n", name_of(host))).collect();
                let file = at("hosts").join("file");
                fs::write(&file, lines.concat())?;
                command.extend(["--hostfile".to_owned(), file.display().to_string()]);
            }
            if fault == InjectedFault::HungLogs {
                command.extend(["--output-dir".to_owned(), at("logs").display().to_string()]);
            }
            let own = std::env::current_exe()?.display().to_string();
            let (records, step_ms) = (at("records").display().to_string(), step_ms.to_string());
            let program = ["--", &own, "worker", "--records", &records, "--step-ms", &step_ms];
            command.extend(program.map(ToOwned::to_owned));
            if fault.needs_output() {
                command.extend(["--line-bytes".to_owned(), LINE_BYTES.to_string()]);
            }
            commands.push(command);
            addresses.push(address);
        }
        let drivers = (0..number).map(|_| KeptProcess::default()).collect();
        let agents = (0..HOSTS).map(|_| KeptProcess::default()).collect();
        let wrappers = (0..HOSTS).map(|host| network.wrapper(host)).collect();
        let (program, unread, readers) = (elastic_node()?, None, Vec::new());
        let mut job = Self {
            program,
            wrappers,
            commands,
            addresses,
            drivers,
            agents,
            etcd,
            unread,
            readers,
            disk,
            folder,
        };
        job.start_driver(0, fault == InjectedFault::FullStderr)?;
        job.wait("the driver's token", |job| job.token().exists().then_some(()))?;
        if fault.needs_standby() {
            job.start_driver(1, false)?;
        }
        let is_read = fault == InjectedFault::FullStdout;
        (0..HOSTS).try_for_each(|host| job.start_agent(host, is_read))?;
        if fault.needs_standby() {
            job.wait("the standby", |job| {
                (!job.status()?["standbys"].as_array()?.is_empty()).then_some(())
            })?;
        }
        Ok(job)
    }

    fn token(&self) -> PathBuf {
        self.folder.path().join("state").join("token")
    }

    fn start_driver(&mut self, number: usize, is_unread: bool) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        if number > 0 || self.drivers.len() > 1 && self.drivers[0].starts_at.is_some() {
            command.arg("--standby");
        }
        command.args(&self.commands[number]).stdin(Stdio::null()).stdout(Stdio::null());
        if is_unread {
            let (reader, writer) = std::io::pipe()?;
            fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096))?;
            command.stderr(writer);
            self.unread = Some(reader);
        } else {
            command.stderr(self.log("driver")?);
        }
        let child = command.spawn().context("the driver cannot be started")?;
        self.drivers[number] = KeptProcess { child: Some(child), starts_at: None };
        Ok(())
    }

    fn start_agent(&mut self, host: u8, is_read: bool) -> anyhow::Result<()> {
        let stdout = if is_read {
            let (reader, stdout) = OutputReader::start()?;
            self.readers.push(reader);
            stdout
        } else {
            Stdio::null()
        };
        let wrapper = &self.wrappers[usize::from(host)];
        let child = Command::new(&wrapper[0])
            .arg(&wrapper[1])
            .arg(&self.program)
            .args(["--role", "worker", "--join", &self.addresses.join(",")])
            .args(["--host", &name_of(host), "--slots", &SLOTS.to_string(), "--token-file"])
            .arg(self.token())
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(self.log("agent")?)
            .spawn()
            .context("an agent cannot be started")?;
        self.agents[usize::from(host)] = KeptProcess { child: Some(child), starts_at: None };
        Ok(())
    }

    fn log(&self, name: &str) -> std::io::Result<File> {
        let path = self.folder.path().join(format!("{name}.stderr"));
        OpenOptions::new().create(true).append(true).open(path)
    }

    /// Starts killed and ended processes again, once their time has come.
    pub(super) fn tend(&mut self) -> anyhow::Result<()> {
        for number in 0..self.drivers.len() {
            if is_due(&mut self.drivers[number])? {
                self.drivers[number].starts_at.get_or_insert(now());
                self.start_driver(number, false)?;
            }
        }
        for host in 0..HOSTS {
            if is_due(&mut self.agents[usize::from(host)])? {
                self.start_agent(host, false)?;
            }
        }
        Ok(())
    }

    /// The records of all workers so far.
    pub(super) fn records(&self) -> Vec<CommitRecord> {
        let all = record::all(&self.folder.path().join("records"));
        all.into_iter().flat_map(|(_, records)| records).collect()
    }

    /// Waits until all slots have a worker, and these have made some steps together.
    pub(super) fn wait_for_all(&mut self) -> anyhow::Result<FaultsMembers> {
        self.wait("all workers", |job| {
            let status = job.status()?;
            let workers = status["workers"].as_array()?.iter();
            let members: Vec<(String, u32)> = workers
                .filter(|worker| worker["rank"].is_u64())
                .filter_map(|worker| {
                    let pid = u32::try_from(worker["pid"].as_u64()?).ok()?;
                    Some((worker["host"].as_str()?.to_owned(), pid))
                })
                .collect();
            let generation = status["generation"].as_u64()?;
            let records = job.records();
            let steps = records.iter().filter(|record| record.generation == generation).count();
            let world = usize::from(HOSTS * SLOTS);
            let trains = status["phase"] == "run" && steps >= STEPS * world;
            (trains && members.len() == world).then_some(FaultsMembers(members))
        })
    }

    fn wait<T>(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&mut Self) -> Option<T>,
    ) -> anyhow::Result<T> {
        let deadline = now() + PATIENCE;
        loop {
            self.tend()?;
            if let Some(value) = condition(self) {
                return Ok(value);
            }
            let status = || self.status().unwrap_or_default();
            ensure!(now() < deadline, "waited in vain for {what}\n{}\n{}", status(), self.words());
            pause(LOOK_EVERY);
        }
    }

    /// The end of the drivers' stderr, for errors.
    fn words(&self) -> String {
        let text = fs::read(self.folder.path().join("driver.stderr")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().rev().take(30).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    fn status(&self) -> Option<Value> {
        let output = Command::new(&self.program)
            .args(["status", "--json", "--driver", &self.addresses.join(","), "--token-file"])
            .arg(self.token())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// The number of the driver that acts.
    fn acting(&self) -> usize {
        let status = self.status().unwrap_or_default();
        let address = status["driver"]["address"].as_str().unwrap_or_default();
        self.addresses.iter().position(|it| it == address).unwrap_or_default()
    }

    /// Process id of the driver that acts, or of the one that is stopped.
    pub(super) fn driver_pid(&self) -> anyhow::Result<u32> {
        let stopped = self.drivers.iter().find_map(|driver| {
            let pid = driver.child.as_ref()?.id();
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit(')').next()?.trim_start().starts_with('T').then_some(pid)
        });
        let acting = || self.drivers[self.acting()].child.as_ref().map(Child::id);
        stopped.or_else(acting).context("a driver runs")
    }

    pub(super) fn agent_pid(&self, host: u8) -> anyhow::Result<u32> {
        let agent = self.agents[usize::from(host)].child.as_ref();
        Ok(agent.context("the agent runs")?.id())
    }

    pub(super) fn disk(&self) -> anyhow::Result<&FaultyDisk> {
        self.disk.as_ref().context("the fault has a disk")
    }

    /// Makes the driver write more than the pipe behind its stderr holds.
    pub(super) fn fill_stderr(&self) -> anyhow::Result<()> {
        ensure!(self.unread.is_some(), "nobody reads its stderr");
        (0..CALLS).for_each(|_| drop(self.status()));
        Ok(())
    }

    /// The readers of the agents' stdout.
    pub(super) fn readers(&self) -> &[OutputReader] {
        &self.readers
    }

    /// Sends a signal; a process that has ended meanwhile is no error.
    pub(super) fn signal(&self, pid: u32, signal: Signal) -> anyhow::Result<()> {
        match kill(Pid::from_raw(i32::try_from(pid)?), signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn kill_agent(&mut self, host: u8, away: Duration) -> anyhow::Result<()> {
        kill_child(&mut self.agents[usize::from(host)], away)
    }

    pub(super) fn kill_driver(&mut self, away: Duration) -> anyhow::Result<()> {
        let acting = self.acting();
        kill_child(&mut self.drivers[acting], away)
    }

    /// Kills a member while a fault lasts; returns when, in nanoseconds on `CLOCK_MONOTONIC`.
    pub(super) fn kill_one_of(
        &self,
        members: &FaultsMembers,
        fault: InjectedFault,
    ) -> anyhow::Result<u64> {
        let struck_ns = now_ns()?;
        self.signal(members.on(fault.dies_on())?, Signal::SIGKILL)?;
        Ok(struck_ns)
    }
}

fn is_due(kept: &mut KeptProcess) -> anyhow::Result<bool> {
    if let Some(child) = &mut kept.child {
        return Ok(child.try_wait()?.is_some());
    }
    Ok(kept.starts_at.is_some_and(|at| at <= now()))
}

fn kill_child(kept: &mut KeptProcess, away: Duration) -> anyhow::Result<()> {
    if let Some(mut child) = kept.child.take() {
        child.kill()?;
        child.wait()?;
        kept.starts_at = Some(now() + away);
    }
    Ok(())
}

/// An etcd with one member, and its address as `--store` takes it.
fn start_etcd(folder: &Path) -> anyhow::Result<(Child, String)> {
    let port = || -> std::io::Result<u16> {
        Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
    };
    let client = format!("127.0.0.1:{}", port()?);
    let peer = format!("http://127.0.0.1:{}", port()?);
    let url = format!("http://{client}");
    let child = Command::new("etcd")
        .arg("--data-dir")
        .arg(folder)
        .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("etcd cannot be run: install Debian's etcd-server")?;
    Ok((child, format!("etcd://{client}/faults")))
}

impl Drop for FaultsJob {
    fn drop(&mut self) {
        if let Some(disk) = &self.disk {
            // It may not be frozen; a process that writes to it could not end.
            let _ = disk.thaw();
        }
        let kept = self.agents.iter_mut().chain(&mut self.drivers);
        let children = kept.filter_map(|kept| kept.child.as_mut()).chain(&mut self.etcd);
        for child in children {
            // The process may have ended already. Workers end with their agents.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
