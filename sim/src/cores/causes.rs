//! Reasons for the driver's resets, stops and evictions: the reason that the driver names is true, and no healthy worker or
//! host pays for it. Called when the driver writes its event log, with the driver's cores at hand.

use elastic_driver::{EventKind, ResetWay};
use elastic_host_manager::HostState;
use elastic_protocol::messages::PhaseMs;
use elastic_protocol::{ExitStatus, GenerationId, HostName, ResetCause, WorkerId};

use super::driver::ObservedPhase;
use super::processes::SimulatedProcess;
use super::program::Saved;
use super::{MS, World};

/// Undisturbed time after which no connection ends and nobody falls silent.
const QUIET_NS: u64 = 10_000 * MS;

/// Age of a fact that the driver must have taken in, if it has acted all the while.
const KNOWN_NS: u64 = 3_000 * MS;

/// Difference between a duration that the driver reports and the one seen from outside.
const TOLD_LATE_MS: f64 = 1_500.0;

impl World {
    /// Checks the reasons in an event of the driver, of this generation. Members may have been told the next one by now.
    pub(super) fn check_reasons(
        &mut self,
        generation: GenerationId,
        kind: &EventKind,
    ) -> Result<(), String> {
        if self.driver.cores().is_none() || !self.driver_acts_since(KNOWN_NS) {
            return Ok(());
        }
        match kind {
            EventKind::ResetDecided { cause, way } => {
                // The last holder of the state may be let go after its time, which breaks the generation.
                let is_right = match way {
                    ResetWay::Interrupt => cause.is_planned(),
                    ResetWay::Abort => !matches!(cause, ResetCause::HostsChanged { .. }),
                    ResetWay::Restart => true,
                };
                if !is_right || (*way == ResetWay::Restart) == self.keeps_processes() {
                    return Err(format!("causes: {cause} ends the generation by {}", way.name()));
                }
                self.check_cause(generation, cause)
            }
            EventKind::WorkerStopped { worker, reason } => self.check_stop_reason(worker, reason),
            EventKind::WorkerExited { worker, status, expected, .. } => {
                self.check_exit(worker, *status, *expected)
            }
            EventKind::ResetDone { ms, from, cause, .. } => {
                if self.driver.last_reset.is_some_and(|ended| ended != *from) {
                    return Err(format!("events: the reset of generation {from} is done"));
                }
                self.check_reported_cause(cause)?;
                self.check_duration(*ms)
            }
            EventKind::GenerationFormed { members, root, step } => {
                self.check_formed(members, *root, *step)
            }
            EventKind::GenerationRunning { world_size } => {
                let members = self.driver.members.len();
                match *world_size as usize == members {
                    true => Ok(()),
                    false => Err(format!("events: {world_size} workers train, and {members} do")),
                }
            }
            EventKind::WorkerAttached { worker, pid } => {
                match self.of_worker(worker).filter(|process| process.pid() != *pid) {
                    Some(_) => Err(format!("events: {worker} attached as process {pid}")),
                    None => Ok(()),
                }
            }
            EventKind::HostJoined { host, slots } => {
                let offered = self.hosts.iter().find(|entry| entry.name == *host);
                // The list may have fewer of them than its agent offers. The driver knows it a moment after the host manager.
                let lists = [&self.driver.hosts(), &self.driver.heard_hosts];
                let listed = lists.map(|it| it.hosts.iter().find(|entry| entry.name == *host));
                let is_of_list = |offered: u32| {
                    listed.into_iter().flatten().any(|it| *slots == it.slots.min(offered))
                };
                match offered.is_some_and(|it| *slots == it.slots || is_of_list(it.slots)) {
                    true => Ok(()),
                    false => Err(format!("events: {host} joined with {slots} slots")),
                }
            }
            _ => Ok(()),
        }
    }

    fn of_worker(&self, worker: &WorkerId) -> Option<&SimulatedProcess> {
        let process = self.process_of(self.driver.job, worker)?;
        self.processes.get(process as usize)
    }

    fn check_cause(&self, generation: GenerationId, cause: &ResetCause) -> Result<(), String> {
        let complain = |why: &str| Err(format!("causes: {cause}; but {why}"));
        let is_quiet = self.disturbed_at + QUIET_NS <= self.now && self.calm_for(0) >= QUIET_NS;
        match cause {
            ResetCause::WorkerExited { worker, status } => {
                let process = self.of_worker(worker);
                if process.is_none_or(|process| process.end != Some(*status)) {
                    return complain("it has not");
                }
            }
            ResetCause::WorkerDied { worker } => {
                if self.of_worker(worker).is_none_or(|process| process.is_alive) {
                    return complain("it has not");
                }
            }
            ResetCause::WorkerFailed { error, .. } if error.starts_with("its connection ended") => {
                if is_quiet {
                    return complain("nothing has happened");
                }
            }
            ResetCause::WorkerFailed { .. } => {}
            ResetCause::WorkerSilent { .. } | ResetCause::HostLost { .. } => {
                if is_quiet {
                    return complain("nothing has happened");
                }
            }
            ResetCause::PeerBroken { reporter, .. } => {
                let process = self.of_worker(reporter);
                let has_given_up = process.is_none_or(|process| {
                    process.program.gave_up_in.generation >= generation || process.is_script
                });
                if !has_given_up {
                    return complain("it takes part");
                }
            }
            ResetCause::HostBlacklisted { host } => {
                if !self.is_blacklisted(host) {
                    return complain("it is not");
                }
            }
            // The oracle follows the next generation's members already, and has none to judge this one by.
            ResetCause::DeadlinePassed { .. } | ResetCause::HostsChanged { .. }
                if generation != self.driver.stamp.generation => {}
            ResetCause::DeadlinePassed { phase, waiting_for } => {
                return self.check_lateness(phase, waiting_for);
            }
            ResetCause::HostsChanged { added, removed } => {
                if added.is_empty() && removed.is_empty() {
                    return complain("nothing has changed");
                }
                let max = self.scenario.driver.max_np.unwrap_or(u32::MAX) as usize;
                let is_full = self.driver.members.len() + added.len() > max;
                let is_kept = |worker: &&WorkerId| {
                    self.of_worker(worker).is_some_and(|it| self.is_plainly_wanted(it))
                };
                if let Some(worker) = removed.iter().find(is_kept).filter(|_| !is_full) {
                    return complain(&format!("{worker} is healthy and its slot is listed"));
                }
                let is_member = |worker: &&WorkerId| {
                    let process = self.process_of(self.driver.job, worker);
                    process.is_some_and(|process| self.driver.members.contains(&process))
                };
                if let Some(worker) = added.iter().find(is_member) {
                    return complain(&format!("{worker} takes part already"));
                }
            }
            ResetCause::WorkerLeaves { worker, reason }
                if reason.starts_with("replaced, since") =>
            {
                if self.of_worker(worker).is_some_and(|process| !self.is_at_rest(process)) {
                    return complain("its slot does not rest");
                }
            }
            ResetCause::ReplicasDiffer { .. } | ResetCause::ShardsRebalanced { .. } => {}
            ResetCause::WorkerLeaves { worker, .. } => {
                if self.of_worker(worker).is_some_and(|process| !process.is_leaving) {
                    return complain("nobody has told it to");
                }
            }
        }
        Ok(())
    }

    /// Checks members that are said to be late: they have not voted, and the deadline has passed.
    fn check_lateness(&self, phase: &str, late: &[WorkerId]) -> Result<(), String> {
        if self.passed_during_pause(phase) {
            return Err(format!(
                "nobody healthy is evicted: the deadline of phase {phase} passed while the driver was paused"
            ));
        }
        let is_sync = phase == "sync";
        if !is_sync && phase != "form" {
            return Ok(());
        }
        let (job, stamp) = (self.driver.job, self.driver.stamp);
        for worker in late {
            // A script's vote is noted where it is cast: the driver may learn of the script's death late, and of its start
            // from an agent that stands still, is starved or out of reach.
            let is_untold = !self.keeps_processes()
                && self.of_worker(worker).is_none_or(|process| {
                    let agent = self.hosts[process.host as usize].agent.as_ref();
                    let tells = agent.is_some_and(|agent| {
                        agent.has_run_for(KNOWN_NS, self.now)
                            && !self.was_deaf(agent.link, KNOWN_NS)
                    });
                    !process.is_alive || !tells
                });
            let vote = self.oracle.vote_of(job, stamp, is_sync, worker).filter(|_| !is_untold);
            if vote.is_some_and(|voted_at| voted_at + KNOWN_NS < self.now) {
                return Err(format!(
                    "nobody healthy is evicted: {worker} is late in phase {phase}, and had voted"
                ));
            }
        }
        let form = self.scenario.driver.deadlines.form.as_nanos() as u64 / 100 * 97;
        let lasted = self.now - self.driver.phase_since;
        if self.driver.phase == ObservedPhase::Form && !is_sync && lasted < form {
            let lasted = lasted / MS;
            return Err(format!("causes: the form deadline passed after {lasted} ms"));
        }
        Ok(())
    }

    /// Whether the driver goes on just now after a pause in which the phase's deadline passed: it has read no answers yet. A
    /// deadline that the disk put off is left out.
    pub(super) fn passed_during_pause(&self, phase: &str) -> bool {
        let deadlines = self.scenario.driver.deadlines;
        let period = if phase == "form" { deadlines.form } else { deadlines.elastic };
        let due_by = self.driver.phase_since + period.as_nanos() as u64 / 100 * 103;
        let (stopped_at, continued_at) = (self.driver.stopped_at, self.driver.continued_at);
        self.now <= continued_at + MS
            && stopped_at <= due_by
            && due_by + deadlines.suspect.as_nanos() as u64 <= self.now
    }

    fn check_stop_reason(&self, worker: &WorkerId, reason: &str) -> Result<(), String> {
        let Some(process) = self.of_worker(worker).filter(|process| process.is_alive) else {
            return Ok(());
        };
        let complain =
            |why: &str| Err(format!("nobody healthy is stopped: {worker} ({reason}), and {why}"));
        let rests = process.stays()
            && process.program.is_at_rest()
            && process.program.rested_at + KNOWN_NS < self.now
            && self.links[process.link as usize].life == self.driver.life
            && !self.was_deaf(process.link, KNOWN_NS)
            && self.calm_for(0) > KNOWN_NS;
        let is_late = reason.contains("did not attach") || reason.contains("did not come to rest");
        if is_late && rests && !process.is_script {
            return complain("it is at rest");
        }
        if reason == "its slot is not used any more"
            && self.scenario.driver.max_np.is_none()
            && self.is_plainly_wanted(process)
        {
            return complain("its slot is listed");
        }
        if reason == "its host was blacklisted" && !self.is_blacklisted(&worker.host) {
            return complain("it is not");
        }
        // While nothing can be stored, nobody is told to arrive, and no newcomer is started.
        if reason.contains("gather deadline passed")
            && let Some(ms) = self.elastic_counts_for_ms()
        {
            return complain(&format!("the journal could not be written until {ms} ms ago"));
        }
        if reason == "it did not end by itself"
            && !(process.is_to_leave() || process.program.has_raised() || process.stopped > 0)
            && self.calm_for(0) > KNOWN_NS
        {
            return complain("it was not told to");
        }
        Ok(())
    }

    /// For how many milliseconds the elastic timeout counts, where it counts since the journal could be written again and
    /// is not over.
    pub(super) fn elastic_counts_for_ms(&self) -> Option<u64> {
        let elastic = self.scenario.driver.deadlines.elastic.as_nanos() as u64 / 100 * 97;
        let refused_at = self.driver.refused_batch_at?;
        // A decision that was due when the disk began to refuse is in the batch that it refused.
        let was_due = |since: u64| self.driver.phase_since + elastic <= since;
        if self.driver.refused_since.is_some_and(was_due) {
            return None;
        }
        let counts_for = self.now - refused_at;
        (counts_for < elastic).then_some(counts_for / MS)
    }

    /// Checks whether the end of a process is rightly said to be expected.
    fn check_exit(
        &mut self,
        worker: &WorkerId,
        status: ExitStatus,
        expected: bool,
    ) -> Result<(), String> {
        let Some(process) = self.process_of(self.driver.job, worker) else { return Ok(()) };
        let is_over = self.is_over();
        let link = self.processes[process as usize].link;
        let entry = &self.processes[process as usize];
        let is_told = self.driver.stopped_unstarted.contains(worker)
            || entry.is_to_leave()
            || entry.stopping.is_told
            || entry.program.has_raised();
        let lost_at = self.links[link as usize].lost_at;
        // A worker that was out of reach for long may have ended for want of a driver.
        let deadlines = &self.scenario.driver.deadlines;
        let orphan = deadlines.orphan_training.unwrap_or(deadlines.orphan).min(deadlines.orphan);
        let alone = orphan.saturating_sub(deadlines.lost * 3).as_nanos() as u64 / 100 * 97;
        let heard_at = self.links[link as usize].heard_at();
        let may_be_orphaned = lost_at.is_some_and(|at| at.min(heard_at) + alone <= self.now);
        let is_signalled = entry.stopping.is_signalled();
        let is_excused = self.lives > 1 || may_be_orphaned || is_signalled;
        if expected && !is_told && !is_excused && !is_over && !status.is_success() {
            return Err(format!("events: the end of {worker} ({status}) is said to be expected"));
        }
        let was_lost = self.lives > 1 || self.was_cut(entry.host) || lost_at.is_some();
        let was_stopped = entry.stopping.is_told && entry.stopping.terminated_at.is_some();
        if !expected && was_stopped && !was_lost && !is_over {
            return Err(format!(
                "events: {worker} was stopped, and its end is said to be unexpected"
            ));
        }
        Ok(())
    }

    /// Checks the generation that the event log names: its members, and its root, which holds the most (G-8).
    fn check_formed(
        &self,
        members: &[WorkerId],
        root: Option<u32>,
        step: u64,
    ) -> Result<(), String> {
        if !self.keeps_processes() {
            return Ok(());
        }
        let of_rank = |rank: u32| {
            let process = *self.driver.members.get(rank as usize)?;
            self.processes.get(process as usize)
        };
        let named = (0..).zip(members);
        if named.clone().any(|(rank, worker)| of_rank(rank).is_none_or(|it| it.id != *worker)) {
            return Err("events: a generation is formed of others than its members".to_owned());
        }
        let saved = |rank: u32| of_rank(rank)?.program.saved;
        let first = root.unwrap_or(0);
        // A replica that differs gives nobody its commit where another one holds a commit of the generation. A commit of a
        // generation that the others went on without is behind those that they have made since, however many samples it has seen.
        let holds_more = |held: Saved| {
            saved(first).is_none_or(|of_root| {
                let (model, root) = (held.model, of_root.model);
                let may_give = model.damage == 0 || model.damage == root.damage;
                let is_behind = held.id.generation < of_root.id.generation;
                model.samples > root.samples && may_give && !is_behind
            })
        };
        if named.filter_map(|(rank, _)| saved(rank)).any(holds_more) {
            return Err(format!("G-8: rank {first} is the root, and another holds more"));
        }
        // A checkpoint of a later generation takes precedence over the root's commit: the members look for it as if they held
        // nothing. The state from which they begin is checked once they have found it (C-1, G-5).
        let is_from_checkpoint = step == 0 && self.storage.told(self.driver.job).is_some();
        let begins_at = saved(first).map_or(0, |held| held.model.step);
        if begins_at != step && !is_from_checkpoint {
            return Err(format!(
                "events: a generation begins at step {step}, its root is elsewhere"
            ));
        }
        Ok(())
    }

    /// Checks the duration of a reset that the driver reports.
    fn check_duration(&self, ms: PhaseMs) -> Result<(), String> {
        let Some(since) = self.driver.reset_since else { return Ok(()) };
        let (Some(form), Some(sync), Some(total)) = (ms.form, ms.sync, ms.total) else {
            return Err("events: a reset is done, and a phase of it has not ended".to_owned());
        };
        let seen = (self.now - since) as f64 / 1e6;
        let said = form + sync;
        let is_right = (said - seen).abs() <= TOLD_LATE_MS + seen * 0.03;
        let adds_up = (said + ms.detect - total).abs() < 1.0;
        if form < 0.0 || sync < 0.0 || ms.detect < 0.0 || !adds_up {
            return Err(format!("events: a reset took {ms:?}"));
        }
        let was_undisturbed = self.driver_acts_since(self.now - since + KNOWN_NS);
        if was_undisturbed && !is_right && self.lives == 1 {
            return Err(format!("events: a reset took {seen:.0} ms, and is said to have: {ms:?}"));
        }
        Ok(())
    }

    pub(super) fn is_blacklisted(&self, host: &HostName) -> bool {
        let snapshot = self.driver.hosts();
        let mut entries = snapshot.hosts.iter().chain(&snapshot.unlisted);
        entries.any(|entry| entry.name == *host && entry.state != HostState::Listed)
    }

    fn was_cut(&self, host: u32) -> bool {
        let host = &self.hosts[host as usize];
        host.cut_to_driver + host.cut_from_driver > 0
    }

    /// Whether a process is well and belongs into the job: its slot is listed, and neither it nor its host is to go.
    pub(super) fn is_plainly_wanted(&self, process: &SimulatedProcess) -> bool {
        let host = &self.hosts[process.host as usize];
        let agent = host.agent.as_ref().filter(|agent| agent.life == process.agent_life);
        let stays = agent.is_some_and(|agent| {
            !agent.may_leave
                && agent.stopped == 0
                && self.links[agent.link as usize].life == self.driver.life
                && !self.was_deaf(agent.link, KNOWN_NS)
        });
        let snapshot = self.driver.hosts();
        let mut entries = snapshot.hosts.iter().filter(|entry| entry.name == host.name);
        let is_listed = entries.any(|entry| process.id.slot < entry.usable_slots().min(host.slots));
        stays
            && is_listed
            && !self.is_at_rest(process)
            && process.stays()
            && process.job == self.driver.job
            && self.links[process.link as usize].life == self.driver.life
            && !self.was_deaf(process.link, KNOWN_NS)
            && self.driver_acts_since(KNOWN_NS)
            && self.driver.hosts_since + KNOWN_NS < self.now
    }
}
