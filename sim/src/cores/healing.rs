//! The second half of a run: faults stop, and a core of hosts is whole. Within bounded time the job must go on with all workers
//! that belong in it. When the job is over, every process must leave. Part of the simulated world.

use std::collections::BTreeSet;

use elastic_driver::{OnDivergence, OnTotalLoss, PROGRAMLESS_HOSTS};
use elastic_host_manager::{HostEntry, HostSource, HostState};
use elastic_protocol::{JobOutcome, JobResult, Stamp};

use super::agents::SimulatedHost;
use super::checkpoints::GONE_CHECKPOINT;
use super::driver::ObservedPhase;
use super::passes::PLACES_DIFFER;
use super::processes::SimulatedProcess;
use super::{Happening, MS, World};
use crate::plan::{PlannedFault, SimulatedFault};
use crate::trace::{TraceKind, TracePlace};

/// Commits that a healed job must make.
const COMMITS_WANTED: u64 = 3;

/// Prefix of the reason of a job that fails because its replicas differ.
const DIFFERENT_REPLICAS: &str = "replicas of the state differ";

/// Prefix of the reason of a job that fails because its program is missing on all hosts.
const NO_PROGRAM: &str = "the program cannot be started on any host";

/// Interval between two checks.
const LOOK_NS: u64 = 250 * MS;

/// One seed in this many is watched for longer after its job is healthy: it must stay so.
const LINGERS_ONE_IN: u64 = 8;

/// Time for which such a seed is watched.
const LINGER_NS: u64 = 40_000 * MS;

/// Longest time from the end of the job to the end of the driver's process.
const LEAVING_LIMIT_NS: u64 = 120_000 * MS;

impl World {
    pub(super) fn is_over(&self) -> bool {
        self.driver.result.is_some() || !(self.driver.is_alive() || self.driver.comes_back)
    }

    /// Ends all faults. The hosts of the core become whole; the others stay unlisted, down or cut from the driver.
    pub(super) fn heal(&mut self) {
        self.record(TraceKind::Heal, TracePlace::DRIVER, (0, 0), String::new);
        self.healed_at = Some(self.now);
        self.oracle.mark_healed();
        self.lies.clear();
        self.disturb();
        if !self.disk_faults.is_empty() {
            self.disk_mended_at = self.now;
        }
        let (faults, driver) = (&mut self.disk_faults, &self.driver);
        faults.retain(|(fault, _)| driver.has_dead_disk(*fault));
        self.set_disk();
        self.put_journal_back();
        self.driver.dies_midway = None;
        self.end_former_drivers();
        self.boot_driver(self.driver.life);
        self.continue_driver(u32::MAX);
        self.mend_links();
        (0..self.hosts.len() as u32).for_each(|host| self.mend_sick(host, u32::MAX));
        for host in 0..self.hosts.len() as u32 {
            let is_core = self.scenario.core[host as usize];
            let entry = &mut self.hosts[host as usize];
            entry.slow_times = 1;
            entry.slow_slots.clear();
            entry.extra_delay = 0;
            entry.data_delay = 0;
            entry.no_spawn = 0;
            entry.no_program = 0;
            entry.no_forming = [0; 2];
            entry.no_loopback = 0;
            entry.hang_start = 0;
            entry.other_release = 0;
            entry.listed_slots = entry.slots;
            entry.cut_data = 0;
            if is_core {
                entry.unlisted = 0;
                entry.cut_to_driver = 0;
                entry.cut_from_driver = 0;
                entry.down = 0;
            }
            self.release_held(host);
            let life = self.hosts[host as usize].lives;
            self.release_lane(host, life, u32::MAX);
            for process in self.hosts[host as usize].processes.clone() {
                self.continue_process(process, u32::MAX);
                self.continue_thread(process, u32::MAX);
                let entry = &self.processes[process as usize];
                if entry.hangs && (entry.is_script || !self.keeps_processes()) {
                    // It never came to its peers. Without peers nobody misses a script, or what may be one, so the operator ends it.
                    self.kill_process(process);
                }
            }
            let life = self.hosts[host as usize].lives;
            self.continue_agent(host, life, u32::MAX);
            if is_core {
                if std::mem::take(&mut self.hosts[host as usize].has_closed_slots) {
                    // The operator starts the agent anew. That opens the slots that were left on notice.
                    self.end_agent(host, false);
                }
                if self.hosts[host as usize].agent.is_none() {
                    self.boot_agent_later(host);
                }
            }
        }
        self.reopen_all();
        self.agenda.push(self.now + LOOK_NS, Happening::Check);
    }

    pub(super) fn check_liveness(&mut self) {
        if let Some(gone_by) = self.gone_by {
            return self.check_gone(gone_by);
        }
        let Some(healed_at) = self.healed_at else { return };
        let is_over = self.driver.result.is_some();
        let limit = if is_over { LEAVING_LIMIT_NS } else { 0 } + self.healing_ns();
        if !is_over {
            match self.what_is_wrong() {
                // The driver ends the job soon, healthy or not: `check_end_is_told`.
                _ if self.driver.dead_disk.is_some() => {}
                // As above.
                _ if self.driver.before_stop.until.is_some_and(|until| self.now < until) => {}
                None if self.lingers() => {}
                None => {
                    self.is_done = true;
                    return;
                }
                // A job that was healthy may have had to grow since.
                Some(_) if self.now < self.healthy_since.unwrap_or(healed_at) + limit => {}
                Some(wrong) => {
                    let reason = format!("{wrong}; {}", self.who_is_waited_for());
                    return self.fail_liveness(reason);
                }
            }
        } else if self.now > self.last_save_until().max(healed_at) + limit {
            let reason = format!("the driver does not end; {}", self.who_is_waited_for());
            return self.fail_liveness(reason);
        }
        self.agenda.push(self.now + LOOK_NS, Happening::Check);
    }

    /// Whether a healthy job is watched for longer.
    fn lingers(&mut self) -> bool {
        let lingers = self.options.draws >= 1 && self.options.seed.is_multiple_of(LINGERS_ONE_IN);
        let since = *self.healthy_since.get_or_insert(self.now);
        lingers && self.now < since + LINGER_NS
    }

    /// The reason why the job is not healthy, if there is one.
    fn what_is_wrong(&self) -> Option<String> {
        if self.driver.phase != ObservedPhase::Run {
            return Some("no generation trains".to_owned());
        }
        let commits = self.oracle.commits_since_healed();
        if commits < COMMITS_WANTED {
            return Some(format!("{commits} commits since the faults stopped"));
        }
        let snapshot = self.driver.hosts();
        let mut expected = 0;
        if self.scenario.host_manager.source == HostSource::Script {
            let gone = self.driver.members.iter().find(|process| {
                let process = self.processes.get(**process as usize);
                process.is_some_and(|process| self.hosts[process.host as usize].unlisted > 0)
            });
            if let Some(process) = gone {
                let id = &self.processes[*process as usize].id;
                return Some(format!("{id} takes part, and its host has left the list"));
            }
        }
        for entry in &snapshot.hosts {
            let host = self.hosts.iter().find(|host| host.name == entry.name);
            let is_core = |host: &&SimulatedHost| self.scenario.core[host.number as usize];
            let Some(host) = host.filter(is_core) else { continue };
            if entry.state != HostState::Listed {
                return Some(format!("{} is still blacklisted", entry.name));
            }
            let slots = entry.slots.min(host.slots);
            let members = self.driver.members.iter().filter(|process| {
                self.processes
                    .get(**process as usize)
                    .is_some_and(|process| process.host == host.number && process.is_alive)
            });
            let members = members.count() as u32;
            expected += slots;
            if members < slots && self.scenario.driver.max_np.is_none() {
                return Some(format!(
                    "G-7: host {} has {members} members, and {slots} slots",
                    entry.name
                ));
            }
        }
        if self.hosts_join() && (expected as usize) < self.core_slots() {
            return Some("G-7: a host that has joined is not in the list".to_owned());
        }
        let wanted = self.scenario.driver.max_np.map_or(expected, |max| max.min(expected));
        let members = self.driver.members.len() as u32;
        (members < wanted).then(|| format!("G-7: {members} members, {wanted} wanted"))
    }

    fn core_slots(&self) -> usize {
        let core = self.hosts.iter().zip(&self.scenario.core).filter(|(_, core)| **core);
        core.map(|(host, _)| host.slots as usize).sum()
    }

    /// The driver's own status. A driver of actors is asked after the run.
    pub(super) fn who_is_waited_for(&mut self) -> String {
        let now = self.driver.clock.local(self.now);
        let Some(cores) = self.driver.cores() else { return String::new() };
        cores.driver.status(now, &|time| time.to_string()).to_string()
    }

    fn check_gone(&mut self, gone_by: u64) {
        let left = self.hosts.iter().enumerate().find_map(|(number, host)| {
            let is_excused = host.down > 0;
            let agent = host.agent.as_ref().filter(|agent| agent.stopped == 0);
            let process = host.processes.iter().find(|process| {
                let process = &self.processes[**process as usize];
                process.stopped == 0 && !process.hangs
            });
            match (agent, process) {
                _ if is_excused => None,
                (_, Some(process)) => Some(self.processes[*process as usize].id.to_string()),
                (Some(_), None) => Some(format!("the agent of h{number}")),
                (None, None) => None,
            }
        });
        // If a recorded job sets no limit for members that train without a driver, they go on as long as their program does.
        let is_unlimited = self.scenario.driver.deadlines.orphan_training.is_none();
        let some_train = self.processes.iter().any(|process| {
            process.is_alive && process.program.trains_in(process.program.generation)
        });
        match left {
            None => self.is_done = true,
            Some(_) if self.now > gone_by && is_unlimited && some_train => self.is_done = true,
            Some(who) if self.now > gone_by => {
                self.fail_liveness(format!("the driver is gone, and {who} is not"));
            }
            Some(_) => self.agenda.push(self.now + LOOK_NS, Happening::Check),
        }
    }

    /// Checks the success of a job whose program does not train: as many slots as it needs have a process that has ended with
    /// code 0, and none runs that the driver knows (G-10).
    fn check_untrained_end(&self, result: &JobResult) -> Result<(), String> {
        let of_job = self.processes.iter().filter(|it| it.job == self.driver.job);
        let ended = of_job.filter(|it| it.end.is_some_and(|status| status.is_success()));
        let slots: BTreeSet<_> = ended.map(|it| (&it.id.host, it.id.slot)).collect();
        let needed = self.scenario.driver.min_np.unwrap_or(1) as usize;
        let runs = |it: &&SimulatedProcess| {
            let is_known = it.job == self.driver.job && self.links[it.link as usize].is_in_touch();
            is_known && it.is_alive && it.stopped == 0 && !it.is_to_leave()
        };
        if let Some(other) = self.processes.iter().find(runs) {
            return Err(format!(
                "the job succeeded, and {} still runs: {}",
                other.id, result.reason
            ));
        }
        if slots.len() >= needed {
            return Ok(());
        }
        Err(format!(
            "the job succeeded with {} of {needed} processes that have ended: {}",
            slots.len(),
            result.reason
        ))
    }

    /// Checks that a job ends for a valid reason (G-10).
    pub(super) fn check_result(&self, result: &JobResult) -> Result<(), String> {
        match result.outcome {
            JobOutcome::Stopped => Ok(()),
            JobOutcome::Succeeded if !self.scenario.trains => self.check_untrained_end(result),
            JobOutcome::Succeeded => {
                let done = self.scenario.epochs.saturating_mul(self.data.length());
                let has_finished = |process: &SimulatedProcess| {
                    process.job == self.driver.job
                        && process.program.saved.is_some_and(|saved| saved.model.samples == done)
                };
                if self.processes.iter().any(has_finished) {
                    return Ok(());
                }
                Err(format!("the job succeeded before its last epoch: {}", result.reason))
            }
            JobOutcome::Failed if self.check_limits(result).is_some() => {
                self.check_limits(result).unwrap_or(Ok(()))
            }
            JobOutcome::Failed
                if result.reason.starts_with("every worker that held the training state") =>
            {
                if self.scenario.driver.on_total_loss == Some(OnTotalLoss::Restart) {
                    return Err(format!(
                        "L-1: the job failed, and was to begin again: {}",
                        result.reason
                    ));
                }
                // So it is where some members had committed one step more, and are gone, or on their way.
                let of_job = self.processes.iter().filter(|it| it.job == self.driver.job);
                let stays = of_job.filter(|it| it.is_alive && !it.stopping.is_told);
                let held = stays.filter_map(|it| it.program.saved);
                let held = held.map(|saved| saved.model.step).max();
                if self.oracle.highest_step(self.driver.job) > held {
                    return Ok(());
                }
                self.check_commit_kept(None)
            }
            JobOutcome::Failed if result.reason.contains(GONE_CHECKPOINT) => {
                let may_begin_again =
                    self.scenario.driver.on_total_loss == Some(OnTotalLoss::Restart);
                // A driver may die before it has told so, and its successor miss the same checkpoint.
                match self.storage.was_found_empty(self.driver.job) && !may_begin_again {
                    true => Ok(()),
                    false => {
                        Err(format!("C-1: the job failed, and need not have: {}", result.reason))
                    }
                }
            }
            JobOutcome::Failed if result.reason.starts_with("the program ended on every slot") => {
                self.check_early_failures(&result.reason)
            }
            JobOutcome::Failed if result.reason.contains(" was refused: the library of its") => {
                let of_job = self.processes.iter().filter(|it| it.job == self.driver.job);
                match of_job.filter(|it| it.library().refused_release().is_some()).count() {
                    0 => Err(format!("no process was refused: {}", result.reason)),
                    _ => Ok(()),
                }
            }
            JobOutcome::Failed if result.reason.starts_with(DIFFERENT_REPLICAS) => {
                let flips = |planned: &PlannedFault| {
                    matches!(planned.fault, SimulatedFault::FlipBit { .. })
                };
                let may_fail = self.scenario.driver.on_divergence == OnDivergence::Fail;
                match may_fail && self.plan.iter().any(flips) {
                    true => Ok(()),
                    false => Err(format!("the job failed, and need not have: {}", result.reason)),
                }
            }
            JobOutcome::Failed if result.reason.starts_with(PLACES_DIFFER) => {
                self.check_places_differ(&result.reason)
            }
            JobOutcome::Failed if result.reason.starts_with(NO_PROGRAM) => {
                self.check_missing_program(&result.reason)
            }
            JobOutcome::Failed => {
                let members = self.driver.members.iter();
                let all_raised = members.filter_map(|process| self.processes.get(*process as usize)).all(|process| {
                    let exited = matches!(process.end, Some(elastic_protocol::ExitStatus::Code(code)) if code != 0);
                    process.program.has_raised() || exited
                });
                if all_raised && result.reason.starts_with("every worker failed") {
                    return Ok(());
                }
                Err(format!("the job failed, and need not have: {}", result.reason))
            }
        }
    }

    /// Checks a job that failed since its program is missing: it has never trained, and no host that it may use has the program, as far
    /// as the job has got.
    fn check_missing_program(&self, reason: &str) -> Result<(), String> {
        let lacks = |entry: &&HostEntry| {
            let host = self.hosts.iter().find(|host| host.name == entry.name);
            host.is_some_and(|host| host.has_lacked_program)
        };
        let listed = self.driver.heard_hosts.hosts.iter();
        let usable = listed.filter(|entry| entry.state != HostState::Drained);
        let (without, with): (Vec<_>, Vec<_>) = usable.partition(lacks);
        let has_trained = self.oracle.acknowledged(self.driver.job).is_some();
        match (with.is_empty() || without.len() >= PROGRAMLESS_HOSTS) && !has_trained {
            true => Ok(()),
            false => {
                Err(format!("the job failed, and {} hosts have its program: {reason}", with.len()))
            }
        }
    }

    /// Checks a job that failed since its program ended everywhere before its first call of the library: it has, and no
    /// process has come so far (G-10).
    fn check_early_failures(&self, reason: &str) -> Result<(), String> {
        let of_job = || self.processes.iter().filter(|process| process.job == self.driver.job);
        let has_come = |process: &&SimulatedProcess| {
            let rests = process.stays()
                && process.program.is_at_rest()
                && process.program.rested_at + 3_000 * MS < self.now
                && self.links[process.link as usize].is_in_touch()
                && !self.was_deaf(process.link, 3_000 * MS);
            rests || process.program.stamp != Stamp::default()
        };
        if let Some(process) = of_job().find(has_come) {
            return Err(format!("G-10: the job failed, and {} had come: {reason}", process.id));
        }
        let ended = of_job().filter(|process| process.has_died()).count();
        match ended >= 2 {
            true => Ok(()),
            false => {
                Err(format!("G-10: the job failed, and {ended} processes had ended: {reason}"))
            }
        }
    }
}
