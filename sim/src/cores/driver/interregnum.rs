//! Rule D-3: the driver's death or pause alone neither resets the job nor stops a worker. An interregnum begins when the driver
//! dies or stands still while a generation trains and nothing else has happened for a while. As long as nothing else happens,
//! the generation must go on. Called for the driver's deaths and pauses, and for every disturbance.

use elastic_protocol::Stamp;

use super::super::processes::SimulatedProcess;
use super::super::{MS, World};
use super::{DriverLife, ObservedPhase};

/// Undisturbed time before an interregnum can begin. By then earlier events are known everywhere and have been acted
/// upon.
const QUIET_NS: u64 = 8_000 * MS;

/// A time without a driver: it has died or stood still, and nothing else has happened since.
#[derive(Clone, Copy, Debug)]
pub(in crate::cores) struct Interregnum {
    since: u64,
    /// The generation that must go on.
    stamp: Stamp,
}

impl World {
    /// Notes an event that may be why a generation ends.
    pub(in crate::cores) fn disturb(&mut self) {
        self.disturbed_at = self.now;
        self.interregnum = None;
        self.calm.stable_since = None;
    }

    /// Begins an interregnum, if the job is quiet. Called just before the driver dies or stands still. A decision that the
    /// disk has refused, or has not answered, may be found there by the next driver: the end of the job, too.
    pub(in crate::cores) fn begin_interregnum(&mut self) {
        let is_quiet = self.interregnum.is_none()
            && self.disturbed_at + QUIET_NS <= self.now
            && self.driver.phase == ObservedPhase::Run
            && self.driver.refused_since.is_none()
            && self.driver.dead_disk.is_none()
            && self.is_settled();
        if is_quiet {
            self.interregna += 1;
            let stamp = self.driver.stamp;
            self.interregnum = Some(Interregnum { since: self.now, stamp });
        }
    }

    /// Whether all existing processes train and no host has a fault.
    pub(in crate::cores) fn is_settled(&self) -> bool {
        let (stamp, job) = (self.driver.stamp, self.driver.job);
        let is_whole = self.hosts.iter().all(|host| {
            let agent_runs = host.agent.as_ref().is_none_or(|agent| agent.stopped == 0);
            let in_reach = host.cut_to_driver + host.cut_from_driver + host.cut_data == 0;
            let forms = host.no_forming == [0; 2] && host.no_loopback == 0;
            let starts = forms && host.unlisted == 0 && host.starts_processes();
            let is_slow = host.steps_slowly() || host.extra_delay > 0 || host.data_is_late();
            agent_runs && in_reach && starts && !is_slow && host.down == 0
        });
        // A script has no session with the driver. Its agent stops it for want of one.
        let is_in_touch = |process: &SimulatedProcess| {
            let agent = self.hosts[process.host as usize].agent.as_ref();
            let link = if process.is_script { agent.map(|it| it.link) } else { Some(process.link) };
            link.is_some_and(|link| self.links[link as usize].is_in_touch())
        };
        let trains = |process: &u32| {
            let Some(process) = self.processes.get(*process as usize) else { return false };
            process.stays()
                && process.job == job
                && process.program.trains_in(stamp)
                && is_in_touch(process)
        };
        let there: usize = self.hosts.iter().map(|host| host.processes.len()).sum();
        let members = &self.driver.members;
        is_whole
            && self.lies.is_empty()
            && self.former.iter().all(|former| !DriverLife::runs(former))
            && members.len() == there
            && (self.keeps_processes() || self.fills_all_slots())
            && members.iter().all(trains)
            && !self.is_broken(job, stamp)
    }

    /// Whether no host waits to be let in. In restart mode no process of such a host reports it.
    fn fills_all_slots(&self) -> bool {
        let there = self.hosts.iter().filter(|host| host.agent.is_some()).map(|host| host.slots);
        let wanted = self.scenario.driver.max_np.unwrap_or(u32::MAX).min(there.sum());
        self.driver.members.len() as u32 >= wanted
    }

    /// Checks D-3 when the driver resets or stops a worker.
    pub(super) fn check_interregnum(&self, what: &str) -> Result<(), String> {
        let Some(Interregnum { since, stamp }) = self.interregnum else { return Ok(()) };
        if self.may_give_up(since) {
            // A worker has given up already, and its peers feel it.
            return Ok(());
        }
        Err(format!(
            "D-3: {what}, and nothing has happened since the driver died or stopped {} ms ago in generation {}",
            (self.now - since) / MS,
            stamp.generation
        ))
    }

    /// Checks D-3 when a process ends: it must not end early for want of a driver.
    pub(in crate::cores) fn check_end(&mut self, process: u32) {
        let Some(Interregnum { since, .. }) = self.interregnum else { return };
        let entry = &self.processes[process as usize];
        let is_early = !self.may_give_up(since) && !entry.program.has_returned();
        if is_early && self.driver.members.contains(&process) {
            let what = format!("{} ends", entry.id);
            let checked = self.check_interregnum(&what);
            self.demand(checked);
        }
    }

    /// Whether a process without a driver since that time may have ended for want of one (`--orphan-timeout`).
    fn may_give_up(&self, since: u64) -> bool {
        // The process's clock may be too fast.
        let patience = self.scenario.driver.deadlines.orphan.as_nanos() as u64 / 100 * 95;
        self.now >= since + patience
    }
}
