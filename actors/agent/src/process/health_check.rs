//! Health checks: runs the operator's command, bounded in time and output. Used by `system`.
//!
//! The command is started on a lane of its own, since the file system with the shell or the command can hang. It leads
//! a process group. The whole group is killed when the command ends, after the timeout, and by the guard if the agent
//! dies. Processes that have left the group are killed with it, as those of a worker: each check has a mark of its own in
//! the environment.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::rc::Rc;
use std::time::Duration;

use elastic_protocol::ExitStatus;
use elastic_protocol::messages::HealthFailure;
use elastic_runtime::{BlockingLane, OffloadPort, null_device};
use nix::unistd::Pid;
use tokio::net::unix::pipe::Receiver;
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout, timeout_at};

use super::exit_watch::ExitWatch;
use super::orphans;
use super::starting::Starter;
use super::system::kill_group;

/// Time for the output of a command that has ended. A process that still holds the pipe has left the group.
const DRAIN: Duration = Duration::from_millis(100);

const CHUNK_BYTES: usize = 4096;

/// The environment variable that marks the processes of a check.
const MARK_VARIABLE: &str = "ELASTIC_CHECK";

/// Runs health checks, one at a time.
#[derive(Clone)]
pub(super) struct HealthChecker {
    lane: OffloadPort,
    starter: Starter,
    /// The lane of processes, on which orphans are looked for.
    processes: OffloadPort,
    /// Whether the agent is the parent of orphans.
    adopts: Rc<Cell<bool>>,
    /// Number of checks so far.
    checks: Rc<Cell<u64>>,
}

/// A command that was started.
struct StartedCheck {
    child: Child,
    pid: Pid,
    output: OwnedFd,
}

impl HealthChecker {
    pub(super) fn new(starter: Starter, processes: OffloadPort, adopts: Rc<Cell<bool>>) -> Self {
        let lane = OffloadPort::lane(BlockingLane::HEALTH_CHECKS);
        Self { lane, starter, processes, adopts, checks: Rc::default() }
    }

    /// The lane that starts the command, to be watched.
    pub(super) fn lane(&self) -> OffloadPort {
        self.lane.clone()
    }

    /// Runs the command. Returns why the host is not well, if it is not.
    pub(super) async fn run(self, command: String, limit: Duration) -> Option<HealthFailure> {
        let until = Instant::now() + limit;
        let (starter, shown) = (self.starter.clone(), limit.as_secs_f64());
        self.checks.set(self.checks.get() + 1);
        let mark = format!("{}-{}", std::process::id(), self.checks.get());
        let of_check = mark.clone();
        let begin = move || start(&command, &of_check, &starter);
        let started = timeout_at(until, self.lane.run("health check", begin)).await;
        let failed = |reason: String| Some(HealthFailure { reason, output: String::new() });
        let started = match started {
            Err(_elapsed) => return failed(format!("it has not been started within {shown} s")),
            Ok(Err(error)) => return failed(format!("it cannot be started: {error}")),
            Ok(Ok(Err(error))) => return failed(format!("it cannot be started: {error}")),
            Ok(Ok(Ok(started))) => started,
        };
        let StartedCheck { child, pid, output } = started;
        let (is_ended, last) = match Receiver::from_owned_fd(output) {
            Ok(pipe) => watch(pid, pipe, until).await,
            Err(error) => {
                tracing::warn!(%error, "the output of the health check cannot be read");
                (false, Vec::new())
            }
        };
        let status = self.bury(pid, child);
        if self.adopts.get() {
            orphans::end_on(&self.processes, &self.starter, format!("{MARK_VARIABLE}={mark}"));
        }
        let output = String::from_utf8_lossy(&last).trim().to_owned();
        let reason = match (is_ended, status) {
            (true, ExitStatus::Code(0)) => return None,
            (true, status) => status.to_string(),
            (false, _) => format!("it has not ended within {shown} s"),
        };
        Some(HealthFailure { reason, output })
    }

    /// Kills the rest of the command's group, and reaps the command.
    fn bury(&self, pid: Pid, mut child: Child) -> ExitStatus {
        kill_group(pid);
        self.starter.children().forget(pid);
        // A command that had not ended was sent SIGKILL. If the kernel still holds it, it is reaped with the orphans.
        let status = child.try_wait();
        self.starter.children().pids.remove(&pid.as_raw());
        match status {
            Ok(Some(status)) => status.into(),
            Ok(None) | Err(_) => ExitStatus::Signal(9),
        }
    }
}

/// Starts the command.
fn start(command: &str, mark: &str, starter: &Starter) -> std::io::Result<StartedCheck> {
    let (output, input) = std::io::pipe()?;
    let mut shell = Command::new("/bin/sh");
    shell.env(MARK_VARIABLE, mark);
    shell.arg("-c").arg(command).stdin(null_device()?).process_group(0);
    shell.stdout(input.try_clone()?).stderr(input);
    // The agent takes no child for an orphan that is just being started.
    starter.children().starting += 1;
    let started = shell.spawn();
    let mut children = starter.children();
    children.starting -= 1;
    let child = started?;
    let pid = Pid::from_raw(child.id().cast_signed());
    children.add(pid);
    Ok(StartedCheck { child, pid, output: output.into() })
}

/// Reads the command's output until it has ended. Returns whether it has, in time, and the end of its output.
async fn watch(pid: Pid, pipe: Receiver, until: Instant) -> (bool, Vec<u8>) {
    let last = Rc::<RefCell<Vec<u8>>>::default();
    let reading = spawn_local(read(pipe, Rc::clone(&last)));
    let is_ended = match ExitWatch::new(pid) {
        Ok(watch) => timeout_at(until, watch.ended()).await.is_ok(),
        Err(error) => {
            tracing::warn!(%error, "the end of the health check cannot be seen");
            false
        }
    };
    let stops = reading.abort_handle();
    if timeout(DRAIN, reading).await.is_err() {
        stops.abort();
    }
    (is_ended, last.take())
}

/// Reads a pipe until its end, and keeps the last bytes.
async fn read(pipe: Receiver, last: Rc<RefCell<Vec<u8>>>) {
    let mut chunk = [0; CHUNK_BYTES];
    while pipe.readable().await.is_ok() {
        match pipe.try_read(&mut chunk) {
            Ok(0) => return,
            Ok(bytes) => {
                let mut last = last.borrow_mut();
                last.extend_from_slice(&chunk[..bytes]);
                let too_many = last.len().saturating_sub(HealthFailure::OUTPUT_BYTES_MAX);
                last.drain(..too_many);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
