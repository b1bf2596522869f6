//! `SystemProcesses`: the process port for real processes. Used by the command line.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::process::Child;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Recipient;
use elastic_protocol::messages::LibraryTrace;
use elastic_protocol::{ExitStatus, WorkerId, environment};
use elastic_robust_lock::LockSeat;
use elastic_runtime::{BlockingLane, DroppingWriterTrouble, OffloadPort};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::super::core::{LastWords, SpawnOrder, StartFailure, StopSignal};
use super::super::output::{OutputSink, TAIL_PATIENCE};
use super::announcement::{Announcement, announcement};
use super::exit_watch::{ExitWatch, has_ended};
use super::health_check::HealthChecker;
use super::inspection::Inspector;
use super::starting::{Spawned, Starter};
use super::{ProcessEvent, ProcessPort, error_file, orphans};

/// Processes of this machine.
///
/// The port belongs to one thread, which has to live as long as the agent, in a `LocalSet` of a tokio runtime
/// with I/O and time. Processes are started on a thread of their own, so that a start that hangs holds nothing
/// else up. Dropping the port kills every process group that is left.
pub struct SystemProcesses {
    starter: Starter,
    lane: OffloadPort,
    inspector: Inspector,
    health_checker: HealthChecker,
    live: Rc<RefCell<Live>>,
    adopts: Rc<Cell<bool>>,
}

impl std::fmt::Debug for SystemProcesses {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SystemProcesses").field("live", &self.live).finish_non_exhaustive()
    }
}

/// The workers' own processes: each leads a session and a process group.
#[derive(Clone, Debug)]
pub struct Leaders(Rc<RefCell<Live>>);

impl Leaders {
    /// The workers whose processes were started and not reaped, with the process ids. One whose program runs is among
    /// them, also where the start has not returned yet.
    pub fn all(&self) -> Vec<(WorkerId, u32)> {
        let live = self.0.borrow();
        let started = live.processes.iter();
        let started = started.map(|(it, pid)| (it.clone(), pid.as_raw().unsigned_abs()));
        let starting = live.starting.iter();
        started.chain(starting.filter_map(|(it, told)| Some((it.clone(), told.id()?)))).collect()
    }
}

/// Processes that were not reaped.
#[derive(Debug, Default)]
struct Live {
    /// Processes whose start has returned. The system does not reuse their ids.
    processes: BTreeMap<WorkerId, Pid>,
    /// Processes whose start has not returned.
    starting: BTreeMap<WorkerId, Announcement>,
}

impl SystemProcesses {
    /// A port without processes. `sink` shows their output.
    pub fn new(sink: Arc<dyn OutputSink>) -> Self {
        let (starter, lane) = (Starter::new(sink), OffloadPort::lane(BlockingLane::PROCESSES));
        let inspector = Inspector::new();
        let (live, adopts) = (Rc::default(), Rc::default());
        let health_checker = HealthChecker::new(starter.clone(), lane.clone(), Rc::clone(&adopts));
        Self { starter, lane, inspector, health_checker, live, adopts }
    }

    /// Adopts orphans, which workers leave behind outside of their process groups: reaps them, and kills them
    /// when their worker ends. Only for a program that has no other children.
    ///
    /// # Errors
    /// If SIGCHLD cannot be received.
    pub fn adopt_orphans(&self) -> std::io::Result<()> {
        orphans::adopt();
        self.adopts.set(true);
        let mut ended = signal(SignalKind::child())?;
        let (starter, lane) = (self.starter.clone(), self.lane.clone());
        spawn_local(async move {
            while ended.recv().await.is_some() {
                let starter = starter.clone();
                // Signals that arrive meanwhile are merged into one.
                let reaped = lane.run("reap", move || orphans::reap(&starter)).await;
                if let Err(error) = reaped {
                    tracing::debug!(%error, "orphans are not reaped");
                }
            }
        });
        Ok(())
    }

    /// A view of the workers' own processes, which stays up to date.
    pub fn leaders(&self) -> Leaders {
        Leaders(Rc::clone(&self.live))
    }

    /// The lane on which processes are started, to be watched.
    pub fn lane(&self) -> OffloadPort {
        self.lane.clone()
    }

    /// The lanes on which processes are looked at, to be watched.
    pub fn inspection_lanes(&self) -> [OffloadPort; 2] {
        self.inspector.lanes()
    }

    /// The lane on which health checks are started, to be watched.
    pub fn health_lane(&self) -> OffloadPort {
        self.health_checker.lane()
    }

    /// Tells, at any time, which output file has not been written for longest, if one hangs.
    pub fn output_files(&self) -> impl Fn() -> Option<DroppingWriterTrouble> + 'static {
        let files = self.starter.files.clone();
        move || files.hanging()
    }
}

/// The status of a process that was killed by a signal which it cannot handle.
const KILLED: ExitStatus = ExitStatus::Signal(Signal::SIGKILL as i32);

/// A process that was started, with the watch over its end.
struct StartedProcess {
    spawned: Spawned,
    watch: ExitWatch,
}

impl StartedProcess {
    fn watch(mut spawned: Spawned) -> Result<Self, StartFailure> {
        match ExitWatch::new(spawned.pid) {
            Ok(watch) => Ok(Self { spawned, watch }),
            Err(error) => {
                // The end of this process could not be seen, so it must not live.
                kill_group(spawned.pid);
                let _ = spawned.child.wait();
                let reason = format!("the end of a process cannot be watched: {error}");
                Err(StartFailure::from(reason))
            }
        }
    }
}

/// The context of one process, from its start to its end.
struct ProcessContext {
    worker: WorkerId,
    /// The worker's mark in the environment of its descendants, by which orphans are recognised.
    mark: Option<String>,
    starter: Starter,
    lane: OffloadPort,
    live: Rc<RefCell<Live>>,
    adopts: Rc<Cell<bool>>,
    events: Recipient<ProcessEvent>,
}

impl ProcessContext {
    async fn run(self, order: SpawnOrder) {
        let (starter, worker) = (self.starter.clone(), self.worker.clone());
        // Without a descriptor for it, the id is known when the start has returned.
        let (announcer, announcement) = announcement().ok().unzip();
        self.live.borrow_mut().starting.extend(announcement.map(|told| (worker.clone(), told)));
        let spawned = self.lane.run("start", move || starter.start(&order, announcer)).await;
        let spawned = spawned.map_err(|error| StartFailure::from(error.to_string()));
        let spawned = spawned.and_then(|spawned| spawned);
        let started = spawned.and_then(StartedProcess::watch);
        let result = match &started {
            Ok(started) => Ok(started.spawned.pid.as_raw().unsigned_abs()),
            Err(failure) => Err(failure.clone()),
        };
        {
            let mut live = self.live.borrow_mut();
            live.starting.remove(&worker);
            if let Ok(StartedProcess { spawned, .. }) = &started {
                live.processes.insert(worker.clone(), spawned.pid);
            }
        }
        self.events.do_send(ProcessEvent::Spawned { worker, result });
        if let Ok(started) = started {
            self.see_to_its_end(started).await;
        }
    }

    async fn see_to_its_end(self, started: StartedProcess) {
        let StartedProcess { spawned, watch } = started;
        let Spawned { child, pid, output, error_file, group, oom_kills, seat } = spawned;
        let seat = seat.map(|(seat, died)| {
            spawn_local(tell_of_death(died, self.worker.clone(), self.events.clone()));
            seat
        });
        watch.ended().await;
        let library = seat.as_deref().map_or_else(LibraryTrace::default, library_of);
        drop(seat);
        let Self { worker, starter, lane, live, events, .. } = self;
        let status = live.borrow_mut().bury(&worker, pid, child, &starter);
        let oom_kills = oom_kills.filter(|_| status == KILLED);
        // Read before the group is gone, and its counter with it.
        let explained = lane.run("oom kills", move || oom_kills?.explain());
        if group.is_some() {
            let starter = starter.clone();
            drop(lane.run("end group", move || starter.end_group(group)));
        }
        if let Some(mark) = self.mark.filter(|_| self.adopts.get()) {
            orphans::end_on(&lane, &starter, mark);
        }
        events.do_send(ProcessEvent::Exited { worker: worker.clone(), status, library });
        let tail = output.finish().await;
        let error = match error_file {
            Some(path) => {
                let read = lane.run("error file", move || error_file::read(&path));
                // A folder that hangs counts as no error file.
                timeout(TAIL_PATIENCE, read).await.ok().and_then(Result::ok).flatten()
            }
            None => None,
        };
        let explained = timeout(TAIL_PATIENCE, explained).await.ok().and_then(Result::ok);
        let said = LastWords { tail, error, out_of_memory: explained.flatten() };
        events.do_send(ProcessEvent::LastWords { worker, said });
    }
}

/// A process's use of the library, by its seat: the library takes the seat, and leaves a note where the driver has refused it.
fn library_of(seat: &LockSeat) -> LibraryTrace {
    match seat.note() {
        Some(release) => LibraryTrace::Refused(release),
        None if seat.was_taken() => LibraryTrace::Used,
        None => LibraryTrace::Unseen,
    }
}

/// Tells of the death of a lock's owner, if it comes before the end of the process is seen.
async fn tell_of_death(
    died: oneshot::Receiver<()>,
    worker: WorkerId,
    events: Recipient<ProcessEvent>,
) {
    if died.await.is_ok() {
        events.do_send(ProcessEvent::Dying { worker });
    }
}

impl ProcessPort for SystemProcesses {
    fn spawn(&mut self, order: SpawnOrder, events: Recipient<ProcessEvent>) {
        let marks = order.environment.iter().rev();
        let mark = marks.into_iter().find(|(name, _)| name == environment::WORKER);
        let course = ProcessContext {
            worker: order.worker.clone(),
            mark: mark.map(|(_, value)| orphans::mark_of_worker(value)),
            starter: self.starter.clone(),
            lane: self.lane.clone(),
            live: Rc::clone(&self.live),
            adopts: Rc::clone(&self.adopts),
            events,
        };
        spawn_local(course.run(order));
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

    fn inspect(&mut self, worker: &WorkerId, with_stack: bool, events: Recipient<ProcessEvent>) {
        let Some(pid) = self.live.borrow().processes.get(worker).copied() else { return };
        let (worker, live) = (worker.clone(), Rc::clone(&self.live));
        let inspector = self.inspector.clone();
        spawn_local(async move {
            // A process that was reaped is not there any more, and its id may be another one's. One that has ended may be known
            // to have only in a moment.
            let is_known = || live.borrow().processes.get(&worker) == Some(&pid);
            let is_alive = || is_known() && !has_ended(pid);
            if let Some(sight) = inspector.look(pid, with_stack, is_alive).await {
                events.do_send(ProcessEvent::Inspected { worker, sight: Box::new(sight) });
            }
        });
    }

    fn check_health(
        &mut self,
        command: String,
        timeout: Duration,
        events: Recipient<ProcessEvent>,
    ) {
        let checker = self.health_checker.clone();
        spawn_local(async move {
            let failure = checker.run(command, timeout).await;
            events.do_send(ProcessEvent::HealthChecked { failure });
        });
    }
}

impl Live {
    /// Kills the rest of the group of a process that has ended, and reaps the process.
    fn bury(
        &mut self,
        worker: &WorkerId,
        pid: Pid,
        mut child: Child,
        starter: &Starter,
    ) -> ExitStatus {
        kill_group(pid);
        starter.children().forget(pid);
        self.processes.remove(worker);
        let reaped = child.wait();
        starter.children().pids.remove(&pid.as_raw());
        match reaped {
            Ok(status) => status.into(),
            Err(error) => {
                // Other code in this process waits for any child, so the exit status is unknown.
                tracing::error!(%worker, %pid, %error, "it was reaped by somebody else");
                ExitStatus::Code(UNKNOWN_CODE)
            }
        }
    }
}

/// The exit code that is reported if the real one is unknown.
const UNKNOWN_CODE: i32 = 255;

/// Kills a process group whose leader was not reaped. An empty group is no error.
pub(super) fn kill_group(group: Pid) {
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
