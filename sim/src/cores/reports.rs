//! Checks that the reports of agents and workers are true: each report is compared with the processes themselves at the
//! moment at which it is sent. Called for every message of a node, in both modes.

use elastic_protocol::messages::{AgentToDriver, Ballot, Vote, WorkerToDriver};

use super::agents::AgentLife;
use super::network::{LinkFrame, LinkOwner};
use super::{MS, World};

/// Delay of a message of an actor: it leaves with the next millisecond, and its content may be as old.
const SENT_WITHIN_NS: u64 = 2 * MS;

impl World {
    /// Checks the reports in a frame that a node sends.
    pub(super) fn check_report(&self, link: u32, frame: &LinkFrame) -> Result<(), String> {
        match (frame, self.links[link as usize].owner) {
            (LinkFrame::FromAgent(message), LinkOwner::Agent { host, life }) => {
                self.check_agents_report(host, life, message)
            }
            (LinkFrame::FromWorker(message), LinkOwner::Worker { process }) => {
                self.check_workers_report(process, message)
            }
            (LinkFrame::Vote(vote), LinkOwner::Worker { process }) => {
                self.check_vote(process, vote)
            }
            _ => Ok(()),
        }
    }

    fn check_agents_report(
        &self,
        host: u32,
        life: u32,
        message: &AgentToDriver,
    ) -> Result<(), String> {
        let job = self.job_of_agent(host);
        let complain = |what: String| Err(format!("what agents say is so: {what}"));
        match message {
            AgentToDriver::Join { host: name, slots, live, .. } => {
                let entry = &self.hosts[host as usize];
                if (name, *slots) != (&entry.name, entry.slots) {
                    return complain(format!("{} joins as {name} with {slots} slots", entry.name));
                }
                for process in live {
                    let it = self.process_of(job, &process.worker);
                    let it = it.map(|it| &self.processes[it as usize]).filter(|it| {
                        it.pid() == process.pid && (it.host, it.agent_life) == (host, life)
                    });
                    let Some(it) = it else {
                        return complain(format!("{} is said to live", process.worker));
                    };
                    // An actor may carry an order out while it joins.
                    let is_signalled = it.stopping.is_signalled();
                    let may_be_late = is_signalled && self.hub.is_some();
                    if process.is_being_stopped != is_signalled && !may_be_late {
                        return complain(format!(
                            "{} was signalled: {is_signalled}, and is being stopped: {}",
                            process.worker, process.is_being_stopped
                        ));
                    }
                }
                // An actor may hear of a process later.
                let is_named = |process: &&u32| {
                    let id = &self.processes[**process as usize].id;
                    live.iter().any(|live| live.worker == *id)
                };
                let left_out = entry.processes.iter().find(|process| !is_named(process));
                match left_out.filter(|_| self.hub.is_none()) {
                    Some(it) => complain(format!(
                        "{} runs, and is not among the processes with which its agent joins",
                        self.processes[*it as usize].id
                    )),
                    None => Ok(()),
                }
            }
            AgentToDriver::Started { worker, pid } => {
                let process = self.process_of(job, worker).map(|it| &self.processes[it as usize]);
                match process.filter(|process| process.pid() == *pid) {
                    Some(_) => Ok(()),
                    None => complain(format!("{worker} is said to run as process {pid}")),
                }
            }
            AgentToDriver::StartFailed { worker, reason, .. } => {
                let process = self.process_of(job, worker).map(|it| &self.processes[it as usize]);
                match process.filter(|process| process.is_alive) {
                    Some(_) => complain(format!("{worker} runs, and is not started: {reason}")),
                    None => Ok(()),
                }
            }
            AgentToDriver::Exited { worker, status, stopped_by, killed_after_grace, library } => {
                let process = self.process_of(job, worker).map(|it| &self.processes[it as usize]);
                let Some(process) = process.filter(|process| process.end == Some(*status)) else {
                    return complain(format!("{worker} is said to have ended: {status}"));
                };
                if *library != process.library() {
                    return complain(format!("{worker} is said to have shown {library:?}"));
                }
                let stopping = &process.stopping;
                let is_signalled = stopping.is_signalled();
                if stopped_by.is_some() != is_signalled {
                    return complain(format!(
                        "{worker} was signalled: {is_signalled}, and stopped by {stopped_by:?}"
                    ));
                }
                let was_killed = stopping.terminated_at.and(stopping.killed_at).is_some();
                if *killed_after_grace && !was_killed {
                    return complain(format!("{worker} is said to have been killed after a grace"));
                }
                Ok(())
            }
            AgentToDriver::LastWords { worker, .. } | AgentToDriver::Dying { worker } => {
                let process = self.process_of(job, worker).map(|it| &self.processes[it as usize]);
                match process.filter(|process| process.is_alive) {
                    Some(_) => complain(format!("{worker} is said to have ended, and runs")),
                    None => Ok(()),
                }
            }
            AgentToDriver::Drain { .. } => {
                let deadlines = self.scenario.driver.deadlines;
                let patience = deadlines.orphan_training.unwrap_or(deadlines.orphan);
                let patience = patience.min(deadlines.orphan).as_nanos() as u64 / 100 * 95;
                let was_alone =
                    |since: Option<u64>| since.is_some_and(|since| since + patience <= self.now);
                let is_asked = |agent: &AgentLife| {
                    agent.drained_at.is_some() || agent.may_leave || was_alone(agent.alone_since)
                };
                let agent = self.hosts[host as usize].agent.as_ref();
                match agent.filter(|agent| agent.life == life && !is_asked(agent)) {
                    Some(_) => complain(format!("h{host} is to leave, and nobody has asked it to")),
                    None => Ok(()),
                }
            }
            AgentToDriver::HostChanged { .. }
            | AgentToDriver::Inspected { .. }
            | AgentToDriver::HealthChecked { .. } => Ok(()),
        }
    }

    fn check_workers_report(&self, process: u32, message: &WorkerToDriver) -> Result<(), String> {
        let entry = &self.processes[process as usize];
        let (id, program) = (&entry.id, &entry.program);
        let complain = |what: String| Err(format!("what workers say is so: {id} {what}"));
        let saved = program.saved.map(|saved| saved.id);
        match message {
            WorkerToDriver::Attach { pid, commit, active, .. } => {
                if *pid != entry.pid() {
                    return complain(format!("attaches as process {pid}, and is {}", entry.pid()));
                }
                // Said while the generation went on, it is the commit with which that began. The one at rest follows.
                let delay = if self.hub.is_some() { SENT_WITHIN_NS } else { 0 };
                let was_at_rest = program.rested_at + delay <= self.now;
                if !active && program.is_at_rest() && was_at_rest && *commit != saved {
                    return complain(format!(
                        "attaches with commit {commit:?}, and holds {saved:?}"
                    ));
                }
                if commit.map(|commit| commit.step) > saved.map(|saved| saved.step) {
                    return complain(format!("attaches with a commit beyond its own: {commit:?}"));
                }
                Ok(())
            }
            WorkerToDriver::Arrived { commit, undone, .. } => {
                if program.is_at_rest() && (*commit, *undone) != (saved, program.told_undone) {
                    return complain(format!(
                        "arrives with commit {commit:?} and {undone:?}, and holds {saved:?} with {:?}",
                        program.told_undone
                    ));
                }
                if program.waits_in_collective() {
                    return complain("arrives from within a collective".to_owned());
                }
                Ok(())
            }
            WorkerToDriver::Progress { step, .. } => {
                let most = saved.map(|saved| saved.step);
                match Some(*step) > most && step.0 > 0 {
                    true => complain(format!("is at step {step}, and has committed {most:?}")),
                    false => Ok(()),
                }
            }
            WorkerToDriver::Leaving { .. } if !entry.is_leaving => {
                complain("wants to leave, and nobody has told it to".to_owned())
            }
            WorkerToDriver::Leaving { .. }
            | WorkerToDriver::Standstill { .. }
            | WorkerToDriver::Paused { .. }
            | WorkerToDriver::CollectiveFailed { .. }
            | WorkerToDriver::Checkpoint { .. }
            | WorkerToDriver::Resumed { .. }
            | WorkerToDriver::NotResumed { .. }
            | WorkerToDriver::Moves { .. }
            | WorkerToDriver::Warning { .. }
            | WorkerToDriver::TableWanted { .. } => Ok(()),
        }
    }

    fn check_vote(&self, process: u32, vote: &Vote) -> Result<(), String> {
        let entry = &self.processes[process as usize];
        let program = &entry.program;
        // A member with nothing to take over may train before its thread has seen the order to go.
        let skips = program.skips_in == vote.stamp;
        let is_formed = program.formed_in >= vote.stamp;
        let (is_so, what) = match &vote.ballot {
            Ballot::Ready => (is_formed, "READY"),
            Ballot::Synced => (program.synced_in >= vote.stamp || is_formed && skips, "SYNCED"),
            Ballot::Success => (program.returned_in >= vote.stamp, "success"),
            Ballot::Failure { .. } => (program.has_raised(), "failure"),
        };
        if is_so && vote.worker == entry.id {
            return Ok(());
        }
        Err(format!(
            "what workers say is so: {} votes {what} in generation {}, and is not there",
            vote.worker, vote.stamp.generation
        ))
    }
}
