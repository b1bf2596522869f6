//! Start of a process, on the lane of processes. Folders, files, fork and exec may all hang, and hold up no actor
//! there. Used by [`SystemProcesses`](super::SystemProcesses).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use elastic_robust_lock::{LockSeat, LockWatch};
use nix::unistd::Pid;
use tokio::sync::oneshot;

use super::super::core::{SpawnOrder, StartFailure};
use super::super::output::{Attached, OutputFiles, OutputPlan, OutputSink, attach};
use super::announcement::Announcer;
use super::cgroup::{AgentGroup, WorkerGroup};
use super::command::start;
use super::guard::Guard;
use super::memory::OomKills;

/// Log message for a missing guard process.
const GUARD_LESS: &str =
    "no guard process: what workers have started may outlive an agent that is killed";

/// State shared by all starts; any thread may hold it.
#[derive(Clone)]
pub(super) struct Starter {
    sink: Arc<dyn OutputSink>,
    /// A folder for error files where none is given; removed with the agent. None if it cannot be made: processes then
    /// start without error files.
    scratch: Arc<OnceLock<Option<tempfile::TempDir>>>,
    /// The control group of this agent, made with the first process where that is allowed.
    group: Arc<OnceLock<Option<AgentGroup>>>,
    pub(super) files: OutputFiles,
    pub(super) children: Arc<Mutex<ChildProcesses>>,
    /// The watch over the workers' locks, begun with the first of them; none where it could not be begun.
    locks: Arc<OnceLock<Option<LockWatch>>>,
}

/// The most guards of an agent that follow one which has ended.
const GUARDS_AGAIN_MAX: u32 = 16;

/// The agent's own children that were not reaped, and the guard process.
#[derive(Debug, Default)]
pub(super) struct ChildProcesses {
    pub(super) pids: BTreeSet<i32>,
    /// Children that are being started beside the lane of processes, whose ids are not known yet.
    pub(super) starting: u32,
    /// The groups that the guard kills if the agent dies: process groups by their ids, control groups by their folders.
    groups: BTreeSet<String>,
    /// The agent's folder for error files, which the guard removes if the agent dies.
    scratch: Option<PathBuf>,
    guard: Option<Guard>,
    /// Number of guards that replaced one that had ended before the agent.
    guards_again: u32,
}

/// A process that was started, with its output and its error file.
#[derive(Debug)]
pub(super) struct Spawned {
    pub(super) child: Child,
    pub(super) pid: Pid,
    pub(super) output: Attached,
    pub(super) error_file: Option<PathBuf>,
    /// The control group of the process and of all that it starts.
    pub(super) group: Option<WorkerGroup>,
    /// The OOM killer's counter before the process began.
    pub(super) oom_kills: Option<OomKills>,
    /// The seat of the worker's lock, kept until the process has ended, and the channel that reports the owner's death.
    pub(super) seat: Option<(Arc<LockSeat>, oneshot::Receiver<()>)>,
}

impl Starter {
    pub(super) fn new(sink: Arc<dyn OutputSink>) -> Self {
        let (scratch, files, children) = (Arc::default(), OutputFiles::default(), Arc::default());
        let (group, locks) = (Arc::default(), Arc::default());
        Self { sink, scratch, group, files, children, locks }
    }

    pub(super) fn children(&self) -> MutexGuard<'_, ChildProcesses> {
        // The sets are consistent between any two statements, so a panic elsewhere does not spoil them.
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a process, which tells its id through `announcer`.
    pub(super) fn start(
        &self,
        order: &SpawnOrder,
        announcer: Option<Announcer>,
    ) -> Result<Spawned, StartFailure> {
        let sink = Arc::clone(&self.sink);
        let plan = OutputPlan::new(order, self.scratch(order));
        let (pipes, output) =
            attach(&order.worker, &plan, sink, &self.files).map_err(|error| error.to_string())?;
        let error_file = plan.error_file;
        let worker = &order.worker;
        let name = format!("{}-{}", worker.slot, worker.incarnation.0);
        let group = self.group.get_or_init(AgentGroup::make).as_ref();
        let group = group.and_then(|group| group.worker(&name));
        if let Some(group) = &group {
            self.children().add_group(group);
        }
        let oom_kills = OomKills::read(group.as_ref().map(WorkerGroup::folder));
        let seat = self.seat();
        let held = seat.as_ref().map(|(seat, _)| seat);
        let error_path = error_file.as_deref();
        let child = match start(order, pipes, error_path, group.as_ref(), held, announcer) {
            Ok(child) => child,
            Err(failure) => {
                self.end_group(group);
                return Err(failure);
            }
        };
        let pid = Pid::from_raw(child.id().cast_signed());
        self.children().add(pid);
        Ok(Spawned { child, pid, output, error_file, group, oom_kills, seat })
    }

    /// Kills the rest of a worker's control group.
    pub(super) fn end_group(&self, group: Option<WorkerGroup>) {
        let Some(group) = group else { return };
        let folder = group.folder().to_owned();
        drop(group);
        self.children().forget_group(&folder);
    }

    /// A seat for a worker's lock, and the channel that reports its owner's death. Without a seat, only the pidfd shows
    /// the end of the process.
    fn seat(&self) -> Option<(Arc<LockSeat>, oneshot::Receiver<()>)> {
        let begin = || {
            let begun = LockWatch::new(uuid::Uuid::new_v4().as_u128());
            let without = "deaths of workers are seen by their pidfds alone";
            begun.inspect_err(|error| tracing::warn!(%error, "{without}")).ok()
        };
        let watch = self.locks.get_or_init(begin).as_ref()?;
        let (tell, died) = oneshot::channel();
        let seat = watch.seat(move || {
            // The receiver is gone if the agent is ending.
            let _ = tell.send(());
        })?;
        Some((Arc::new(seat), died))
    }

    /// The agent's folder for error files, made if the process needs it.
    fn scratch(&self, order: &SpawnOrder) -> Option<&Path> {
        if order.place.is_none() || order.output.directory.is_some() {
            return None;
        }
        let begin = || {
            // The guard knows it by the length of its name, too.
            let made = tempfile::Builder::new().prefix("elastic-node-").rand_bytes(6).tempdir();
            let without = "workers start without error files (TMPDIR names a folder for them)";
            let made = made.inspect_err(|error| tracing::warn!(%error, "{without}")).ok()?;
            self.children().keep_scratch(made.path());
            Some(made)
        };
        self.scratch.get_or_init(begin).as_ref().map(tempfile::TempDir::path)
    }
}

impl ChildProcesses {
    pub(super) fn add(&mut self, pid: Pid) {
        self.pids.insert(pid.as_raw());
        self.guard(pid.to_string(), None);
    }

    /// Adds a control group. To be called before the process is started that enters it.
    fn add_group(&mut self, group: &WorkerGroup) {
        self.guard(group.folder().display().to_string(), group.folder().parent());
    }

    /// Has the guard kill a group if the agent dies.
    fn guard(&mut self, group: String, agents: Option<&Path>) {
        self.groups.insert(group.clone());
        if self.guard.is_some() {
            return self.tell_guard(|guard| guard.add(&group));
        }
        self.start_guard(agents);
    }

    /// Starts another guard where the one that there was has ended: somebody has killed it, or the kernel for want of memory.
    pub(super) fn keep_guarded(&mut self) {
        let Some(guard) = self.guard.take_if(|guard| guard.has_ended()) else { return };
        self.pids.remove(&guard.pid());
        if self.guards_again < GUARDS_AGAIN_MAX {
            self.guards_again += 1;
            tracing::warn!("the guard process has ended: another one is started");
            let agents = guard.agents().map(Path::to_owned);
            self.start_guard(agents.as_deref());
        }
    }

    /// Starts the guard, and tells it of all groups.
    fn start_guard(&mut self, agents: Option<&Path>) {
        let guard = Guard::start(agents);
        self.guard = guard.inspect_err(|error| tracing::warn!(%error, "{GUARD_LESS}")).ok();
        self.pids.extend(self.guard.as_ref().map(Guard::pid));
        for group in self.groups.clone() {
            self.tell_guard(|guard| guard.add(&group));
        }
        if let Some(scratch) = self.scratch.clone() {
            self.tell_guard(|guard| guard.keep_scratch(&scratch));
        }
    }

    /// Has the guard remove the agent's folder for error files if the agent dies.
    fn keep_scratch(&mut self, folder: &Path) {
        self.scratch = Some(folder.to_owned());
        self.tell_guard(|guard| guard.keep_scratch(folder));
    }

    /// Removes a process group. To be called before the leader of the group is reaped, since the system may
    /// reuse its id afterwards.
    pub(super) fn forget(&mut self, group: Pid) {
        self.leave(&group.to_string());
    }

    /// Removes a control group that is gone.
    pub(super) fn forget_group(&mut self, folder: &Path) {
        self.leave(&folder.display().to_string());
    }

    fn leave(&mut self, group: &str) {
        self.groups.remove(group);
        self.tell_guard(|guard| guard.forget(group));
    }

    /// Sends the guard an order. A guard that takes none has died, or is stopped: the next start makes another one.
    fn tell_guard(&mut self, tell: impl FnOnce(&mut Guard) -> std::io::Result<()>) {
        let Some(guard) = &mut self.guard else { return };
        if let Err(error) = tell(guard) {
            tracing::warn!(%error, "{GUARD_LESS}");
            self.pids.remove(&guard.pid());
            // It would take the end of its orders for the end of the agent.
            guard.kill();
            self.guard = None;
        }
    }
}
