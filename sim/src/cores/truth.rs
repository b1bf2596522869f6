//! What the driver says and keeps, against what is so: its status while everybody trains, its counters after a
//! takeover, and its hosts, whose agents may be gone. `bounds` calls this file at each check in time.

use elastic_host_manager::HostState;
use elastic_protocol::messages::{JobPhase, WorkerCondition};
use elastic_protocol::{ResetCause, WorkerId};

use super::driver::ObservedPhase;
use super::{MS, World};

/// Undisturbed time after which everything that has happened shows in the status.
const SETTLED_NS: u64 = 4_000 * MS;

/// Time, beside twice `lost` and `suspect`, after which a host without an agent is no host of the job.
const GONE_NS: u64 = 5_000 * MS;

impl World {
    /// Checks the status of a job that trains, and has been undisturbed for some time.
    pub(super) fn check_status(&mut self) -> Result<(), String> {
        let since = self.driver.phase_since;
        if self.driver.phase != ObservedPhase::Run || self.calm_for(since) < SETTLED_NS {
            return Ok(());
        }
        let now = self.driver.clock.local(self.now);
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        let status = cores.driver.status(now, &|time| time.to_string());
        let (said, size) = (status.world_size, self.driver.members.len());
        if status.phase != JobPhase::Run || said as usize != size {
            let phase = status.phase;
            return Err(format!("status: {said} workers in phase {phase}, and {size} train"));
        }
        self.oracle.accounts_for(self.driver.job, &status)?;
        let resets = self.oracle.resets_of(self.driver.job);
        // A reset that was just decided may still wait for its record.
        if status.resets != resets && status.resets != resets + 1 {
            return Err(format!("status: {} resets, and {resets} were decided", status.resets));
        }
        if !self.options.job.is_in_process() {
            return Ok(());
        }
        for (rank, process) in (0..).zip(&self.driver.members) {
            let Some(entry) = self.processes.get(*process as usize) else { continue };
            let in_touch = self.links[entry.link as usize].is_in_touch();
            if !in_touch || !entry.stays() || !entry.program.trains_in(self.driver.stamp) {
                continue;
            }
            let is_it = |worker: &&elastic_protocol::messages::WorkerStatus| {
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
        let last = cores.driver.status(now, &|time| time.to_string()).last_reset;
        let died = ResetCause::WorkerDied { worker: worker.clone() }.to_string();
        if last.is_some_and(|reset| reset.cause == died) {
            return Err(format!("G-10: {worker} has ended, and its reset lacks the exit status"));
        }
        Ok(())
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
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        let resets = cores.driver.glance().resets;
        self.oracle.taken_over(job, resets)
    }
}
