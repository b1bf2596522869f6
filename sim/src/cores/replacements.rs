//! Replacements: the oracle checks the members that the driver replaces because they hang or are slow. A replaced member has
//! hung or been slow, within the bounds. A member that is to be replaced leaves once the others are enough. Slots rest no
//! longer than their cool-down.

use std::collections::{BTreeMap, BTreeSet};

use elastic_driver::ReplacedFor;
use elastic_host_manager::HostState;
use elastic_protocol::{HostName, WorkerId};

use super::bounds::SLACK_NS;
use super::driver::ObservedPhase;
use super::processes::SimulatedProcess;
use super::stragglers::SLOW_NS_MIN;
use super::{MS, World};

/// Longest cool-down as a multiple of the first one.
const COOL_DOWN_TIMES_MAX: u64 = 12;

/// Undisturbed time, beside the check's timeout, after which a host has been checked again and has answered.
const HEALTHY_NS: u64 = 50_000 * MS;

/// Age of a fact that the driver must have taken in.
const KNOWN_NS: u64 = 5_000 * MS;

/// The oracle's knowledge of replacements under the driver's present life.
#[derive(Debug, Default)]
pub(super) struct ReplacementWatch {
    /// The driver's life.
    life: u32,
    /// Number of replacements.
    made: u32,
    /// By slot, the number of its rests, and the start of the present one in world time.
    rests: BTreeMap<(HostName, u32), (u32, Option<u64>)>,
}

impl World {
    /// Slots that the driver has put to rest.
    fn slots_at_rest(&self) -> BTreeSet<(HostName, u32)> {
        let cores = self.driver.cores_here();
        let slots = cores.into_iter().flat_map(|cores| cores.driver.slots_at_rest());
        slots.map(|(host, slot)| (host.clone(), slot)).collect()
    }

    /// Whether the slot of a process rests.
    pub(super) fn is_at_rest(&self, process: &SimulatedProcess) -> bool {
        self.rests(&process.id.host, process.id.slot)
    }

    /// Whether a slot rests.
    pub(super) fn rests(&self, host: &HostName, slot: u32) -> bool {
        self.driver.cores_here().is_some_and(|cores| {
            let mut slots = cores.driver.slots_at_rest();
            slots.any(|(name, number)| name == host && number == slot)
        })
    }

    /// The driver says that a slot rests, or has rested: the reset that follows has a reason.
    pub(super) fn membership_is_to_change(&mut self) {
        self.faulted_at = self.now;
        self.calm.stable_since = None;
    }

    fn turn_replacement_watch(&mut self) {
        if self.replacements.life != self.driver.life {
            // A driver goes on with the rests that its predecessor had begun, and with one whose end was not stored.
            let former = std::mem::take(&mut self.replacements.rests).into_iter();
            let rests = former.map(|(slot, _)| (slot, (1, None))).collect();
            self.replacements = ReplacementWatch { life: self.driver.life, rests, made: 0 };
        }
    }

    /// Checks a member that the driver replaces.
    pub(super) fn check_replaced(
        &mut self,
        worker: &WorkerId,
        is_host: bool,
        why: ReplacedFor,
    ) -> Result<(), String> {
        self.turn_replacement_watch();
        let Some(process) = self.process_of(self.driver.job, worker) else {
            return Err(format!("replacements: {worker} is replaced, and is not there"));
        };
        self.replacements.made += 1;
        // No run is longer than an hour.
        if self.replacements.made > self.scenario.driver.replacements_max {
            return Err(format!(
                "replacements: {} within an hour, and {} are allowed",
                self.replacements.made, self.scenario.driver.replacements_max
            ));
        }
        let resting = self.slots_at_rest();
        for slot in resting.iter().filter(|(host, _)| *host == worker.host) {
            if is_host || slot.1 == worker.slot {
                let (times, since) = self.replacements.rests.entry(slot.clone()).or_default();
                (*times, *since) = (*times + 1, Some(self.now));
            }
        }
        self.check_is_at_fault(worker, process, is_host, why)?;
        let snapshot = self.driver.hosts();
        let listed = snapshot.hosts.iter().filter(|entry| entry.state == HostState::Listed);
        let usable = listed
            .flat_map(|entry| (0..entry.usable_slots()).map(|slot| (entry.name.clone(), slot)));
        let left = usable.filter(|slot| !resting.contains(slot)).count();
        let needed = self.scenario.driver.min_np.unwrap_or(1) as usize;
        let is_known = self.driver.hosts_since + KNOWN_NS < self.now;
        match left < needed && is_known && self.driver_acts_since(KNOWN_NS) {
            true => Err(format!(
                "replacements: {worker} is replaced, and {left} slots are left of {needed} that are needed"
            )),
            false => Ok(()),
        }
    }

    /// Checks that a member that is replaced has been slow, or has hung.
    fn check_is_at_fault(
        &self,
        worker: &WorkerId,
        process: u32,
        is_host: bool,
        why: ReplacedFor,
    ) -> Result<(), String> {
        let entry = &self.processes[process as usize];
        match why {
            ReplacedFor::Slow => {
                let slow_ns = self.slow_ns(process);
                let is_slow_elsewhere =
                    self.slow_members_on(entry.host).any(|other| other != process);
                let has_rested = self
                    .replacements
                    .rests
                    .keys()
                    .any(|(host, slot)| *host == worker.host && *slot != worker.slot);
                let is_hosts = is_slow_elsewhere || has_rested;
                if slow_ns < SLOW_NS_MIN || is_host && !is_hosts {
                    let slow_ms = slow_ns / MS;
                    return Err(format!(
                        "nobody healthy is replaced: {worker} has been slow for {slow_ms} ms, with others of its host: \
                         {is_hosts}"
                    ));
                }
            }
            ReplacedFor::Hang => {
                let hangs = entry.stopped > 0
                    || entry.thread_hangs > 0
                    || entry.hangs
                    || !entry.is_alive
                    || entry.program.has_returned()
                    || entry.continued_at.is_some_and(|at| at + KNOWN_NS > self.now)
                    || self.was_deaf(entry.link, KNOWN_NS);
                if !hangs && self.calm_for(0) > KNOWN_NS {
                    return Err(format!(
                        "nobody healthy is replaced: {worker} is said to hang, and goes on"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that slots rest no longer than their cool-down, and that members on them leave once others are enough. Called
    /// at each check in time.
    pub(super) fn check_rests(&mut self) -> Result<(), String> {
        self.turn_replacement_watch();
        if !self.driver_acts_since(KNOWN_NS) || self.driver.cores_here().is_none() {
            return Ok(());
        }
        let resting = self.slots_at_rest();
        let cool_down = self.scenario.driver.cool_down.as_nanos() as u64;
        let now = self.now;
        for (slot, (_, since)) in &mut self.replacements.rests {
            if !resting.contains(slot) {
                *since = None;
            }
        }
        let timeout = self.scenario.driver.health_check.as_ref().map(|check| check.timeout);
        let health_ns = timeout.map_or(0, |timeout| timeout.as_nanos() as u64) + HEALTHY_NS;
        let calm = self.calm_for(0);
        for slot in &resting {
            let (times, since) = self.replacements.rests.entry(slot.clone()).or_insert((1, None));
            let lasted = now - *since.get_or_insert(now);
            let longer = (1_u64 << times.saturating_sub(1).min(16)).min(COOL_DOWN_TIMES_MAX);
            let bound = cool_down * longer / 100 * 103 + SLACK_NS;
            // A slot whose host has not passed its check rests on.
            let is_checked = self.scenario.driver.health_check.is_some();
            if lasted > bound && !(is_checked && calm < health_ns) {
                let (host, number) = slot;
                let (lasted, bound) = (lasted / MS, bound / MS);
                return Err(format!(
                    "replacements: {host}[{number}] rests for {lasted} ms, bound {bound} ms"
                ));
            }
        }
        self.check_replaced_have_left()
    }

    fn check_replaced_have_left(&self) -> Result<(), String> {
        let deadlines = self.scenario.driver.deadlines;
        let bound = (deadlines.start + deadlines.last_call).as_nanos() as u64
            + self.boundary_ns() * 3
            + SLACK_NS;
        let is_calm = self.driver.phase == ObservedPhase::Run
            && self.keeps_processes()
            && self.calm_for(self.driver.phase_since) > bound
            && !self.is_nearly_over();
        if !is_calm {
            return Ok(());
        }
        let members = self.driver.members.iter();
        let members = members.filter_map(|process| self.processes.get(*process as usize));
        let (to_leave, others): (Vec<_>, Vec<_>) =
            members.partition(|process| self.is_at_rest(process));
        let is_enough = others.len() >= self.scenario.driver.min_np.unwrap_or(1) as usize;
        match to_leave.first().filter(|_| is_enough) {
            Some(process) => Err(format!(
                "replacements: {} is to be replaced, others are enough, and it has trained on for {} ms",
                process.id,
                bound / MS
            )),
            None => Ok(()),
        }
    }
}
