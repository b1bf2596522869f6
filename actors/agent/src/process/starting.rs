//! Start of a process, on the lane of processes: folders, files, fork and exec may all hang, and hold up no
//! actor there. Used by [`SystemProcesses`](super::SystemProcesses).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nix::unistd::Pid;

use super::super::core::SpawnOrder;
use super::super::output::{Attached, OutputFiles, OutputPlan, OutputSink, attach};
use super::command::start;
use super::guard::Guard;

/// Log message for a missing guard process.
const GUARD_LESS: &str =
    "no guard process: what workers have started may outlive an agent that is killed";

/// State shared by all starts; any thread may hold it.
#[derive(Clone)]
pub(super) struct Starter {
    sink: Arc<dyn OutputSink>,
    /// A folder for error files where none is given; removed with the agent.
    scratch: Arc<OnceLock<tempfile::TempDir>>,
    pub(super) files: OutputFiles,
    pub(super) children: Arc<Mutex<ChildProcesses>>,
}

/// The agent's own children that were not reaped, and the guard process.
#[derive(Debug, Default)]
pub(super) struct ChildProcesses {
    pub(super) pids: BTreeSet<i32>,
    groups: BTreeSet<Pid>,
    guard: Option<Guard>,
}

/// A process that was started, with its output and its error file.
#[derive(Debug)]
pub(super) struct Spawned {
    pub(super) child: Child,
    pub(super) pid: Pid,
    pub(super) output: Attached,
    pub(super) error_file: Option<PathBuf>,
}

impl Starter {
    pub(super) fn new(sink: Arc<dyn OutputSink>) -> Self {
        let (scratch, files, children) = (Arc::default(), OutputFiles::default(), Arc::default());
        Self { sink, scratch, files, children }
    }

    pub(super) fn children(&self) -> MutexGuard<'_, ChildProcesses> {
        // The sets are consistent between any two statements, so a panic elsewhere does not spoil them.
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a process.
    pub(super) fn start(&self, order: &SpawnOrder) -> Result<Spawned, String> {
        let sink = Arc::clone(&self.sink);
        let plan = OutputPlan::new(order, self.scratch(order)?);
        let (pipes, output) =
            attach(&order.worker, &plan, sink, &self.files).map_err(|error| error.to_string())?;
        let error_file = plan.error_file;
        let child = start(order, pipes, error_file.as_deref())?;
        let pid = Pid::from_raw(child.id().cast_signed());
        self.children().add(pid);
        Ok(Spawned { child, pid, output, error_file })
    }

    /// The agent's folder for error files, made if the process needs it.
    fn scratch(&self, order: &SpawnOrder) -> Result<Option<&Path>, String> {
        if order.place.is_none() || order.output.directory.is_some() {
            return Ok(None);
        }
        if self.scratch.get().is_none() {
            let folder = tempfile::Builder::new().prefix("elastic-node-").tempdir();
            let folder = folder.map_err(|error| format!("no folder for error files: {error}"))?;
            // The cell is empty: it was checked above, on the only thread that starts processes.
            let _ = self.scratch.set(folder);
        }
        Ok(self.scratch.get().map(tempfile::TempDir::path))
    }
}

impl ChildProcesses {
    fn add(&mut self, pid: Pid) {
        self.pids.insert(pid.as_raw());
        self.groups.insert(pid);
        if self.guard.is_some() {
            return self.tell_guard(|guard| guard.add(pid));
        }
        self.guard =
            Guard::start().inspect_err(|error| tracing::warn!(%error, "{GUARD_LESS}")).ok();
        self.pids.extend(self.guard.as_ref().map(Guard::pid));
        for group in self.groups.clone() {
            self.tell_guard(|guard| guard.add(group));
        }
    }

    /// Removes a group. To be called before the leader of the group is reaped, since the system may reuse its
    /// id afterwards.
    pub(super) fn forget(&mut self, group: Pid) {
        self.groups.remove(&group);
        self.tell_guard(|guard| guard.forget(group));
    }

    /// Sends the guard an order. A guard that cannot be written to has died: the next start makes another one.
    fn tell_guard(&mut self, tell: impl FnOnce(&mut Guard) -> std::io::Result<()>) {
        let Some(guard) = &mut self.guard else { return };
        if let Err(error) = tell(guard) {
            tracing::warn!(%error, "{GUARD_LESS}");
            self.pids.remove(&guard.pid());
            self.guard = None;
        }
    }
}
