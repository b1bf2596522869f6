//! The agent's decisions, without I/O: which processes are started and stopped, what the driver is told,
//! when the agent ends. Called by [`AgentActor`](crate::agent::AgentActor) and by the simulation.
//!
//! Inputs are `handle_*(now, ..)`; after each, `poll_output` is drained and one timer is set to
//! `poll_timeout`. A driver is obeyed from its `Welcome` to the end of its session, and only if neither its
//! term is older (G-2) nor its job another. Ends of processes are reported to an obeyed driver only; until
//! there is one the reports are kept.

mod output;
mod reports;
mod slot;
mod starting;
mod stopping;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use elastic_protocol::messages::{AgentToDriver, DriverToAgent, LiveWorker, OutputSettings};
use elastic_protocol::{Deadlines, ExitStatus, HostName, JobId, ProgramSpec, Term, Time, WorkerId};

use elastic_runtime::planted::{Bug, is_planted};

pub use output::{
    AgentOutput, AgentWarning, Credential, DriverLink, LastWords, SpawnOrder, StopSignal,
};
use reports::Reports;
use slot::{Process, Slot, Stop};

/// What an agent is told when it starts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AgentSettings {
    /// This host's name.
    pub host: HostName,
    /// How many workers it can run at once; at least 1.
    pub slots: u32,
    /// The role of its workers, for scripts of torch that have several. Default: `default`.
    pub role: String,
    /// How long it waits for its first `Welcome`. Default: [`Deadlines::elastic`]'s default, 600 s.
    pub join_within: Duration,
}

impl AgentSettings {
    /// Settings with defaults.
    pub fn new(host: HostName, slots: u32) -> Self {
        let role = "default".to_owned();
        Self { host, slots, role, join_within: Deadlines::default().elastic }
    }
}

/// What the accepted driver said last.
#[derive(Debug)]
struct Welcome {
    job: JobId,
    term: Term,
    program: ProgramSpec,
    deadlines: Deadlines,
    output: Box<OutputSettings>,
}

/// How far the agent's own end is.
#[derive(Debug)]
enum Phase {
    /// It serves.
    Serving,
    /// It asked the driver to take its workers out.
    Draining { reason: String, code: i32, deadline: Time },
    /// It ends as soon as nothing runs any more, at the latest at `give_up_at`.
    Leaving { code: i32, reason: String, give_up_at: Time },
    /// `Exit` was put out.
    Ended,
}

/// The agent, as a state machine.
#[derive(Debug)]
pub struct AgentCore {
    settings: AgentSettings,
    welcome: Option<Welcome>,
    /// Whether a session exists.
    link_up: bool,
    /// Whether its driver was accepted.
    accepted: bool,
    /// Since when no accepted driver is there.
    alone_since: Option<Time>,
    phase: Phase,
    /// Whether the operator has asked it to go.
    drain_asked: bool,
    slots: BTreeMap<u32, Slot>,
    reports: Reports,
    /// When a report that came back is sent again to the same driver.
    retry_at: Option<Time>,
    outputs: VecDeque<AgentOutput>,
}

impl AgentCore {
    /// How long the system may take to end a process after SIGKILL before the agent ends without it. (A
    /// process in uninterruptible sleep, on a dead file system say, does not end.)
    pub const KILL_PATIENCE: Duration = Duration::from_secs(10);

    /// After how long a report that could not be sent, though the driver is there, is sent again.
    pub const RETRY_AFTER: Duration = Duration::from_millis(100);

    /// An agent that has no link yet.
    pub fn new(now: Time, settings: AgentSettings) -> Self {
        Self {
            settings,
            welcome: None,
            link_up: false,
            accepted: false,
            alone_since: Some(now),
            phase: Phase::Serving,
            drain_asked: false,
            slots: BTreeMap::new(),
            reports: Reports::default(),
            retry_at: None,
            outputs: VecDeque::new(),
        }
    }

    /// What to do next; `None` until the next input.
    pub fn poll_output(&mut self) -> Option<AgentOutput> {
        self.outputs.pop_front()
    }

    /// When `handle_timeout` is due, if nothing else happens before.
    pub fn poll_timeout(&self) -> Option<Time> {
        let ending = match self.phase {
            Phase::Ended => return None,
            Phase::Leaving { give_up_at, .. } => Some(give_up_at),
            Phase::Draining { deadline, .. } => Some(deadline),
            Phase::Serving => None,
        };
        let kills = self.processes().filter_map(Process::kill_at);
        let retry = self.retry_at.filter(|_| self.accepted);
        kills.chain(ending).chain(self.alone_until()).chain(retry).min()
    }

    /// The processes that run, with their process ids.
    pub fn live(&self) -> Vec<LiveWorker> {
        self.processes()
            .filter_map(|process| {
                process.pid.map(|pid| LiveWorker { worker: process.worker.clone(), pid })
            })
            .collect()
    }

    /// How many reports no driver has been told yet.
    pub fn unreported(&self) -> usize {
        self.reports.len()
    }

    /// Whether `Exit` was put out: nothing is done any more.
    pub const fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
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
                let AgentSettings { host, slots, role, .. } = self.settings.clone();
                self.send(AgentToDriver::Join { host, slots, role, live });
            }
            DriverLink::Lost { reason } => {
                let was_accepted = self.accepted;
                self.link_up = false;
                self.accepted = false;
                self.alone_since.get_or_insert(now);
                if was_accepted && !self.is_ending() {
                    let host = self.settings.host.clone();
                    let limit_ms = self.deadlines().orphan_training.map(ms);
                    self.warn(AgentWarning::DriverLost { host, reason, limit_ms });
                }
            }
        }
    }

    /// The driver said something. Messages of a session that has ended must not be given any more.
    pub fn handle_driver(&mut self, now: Time, message: DriverToAgent) {
        if self.has_ended() {
            return;
        }
        match message {
            DriverToAgent::Welcome { job, term, program, deadlines, output } => {
                self.welcomed(now, Welcome { job, term, program, deadlines, output });
            }
            DriverToAgent::Refused { reason } => {
                self.leave(now, 1, format!("the driver refused this host: {reason}"), None);
            }
            DriverToAgent::Leave { code, reason } if self.accepted || self.welcome.is_none() => {
                let grace = self.deadlines().grace;
                self.leave(now, code, reason, Some(grace));
            }
            DriverToAgent::Start { worker, environment, place, credential } if self.accepted => {
                let (welcome, credential) = (&self.welcome, Credential(credential));
                let Some(Welcome { program, output, .. }) = welcome else { return };
                let (program, output) = (program.clone(), OutputSettings::clone(output));
                self.start(
                    now,
                    SpawnOrder { worker, program, environment, place, credential, output },
                );
            }
            DriverToAgent::Stop { worker, grace_ms, reason } if self.accepted => {
                self.stop(now, worker, Duration::from_millis(grace_ms), reason);
            }
            DriverToAgent::Leave { .. } => self.not_welcomed("Leave"),
            DriverToAgent::Start { .. } => self.not_welcomed("Start"),
            DriverToAgent::Stop { .. } => self.not_welcomed("Stop"),
        }
        self.end_if_empty();
    }

    /// A message to the driver came back undelivered. An end is reported to the next accepted driver, or
    /// again to this one after [`Self::RETRY_AFTER`]; the rest is told by the next `Join` and `Drain` anyway.
    pub fn handle_undeliverable(&mut self, now: Time, message: AgentToDriver) {
        if matches!(message, AgentToDriver::Exited { .. } | AgentToDriver::StartFailed { .. }) {
            self.keep(message);
            self.retry_at = Some(now + Self::RETRY_AFTER);
        }
    }

    /// A process was started, or could not be.
    pub fn handle_spawned(&mut self, now: Time, worker: &WorkerId, result: Result<u32, String>) {
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
            Err(reason) => {
                self.report(AgentToDriver::StartFailed { worker: worker.clone(), reason });
                self.vacate(worker);
            }
        }
        self.end_if_empty();
    }

    /// A process ended, with these last words.
    pub fn handle_exited(
        &mut self,
        worker: &WorkerId,
        status: ExitStatus,
        said: impl Into<LastWords>,
    ) {
        let Some(process) = self.process_mut(worker) else {
            self.warn(AgentWarning::UnknownProcess { worker: worker.clone() });
            return;
        };
        let stopped_by = process.stop.as_ref().map(|stop| stop.by);
        let killed_after_grace = process.stop.as_ref().is_some_and(Stop::killed_after_grace);
        let LastWords { tail, error } = said.into();
        let tail = last_bytes(tail, AgentToDriver::TAIL_BYTES_MAX);
        let exited = worker.clone();
        let is_signal = matches!(status, ExitStatus::Signal(_));
        if !(is_signal && is_planted(Bug::DeathNotReported)) {
            self.report(AgentToDriver::Exited {
                worker: exited,
                status,
                stopped_by,
                killed_after_grace,
                tail,
                error,
            });
        }
        self.vacate(worker);
        self.end_if_empty();
    }

    /// The agent was told by its operator to go (SIGTERM, SIGINT). The first time the driver is asked to
    /// take the workers out, for at most the grace period; the second time everything ends at once, with
    /// `code` (128 + the signal's number).
    pub fn handle_drain(&mut self, now: Time, reason: &str, code: i32) {
        let again = std::mem::replace(&mut self.drain_asked, true);
        match self.phase {
            Phase::Ended => return,
            Phase::Leaving { .. } if !again => return,
            Phase::Serving => {
                let deadline = now + self.deadlines().grace;
                let code = if self.welcome.is_some() { 0 } else { code };
                self.phase = Phase::Draining { reason: reason.to_owned(), code, deadline };
                if self.accepted {
                    self.send(AgentToDriver::Drain { reason: reason.to_owned() });
                }
            }
            Phase::Draining { .. } | Phase::Leaving { .. } => {
                self.leave(now, code, format!("{reason}, again: ended at once"), None);
            }
        }
        self.end_if_empty();
    }

    /// A moment that `poll_timeout` named has come; too early a call does nothing.
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
            Phase::Draining { reason, code, deadline } if *deadline <= now => {
                let grace = self.deadlines().grace;
                let code = *code;
                let reason = format!("{reason}; the driver did not take the workers out in time");
                self.leave(now, code, reason, Some(grace));
            }
            Phase::Leaving { give_up_at, .. } if *give_up_at <= now => self.give_up(),
            _ => {}
        }
        self.end_if_empty();
    }

    fn welcomed(&mut self, now: Time, theirs: Welcome) {
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
        if let Phase::Draining { reason, .. } = &self.phase {
            let reason = reason.clone();
            self.send(AgentToDriver::Drain { reason });
        }
    }

    /// Tells the driver every process id that it has not been told.
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

    /// Tells an accepted driver now, or the next one.
    fn report(&mut self, report: AgentToDriver) {
        if self.accepted { self.send(report) } else { self.keep(report) }
    }

    /// Tells an accepted driver what no other was told.
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

    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.slots.values().filter_map(|slot| slot.current.as_ref())
    }

    fn processes_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        self.slots.values_mut().filter_map(|slot| slot.current.as_mut())
    }

    fn process_mut(&mut self, worker: &WorkerId) -> Option<&mut Process> {
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
