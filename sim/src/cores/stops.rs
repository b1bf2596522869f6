//! Rules of stopping (G-11): a node that is told to leave is gone in time, and no process is signalled without an order
//! or killed before its grace is over. Called when an agent hears an order, sends a signal, or is asked to leave.

use elastic_protocol::WorkerId;
use elastic_protocol::messages::DriverToAgent;
use elastic_runtime::transport::LinkEvent;

use super::{Happening, MS, World};

/// Time allowed beside every grace: frames, hops, signals, last words.
const STOP_SLACK_NS: u64 = 4_000 * MS;

/// The oracle's knowledge of a process's end, and of the orders to stop it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stopping {
    /// World time of the end.
    pub(super) ended_at: Option<u64>,
    /// World time at which somebody outside the job told it to leave.
    pub(super) noticed_at: Option<u64>,
    /// The life of the driver that heard its end from the agent, and the world time.
    pub(super) reported: Option<(u32, u64)>,
    /// Whether the driver has said that it stops the process.
    pub(super) is_told: bool,
    /// Whether an order to stop it has reached its agent, and whether one came without grace.
    is_ordered: bool,
    /// World time of the first such order, from which the grace counts.
    ordered_at: Option<u64>,
    is_without_grace: bool,
    /// World times at which its agent sent SIGTERM and SIGKILL.
    pub(super) terminated_at: Option<u64>,
    pub(super) killed_at: Option<u64>,
}

impl Stopping {
    /// Whether its agent has sent SIGTERM or SIGKILL.
    pub(super) fn is_signalled(&self) -> bool {
        self.terminated_at.or(self.killed_at).is_some()
    }
}

/// An order to stop a worker whose process has not been started yet.
#[derive(Clone, Debug)]
pub(super) struct EarlyStop {
    worker: WorkerId,
    is_without_grace: bool,
    /// World time of the order.
    at: u64,
}

impl World {
    /// A worker was told to leave from outside the job.
    pub(super) fn note_notice(&mut self, process: u32) {
        let now = self.now;
        let entry = &mut self.processes[process as usize];
        let hears = entry.has_booted && entry.stopped == 0 && entry.thread_hangs == 0;
        if hears && !self.scenario.stubborn {
            entry.stopping.noticed_at.get_or_insert(now);
            self.note_leave_asked();
        }
    }

    /// The operator asks an agent to leave with its host.
    pub(super) fn note_drain(&mut self, host: u32) {
        let now = self.now;
        let Some(agent) = self.hosts[host as usize].agent.as_mut() else { return };
        let life = agent.life;
        let is_again = agent.drained_at.replace(now).is_some();
        agent.may_leave = true;
        agent.is_hurried |= is_again;
        self.expect_leave(host, life);
        self.note_leave_asked();
    }

    /// The link of an agent to a driver has changed.
    pub(super) fn note_company(&mut self, host: u32, life: u32, event: &LinkEvent) {
        let now = self.now;
        let Some(agent) = self.agent_mut(host, life) else { return };
        if matches!(event, LinkEvent::Lost { .. }) {
            agent.in_session_since = None;
        }
        match event {
            LinkEvent::Lost { .. } | LinkEvent::Silent { .. } if agent.is_welcomed => {
                (agent.alone_since, agent.is_welcomed) = (Some(now), false);
            }
            // A driver that cannot write its journal is heard, and welcomes nobody.
            LinkEvent::Heard => agent.is_welcomed |= agent.in_session_since.is_some(),
            _ => {}
        }
    }

    fn expect_leave(&mut self, host: u32, life: u32) {
        let grace = self.scenario.driver.deadlines.grace.as_nanos() as u64;
        let at = self.now + grace * 2 + STOP_SLACK_NS * 2;
        self.agenda.push(at, Happening::LeaveDue { host, life });
    }

    /// An order of the driver reaches an agent.
    pub(super) fn note_order(&mut self, host: u32, life: u32, message: &DriverToAgent) {
        if self.hears_outdated {
            return;
        }
        match message {
            DriverToAgent::Stop { worker, grace_ms, .. } => {
                let process = self.process_of(self.job_of_agent(host), worker);
                let Some(process) = process else {
                    let is_without_grace = *grace_ms == 0;
                    let order =
                        EarlyStop { worker: worker.clone(), is_without_grace, at: self.now };
                    if let Some(agent) = self.agent_mut(host, life) {
                        agent.early_stops.push(order);
                    }
                    return;
                };
                let entry = &mut self.processes[process as usize];
                if entry.agent_life != life || entry.host != host {
                    return;
                }
                if entry.put_out_by.take().is_some() {
                    entry.note_told_to_leave();
                }
                entry.stopping.is_ordered = true;
                entry.stopping.ordered_at.get_or_insert(self.now);
                entry.stopping.is_without_grace |= *grace_ms == 0;
                let at = self.now + grace_ms * MS / 100 * 102 + STOP_SLACK_NS;
                self.agenda.push(at, Happening::StopDue { process });
            }
            DriverToAgent::Start { worker, .. } => {
                // The process that is still on the slot is ended for it.
                for process in self.hosts[host as usize].processes.clone() {
                    let entry = &mut self.processes[process as usize];
                    if entry.id.slot == worker.slot && entry.id != *worker {
                        entry.stopping.is_ordered = true;
                        entry.stopping.is_without_grace = true;
                    }
                }
            }
            DriverToAgent::Leave { .. } | DriverToAgent::Refused { .. } => {
                let is_refused = matches!(message, DriverToAgent::Refused { .. });
                let now = self.now;
                if let Some(agent) = self.agent_mut(host, life) {
                    agent.may_leave = true;
                    agent.is_hurried |= is_refused;
                    agent.left_at.get_or_insert(now);
                    self.expect_leave(host, life);
                }
            }
            DriverToAgent::Welcome { .. } => {
                let now = self.now;
                if let Some(agent) = self.agent_mut(host, life) {
                    agent.is_welcomed = true;
                    agent.in_session_since.get_or_insert(now);
                }
            }
            DriverToAgent::Inspect { .. } | DriverToAgent::CheckHealth { .. } => {}
        }
    }

    /// Checks a signal that an agent sends: it was ordered, and SIGKILL comes after the grace.
    pub(crate) fn check_signal(
        &mut self,
        host: u32,
        process: u32,
        kills: bool,
    ) -> Result<(), String> {
        let agent = self.hosts[host as usize].agent.as_ref();
        let may_leave = agent.is_none_or(|agent| agent.may_leave || self.is_alone(agent.link));
        let id = &self.processes[process as usize].id;
        let early = agent.into_iter().flat_map(|agent| &agent.early_stops);
        let early: Vec<(bool, u64)> = early
            .filter(|order| order.worker == *id)
            .map(|order| (order.is_without_grace, order.at))
            .collect();
        let is_hurried = agent.is_none_or(|agent| agent.is_hurried);
        let left_at = agent.and_then(|agent| agent.left_at);
        let is_of_cores = self.hub.is_none();
        let grace = self.scenario.driver.deadlines.grace.as_nanos() as u64 / 100 * 97;
        let now = self.now;
        let entry = &mut self.processes[process as usize];
        let id = &entry.id;
        let stopping = &mut entry.stopping;
        for (is_without_grace, at) in early.iter().copied() {
            stopping.is_ordered = true;
            stopping.ordered_at.get_or_insert(at);
            stopping.is_without_grace |= is_without_grace;
        }
        if is_of_cores && !stopping.is_ordered && !may_leave {
            return Err(format!("G-11: {id} is signalled, and nobody has ordered that"));
        }
        let sent = if kills { &mut stopping.killed_at } else { &mut stopping.terminated_at };
        if sent.replace(now).is_some() {
            return Err(format!("G-11: {id} gets the same signal twice"));
        }
        // The grace of a process that was told to stop before it was there has begun with the order.
        let is_told_early = !early.is_empty() || left_at.is_some();
        let ordered_at = [stopping.ordered_at, left_at].into_iter().flatten().min();
        let began = match stopping.terminated_at {
            Some(at) => Some(at.min(ordered_at.unwrap_or(at))),
            None => ordered_at.filter(|_| is_told_early),
        };
        let is_early = began.is_none_or(|began| now < began + grace);
        let is_without_grace = is_hurried || stopping.is_without_grace;
        if is_of_cores && kills && is_early && !is_without_grace {
            return Err(format!("G-11: {id} is killed before its grace is over"));
        }
        Ok(())
    }

    /// Whether an agent may have been without a driver for long.
    fn is_alone(&self, link: u32) -> bool {
        let orphan = self.scenario.driver.deadlines.orphan.as_nanos() as u64;
        !self.links[link as usize].is_in_touch()
            || !self.driver_acts_since(orphan)
            || self.was_deaf(link, orphan)
            || self.hosts[self.links[link as usize].host as usize].cut_from_driver > 0
    }

    /// Checks that a process is gone after an order to stop it and its grace.
    pub(super) fn check_stopped(&mut self, process: u32) {
        let entry = &self.processes[process as usize];
        if !entry.is_alive || self.is_done {
            return;
        }
        let agent = self.hosts[entry.host as usize].agent.as_ref();
        let Some(agent) = agent.filter(|agent| agent.life == entry.agent_life) else { return };
        if agent.stopped > 0 {
            let at = self.now + STOP_SLACK_NS;
            return self.agenda.push(at, Happening::StopDue { process });
        }
        // An agent that has just gone on has its timers to catch up with.
        if self.faulted_at + STOP_SLACK_NS > self.now {
            let at = self.faulted_at + STOP_SLACK_NS;
            return self.agenda.push(at + MS, Happening::StopDue { process });
        }
        let id = &entry.id;
        let reason =
            format!("G-11: {id} was to be stopped, its grace is over, and it is still there");
        self.fail_safety(reason);
    }

    /// Checks that an agent that was asked to leave is gone.
    pub(super) fn check_left(&mut self, host: u32, life: u32) {
        let agent = self.hosts[host as usize].agent.as_ref();
        let Some(agent) = agent.filter(|agent| agent.life == life && !self.is_done) else { return };
        let at = match agent.stopped {
            0 => self.faulted_at + STOP_SLACK_NS * 2,
            _ => self.now + STOP_SLACK_NS,
        };
        if at > self.now {
            return self.agenda.push(at + MS, Happening::LeaveDue { host, life });
        }
        let name = &self.hosts[host as usize].name;
        let reason = format!("G-11: the agent of {name} was to leave, and is still there");
        self.fail_safety(reason);
    }
}
