//! The processes of the demo: driver and agents, with their logs in a folder of their own. Used by `demo`.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::story::WORKERS;
use crate::command_line::{CommandFailure, ResultExt, flag_variables};
use crate::process::{ADDRESS_FILE, EVENTS_FILE};

/// Passes over the training data: they take about 20 s, so that one can watch.
pub(super) const EPOCHS: u64 = 24;

/// The other flags of the training.
const TRAINING: [&str; 4] = ["--batch-size", "32", "--step-ms", "70"];

/// Timeout for the driver to start, and to end when asked to.
const PATIENCE: Duration = Duration::from_secs(10);

/// Interval between two looks at files of other processes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The number of last log lines shown after a failure.
const LOG_LINES_SHOWN: usize = 20;

/// A driver with its agents; dropping it leaves no process behind.
pub(super) struct Cluster {
    folder: TempDir,
    program: PathBuf,
    driver: Child,
    agents: Vec<Child>,
    address: String,
}

impl Cluster {
    /// Starts the driver.
    pub(super) fn start() -> Result<Self, CommandFailure> {
        let folder = TempDir::with_prefix("elastic-node-demo-")
            .failed("no temporary folder can be made for the demo")?;
        let program = std::env::current_exe().failed("this program does not find itself")?;
        let mut command = command(&program);
        command
            .args(["--role", "driver", "--bind", "127.0.0.1:0", "--min-np", "1"])
            .args(["--mode", "in-process", "--dashboard", "127.0.0.1:0"])
            .args(["--np", &WORKERS.to_string(), "--orphan-timeout", "30"])
            .arg("--state-dir")
            .arg(folder.path().join("state"))
            // A demo is no job to be found later.
            .env("XDG_STATE_HOME", folder.path())
            .arg("--")
            .arg(&program)
            .arg("demo-worker")
            .args(["--epochs", &EPOCHS.to_string()])
            .args(TRAINING)
            .stdout(Stdio::null())
            .stderr(log_file(&folder, "driver")?);
        let driver = command.spawn().failed("the driver cannot be started")?;
        Ok(Self { folder, program, driver, agents: Vec::new(), address: String::new() })
    }

    /// The driver's address, as soon as it listens.
    pub(super) async fn address(&mut self) -> Result<String, CommandFailure> {
        let file = self.folder.path().join("state").join(ADDRESS_FILE);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline && self.driver_end()?.is_none() {
            if let Ok(address) = fs::read_to_string(&file) {
                self.address = address.trim().to_owned();
                return Ok(self.address.clone());
            }
            sleep(LOOK_EVERY).await;
        }
        Err(CommandFailure::new("the driver did not start"))
    }

    /// The driver's token file.
    pub(super) fn token_file(&self) -> PathBuf {
        self.folder.path().join("state").join(elastic_transport::TOKEN_FILE)
    }

    /// The driver's event log.
    pub(super) fn events(&self) -> PathBuf {
        self.folder.path().join("state").join(EVENTS_FILE)
    }

    /// Starts the agent of a host.
    pub(super) fn add_agent(&mut self, host: &str, slots: u32) -> Result<(), CommandFailure> {
        let stdout = File::create(self.folder.path().join(format!("{host}.stdout")))
            .failed("the output of an agent cannot be stored")?;
        let mut command = command(&self.program);
        command
            .args(["--role", "worker", "--join", &self.address, "--host", host])
            .args(["--slots", &slots.to_string()])
            .arg("--token-file")
            .arg(self.token_file())
            .stdout(stdout)
            .stderr(log_file(&self.folder, host)?);
        let agent = command.spawn().failed(format!("agent {host} cannot be started"))?;
        self.agents.push(agent);
        Ok(())
    }

    /// The driver's exit status, if it has ended.
    pub(super) fn driver_end(&mut self) -> Result<Option<ExitStatus>, CommandFailure> {
        self.driver.try_wait().failed("the driver cannot be watched")
    }

    /// Waits for the agents of a driver that has ended, and says whether all went well.
    pub(super) async fn judge(&mut self, status: ExitStatus) -> Result<(), CommandFailure> {
        for agent in &mut self.agents {
            let ended = timeout(PATIENCE, agent.wait()).await;
            let ended = ended.map_err(|_elapsed| CommandFailure::new("an agent did not end"))?;
            ended.failed("an agent cannot be watched")?;
        }
        match status.code() {
            Some(0) => Ok(()),
            _ => Err(CommandFailure::new(format!("the driver ended with {status}"))),
        }
    }

    /// The accuracy that rank 0 printed at the end.
    pub(super) fn accuracy(&self) -> Option<f64> {
        let files = fs::read_dir(self.folder.path()).ok()?.flatten().map(|entry| entry.path());
        let outputs = files.filter(|path| path.extension().is_some_and(|it| it == "stdout"));
        let lines = outputs.filter_map(|path| Some(BufReader::new(File::open(path).ok()?)));
        lines
            .flat_map(|file| file.lines().map_while(Result::ok))
            .find_map(|line| line.split_once("] accuracy ")?.1.trim().parse().ok())
    }

    /// Ends everything in order: sends SIGINT to the driver, as Ctrl-C does.
    pub(super) async fn stop(&mut self) {
        if let Some(pid) = self.driver.id() {
            // The driver may have ended just now; dropping the cluster kills the remaining processes.
            let _ = send(pid, Signal::SIGINT);
            let _ = timeout(PATIENCE, self.driver.wait()).await;
        }
    }

    /// Adds the end of the driver's log to a failure.
    pub(super) fn explain(&self, failure: CommandFailure) -> CommandFailure {
        let log = fs::read_to_string(self.folder.path().join("driver.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.len().saturating_sub(LOG_LINES_SHOWN);
        failure.hint(format!("the driver's log ends with:\n{}", lines[from..].join("\n")))
    }
}

/// A command of this program in a process group of its own, so that Ctrl-C reaches the demo alone.
fn command(program: &PathBuf) -> Command {
    let mut command = Command::new(program);
    for variable in flag_variables() {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    command
}

fn log_file(folder: &TempDir, name: &str) -> Result<File, CommandFailure> {
    File::create(folder.path().join(format!("{name}.log"))).failed("a log cannot be stored")
}

/// Sends SIGKILL to a process.
pub(super) fn kill(pid: u32) -> Result<(), CommandFailure> {
    send(pid, Signal::SIGKILL).failed(format!("process {pid} cannot be killed"))
}

fn send(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    Ok(signal::kill(Pid::from_raw(pid), signal)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster of processes that say nothing and end for no signal but SIGKILL.
    fn mute() -> Cluster {
        let program = PathBuf::from("/bin/sh");
        let child = || {
            let mut command = command(&program);
            command.args(["-c", "trap '' INT TERM; exec sleep 600"]);
            command.spawn().expect("a shell is there")
        };
        let (driver, agents) = (child(), vec![child()]);
        let folder = TempDir::new().expect("a folder");
        Cluster { folder, program, driver, agents, address: String::new() }
    }

    /// As `elastic_runtime::system::run_paused`, and with the I/O that child processes need.
    fn run_paused_with_io<F: Future>(test: F) -> F::Output {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build();
        runtime.expect("the system gives an event queue").block_on(test)
    }

    #[test]
    fn g_9_processes_of_the_demo_that_neither_start_nor_end_are_given_up() {
        run_paused_with_io(async {
            let begun = Instant::now();
            let mut cluster = mute();
            let failure = cluster.address().await.expect_err("it never listens");
            assert_eq!(failure.to_string(), "the driver did not start");
            let failure = cluster.judge(ExitStatus::default()).await.expect_err("it never ends");
            assert_eq!(failure.to_string(), "an agent did not end");
            cluster.stop().await;
            assert!(begun.elapsed() >= 3 * PATIENCE, "each had its time");
        });
    }
}
