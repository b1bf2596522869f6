//! Liveness bounds: how long each phase may last without a fault, derived from the configured deadlines. Also checks
//! that a healthy job stays as it is. docs/simulation.md lists the bounds; the agenda's `InTime` event calls this
//! file.
//!
//! Time counts from the latest of: the last fault's begin, its end, and the last check that found something out of
//! order.

use elastic_host_manager::HostState;
use elastic_protocol::{JobOutcome, JobResult};

use super::driver::{DriverLife, ObservedPhase};
use super::processes::SimulatedProcess;
use super::{Happening, MS, World};

/// Factor by which a step may exceed its usual longest time on a rank that carries the shards of slow ranks. At most half of
/// the members are slow.
const STEPS_LONGER_MAX: u64 = 3;

/// Interval between two checks.
pub(super) const PACE_NS: u64 = 500 * MS;

/// Allowance added to every bound: frames, hops, disk syncs, a clock that is 1 % slow, and one check interval.
pub(super) const SLACK_NS: u64 = 4_000 * MS;

/// Undisturbed time after which a reset has no reason any more.
const STABLE_AFTER_NS: u64 = 15_000 * MS;

/// Longest back-off before a slot is filled again.
const BACKOFF_MAX_NS: u64 = 30_000 * MS;

/// Generations without a commit after which the driver makes pauses, and the longest of these.
const PAUSED_AFTER: u32 = 2;
const PAUSE_MAX_NS: u64 = 10_000 * MS;

/// Generations in a row without a commit that end a job, once they have gone on for the elastic timeout.
const FRUITLESS_MAX: u32 = 16;

/// Start times of the conditions under watch.
#[derive(Debug, Default)]
pub(super) struct Calm {
    /// World time since which nothing has been out of order.
    whole_since: u64,
    /// World time since which enough workers are at rest and nobody else is worth waiting for.
    enough_since: Option<u64>,
    /// World time since which all workers train without any disturbance; unset while that does not hold.
    pub(super) stable_since: Option<u64>,
}

impl World {
    /// Checks that the current phase is within its bound, and schedules the next check.
    pub(super) fn look(&mut self) {
        if self.is_over() || self.is_done {
            return;
        }
        self.agenda.push(self.now + PACE_NS, Happening::InTime);
        let checked = self
            .check_gone_hosts()
            .and_then(|()| self.check_hang_is_named())
            .and_then(|()| self.check_straggler_is_named())
            .and_then(|()| self.check_slow_link_is_named())
            .and_then(|()| self.check_rests())
            .and_then(|()| self.check_difference_is_named())
            .and_then(|()| self.check_named_are_shown())
            .and_then(|()| self.check_apart_is_ended())
            .and_then(|()| self.check_welcomed())
            .and_then(|()| self.check_end_is_told())
            .and_then(|()| self.check_displaced())
            .and_then(|()| self.check_early_timers());
        self.demand(checked);
        if !self.is_whole() || self.has_unnoticed_death() {
            self.calm = Calm { whole_since: self.now, ..Calm::default() };
            self.forget_empty_slots();
            return;
        }
        let is_enough = self.driver.phase == ObservedPhase::Gather && self.is_enough_at_rest();
        let now = self.now;
        self.calm.enough_since =
            is_enough.then(|| self.calm.enough_since.map_or(now, |since| since));
        self.check_phase();
        let checked = self
            .check_membership()
            .and_then(|()| self.check_acknowledged())
            .and_then(|()| self.check_standbys_told());
        self.demand(checked);
        self.forgive_slots();
        let checked = self.check_status().and_then(|()| self.check_named());
        self.demand(checked);
        let checked = self.check_checkpoints_in_time();
        self.demand(checked);
        self.note_stability();
    }

    /// Whether a worker has died and the driver does not know: others wait for it, and nobody gets its slot, until the driver notices,
    /// which has a bound of its own (`check_noticed`).
    fn has_unnoticed_death(&self) -> bool {
        let is_unnoticed = |it: &SimulatedProcess| {
            let has_failed = it.end.is_some_and(|status| !status.is_success());
            let link = self.links.get(it.link as usize);
            let is_kept =
                link.is_some_and(|link| link.life == self.driver.life && link.lost_at.is_none());
            has_failed && is_kept && !self.driver.explained.contains(&it.id.incarnation)
        };
        let is_open = matches!(self.driver.phase, ObservedPhase::Run | ObservedPhase::Gather);
        is_open && self.processes.iter().any(|it| it.job == self.driver.job && is_unnoticed(it))
    }

    /// Whether driver, disk, discovery and hosts are free of faults, and no process stands still.
    fn is_whole(&self) -> bool {
        self.is_whole_except(u32::MAX, u32::MAX)
    }

    /// The same, where this host may be slow.
    pub(super) fn is_whole_but_for(&self, slow_host: u32) -> bool {
        self.is_whole_except(slow_host, u32::MAX)
    }

    /// The same, where data may come to this host late.
    pub(super) fn is_whole_but_for_data_to(&self, host: u32) -> bool {
        self.is_whole_except(u32::MAX, host)
    }

    fn is_whole_except(&self, slow_host: u32, late_data_host: u32) -> bool {
        let host_is_whole = |(number, host): (u32, &super::agents::SimulatedHost)| {
            let agent_runs = host.agent.as_ref().is_some_and(|agent| agent.stopped == 0);
            let cuts = host.cut_to_driver + host.cut_from_driver + host.cut_data;
            let starts = host.unlisted == 0 && host.starts_processes();
            let may_be_slow = number == slow_host;
            let steps_slowly = !may_be_slow && (host.steps_slowly() || host.slow_until > self.now);
            let is_slow = steps_slowly
                || host.extra_delay > 0
                || number != late_data_host && host.data_is_late();
            let runs = |process: &u32| {
                let process = &self.processes[*process as usize];
                process.stopped == 0 && process.thread_hangs == 0 && !process.hangs
            };
            let processes_run = host.processes.iter().all(runs);
            agent_runs && starts && cuts + host.down == 0 && !is_slow && processes_run
        };
        self.lies.is_empty()
            && self.driver_acts_since(0)
            && self.driver.dies_midway.is_none()
            && self.former.iter().all(|former| !DriverLife::runs(former))
            && (0..).zip(&self.hosts).all(host_is_whole)
    }

    /// Time without a fault since the start of a phase, in nanoseconds. `since` is that start in world time.
    pub(super) fn calm_for(&self, since: u64) -> u64 {
        let from = since.max(self.faulted_at).max(self.calm.whole_since);
        self.now.saturating_sub(from.max(self.driver.settled_at).max(self.driver.knows_from))
    }

    /// Longest time from one step's boundary to the next, in nanoseconds.
    pub(super) fn boundary_ns(&self) -> u64 {
        let steps = if self.scenario.checks_every_step { 1 } else { self.scenario.commit_every };
        steps * self.step_ns_max()
    }

    /// Longest time from one commit to the next, in nanoseconds.
    pub(super) fn commit_ns(&self) -> u64 {
        self.scenario.commit_every * self.step_ns_max()
    }

    fn step_ns_max(&self) -> u64 {
        // If some ranks carry fewer shards, others carry more.
        let longer = if self.options.draws >= 9 { STEPS_LONGER_MAX } else { 1 };
        self.scenario.step_ns / 8 * 9 * longer + 5 * MS
    }

    fn check_phase(&mut self) {
        let deadlines = self.scenario.driver.deadlines;
        let ns = |duration: std::time::Duration| duration.as_nanos() as u64;
        let lasted = self.calm_for(self.driver.phase_since);
        let (what, lasted, bound) = match self.driver.phase {
            ObservedPhase::Gather => {
                let elastic = ns(deadlines.elastic) * 2 + SLACK_NS;
                let unhurried = self.gather_ns() + SLACK_NS;
                // Between two looks, a generation may have been formed and have ended.
                let enough_since = self.calm.enough_since;
                let enough = enough_since.map(|it| self.calm_for(it.max(self.driver.phase_since)));
                let last_call = ns(deadlines.last_call) + self.pause_ns() + SLACK_NS;
                let rest = self.boundary_ns() * 3 + SLACK_NS;
                if lasted > rest && self.has_members_in_motion() {
                    return self.fail_in_time("members have not come to rest", lasted, rest);
                }
                match enough.filter(|lasted| *lasted > last_call) {
                    Some(lasted) => ("enough workers have been at rest", lasted, last_call),
                    None => ("the gather room has been open", lasted, unhurried.min(elastic)),
                }
            }
            ObservedPhase::Form => {
                let sync = ns(deadlines.elastic).min(self.scenario.collective_ns);
                let bound = ns(deadlines.form) + sync + SLACK_NS;
                ("a generation has been forming", lasted, bound)
            }
            ObservedPhase::Run => {
                let paused = self.driver.members.iter().filter_map(|process| {
                    let program = &self.processes.get(*process as usize)?.program;
                    let waits = program.pause_flag && program.stamp == self.driver.stamp;
                    waits.then_some(program.paused_since)
                });
                let lasted = paused.min().map_or(0, |since| self.calm_for(since));
                let bound = self.boundary_ns() * 3 + SLACK_NS;
                ("members have been asked to pause", lasted, bound)
            }
            ObservedPhase::Over => return,
        };
        if lasted > bound {
            self.fail_in_time(what, lasted, bound);
        }
    }

    fn fail_in_time(&mut self, what: &str, lasted: u64, bound: u64) {
        let waits = self.who_is_waited_for();
        let (lasted, bound) = (lasted / MS, bound / MS);
        let reason =
            format!("in time: {what} for {lasted} ms, bound {bound} ms, without a fault; {waits}");
        self.fail_liveness(reason);
    }

    /// Longest pause before the next generation, where resets have brought the job no further.
    fn pause_ns(&self) -> u64 {
        if self.oracle.fruitless > PAUSED_AFTER { PAUSE_MAX_NS } else { 0 }
    }

    /// Longest gather while too few workers are there. It covers a blacklist cooldown, a slot's back-off and the
    /// start of its process. It also covers an absent holder of a commit, which returns or ends by itself.
    fn gather_ns(&self) -> u64 {
        let deadlines = self.scenario.driver.deadlines;
        let alone = deadlines.orphan.max(deadlines.orphan_training.unwrap_or_default());
        let away = alone + deadlines.grace + deadlines.lost * 2;
        let cooldown =
            self.scenario.host_manager.cooldown.map_or_else(Default::default, |it| it.max);
        let start = deadlines.start + deadlines.grace * 2 + deadlines.last_call;
        let ns = |duration: std::time::Duration| duration.as_nanos() as u64;
        let polls = ns(self.scenario.host_manager.poll_interval) * 2;
        let comes = BACKOFF_MAX_NS + ns(cooldown) + polls + ns(start) + self.scenario.boot_ns * 4;
        ns(away).max(comes) + self.scenario.collective_ns
    }

    /// Longest time in which a whole job must become healthy. It covers two gathers, since an attempt under way when
    /// the faults stopped may fail once more, and the phases between them.
    pub(super) fn healing_ns(&self) -> u64 {
        let deadlines = self.scenario.driver.deadlines;
        let form = deadlines.form.as_nanos() as u64 + self.scenario.collective_ns;
        2 * (self.gather_ns() + form + self.boundary_ns() * 3 + SLACK_NS)
    }

    /// Whether a generation could be formed: enough workers rest in reach of the driver, and no other process holds a
    /// later commit.
    fn is_enough_at_rest(&self) -> bool {
        let settled_at = self.driver.settled_at.max(self.driver.knows_from);
        if !self.keeps_processes() || self.now < settled_at {
            return false;
        }
        let snapshot = self.driver.hosts();
        let slots_of = |process: &SimulatedProcess| {
            let name = &self.hosts[process.host as usize].name;
            let entry = snapshot.hosts.iter().find(|entry| entry.name == *name);
            entry.filter(|entry| entry.state == HostState::Listed).map_or(0, |entry| entry.slots)
        };
        let rests = |process: &SimulatedProcess| {
            let link = &self.links[process.link as usize];
            process.stays()
                && process.program.is_at_rest()
                && process.program.rested_at + 2_000 * MS < self.now
                && process.id.slot < slots_of(process)
                && link.is_in_touch()
                && link.life == self.driver.life
        };
        let here = self.hosts.iter().flat_map(|host| &host.processes);
        let here = here.map(|process| &self.processes[*process as usize]);
        let (mut ready, mut best, mut away) = (0_u32, None, None);
        for process in here {
            if process.job != self.driver.job {
                return false;
            }
            if rests(process) {
                ready += 1;
                best = best.max(process.saved_progress());
            } else {
                away = away.max(process.saved_progress());
                if process.program.is_engaged() {
                    // The driver may wait for this process as a member.
                    return false;
                }
            }
        }
        let driver = &self.scenario.driver;
        let stamp = self.driver.stamp;
        let is_first =
            stamp == elastic_protocol::Stamp::default() || self.driver.taken_back == Some(stamp);
        let needed = if is_first { driver.np } else { driver.min_np };
        ready >= needed.unwrap_or(1) && best >= away
    }

    fn note_stability(&mut self) {
        let is_quiet = self.disturbed_at + STABLE_AFTER_NS <= self.now
            && self.faulted_at + STABLE_AFTER_NS <= self.now
            && self.calm_for(0) >= STABLE_AFTER_NS
            && self.driver.phase == ObservedPhase::Run;
        if is_quiet && self.calm.stable_since.is_none() {
            let snapshot = self.driver.hosts();
            let none_is_out = snapshot.hosts.iter().all(|entry| entry.state == HostState::Listed);
            if none_is_out && self.is_settled() {
                self.calm.stable_since = Some(self.now);
            }
        }
    }

    /// Checks that a healthy job stays as it is. Called when the driver resets or stops a worker.
    pub(super) fn check_stable(&self, what: &str) -> Result<(), String> {
        let Some(since) = self.calm.stable_since else { return Ok(()) };
        let ms = (self.now - since + STABLE_AFTER_NS) / MS;
        Err(format!("stable: {what}, and nothing has happened for {ms} ms while everybody trained"))
    }

    /// Checks that a job that failed for a limit had reached it (G-10). `None` for any other result.
    pub(super) fn check_limits(&self, result: &JobResult) -> Option<Result<(), String>> {
        if result.outcome != JobOutcome::Failed {
            return None;
        }
        let driver = &self.scenario.driver;
        let complain = |is_right: bool| {
            let complaint =
                || format!("G-10: the job failed, and had not come to it: {}", result.reason);
            Some(if is_right { Ok(()) } else { Err(complaint()) })
        };
        // Of its own job: with those whose events were lost with the driver that decided them.
        let resets = self.oracle.resets_of(self.driver.job);
        if result.reason.starts_with("the limit of") {
            return complain(driver.reset_limit.is_some_and(|max| resets >= u64::from(max)));
        }
        if result.reason.starts_with("a worker failed") {
            return complain(driver.max_job_restarts.is_some_and(|max| resets >= u64::from(max)));
        }
        let elastic = driver.deadlines.elastic.as_nanos() as u64 / 100 * 97;
        if result.reason.contains(" resets in a row within ") {
            let was_long = self.oracle.fruitless_since + elastic <= self.now;
            return complain(was_long && self.oracle.fruitless >= FRUITLESS_MAX);
        }
        if result.reason.starts_with("the elastic timeout of") {
            let lasted = self.now - self.driver.phase_since;
            // A reset is told once its record is stored, up to a retry after the disk was mended.
            let may_be_late = !self.driver_acts_since(elastic + SLACK_NS);
            let was_long = lasted >= elastic || may_be_late;
            let was_enough = self
                .calm
                .enough_since
                .is_some_and(|since| self.is_enough_at_rest() && self.calm_for(since) > SLACK_NS);
            let has_heard_since = !self.passed_during_pause("gather");
            return complain(
                was_long
                    && !was_enough
                    && has_heard_since
                    && self.elastic_counts_for_ms().is_none(),
            );
        }
        None
    }
}
