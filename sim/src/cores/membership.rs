//! Membership as the oracle checks it: members of each generation formed, workers that stand by, slots that stay empty, and
//! workers on notice. Members are checked when the driver forms a generation, the others at each look in time (`bounds`).

use std::collections::{BTreeMap, BTreeSet};

use elastic_driver::{OnFailure, WorkerStanding};
use elastic_host_manager::{HostState, HostsSnapshot};
use elastic_protocol::messages::{AgentToDriver, JobPhase, StoppedBy, WorkerToDriver};
use elastic_protocol::{HostName, NodeId, Stamp, WorkerId};

use super::bounds::SLACK_NS;
use super::driver::ObservedPhase;
use super::{MS, NONE, World};

/// Age of a fact that the driver must have taken in.
const KNOWN_NS: u64 = 3_000 * MS;

/// First back-off of a slot, its longest, and the most by which chance lengthens one.
const BACKOFF_FIRST_NS: u64 = 250 * MS;
const BACKOFF_MAX_NS: u64 = 30_000 * MS;

/// Slots of the current driver's job that are under watch.
#[derive(Debug, Default)]
pub(super) struct SlotWatch {
    /// World time since which a slot is known to be empty without a reason.
    empty_since: BTreeMap<(u32, u32), u64>,
    /// Slots whose workers were told to leave from outside, with the job and the agent at that time.
    closed: BTreeMap<(HostName, u32), (u32, NodeId)>,
    /// Slots whose last process was refused for the release of its library.
    pub(super) refused: BTreeSet<(HostName, u32)>,
}

impl World {
    /// Checks the members of a generation that the driver forms.
    pub(super) fn check_members(
        &mut self,
        stamp: Stamp,
        members: &[WorkerId],
    ) -> Result<(), String> {
        let is_first = self.driver.stamp == Stamp::default();
        if stamp.term != self.driver.term || self.driver.cores().is_none() {
            return Ok(());
        }
        let driver = &self.scenario.driver;
        let (count, generation) = (members.len() as u32, stamp.generation);
        let needed = if is_first { driver.np } else { driver.min_np }.unwrap_or(1);
        if count < needed {
            return Err(format!("generation {generation} has {count} members, and needs {needed}"));
        }
        let most = driver.max_np.map_or(u32::MAX, |max| max.max(2));
        if count > most {
            return Err(format!(
                "generation {generation} has {count} members, at most {most} are allowed"
            ));
        }
        let processes = self.processes_of_members(members);
        for (worker, process) in members.iter().zip(&processes) {
            let Some(entry) = self.processes.get(*process as usize) else { continue };
            let is_known = entry
                .stopping
                .reported
                .is_some_and(|(life, at)| life == self.driver.life && at + 100 * MS < self.now);
            if entry.has_died() && is_known && self.driver_acts_since(KNOWN_NS) {
                return Err(format!(
                    "generation {generation} has {worker} as a member, whose end was reported"
                ));
            }
        }
        let snapshot = self.driver.hosts();
        // A worker that is invited for its commit, and is not wanted any more, may be the first.
        if self.driver_acts_since(KNOWN_NS) && self.driver.hosts_since + KNOWN_NS < self.now {
            check_order(&snapshot, members).or_else(|_| check_order(&snapshot, &members[1..]))?;
        }
        if self.keeps_processes() {
            return self.check_nobody_left_out(stamp, &processes);
        }
        Ok(())
    }

    fn processes_of_members(&self, members: &[WorkerId]) -> Vec<u32> {
        let job = self.driver.job;
        members.iter().map(|worker| self.process_of(job, worker).unwrap_or(NONE)).collect()
    }

    fn check_nobody_left_out(&mut self, stamp: Stamp, members: &[u32]) -> Result<(), String> {
        let max = self.scenario.driver.max_np.unwrap_or(u32::MAX) as usize;
        if members.len() >= max || self.has_quarrels() {
            return Ok(());
        }
        match self.standing_by(members, KNOWN_NS) {
            None => Ok(()),
            Some(process) => Err(format!(
                "{} is at rest and wanted, and generation {} is formed without it",
                self.processes[process as usize].id, stamp.generation
            )),
        }
    }

    /// A process outside the generation that has been ready for so long.
    fn standing_by(&self, members: &[u32], for_ns: u64) -> Option<u32> {
        let here = self.hosts.iter().flat_map(|host| &host.processes).copied();
        here.filter(|process| !members.contains(process)).find(|process| {
            let entry = &self.processes[*process as usize];
            entry.program.is_at_rest()
                && entry.program.rested_at + for_ns < self.now
                && !self.was_deaf(entry.link, for_ns)
                && self.links[entry.link as usize].is_in_touch()
                && self.is_plainly_wanted(entry)
        })
    }

    /// Whether the driver knows hosts that do not reach each other.
    fn has_quarrels(&mut self) -> bool {
        let now = self.driver.clock.local(self.now);
        let Some(cores) = self.driver.cores() else { return true };
        !cores.driver.status(now, &|time| time.to_string()).unreachable.is_empty()
    }

    /// The driver hears an agent's report.
    pub(super) fn note_report(&mut self, message: &AgentToDriver) {
        let AgentToDriver::Exited { worker, stopped_by, library, .. } = message else {
            return;
        };
        if library.refused_release().is_some() {
            // Nobody is to be blamed for it.
            let slot = (worker.host.clone(), worker.slot);
            let tries = self.tries.entry(slot.clone()).or_default();
            *tries = tries.saturating_sub(1);
            self.slot_watch.refused.insert(slot);
        }
        if let Some(process) = self.process_of(self.driver.job, worker) {
            self.processes[process as usize].stopping.reported = Some((self.driver.life, self.now));
        }
        let by_another = match stopped_by {
            Some(StoppedBy::Driver(term)) => *term < self.driver.term,
            Some(StoppedBy::Agent) => true,
            None => false,
        };
        if by_another {
            self.slot_watch.closed.remove(&(worker.host.clone(), worker.slot));
        }
    }

    /// The driver hears a worker that wants to leave: its slot stays empty under this agent.
    pub(super) fn note_leaving(&mut self, link: u32, message: &WorkerToDriver) {
        let WorkerToDriver::Leaving { .. } = message else { return };
        let super::network::LinkOwner::Worker { process } = self.links[link as usize].owner else {
            return;
        };
        let id = self.processes[process as usize].id.clone();
        // The event of a stop may still wait for its record.
        let is_departing = self.driver.cores().is_some_and(|cores| {
            let mut standings = cores.driver.standings();
            standings.any(|(it, standing)| *it == id && standing == WorkerStanding::Departing)
        });
        let entry = &self.processes[process as usize];
        // The slot of a worker that has failed as well is judged by its failure. The driver no longer knows a worker of whose
        // end it has heard before.
        let is_gone = entry.stopping.reported.is_some_and(|(life, _)| life == self.driver.life);
        let is_noticed = entry.stopping.noticed_at.is_some()
            && !is_gone
            && !is_departing
            && !entry.stopping.is_told
            && !entry.program.has_raised();
        let agent = self.hosts[entry.host as usize].agent.as_ref();
        let agent = agent.filter(|agent| agent.life == entry.agent_life && !agent.may_leave);
        let Some(agent) = agent.filter(|_| is_noticed) else { return };
        let slot = (entry.id.host.clone(), entry.id.slot);
        if let Some(node) = self.links[agent.link as usize].node.clone() {
            self.slot_watch.closed.insert(slot, (self.driver.job, node));
        }
    }

    /// Checks that the driver counts on none of the processes that an agent is stopping, as it has just told while it joined.
    pub(super) fn check_not_counted_on(
        &mut self,
        link: u32,
        being_stopped: &[WorkerId],
    ) -> Result<(), String> {
        let Some(node) = self.links[link as usize].node.clone() else { return Ok(()) };
        let now = self.driver_now();
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        // The driver may have refused the agent, or let it wait for the end of the host's former one.
        let has_joined = cores.driver.agents_there().iter().any(|(_, agent)| *agent == node);
        let phase = cores.driver.glance(now).phase;
        if !has_joined || matches!(phase, JobPhase::Failed | JobPhase::Succeeded) {
            return Ok(());
        }
        let mut standings = cores.driver.standings();
        let counted_on = standings.find(|(worker, standing)| {
            being_stopped.contains(worker) && *standing != WorkerStanding::Departing
        });
        match counted_on {
            Some((worker, standing)) => Err(format!(
                "G-5: {worker} is being stopped, as its agent has said, and the driver counts on it: {standing:?}"
            )),
            None => Ok(()),
        }
    }

    /// Checks that a slot whose worker was told to leave stays empty.
    pub(super) fn check_slot_open(
        &mut self,
        agent: &NodeId,
        worker: &WorkerId,
    ) -> Result<(), String> {
        let slot = (worker.host.clone(), worker.slot);
        let job = self.driver.job;
        // If the agent's session was lost, the worker's end may not have been reported, and anybody may have stopped the
        // worker: its slot is open.
        let was_lost = self
            .link_of_agent(agent)
            .is_none_or(|link| self.links[link as usize].lost_at.is_some());
        match self.slot_watch.closed.remove(&slot) {
            Some((of_job, node))
                if of_job == job && node == *agent && self.lives == 1 && !was_lost =>
            {
                Err(format!("{worker} is started on a slot whose worker was told to leave"))
            }
            _ => Ok(()),
        }
    }

    /// Checks at a look in time, while nothing is out of order.
    pub(super) fn check_membership(&mut self) -> Result<(), String> {
        self.check_noticed_workers()?;
        if !self.keeps_processes() || self.driver.cores().is_none() {
            return Ok(());
        }
        self.check_cooldowns_end()?;
        if self.has_quarrels() || self.is_nearly_over() {
            self.slot_watch.empty_since.clear();
            return Ok(());
        }
        self.check_newcomers()?;
        self.check_empty_slots()
    }

    pub(super) fn is_nearly_over(&self) -> bool {
        let has_returned = |process: &u32| {
            let entry = self.processes.get(*process as usize);
            entry.is_some_and(|entry| entry.program.has_returned() || entry.program.has_raised())
        };
        self.is_over() || self.driver.members.iter().any(has_returned)
    }

    /// A worker on notice is gone within its grace, that of the order to stop it, and that of its agent.
    fn check_noticed_workers(&self) -> Result<(), String> {
        let deadlines = self.scenario.driver.deadlines;
        let bound = (deadlines.grace * 3 + deadlines.last_call).as_nanos() as u64 + SLACK_NS;
        let here = self.hosts.iter().flat_map(|host| &host.processes);
        for process in here.map(|process| &self.processes[*process as usize]) {
            let Some(noticed_at) = process.stopping.noticed_at else { continue };
            let lasted = self.calm_for(noticed_at);
            if lasted > bound {
                return Err(format!(
                    "G-11: {} was told to leave {} ms ago, bound {} ms, and is still there",
                    process.id,
                    lasted / MS,
                    bound / MS
                ));
            }
        }
        Ok(())
    }

    /// A host's stay on the blacklist ends.
    fn check_cooldowns_end(&mut self) -> Result<(), String> {
        let now = self.driver.clock.local(self.now);
        if self.calm_for(0) < KNOWN_NS {
            return Ok(());
        }
        for entry in &self.driver.hosts().hosts {
            if let HostState::Blacklisted { until: Some(until) } = entry.state
                && until.0 + 1_000 * MS < now.0
            {
                return Err(format!(
                    "{} is still blacklisted, and its cooldown is over",
                    entry.name
                ));
            }
        }
        Ok(())
    }

    /// A worker that is ready while a generation trains enters it.
    fn check_newcomers(&self) -> Result<(), String> {
        let max = self.scenario.driver.max_np.unwrap_or(u32::MAX) as usize;
        let last_call = self.scenario.driver.deadlines.last_call.as_nanos() as u64;
        let bound = last_call + self.boundary_ns() * 3 + SLACK_NS;
        let is_room = self.driver.members.len() < max;
        let trains = self.driver.phase == ObservedPhase::Run;
        if !(trains && is_room && self.calm_for(self.driver.phase_since) > bound) {
            return Ok(());
        }
        match self.standing_by(&self.driver.members, bound) {
            None => Ok(()),
            Some(process) => Err(format!(
                "G-7: {} has been ready for {} ms, and is not taken in",
                self.processes[process as usize].id,
                bound / MS
            )),
        }
    }

    /// An empty slot is filled after its back-off.
    fn check_empty_slots(&mut self) -> Result<(), String> {
        let snapshot = self.driver.hosts();
        if self.driver.phase == ObservedPhase::Over {
            return Ok(());
        }
        let (mut empty, mut filled) = (Vec::new(), Vec::new());
        for entry in snapshot.hosts.iter().filter(|entry| entry.state == HostState::Listed) {
            let Some(host) = self.hosts.iter().find(|host| host.name == entry.name) else {
                continue;
            };
            let Some(agent) = host.agent.as_ref() else { continue };
            let link = &self.links[agent.link as usize];
            if agent.may_leave || host.has_closed_slots || link.life != self.driver.life {
                continue;
            }
            let slots = 0..entry.slots.min(host.slots);
            for slot in slots.filter(|slot| !self.rests(&host.name, *slot)) {
                let is_on = |it: &&u32| self.processes[**it as usize].id.slot == slot;
                if host.processes.iter().any(|it| is_on(&it)) {
                    filled.push((host.name.clone(), slot));
                } else {
                    empty.push((host.number, slot));
                }
            }
        }
        let all = self.hosts.iter().flat_map(|host| &host.processes);
        let here = all.filter(|it| !self.is_at_rest(&self.processes[**it as usize])).count();
        if self.scenario.driver.max_np.is_some_and(|max| here >= max as usize) {
            // The others are spare.
            empty.clear();
        }
        self.slot_watch.refused.retain(|slot| !filled.contains(slot));
        let before = std::mem::take(&mut self.slot_watch.empty_since);
        let mut complaint = Ok(());
        for slot in empty {
            let since = before.get(&slot).copied().unwrap_or(self.now);
            self.slot_watch.empty_since.insert(slot, since);
            let name = self.hosts[slot.0 as usize].name.clone();
            let tries = self.tries.get(&(name.clone(), slot.1)).copied().unwrap_or(0).min(16);
            // A last start that fails does not take out a host on which others run: its slot waits for the longest back-off.
            let slot_id = (name.clone(), slot.1);
            let is_last = tries > self.scenario.driver.max_restarts
                || self.slot_watch.refused.contains(&slot_id)
                || self.scenario.driver.on_failure == OnFailure::Blacklist;
            let backoff = (BACKOFF_FIRST_NS << tries).min(BACKOFF_MAX_NS);
            let backoff = if is_last { BACKOFF_MAX_NS } else { backoff };
            let bound = backoff / 4 * 5 + SLACK_NS;
            let lasted = self.calm_for(since);
            // The process of a program that does not train may have done its part.
            if lasted > bound && self.scenario.trains {
                complaint = Err(format!(
                    "G-7: slot {} of {name} has been empty for {} ms, bound {} ms",
                    slot.1,
                    lasted / MS,
                    bound / MS
                ));
            }
        }
        complaint
    }

    /// Ends all watches, since something is out of order.
    pub(super) fn forget_empty_slots(&mut self) {
        self.slot_watch.empty_since.clear();
    }

    /// A slot that has trained for long has no failures any more: only the process that is there counts.
    pub(super) fn forgive_slots(&mut self) {
        let forgiven = self.scenario.driver.forgiven_after.as_nanos() as u64;
        let needed = forgiven / 100 * 103 + KNOWN_NS;
        let trains = self.driver.phase == ObservedPhase::Run
            && self.driver.phase_since + needed < self.now
            && self.driver_acts_since(needed);
        if !trains || !self.keeps_processes() || self.lives > 1 {
            return;
        }
        for process in &self.driver.members {
            let Some(entry) = self.processes.get(*process as usize) else { continue };
            let slot = (entry.id.host.clone(), entry.id.slot);
            if entry.is_alive
                && let Some(tries) = self.tries.get_mut(&slot)
            {
                *tries = (*tries).min(1);
            }
        }
    }
}

/// Checks that members are in the order of their hosts, the oldest first, and of their slots.
fn check_order(snapshot: &HostsSnapshot, members: &[WorkerId]) -> Result<(), String> {
    let position = |worker: &WorkerId| {
        let at = snapshot.hosts.iter().position(|entry| entry.name == worker.host);
        at.map(|at| (at, worker.slot))
    };
    let mut listed = members.iter().filter_map(|worker| Some((position(worker)?, worker)));
    let Some((mut last, _)) = listed.next() else { return Ok(()) };
    for (next, worker) in listed {
        if next <= last {
            return Err(format!(
                "G-8: {worker} has a rank after that of a younger host or a later slot"
            ));
        }
        last = next;
    }
    Ok(())
}
