//! Real processes.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::rc::Rc;
use std::sync::Arc;

use actix::Recipient;
use elastic_protocol::{ExitStatus, WorkerId};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::super::core::{LastWords, SpawnOrder, StopSignal};
use super::super::output::{Attached, OutputPlan, OutputSink, attach};
use super::command::start;
use super::exit_watch::ExitWatch;
use super::guard::Guard;
use super::{ProcessEvent, ProcessPort, error_file};

/// Processes of this machine.
///
/// It belongs to one thread, which has to live as long as the agent, and runs in a `LocalSet` of a tokio
/// runtime with I/O and time. Dropped, it kills every process group that it still has.
#[derive(Debug)]
pub struct SystemProcesses {
    sink: SharedSink,
    /// For error files where no folder is given; goes with the agent.
    scratch: OnceCell<tempfile::TempDir>,
    live: Rc<RefCell<Live>>,
}

#[derive(Clone)]
struct SharedSink(Arc<dyn OutputSink>);

impl std::fmt::Debug for SharedSink {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("OutputSink")
    }
}

/// The workers' own processes: each leads a session and a process group.
#[derive(Clone, Debug)]
pub struct Leaders(Rc<RefCell<Live>>);

impl Leaders {
    /// Those that were started and not reaped, with their process ids.
    pub fn all(&self) -> Vec<(WorkerId, u32)> {
        let live = self.0.borrow();
        live.processes.iter().map(|(it, pid)| (it.clone(), pid.as_raw().unsigned_abs())).collect()
    }
}

/// Processes that were started and not reaped: their ids are nobody else's.
#[derive(Debug, Default)]
struct Live {
    processes: BTreeMap<WorkerId, Pid>,
    guard: Option<Guard>,
}

/// A process with what has to do with its end.
struct Started {
    child: Child,
    pid: Pid,
    watch: ExitWatch,
    output: Attached,
    error_file: Option<PathBuf>,
}

impl SystemProcesses {
    /// None yet. `sink` shows what they write.
    pub fn new(sink: Arc<dyn OutputSink>) -> Self {
        Self { sink: SharedSink(sink), scratch: OnceCell::new(), live: Rc::default() }
    }

    /// Whose processes they are, now and later.
    pub fn leaders(&self) -> Leaders {
        Leaders(Rc::clone(&self.live))
    }

    /// A folder of this agent's own, if the process needs one.
    fn scratch(&self, order: &SpawnOrder) -> Result<Option<&Path>, String> {
        if order.place.is_none() || order.output.directory.is_some() {
            return Ok(None);
        }
        if self.scratch.get().is_none() {
            let folder = tempfile::Builder::new().prefix("elastic-node-").tempdir();
            let folder = folder.map_err(|error| format!("no folder for error files: {error}"))?;
            // It was looked at a line above, on this thread.
            let _ = self.scratch.set(folder);
        }
        Ok(self.scratch.get().map(tempfile::TempDir::path))
    }

    fn start(&self, order: &SpawnOrder) -> Result<Started, String> {
        let sink = Arc::clone(&self.sink.0);
        let plan = OutputPlan::new(order, self.scratch(order)?);
        let (pipes, output) =
            attach(&order.worker, &plan, sink).map_err(|error| error.to_string())?;
        let error_file = plan.error_file;
        let mut child = start(order, pipes, error_file.as_deref())?;
        let pid = Pid::from_raw(child.id().cast_signed());
        let watch = ExitWatch::new(pid).map_err(|error| {
            // Nobody would hear of its end, so it must not live.
            kill_group(pid);
            let _ = child.wait();
            format!("the end of a process cannot be watched: {error}")
        })?;
        Ok(Started { child, pid, watch, output, error_file })
    }
}

impl ProcessPort for SystemProcesses {
    fn spawn(&mut self, order: SpawnOrder, events: Recipient<ProcessEvent>) {
        let worker = order.worker.clone();
        let started = self.start(&order);
        let result = match &started {
            Ok(started) => Ok(started.pid.as_raw().unsigned_abs()),
            Err(reason) => Err(reason.clone()),
        };
        events.do_send(ProcessEvent::Spawned { worker: worker.clone(), result });
        if let Ok(Started { child, pid, watch, output, error_file }) = started {
            self.live.borrow_mut().add(worker.clone(), pid);
            let live = Rc::clone(&self.live);
            tokio::task::spawn_local(async move {
                watch.ended().await;
                let status = live.borrow_mut().bury(&worker, pid, child);
                let tail = output.finish().await;
                let error = error_file.as_deref().and_then(error_file::read);
                let said = LastWords { tail, error };
                events.do_send(ProcessEvent::Exited { worker, status, said });
            });
        }
    }

    fn signal(&mut self, worker: &WorkerId, signal: StopSignal) {
        let Some(pid) = self.live.borrow().processes.get(worker).copied() else { return };
        match signal {
            StopSignal::Kill => kill_group(pid),
            StopSignal::Terminate => {
                if let Err(error) = kill(pid, Signal::SIGTERM) {
                    tracing::warn!(%worker, %pid, %error, "SIGTERM could not be sent");
                }
            }
        }
    }
}

impl Live {
    fn add(&mut self, worker: WorkerId, pid: Pid) {
        self.processes.insert(worker, pid);
        if self.guard.is_none() {
            self.guard =
                Guard::start().inspect_err(|error| tracing::warn!(%error, "{}", GUARD_LESS)).ok();
            let groups: Vec<_> = self.processes.values().copied().collect();
            for group in groups {
                self.tell_guard(|guard| guard.add(group));
            }
        } else {
            self.tell_guard(|guard| guard.add(pid));
        }
    }

    /// Kills what is left of the group of a process that has ended, and reaps the process.
    fn bury(&mut self, worker: &WorkerId, pid: Pid, mut child: Child) -> ExitStatus {
        kill_group(pid);
        self.tell_guard(|guard| guard.forget(pid));
        self.processes.remove(worker);
        match child.wait() {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => ExitStatus::Code(code),
                (None, signal) => ExitStatus::Signal(signal.unwrap_or_default()),
            },
            Err(error) => {
                // Somebody else in this process waits for any child: how it ended is not known.
                tracing::error!(%worker, %pid, %error, "it was reaped by somebody else");
                ExitStatus::Code(UNKNOWN_CODE)
            }
        }
    }

    /// A guard that does not listen has died: the next spawn starts another.
    fn tell_guard(&mut self, tell: impl FnOnce(&mut Guard) -> std::io::Result<()>) {
        let Some(guard) = &mut self.guard else { return };
        if let Err(error) = tell(guard) {
            tracing::warn!(%error, "{}", GUARD_LESS);
            self.guard = None;
        }
    }
}

/// What is lost without a guard.
const GUARD_LESS: &str =
    "no guard process: what workers have started may outlive an agent that is killed";

/// The exit code of a process whose own is not known.
const UNKNOWN_CODE: i32 = 255;

/// Kills a process group whose leader was not reaped. That it is empty already is no fault.
fn kill_group(group: Pid) {
    match killpg(group, Signal::SIGKILL) {
        Ok(()) | Err(nix::Error::ESRCH) => {}
        Err(error) => tracing::warn!(%group, %error, "a process group could not be killed"),
    }
}

impl Drop for SystemProcesses {
    fn drop(&mut self) {
        for pid in self.live.borrow().processes.values() {
            kill_group(*pid);
        }
    }
}
