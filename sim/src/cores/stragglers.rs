//! Stragglers: simulated programs measure their steps, and the oracle checks the members that the driver names as slow. A named
//! member has been slow. A member on a host that is slow for long, while all others are not, is named in time.

use std::time::Duration;

use elastic_protocol::WorkerId;
use elastic_protocol::messages::StepTimes;
use elastic_worker::state::training::WaitReading;

use super::driver::ObservedPhase;
use super::{MS, World};

/// Time over which slow steps are remembered, in nanoseconds.
const REMEMBERED_NS: u64 = 40_000 * MS;

/// Least time of slow steps in that time of a member that is named: half of the spell that has to last, since the medians of
/// workers and reports on their way blur its ends.
pub(super) const SLOW_NS_MIN: u64 = 5_000 * MS;

/// Allowance for reports on their way, for the medians of workers, and for the looks that do not count.
const NAMED_AFTER_NS: u64 = 30_000 * MS;

/// Steps that a worker measures until the driver has looked as often as it must.
const STEPS_UNTIL_NAMED: u64 = 16;

/// Factor from which on a slow host must be named: below it, the time that the others lose may be too short.
const TIMES_MIN: u64 = 3;

/// The oracle's knowledge of slow hosts.
#[derive(Debug, Default)]
pub(super) struct StragglerWatch {
    /// The host that alone has been slow, with the world time since when.
    slow: Option<(u32, u64)>,
}

impl World {
    fn reading_of(&self, process: u32) -> WaitReading {
        let waited = self.processes[process as usize].program.paces.waited_ns;
        WaitReading { at: Duration::from_nanos(self.now), waited: Duration::from_nanos(waited) }
    }

    /// The thread of a process begins to compute.
    pub(super) fn note_computing(&mut self, process: u32) {
        self.processes[process as usize].program.paces.computes_since = self.now;
    }

    /// The thread of a process has computed a step.
    pub(super) fn note_computed(&mut self, process: u32) {
        let (now, usual) = (self.now, self.scenario.step_ns / 8 * 9);
        let carried = self.carried_by(process);
        let (own, each) = carried.map_or((1, 1), |(own, each)| (u64::from(own), u64::from(each)));
        let usual = (usual * own).div_ceil(each);
        let paces = &mut self.processes[process as usize].program.paces;
        let took = now - paces.computes_since;
        paces.computed_ns += took;
        // A part of each step is waiting for its data.
        paces.samples.note_data(Duration::from_nanos(took / 8));
        if let Some((own, _)) = carried {
            paces.samples.carry_shards(own);
        }
        paces.is_slow = took > usual;
    }

    /// The collective of a step has ended, and with it the step.
    pub(super) fn note_waited(&mut self, process: u32) {
        let now = self.now;
        let program = &mut self.processes[process as usize].program;
        let paces = &mut program.paces;
        paces.waited_ns += now - program.waits_since;
        paces.unmeasured += 1;
        if std::mem::take(&mut paces.is_slow) {
            paces.slow_steps.push_back((now, now - paces.computes_since));
        }
        while paces.slow_steps.front().is_some_and(|(at, _)| at + REMEMBERED_NS < now) {
            paces.slow_steps.pop_front();
        }
    }

    /// A commit, or a check for host updates, ends the steps before it.
    pub(super) fn end_measured(&mut self, process: u32, is_commit: bool) {
        let reading = self.reading_of(process);
        let paces = &mut self.processes[process as usize].program.paces;
        if paces.samples.end_steps(reading, paces.unmeasured, is_commit) {
            paces.unmeasured = 0;
        }
    }

    /// The thread goes on after a wait for the driver.
    pub(super) fn note_passed(&mut self, process: u32) {
        let reading = self.reading_of(process);
        self.processes[process as usize].program.paces.samples.go_on(reading);
    }

    /// Step times that a process has measured, if this set of draws reports them.
    pub(super) fn step_times_of(&self, process: u32) -> Option<StepTimes> {
        if self.options.draws < 7 {
            return None;
        }
        self.processes[process as usize].program.paces.samples.times()
    }

    /// Checks a member that the driver names as slow: it has been slow. With its host, another one there has been, too.
    pub(super) fn check_straggler(
        &self,
        worker: &WorkerId,
        ranks: &[u32],
        is_host: bool,
    ) -> Result<(), String> {
        let Some(process) = self.process_of(self.driver.job, worker) else {
            return Err(format!(
                "stragglers: {worker} is said to be slow, and there is no such worker"
            ));
        };
        if self.are_words_late() {
            return Ok(());
        }
        let slow_ns = self.slow_ns(process);
        if slow_ns < SLOW_NS_MIN {
            let slow_ms = slow_ns / MS;
            return Err(format!(
                "stragglers: {worker} is said to be slow, and was for {slow_ms} ms in the last {} s",
                REMEMBERED_NS / (1_000 * MS)
            ));
        }
        let host = self.processes[process as usize].host;
        let slow = self.slow_members_on(host).count();
        if is_host && (ranks.len() < 2 || slow < 2) {
            return Err(format!(
                "stragglers: the host of {worker} is said to be slow with {ranks:?}, and {slow} processes there are"
            ));
        }
        Ok(())
    }

    /// Members on a host with slow steps. Those that have died a moment ago count: the driver may not know yet.
    pub(super) fn slow_members_on(&self, host: u32) -> impl Iterator<Item = u32> {
        let is_there = move |process: &u32| {
            self.processes.get(*process as usize).is_some_and(|entry| entry.host == host)
        };
        let members = self.driver.members.iter().copied().filter(is_there);
        members.filter(|process| self.slow_ns(*process) > 0)
    }

    /// Time of slow steps of a process, whole steps with their collectives, up to the one under way.
    pub(super) fn slow_ns(&self, process: u32) -> u64 {
        let paces = &self.processes[process as usize].program.paces;
        let recent = paces.slow_steps.iter().filter(|(at, _)| at + REMEMBERED_NS >= self.now);
        recent.map(|(_, took)| took).sum()
    }

    /// Checks that a member on a host is named that alone has been slow for long. Called at each check in time.
    pub(super) fn check_straggler_is_named(&mut self) -> Result<(), String> {
        let slow = self.host_slow_alone();
        let since = match (self.stragglers.slow, slow) {
            (Some((known, since)), Some(host)) if known == host => since,
            _ => self.now,
        };
        // Any other fault, and any change of the generation, begins it anew.
        let since = since.max(self.faulted_at).max(self.driver.phase_since);
        self.stragglers.slow = slow.map(|host| (host, since));
        let (Some(host), lasted) = (slow, self.now - since) else { return Ok(()) };
        let step_ns = self.scenario.step_ns * self.hosts[host as usize].slow_times * 2;
        let measured = self.scenario.commit_every * STEPS_UNTIL_NAMED;
        if lasted < NAMED_AFTER_NS + step_ns * measured {
            return Ok(());
        }
        let now = self.driver.clock.local(self.now);
        let name = self.hosts[host as usize].name.clone();
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        let status = cores.driver.status(now, &|time| time.to_string());
        match status.stragglers.iter().any(|slow| slow.host == name) {
            true => self.check_carries_fewer(host),
            false => Err(format!(
                "stragglers: host {name} alone is slow for {} ms, and nobody there is named: {:?}",
                lasted / MS,
                status.stragglers
            )),
        }
    }

    /// The host that is slow while all others are not, if a generation with members on both trains without other disturbances.
    fn host_slow_alone(&self) -> Option<u32> {
        let mut slow = (0..self.hosts.len() as u32).filter(|host| {
            let host = &self.hosts[*host as usize];
            host.steps_slowly() || host.slow_until > self.now
        });
        let (Some(host), None) = (slow.next(), slow.next()) else { return None };
        let entry = &self.hosts[host as usize];
        let is_quiet = entry.slow_times >= TIMES_MIN
            && entry.slow_slots.is_empty()
            && self.options.draws >= 7
            && self.keeps_processes()
            && self.driver.phase == ObservedPhase::Run
            && self.is_whole_but_for(host);
        let there = self.driver.members.iter().filter(|process| {
            self.processes.get(**process as usize).is_some_and(|process| process.host == host)
        });
        let (there, all) = (there.count(), self.driver.members.len());
        (is_quiet && there > 0 && there * 2 <= all).then_some(host)
    }
}
