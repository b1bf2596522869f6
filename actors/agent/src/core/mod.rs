//! The agent's core, without I/O: it decides which processes are started and stopped, which reports go to the
//! driver, and when the agent ends. Called by [`AgentActor`](crate::AgentActor) and by the simulation.
//!
//! Inputs are `handle_*(now, ..)`; after each, `poll_output` is drained and one timer is set to `poll_timeout`.
//! A driver is accepted at its `AcceptedWelcome`, unless its term is older (G-2) or its job is another one. An accepted
//! driver is obeyed until its session ends. Exits of processes are reported to an accepted driver only; until
//! there is one the reports are kept.

mod health;
mod inspecting;
mod invariants;
mod output;
mod reports;
mod slot;
mod starting;
mod stopping;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use elastic_protocol::messages::{
    AgentToDriver, DriverToAgent, JobCommand, LaneStatus, LibraryTrace, LiveWorker, OutputSettings,
};
use elastic_protocol::{Deadlines, ExitStatus, HostName, JobId, ProgramSpec, Term, Time, WorkerId};

use elastic_protocol::planted::{Bug, is_planted};

pub use output::{
    AgentOutput, AgentWarning, DriverLink, LastWords, SpawnOrder, StartFailure, StopSignal,
    WorkerCredential,
};
use reports::Reports;
use slot::{AgentSlot, OrderedStop, SlotProcess};

/// Settings of an agent, given at its start.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AgentSettings {
    /// This host's name.
    pub host: HostName,
    /// The number of workers that this host can run at once; at least 1.
    pub slots: u32,
    /// The role of this host's workers, for torch scripts that have several roles. Default: `default`.
    pub role: String,
    /// An address of this host, with a port that was free, at which workers of other hosts can meet a program
    /// of this host; `None` if unknown. The driver is told.
    pub meeting: Option<SocketAddr>,
    /// The name of the job that this host was told to join (`--rdzv-id`), if it was told one. A driver of a job with another name
    /// refuses the host. Default: none.
    pub run_id: Option<String>,
    /// The job as this host's command describes it, if the job is started on each of its hosts (`--nnodes`). A driver of a job with
    /// another command refuses the host. Default: none.
    pub nodes: Option<JobCommand>,
    /// Timeout for the first `AcceptedWelcome`. Default: [`Deadlines::elastic`]'s default, 600 s.
    pub join_within: Duration,
}

impl AgentSettings {
    /// Settings with defaults.
    pub fn new(host: HostName, slots: u32) -> Self {
        let role = "default".to_owned();
        let join_within = Deadlines::default().elastic;
        Self { host, slots, role, meeting: None, run_id: None, nodes: None, join_within }
    }
}

/// The latest `AcceptedWelcome` of an accepted driver.
#[derive(Debug)]
struct AcceptedWelcome {
    job: JobId,
    term: Term,
    program: ProgramSpec,
    deadlines: Deadlines,
    output: Box<OutputSettings>,
}

/// The agent's own progress from serving to its end.
#[derive(Debug)]
enum AgentPhase {
    /// The agent serves its driver.
    Serving,
    /// The agent has asked the driver to take its workers out.
    Draining { reason: String, code: i32, deadline: Time },
    /// The agent ends as soon as no process runs any more, at the latest at `give_up_at`.
    Leaving { code: i32, reason: String, give_up_at: Time },
    /// `Exit` was put out.
    Ended,
}

/// The agent, as a state machine.
#[derive(Debug)]
pub struct AgentCore {
    settings: AgentSettings,
    /// The lanes of this process that do not answer, and the time of that look at them.
    hanging: (Time, Vec<LaneStatus>),
    welcome: Option<AcceptedWelcome>,
    /// Whether a session with a driver exists.
    link_up: bool,
    /// Whether the driver of this session was accepted.
    accepted: bool,
    /// The time since which no accepted driver is connected.
    alone_since: Option<Time>,
    phase: AgentPhase,
    /// Whether the operator has asked this host to leave.
    drain_asked: bool,
    slots: BTreeMap<u32, AgentSlot>,
    /// Workers whose process has ended and whose last words are still being read.
    speechless: BTreeSet<WorkerId>,
    reports: Reports,
    /// The number of the question that the health check under way answers.
    health_check: Option<u64>,
    /// The time at which undelivered reports are sent to the same driver again.
    retry_at: Option<Time>,
    outputs: VecDeque<AgentOutput>,
}

impl AgentCore {
    /// Timeout for a process to end after SIGKILL; past it the agent ends without it. (A process in
    /// uninterruptible sleep, for example on a dead file system, does not end.)
    pub const KILL_PATIENCE: Duration = Duration::from_secs(10);

    /// Delay before an undelivered report is sent again to a driver that is still connected.
    pub const RETRY_AFTER: Duration = Duration::from_millis(100);

    /// An agent without a link.
    pub fn new(now: Time, settings: AgentSettings) -> Self {
        Self {
            settings,
            hanging: (now, Vec::new()),
            welcome: None,
            link_up: false,
            accepted: false,
            alone_since: Some(now),
            phase: AgentPhase::Serving,
            drain_asked: false,
            slots: BTreeMap::new(),
            speechless: BTreeSet::new(),
            reports: Reports::default(),
            health_check: None,
            retry_at: None,
            outputs: VecDeque::new(),
        }
    }

    /// The next output; `None` until the next input.
    pub fn poll_output(&mut self) -> Option<AgentOutput> {
        let output = self.outputs.pop_front();
        if output.is_none() {
            debug_assert_eq!(self.check(), Ok(()));
        }
        output
    }

    /// The time at which `handle_timeout` is due, unless another input comes first.
    pub fn poll_timeout(&self) -> Option<Time> {
        let ending = match self.phase {
            AgentPhase::Ended => return None,
            AgentPhase::Leaving { give_up_at, .. } => Some(give_up_at),
            AgentPhase::Draining { deadline, .. } => Some(deadline),
            AgentPhase::Serving => None,
        };
        let kills = self.processes().filter_map(SlotProcess::kill_at);
        let retry = self.retry_at.filter(|_| self.accepted);
        kills.chain(ending).chain(self.alone_until()).chain(retry).min()
    }

    /// The processes that run, with their process ids.
    pub fn live(&self) -> Vec<LiveWorker> {
        self.processes()
            .filter_map(|process| {
                let is_being_stopped =
                    process.stop.is_some() && !is_planted(Bug::StopNotToldAtJoin);
                let worker = process.worker.clone();
                process.pid.map(|pid| LiveWorker { worker, pid, is_being_stopped })
            })
            .collect()
    }

    /// The number of reports that no driver has received yet.
    pub fn unreported(&self) -> usize {
        self.reports.len()
    }

    /// Whether `Exit` was put out; the core then does nothing any more.
    pub const fn has_ended(&self) -> bool {
        matches!(self.phase, AgentPhase::Ended)
    }

    /// The link to the driver changed.
    pub fn handle_link(&mut self, now: Time, link: DriverLink) {
        match link {
            DriverLink::Up => {
                self.link_up = true;
                self.accepted = false;
                self.alone_since.get_or_insert(now);
                if self.is_ending() {
                    return;
                }
                let live = self.live();
                for process in self.processes_mut() {
                    process.announced = process.pid.is_some();
                }
                let AgentSettings { host, slots, role, meeting, run_id, mut nodes, .. } =
                    self.settings.clone();
                if let (Some(nodes), Some(_)) = (&mut nodes, &self.welcome) {
                    nodes.settings.clear();
                }
                self.send(AgentToDriver::Join { host, slots, role, meeting, run_id, nodes, live });
            }
            DriverLink::Silent { silent_ms } => {
                // The session may recover. Until then this host counts as alone, as without a session.
                if u128::from(silent_ms) >= self.deadlines().lost.as_millis() {
                    self.begin_alone(now, format!("not heard for {silent_ms} ms"));
                }
            }
            DriverLink::Heard => {
                if self.accepted {
                    self.alone_since = None;
                }
            }
            DriverLink::Lost { reason } => {
                self.link_up = false;
                self.begin_alone(now, reason);
                self.accepted = false;
            }
        }
    }

    /// The host has another address, or other lanes of this process hang than before. The driver is told, now or
    /// after its next `Welcome`.
    pub fn handle_host_changed(
        &mut self,
        now: Time,
        meeting: Option<SocketAddr>,
        mut hanging: Vec<LaneStatus>,
    ) {
        self.settings.meeting = meeting;
        hanging.truncate(AgentToDriver::LANES_MAX);
        self.hanging = (now, hanging);
        if self.accepted {
            self.say_changed(now);
        }
    }

    /// Tells the driver of this host, with the lanes' ages of now: it may be welcomed long after the look at them.
    fn say_changed(&mut self, now: Time) {
        let (looked_at, hanging) = &self.hanging;
        let hanging = hanging.iter().map(|lane| lane.after(now.since(*looked_at))).collect();
        let meeting = self.settings.meeting;
        self.send(AgentToDriver::HostChanged { meeting, hanging });
    }

    fn begin_alone(&mut self, now: Time, reason: String) {
        if self.alone_since.is_none() && self.accepted && !self.is_ending() {
            let host = self.settings.host.clone();
            let limit_ms = self.deadlines().orphan_training.map(ms);
            self.warn(AgentWarning::DriverLost { host, reason, limit_ms });
        }
        self.alone_since.get_or_insert(now);
    }

    /// Whether a message of a driver of this term is heeded: no driver of a later term has welcomed this host (G-2). Only
    /// `Refused` needs this: it comes instead of the `Welcome` that the other messages come after.
    pub fn heeds(&self, term: Term, message: &DriverToAgent) -> bool {
        let is_former = self.welcome.as_ref().is_some_and(|welcome| term < welcome.term);
        !(is_former && matches!(message, DriverToAgent::Refused { .. }))
            || is_planted(Bug::FormerDriverObeyed)
    }

    /// A message of the driver. The shell must not pass on messages of a session that has ended.
    pub fn handle_driver(&mut self, now: Time, message: DriverToAgent) {
        if self.has_ended() {
            return;
        }
        match message {
            DriverToAgent::Welcome { job, term, program, deadlines, output } => {
                self.welcomed(now, AcceptedWelcome { job, term, program, deadlines, output });
            }
            DriverToAgent::Refused { reason } => {
                self.leave(now, 1, format!("the driver refused this host: {reason}"), None);
            }
            DriverToAgent::Leave { code, reason } if self.accepted || self.welcome.is_none() => {
                let grace = self.deadlines().grace;
                self.leave(now, code, reason, Some(grace));
            }
            DriverToAgent::Start { worker, environment, place, credential } if self.accepted => {
                let (welcome, credential) = (&self.welcome, WorkerCredential(credential));
                let Some(AcceptedWelcome { program, output, .. }) = welcome else { return };
                let (program, output) = (program.clone(), OutputSettings::clone(output));
                self.start(
                    now,
                    SpawnOrder { worker, program, environment, place, credential, output },
                );
            }
            DriverToAgent::Stop { worker, grace_ms, reason } if self.accepted => {
                self.stop(now, worker, Duration::from_millis(grace_ms), reason);
            }
            DriverToAgent::Inspect { worker, with_stack } if self.accepted => {
                self.inspect(worker, with_stack);
            }
            DriverToAgent::CheckHealth { number, command, timeout_ms } if self.accepted => {
                self.check_health(number, command, Duration::from_millis(timeout_ms));
            }
            DriverToAgent::CheckHealth { .. } => self.not_welcomed("CheckHealth"),
            DriverToAgent::Leave { .. } => self.not_welcomed("Leave"),
            DriverToAgent::Start { .. } => self.not_welcomed("Start"),
            DriverToAgent::Stop { .. } => self.not_welcomed("Stop"),
            DriverToAgent::Inspect { .. } => self.not_welcomed("Inspect"),
        }
        self.end_if_empty();
    }

    /// A message to the driver came back undelivered. A report is kept for the next accepted driver, or sent to
    /// this one again after [`Self::RETRY_AFTER`]. Other messages are not kept: the next `Join` and `Drain`
    /// repeat their content.
    pub fn handle_undeliverable(&mut self, now: Time, message: AgentToDriver) {
        let is_report = matches!(
            message,
            AgentToDriver::Exited { .. }
                | AgentToDriver::LastWords { .. }
                | AgentToDriver::StartFailed { .. }
        );
        if is_report {
            self.keep(message);
            self.retry_at = Some(now + Self::RETRY_AFTER);
        }
    }

    /// The result of a spawn: the process id, or why the process could not be started.
    pub fn handle_spawned(
        &mut self,
        now: Time,
        worker: &WorkerId,
        result: Result<u32, StartFailure>,
    ) {
        let Some(process) = self.process_mut(worker).filter(|process| process.pid.is_none()) else {
            self.warn(AgentWarning::UnknownProcess { worker: worker.clone() });
            return;
        };
        match result {
            Ok(pid) => {
                process.pid = Some(pid);
                if self.accepted {
                    self.announce();
                }
                self.carry_out_stop(now, worker);
            }
            Err(StartFailure { reason, is_programs }) => {
                let worker_id = worker.clone();
                self.report(AgentToDriver::StartFailed { worker: worker_id, reason, is_programs });
                self.vacate(worker);
            }
        }
        self.end_if_empty();
    }

    /// The lock of a worker has lost its owner: the worker is dead, and the end of its process follows, unless it has
    /// replaced its program. The driver is told at once.
    pub fn handle_dying(&mut self, worker: &WorkerId) {
        // The two witnesses may come in any order: the end of the process says more.
        let Some(process) = self.process_mut(worker).filter(|process| !process.is_dying) else {
            return;
        };
        process.is_dying = true;
        if self.accepted {
            self.send(AgentToDriver::Dying { worker: worker.clone() });
        }
    }

    /// Tells this session's driver of the deaths whose processes have not ended.
    fn repeat_deaths(&mut self) {
        let dying: Vec<_> = self
            .processes()
            .filter(|process| process.is_dying)
            .map(|process| AgentToDriver::Dying { worker: process.worker.clone() })
            .collect();
        for message in dying {
            self.send(message);
        }
    }

    /// A process ended; `library` is its use of the library. The driver is told at once; the last words follow through
    /// [`Self::handle_last_words`].
    pub fn handle_exited(&mut self, worker: &WorkerId, status: ExitStatus, library: LibraryTrace) {
        let Some(process) = self.process_mut(worker) else {
            self.warn(AgentWarning::UnknownProcess { worker: worker.clone() });
            return;
        };
        let stopped_by = process.stop.as_ref().map(|stop| stop.by);
        let killed_after_grace = process.stop.as_ref().is_some_and(OrderedStop::killed_after_grace);
        let exited = worker.clone();
        let is_signal = matches!(status, ExitStatus::Signal(_));
        let is_omitted = is_signal && is_planted(Bug::DeathNotReported)
            || process.is_dying && is_planted(Bug::ExitOmittedAfterDeath);
        if !is_omitted {
            self.report(AgentToDriver::Exited {
                worker: exited,
                status,
                stopped_by,
                killed_after_grace,
                library,
            });
        }
        self.speechless.insert(worker.clone());
        self.vacate(worker);
        self.end_if_empty();
    }

    /// The last words of a process that has ended.
    pub fn handle_last_words(&mut self, worker: &WorkerId, said: LastWords) {
        if !self.speechless.remove(worker) {
            self.warn(AgentWarning::UnknownProcess { worker: worker.clone() });
            return;
        }
        let LastWords { tail, error, out_of_memory } = said;
        let tail = last_bytes(tail, AgentToDriver::TAIL_BYTES_MAX);
        let worker = worker.clone();
        self.report(AgentToDriver::LastWords { worker, tail, error, out_of_memory });
        self.end_if_empty();
    }

    /// The operator asks this host to leave (SIGTERM, SIGINT). The first request asks the driver to take the
    /// workers out, within the grace period. The second request ends everything at once, with exit code `code`
    /// (128 + the signal's number).
    pub fn handle_drain(&mut self, now: Time, reason: &str, code: i32) {
        let again = std::mem::replace(&mut self.drain_asked, true);
        match self.phase {
            AgentPhase::Ended => return,
            AgentPhase::Leaving { .. } if !again => return,
            AgentPhase::Serving => {
                let deadline = now + self.deadlines().grace;
                let code = if self.welcome.is_some() { 0 } else { code };
                self.phase = AgentPhase::Draining { reason: reason.to_owned(), code, deadline };
                if self.accepted {
                    self.send(AgentToDriver::Drain { reason: reason.to_owned() });
                }
            }
            AgentPhase::Draining { .. } | AgentPhase::Leaving { .. } => {
                self.leave(now, code, format!("{reason}, again: ended at once"), None);
            }
        }
        self.end_if_empty();
    }

    /// The time that `poll_timeout` named has come. A call before that time does nothing.
    pub fn handle_timeout(&mut self, now: Time) {
        let due: Vec<_> = self
            .processes()
            .filter(|process| process.kill_at().is_some_and(|at| at <= now))
            .map(|process| process.worker.clone())
            .collect();
        for worker in due {
            self.carry_out_stop(now, &worker);
        }
        if self.accepted && self.retry_at.is_some_and(|at| at <= now) {
            self.catch_up();
        }
        if self.alone_until().is_some_and(|until| until <= now) {
            self.alone_too_long(now);
        }
        match &self.phase {
            AgentPhase::Draining { reason, code, deadline } if *deadline <= now => {
                let grace = self.deadlines().grace;
                let code = *code;
                let reason = format!("{reason}; the driver did not take the workers out in time");
                self.leave(now, code, reason, Some(grace));
            }
            AgentPhase::Leaving { give_up_at, .. } if *give_up_at <= now => self.give_up(),
            _ => {}
        }
        self.end_if_empty();
    }

    fn welcomed(&mut self, now: Time, theirs: AcceptedWelcome) {
        if let Some(ours) = &self.welcome {
            if theirs.job != ours.job {
                let warning = AgentWarning::OtherJob { ours: ours.job, theirs: theirs.job };
                let reason = warning.to_string();
                self.warn(warning);
                self.leave(now, 1, reason, None);
                return;
            }
            if theirs.term < ours.term && !is_planted(Bug::FormerDriverObeyed) {
                self.warn(AgentWarning::OldTerm { ours: ours.term, theirs: theirs.term });
                return;
            }
        }
        self.welcome = Some(theirs);
        if !self.link_up {
            return;
        }
        self.accepted = true;
        self.alone_since = None;
        self.announce();
        self.catch_up();
        self.repeat_deaths();
        if !self.hanging.1.is_empty() {
            self.say_changed(now);
        }
        // The agent may have given up its drain before it could say of it: nothing is to be started here either way.
        if let AgentPhase::Draining { reason, .. } | AgentPhase::Leaving { reason, .. } =
            &self.phase
        {
            let reason = reason.clone();
            self.send(AgentToDriver::Drain { reason });
        }
    }

    /// Reports every process id that this session's driver does not know yet.
    fn announce(&mut self) {
        let mut started = Vec::new();
        for process in self.processes_mut().filter(|process| !process.announced) {
            if let Some(pid) = process.pid {
                process.announced = true;
                started.push(AgentToDriver::Started { worker: process.worker.clone(), pid });
            }
        }
        for message in started {
            self.send(message);
        }
    }

    /// Sends a report to the accepted driver, or keeps it for the next one.
    fn report(&mut self, report: AgentToDriver) {
        if self.accepted { self.send(report) } else { self.keep(report) }
    }

    /// Sends the kept reports to the accepted driver.
    fn catch_up(&mut self) {
        self.retry_at = None;
        for report in self.reports.take() {
            self.send(report);
        }
    }

    fn keep(&mut self, report: AgentToDriver) {
        let count = self.reports.keep(report);
        if count > 0 {
            self.warn(AgentWarning::ReportsDropped { count });
        }
    }

    fn not_welcomed(&mut self, order: &'static str) {
        self.warn(AgentWarning::NotWelcomed { order });
    }

    fn send(&mut self, message: AgentToDriver) {
        self.outputs.push_back(AgentOutput::ToDriver(message));
    }

    fn warn(&mut self, warning: AgentWarning) {
        self.outputs.push_back(AgentOutput::Warn(warning));
    }

    fn deadlines(&self) -> Deadlines {
        self.welcome.as_ref().map_or_else(Deadlines::default, |welcome| welcome.deadlines)
    }

    fn processes(&self) -> impl Iterator<Item = &SlotProcess> {
        self.slots.values().filter_map(|slot| slot.current.as_ref())
    }

    fn processes_mut(&mut self) -> impl Iterator<Item = &mut SlotProcess> {
        self.slots.values_mut().filter_map(|slot| slot.current.as_mut())
    }

    fn process_mut(&mut self, worker: &WorkerId) -> Option<&mut SlotProcess> {
        let slot = self.slots.get_mut(&worker.slot)?;
        slot.current.as_mut().filter(|process| process.worker == *worker)
    }
}

/// The end of a text, cut at a character, of at most `max` bytes.
fn last_bytes(text: String, max: usize) -> String {
    let Some(mut from) = text.len().checked_sub(max) else { return text };
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].to_owned()
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
