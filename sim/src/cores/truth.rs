//! Checks of the driver's statements and records against the simulated world: its status while all workers train, its counters
//! after a takeover, and its hosts, whose agents may be gone. `bounds` calls this file at each check in time.

use elastic_host_manager::HostState;
use elastic_protocol::messages::{
    HostCondition, HostStatus, JobPhase, WorkerCondition, WorkerStatus,
};
use elastic_protocol::{ResetCause, WorkerId};

use super::agents::SimulatedHost;
use super::driver::ObservedPhase;
use super::{MS, World};

/// Undisturbed time after which everything that has happened shows in the status.
const SETTLED_NS: u64 = 4_000 * MS;

/// Undisturbed time after which an agent that was waited for is there, too.
const LONG_NS: u64 = 8_000 * MS;

/// Time, beside twice `lost` and `suspect`, after which a host without an agent is no host of the job.
const GONE_NS: u64 = 5_000 * MS;

impl World {
    /// Checks the status in any phase: the nodes that it names exist, in the state that it says.
    pub(super) fn check_named(&mut self) -> Result<(), String> {
        let now = self.driver.clock.local(self.now);
        let life = self.driver.life;
        if self.calm_for(0) < LONG_NS || self.driver.phase == ObservedPhase::Over {
            return Ok(());
        }
        let disk_was_well = self.disk_mended_at == 0;
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        let status = cores.driver.status(now, &|time| time.to_string());
        let glance = cores.driver.glance(now);
        let (phase, generation) = (status.phase, status.generation);
        if (glance.phase, glance.generation) != (phase, generation)
            || (glance.world_size, glance.resets) != (status.world_size, status.resets)
        {
            return Err(format!(
                "status: {glance:?} at a glance, and {phase} {generation} in full"
            ));
        }
        if status.term != self.driver.term.0 {
            return Err(format!("status: term {}, and it is {}", status.term, self.driver.term));
        }
        if disk_was_well && status.warnings.iter().any(|warning| warning.contains("journal")) {
            return Err(format!("status: the disk is well; {:?}", status.warnings));
        }
        for worker in &status.workers {
            let Some(pid) = worker.pid else { continue };
            let process = self.processes.iter().find(|process| process.pid() == pid);
            let ended_at = process.and_then(|process| process.stopping.ended_at);
            if process.is_none() || ended_at.is_some_and(|at| at + LONG_NS < self.now) {
                let WorkerStatus { host, slot, state, .. } = worker;
                return Err(format!(
                    "status: {host}[{slot}] is {state} in process {pid}, which is gone"
                ));
            }
        }
        self.check_hosts_named(&status.hosts)?;
        for host in &self.hosts {
            for process in &host.processes {
                let process = &self.processes[*process as usize];
                let link = &self.links[process.link as usize];
                let rests = process.stays()
                    && process.program.is_at_rest()
                    && process.program.rested_at + LONG_NS < self.now
                    && link.is_in_touch()
                    && link.life == life
                    && !self.was_deaf(process.link, LONG_NS)
                    && self.driver.phase == ObservedPhase::Run;
                if !rests || process.job != self.driver.job {
                    continue;
                }
                let is_it = |worker: &&WorkerStatus| {
                    worker.host == process.id.host && worker.slot == process.id.slot
                };
                let named = status.workers.iter().find(is_it);
                let is_so = named.is_some_and(|worker| {
                    worker.pid == Some(process.pid())
                        && matches!(
                            worker.state,
                            WorkerCondition::Attached
                                | WorkerCondition::Lost
                                | WorkerCondition::Leaving
                        )
                });
                if !is_so {
                    return Err(format!(
                        "status: {} is at rest, and is said to be {named:?}",
                        process.id
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks the hosts of the status: those whose agents are in reach are active.
    fn check_hosts_named(&self, named: &[HostStatus]) -> Result<(), String> {
        let snapshot = self.driver.hosts();
        for entry in &snapshot.hosts {
            let status = named.iter().find(|host| host.name == entry.name);
            let state = status.map(|host| host.state);
            let is_out = entry.state != HostState::Listed;
            if self.driver.hosts_since + LONG_NS > self.now {
                continue;
            }
            if is_out != (state == Some(HostCondition::Blacklisted)) {
                return Err(format!(
                    "status: {} is {state:?}, and blacklisted: {is_out}",
                    entry.name
                ));
            }
            let host = self.hosts.iter().find(|host| host.name == entry.name);
            let Some(agent) = host.and_then(|host| host.agent.as_ref()).filter(|_| !is_out) else {
                continue;
            };
            let link = &self.links[agent.link as usize];
            let is_there = link.is_in_touch()
                && link.life == self.driver.life
                && !agent.may_leave
                && !self.was_deaf(agent.link, LONG_NS);
            let all_rest = state == Some(HostCondition::Resting)
                && host.is_some_and(|host| (0..entry.slots).all(|it| self.rests(&host.name, it)));
            if is_there && state != Some(HostCondition::Active) && !all_rest {
                return Err(format!(
                    "status: {} is in reach, and said to be {state:?}",
                    entry.name
                ));
            }
            if is_there && let (Some(host), Some(status)) = (host, status) {
                self.check_lanes(host, status)?;
            }
        }
        Ok(())
    }

    /// Checks the lanes that the status names with a host: the one that hangs, with its age, and no other.
    fn check_lanes(&self, host: &SimulatedHost, named: &HostStatus) -> Result<(), String> {
        let Some(agent) = host.agent.as_ref().filter(|agent| agent.stopped == 0) else {
            return Ok(());
        };
        let lasts_ns = self.now - host.lane.changed_at;
        if lasts_ns < LONG_NS {
            return Ok(());
        }
        let hangs = host.lane.hangs(agent.life);
        let said_ms = named.lanes.first().and_then(|lane| lane.hanging_ms);
        let is_right = said_ms.is_some() == hangs
            && said_ms.is_none_or(|ms| (ms * MS).abs_diff(lasts_ns) < LONG_NS / 2);
        match is_right {
            true => Ok(()),
            false => {
                let (name, lasts_ms) = (&host.name, lasts_ns / MS);
                Err(format!(
                    "status: a lane of {name} hangs: {hangs}, for {lasts_ms} ms; it is said: {said_ms:?}"
                ))
            }
        }
    }

    /// Checks the status of a job that trains, and has been undisturbed for some time.
    pub(super) fn check_status(&mut self) -> Result<(), String> {
        let since = self.driver.phase_since;
        if self.driver.phase != ObservedPhase::Run || self.calm_for(since) < SETTLED_NS {
            return Ok(());
        }
        let now = self.driver.clock.local(self.now);
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        let status = cores.driver.status(now, &|time| time.to_string());
        if status.phase != JobPhase::Run && cores.waits_for_its_disk() {
            // A decision that is told once its record is stored.
            return Ok(());
        }
        let (said, size) = (status.world_size, self.driver.members.len());
        if status.phase != JobPhase::Run || said as usize != size {
            let phase = status.phase;
            return Err(format!("status: {said} workers in phase {phase}, and {size} train"));
        }
        self.oracle.accounts_for(self.now, self.driver.job, &status)?;
        let resets = self.oracle.resets_of(self.driver.job);
        // A reset that was just decided may still wait for its record.
        if status.resets != resets && status.resets != resets + 1 {
            return Err(format!("status: {} resets, and {resets} were decided", status.resets));
        }
        if !self.keeps_processes() {
            return Ok(());
        }
        for (rank, process) in (0..).zip(&self.driver.members) {
            let Some(entry) = self.processes.get(*process as usize) else { continue };
            let in_touch = self.links[entry.link as usize].is_in_touch();
            if !in_touch || !entry.stays() || !entry.program.trains_in(self.driver.stamp) {
                continue;
            }
            let is_it = |worker: &&WorkerStatus| {
                worker.host == entry.id.host && worker.slot == entry.id.slot
            };
            let Some(worker) = status.workers.iter().find(is_it) else {
                return Err(format!("status: {} trains, and is not there", entry.id));
            };
            let is_so = worker.rank == Some(rank)
                && worker.state == WorkerCondition::Running
                && worker.pid == Some(entry.pid());
            if !is_so {
                return Err(format!(
                    "status: {} trains as rank {rank} in process {}, and is said to be {} as rank {:?} in \
                     process {:?}",
                    entry.id,
                    entry.pid(),
                    worker.state,
                    worker.rank,
                    worker.pid
                ));
            }
        }
        Ok(())
    }

    /// Checks the last reset once the driver has taken a worker's exit status: where the worker's death began the reset,
    /// the status is its cause now.
    pub(super) fn check_explained(&mut self, worker: &WorkerId) -> Result<(), String> {
        let now = self.driver.clock.local(self.now);
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        // A report that was dropped, as that of an agent that has a successor, explains nothing.
        if cores.driver.standings().any(|(known, _)| known == worker) {
            return Ok(());
        }
        self.driver.explained.insert(worker.incarnation);
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        let last = cores.driver.status(now, &|time| time.to_string()).last_reset;
        let died = ResetCause::WorkerDied { worker: worker.clone() }.to_string();
        if last.is_some_and(|reset| reset.cause == died) {
            return Err(format!("G-10: {worker} has ended, and its reset lacks the exit status"));
        }
        Ok(())
    }

    /// Checks the cause of a reset that the driver reports: it is no death whose exit status the driver has taken.
    pub(super) fn check_reported_cause(&self, cause: &ResetCause) -> Result<(), String> {
        match cause {
            ResetCause::WorkerDied { worker }
                if self.driver.explained.contains(&worker.incarnation) =>
            {
                Err(format!(
                    "G-10: {worker} had ended, and its reset is reported without the status"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Checks the hosts of a job whose hosts come by joining: a host whose agent has been gone for long is none (G-7).
    pub(super) fn check_gone_hosts(&self) -> Result<(), String> {
        let deadlines = self.scenario.driver.deadlines;
        let lost = (deadlines.lost * 2 + deadlines.suspect * 2).as_nanos() as u64;
        let patience = lost + GONE_NS;
        if !self.hosts_join() || !self.driver_acts_since(patience) {
            return Ok(());
        }
        let snapshot = self.driver.hosts();
        for host in &self.hosts {
            let is_gone = host.gone_since.is_some_and(|since| since + patience <= self.now);
            let is_kept = || {
                let mut kept = snapshot.hosts.iter().filter(|entry| entry.name == host.name);
                kept.any(|entry| entry.state == HostState::Listed)
            };
            if is_gone && is_kept() {
                return Err(format!(
                    "G-7: {} is kept as a host, and its agent has been gone for {} ms",
                    host.name,
                    patience / MS
                ));
            }
        }
        Ok(())
    }

    /// Whether a member of the ended generation still trains, though the driver can reach it.
    pub(super) fn has_members_in_motion(&self) -> bool {
        self.driver.members.iter().any(|process| {
            let Some(entry) = self.processes.get(*process as usize) else { return false };
            let link = &self.links[entry.link as usize];
            let program = &entry.program;
            entry.stays()
                && !entry.is_script
                && entry.job == self.driver.job
                && program.stamp == self.driver.stamp
                && program.is_engaged()
                && !program.has_returned()
                && !program.has_raised()
                && link.is_in_touch()
                && link.life == self.driver.life
        })
    }

    /// Checks the counters of a driver that has just taken a job over: they are those of its predecessor. The death
    /// may have come between a reset's decision and its record, or between its record and its event.
    pub(super) fn check_counters(&mut self) -> Result<(), String> {
        let job = self.driver.job;
        let now = self.driver.clock.local(self.now);
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        let resets = cores.driver.glance(now).resets;
        self.oracle.taken_over(job, resets)
    }
}
