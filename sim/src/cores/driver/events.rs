//! The driver's events, as the oracle checks them. Called where the driver writes its event log.

use std::collections::BTreeSet;

use elastic_driver::{DriverEvent, EventKind, ResetWay, WorkerStanding};
use elastic_protocol::{GenerationId, JobOutcome, JobResult, ResetCause, Time};

use super::super::checkpoints::GONE_CHECKPOINT;
use super::super::processes::SimulatedProcess;
use super::super::rebalancing::DealTold;
use super::super::{Happening, MS, World};
use super::ObservedPhase;
use crate::dataset::mix;
use crate::decisions::words;
use crate::trace::{TraceKind, TracePlace};

/// Longest time from a node's silence to its end, or to the driver's verdict about it.
const JUDGED_WITHIN_NS: u64 = 5_000 * MS;

/// Longest time until a member in reach learns that a change was undone.
const RESUMPTION_NS: u64 = 5_000 * MS;

/// Time until the driver knows that a worker was told to leave.
const JUST_NOTICED_NS: u64 = 500 * MS;

/// Time allowed from a decision to its words, beside the journal's.
const HELD_NS: u64 = 100 * MS;

impl World {
    pub(crate) fn driver_event(&mut self, event: DriverEvent) {
        if self.driver.life == self.newest {
            let (job, life) = (self.driver.job, self.driver.life);
            let checked = self.oracle.account(self.now, job, life, &event);
            self.demand(checked);
        }
        // Members may be told the next generation before the log says that the last one ended.
        let (generation, kind) = (event.generation, event.kind);
        let words = if self.trace.wants_words() { format!("{kind:?}") } else { String::new() };
        let (code, number) = match &kind {
            EventKind::ResetDecided { way, .. } => (1, way.name().len() as u64),
            EventKind::GenerationRunning { world_size } => (2, u64::from(*world_size)),
            EventKind::JobEnded { result } => (3, result.code.unsigned_abs().into()),
            EventKind::ResetDone { .. } => (4, 0),
            EventKind::ResetCalledOff { .. } => (5, 0),
            EventKind::HostsChanged { hosts, .. } => (6, hosts.len() as u64),
            EventKind::Warning { message } => (7, message.len() as u64),
            EventKind::WorkerExited { expected, .. } => (8, u64::from(*expected)),
            _ => (9, 0),
        };
        self.record(TraceKind::Log, TracePlace::DRIVER, (code, number), || words);
        if self.trace.decisions.is_wanted()
            && let Some(words) = words::event(&kind)
        {
            self.driver_decides(|| words);
        }
        let checked =
            self.check_reasons(generation, &kind).and_then(|()| self.check_parting(&kind));
        self.demand(checked);
        match kind {
            EventKind::ResetDecided { cause, way } => {
                if way == ResetWay::Abort {
                    // A member is lost, and nobody else has its part of a save.
                    self.no_save_is_due_before_leaving();
                }
                let what = format!("a reset is decided ({cause})");
                let is_repair = matches!(cause, ResetCause::ReplicasDiffer { .. });
                if !is_repair {
                    // A bit may have flipped long before its difference was named. `note_repair` checks that it has.
                    let checked =
                        self.check_interregnum(&what).and_then(|()| self.check_stable(&what));
                    self.demand(checked);
                }
                let checked = self.note_repair(&cause);
                self.demand(checked);
                self.check_death(generation, &cause);
                self.driver.enter_phase(self.now, ObservedPhase::Gather);
                self.driver.reset_since.get_or_insert(self.now);
                if self.driver.life == self.newest {
                    self.oracle.reset_decided(self.driver.job, generation);
                }
                if self.driver.last_reset.replace(generation) != Some(generation) {
                    // A planned end that becomes an abort counts as one reset.
                    self.driver.resets += 1;
                }
                let limit = self.scenario.driver.reset_limit;
                if limit.is_some_and(|limit| self.driver.resets > limit) {
                    self.fail_safety(format!(
                        "G-10: a reset is decided beyond the limit ({cause})"
                    ));
                }
                self.oracle.resets += 1;
                self.record(
                    TraceKind::Reset,
                    TracePlace::DRIVER,
                    (self.oracle.resets, 0),
                    String::new,
                );
                self.release_faults_after_reset();
            }
            EventKind::WorkerAttached { .. } => self.note_attached(),
            EventKind::GenerationTakenBack { worker } => {
                let checked = self.check_taken_back(&worker);
                self.demand(checked);
            }
            EventKind::WorkerStarted { worker } => self.note_ordered(&worker),
            EventKind::WorkerExited { worker, .. } | EventKind::WorkerNotStarted { worker, .. } => {
                self.note_not_ordered(&worker);
            }
            EventKind::WorkerStopped { worker, reason } => {
                let what = format!("{worker} is stopped ({reason})");
                let checked = self.check_interregnum(&what).and_then(|()| self.check_stable(&what));
                self.demand(checked);
                match self.process_of(self.driver.job, &worker) {
                    Some(process) => {
                        self.processes[process as usize].stopping.is_told = true;
                        let checked = self.check_stop(process, &reason);
                        self.demand(checked);
                        let checked = self.check_saved_before_leaving(process);
                        self.demand(checked);
                    }
                    // The order to start it is on its way.
                    None => {
                        self.note_not_ordered(&worker);
                        self.driver.stopped_unstarted.insert(worker);
                    }
                }
            }
            EventKind::WorkerStalled { worker, silent_ms: Some(_), .. } => {
                let checked = self.check_silent(&worker);
                self.demand(checked);
            }
            EventKind::WorkerStalled { worker, late_ms, stack, native_stack, grounds, .. } => {
                let (stack, native_stack) = (stack.as_deref(), native_stack.as_deref());
                let checked = match &grounds {
                    Some(grounds) => self.check_inactive(&worker, grounds, native_stack),
                    None => self.check_stalled(&worker, late_ms, stack, native_stack),
                };
                self.demand(checked);
            }
            EventKind::StragglerFound { worker, ranks, is_host, .. } => {
                let checked = self.check_straggler(&worker, &ranks, is_host);
                self.demand(checked);
            }
            EventKind::HealthCheckFailed { host, reason, .. } => {
                let checked = self.check_unhealthy(&host, &reason);
                self.demand(checked);
            }
            EventKind::HealthCheckPassed { host } => self.note_healthy(&host),
            EventKind::SlotRested { host, slot } => {
                self.membership_is_to_change();
                let checked = self.check_rested(&host, slot);
                self.demand(checked);
            }
            EventKind::SlowLinkFound { from, to, host, .. } => {
                let checked = self.check_slow_link(&from, &to, host.as_ref());
                self.demand(checked);
            }
            EventKind::WorkerReplaced { worker, is_host, why, .. } => {
                self.membership_is_to_change();
                let checked = self.check_replaced(&worker, is_host, why);
                self.demand(checked);
            }
            EventKind::ShardsRebalanced {
                workers,
                ranks,
                factors,
                counts_before,
                shard_counts,
                ..
            } => {
                let checked = self.check_dealt(&DealTold {
                    workers: &workers,
                    ranks: &ranks,
                    factors: &factors,
                    before: &counts_before,
                    counts: &shard_counts,
                });
                self.demand(checked);
            }
            EventKind::NotRebalanced { worker, .. } => self.note_not_rebalanced(&worker),
            EventKind::ReplicasDiffer { tensor, step, ranks, agreeing, .. } => {
                let checked = self.check_differing(&tensor, step, &ranks, agreeing);
                self.demand(checked);
            }
            EventKind::GenerationFormed { members, root, .. } => {
                let checked = self.check_repair(&members, root);
                self.demand(checked);
                // Its members may have been told it before the log told of the reset.
                if self.driver.phase == ObservedPhase::Gather {
                    self.driver.enter_phase(self.now, ObservedPhase::Form);
                }
            }
            EventKind::StallEnded { ms, usual, .. } => self.note_stall_ended(ms, usual),
            EventKind::ResetCalledOff { .. } => self.expect_resumption(),
            EventKind::CheckpointSaved { step, .. } => self.check_checkpoint_told(step),
            EventKind::CheckpointFailed { .. } => self.note_save_failed(),
            EventKind::Stopping { within_ms, .. } => self.note_stopping(within_ms),
            EventKind::StateLost { committed, .. } => {
                self.driver.loss_is_told = self.driver.untold_loss.take().is_none();
                // A generation may have begun from a commit that not all had taken.
                if self.oracle.highest_step(self.driver.job).unwrap_or(0) < committed {
                    self.fail_safety(format!(
                        "L-1: step {committed} is said to be lost, and no member has committed it"
                    ));
                }
            }
            EventKind::CheckpointLoaded { step: Some(step), .. } => {
                self.driver.loaded = Some((generation, step));
            }
            EventKind::ResetDone { steps_lost, .. } => {
                let checked = self.check_lost_steps(generation, steps_lost);
                self.demand(checked);
            }
            EventKind::Warning { message } if message.contains(GONE_CHECKPOINT) => {
                self.driver.gone_checkpoint = None;
            }
            EventKind::GenerationRunning { .. } => {
                self.check_gone_is_told();
                self.driver.trained_from = self.now;
                self.driver.enter_phase(self.now, ObservedPhase::Run);
                self.driver.reset_since = None;
                let generation = self.driver.stamp.generation.0;
                self.record(TraceKind::Run, TracePlace::DRIVER, (generation, 0), String::new);
            }
            EventKind::JobEnded { result } => {
                if self.driver.result.is_some() {
                    self.fail_safety("G-10: the job ended twice".to_owned());
                }
                let checked = self.check_result(&result);
                self.demand(checked);
                let checked = self.check_saved_before_stop(result.outcome);
                self.demand(checked);
                self.driver.enter_phase(self.now, ObservedPhase::Over);
                if result.outcome == JobOutcome::Succeeded {
                    self.note_last_commit();
                }
                self.driver.result = Some(result);
            }
            _ => {}
        }
    }

    /// Checks L-1: a reset whose generation begins from a checkpoint has lost no more steps than were made since that one.
    fn check_lost_steps(&self, generation: GenerationId, steps_lost: u64) -> Result<(), String> {
        let Some((_, step)) = self.driver.loaded.filter(|(of, _)| *of == generation) else {
            return Ok(());
        };
        let committed = self.oracle.highest_step(self.driver.job).unwrap_or(0);
        let made = committed.saturating_sub(step) + self.scenario.commit_every;
        match steps_lost <= made {
            true => Ok(()),
            false => Err(format!(
                "L-1: {steps_lost} steps are said to be lost, of at most {made} after the checkpoint of step {step}"
            )),
        }
    }

    /// Checks that the death of a worker ends one generation only: it is told twice, before the exit status and with it.
    fn check_death(&mut self, generation: GenerationId, cause: &ResetCause) {
        let (ResetCause::WorkerDied { worker } | ResetCause::WorkerExited { worker, .. }) = cause
        else {
            return;
        };
        if self.driver.deaths.insert(worker.incarnation, generation).is_some() {
            self.fail_safety(format!("G-12: the death of {worker} ends a second generation"));
        }
    }

    /// Checks a job that failed after its training had succeeded (G-10): a death that ended an earlier generation is not its
    /// cause, since the others went on.
    fn check_late_failure(&self, result: &JobResult) -> Result<(), String> {
        let had_succeeded =
            self.driver.result.as_ref().is_some_and(|it| it.outcome == JobOutcome::Succeeded);
        let failed = result.first_failure.as_ref().map(|failure| &failure.worker);
        match failed.filter(|_| had_succeeded && result.outcome == JobOutcome::Failed) {
            Some(worker)
                if self
                    .driver
                    .deaths
                    .get(&worker.incarnation)
                    .is_some_and(|it| *it < result.generation) =>
            {
                Err(format!(
                    "G-10: the others outlived {worker} and succeeded, and its death fails the job"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Checks a job that has succeeded (G-10): no member of its last generation has failed by itself as far as this driver has
    /// heard.
    fn check_no_silent_failure(&self, result: &JobResult) -> Result<(), String> {
        if result.outcome != JobOutcome::Succeeded || !self.scenario.trains {
            return Ok(());
        }
        let members = self.driver.members.iter().map(|it| &self.processes[*it as usize]);
        let has_failed = |it: &&SimulatedProcess| {
            let is_heard = it.stopping.reported.is_some_and(|(life, _)| life == self.driver.life);
            let is_own = !it.stopping.is_told && !it.stopping.is_signalled() && !it.is_leaving;
            is_heard && is_own && it.end.is_some_and(|status| !status.is_success())
        };
        match members.into_iter().find(has_failed) {
            Some(failed) => Err(format!(
                "G-10: {} has failed in the last generation, and the job succeeded: {}",
                failed.id, result.reason
            )),
            None => Ok(()),
        }
    }

    pub(crate) fn driver_ended(&mut self, result: JobResult) {
        self.driver_decides(|| words::ended(&result));
        let code = mix(u64::from(result.code.unsigned_abs()), result.reason.len() as u64);
        self.record(TraceKind::Ended, TracePlace::DRIVER, (code, 0), || format!("{result:?}"));
        if self.driver.has_left {
            return self.fail_safety("G-10: the driver gave two results".to_owned());
        }
        self.driver.has_left = true;
        let checked = self.check_late_failure(&result);
        self.demand(checked);
        let checked = self.check_no_silent_failure(&result);
        self.demand(checked);
        let checked = self.check_last_commit_saved();
        self.demand(checked);
        self.driver.result = Some(result);
        self.end_connections_of(self.driver.life, true);
        self.driver.seat = None;
        if self.driver.life == self.newest {
            self.end_former_drivers();
            self.everybody_goes();
        }
        self.reopen_all();
    }

    /// Checks a worker that the driver stops (G-5): the only holder of an acknowledged commit is put out neither for being late
    /// nor for a resource that its own system refuses it.
    fn check_stop(&mut self, process: u32, reason: &str) -> Result<(), String> {
        let life = self.driver.life;
        let entry = &mut self.processes[process as usize];
        if reason == "its host was blacklisted" {
            // State on a blacklisted host is lost with it, as the user has asked.
            entry.put_out_by = Some(life);
        }
        // By restart, the other members of a generation are stopped too, and the reason names the cause that ended it.
        let is_own_silence = !reason.starts_with("its generation ended");
        let link = entry.link;
        if reason == "it did not come back" && self.was_deaf(link, JUDGED_WITHIN_NS) {
            self.processes[process as usize].put_out_by = Some(life);
        }
        let entry = &mut self.processes[process as usize];
        if is_own_silence && reason.contains("was not heard for") {
            // The worker stands still for an unknown time. The state that it holds is lost with it.
            entry.put_out_by = Some(life);
            let (link, id) = (entry.link, entry.id.clone());
            if self.driver_acts_since(JUDGED_WITHIN_NS) && !self.was_deaf(link, JUDGED_WITHIN_NS) {
                return Err(format!("{id} is put out for its silence, and was heard all the time"));
            }
        }
        let began = self.reset_decided_at();
        let acknowledged = self.oracle.acknowledged(self.driver.job);
        if reason == "its slot is not used any more"
            && self.is_held_by_a_member(process, acknowledged)
        {
            // It is dismissed while others hold the commit. The order cannot be taken back, whenever it arrives.
            self.processes[process as usize].put_out_by = Some(life);
            return Ok(());
        }
        let holds = |process: &SimulatedProcess| {
            process.stays()
                && process.job == self.driver.job
                && acknowledged.is_some()
                && process.saved_progress() >= acknowledged
        };
        let entry = &self.processes[process as usize];
        let is_refused = reason.starts_with(&format!("{} failed: ", entry.id));
        if !(is_refused || reason.contains("deadline passed")) || !holds(entry) {
            return Ok(());
        }
        let mut others = self.hosts.iter().flat_map(|host| &host.processes);
        let elastic = self.scenario.driver.deadlines.elastic.as_nanos() as u64 / 100 * 97;
        if began + elastic <= self.now || life != self.newest {
            // The elastic timeout ends every wait. A former driver that stood still does not know the workers that died
            // meanwhile. Its lease has ended, and nodes that know its successor turn it away.
            self.processes[process as usize].put_out_by = Some(life);
            return Ok(());
        }
        let is_held_by_others =
            others.any(|other| *other != process && holds(&self.processes[*other as usize]));
        let is_held_by_others =
            is_held_by_others || (is_refused && self.is_held_by_a_member(process, acknowledged));
        let entry = &mut self.processes[process as usize];
        // Workers put out later cannot count on this one.
        entry.put_out_by = Some(life);
        if is_held_by_others {
            return Ok(());
        }
        Err(format!(
            "G-5: {} alone holds the acknowledged commit at {} samples and is put out: {reason}",
            entry.id,
            acknowledged.unwrap_or_default()
        ))
    }

    /// Whether a process has died after the driver may have decided its present messages: these wait for the journal.
    pub(super) fn has_just_died(&self, process: &SimulatedProcess) -> bool {
        let refused_since = self.driver.refused_since.unwrap_or(self.now);
        let decided_at = refused_since.saturating_sub(HELD_NS + 4 * self.scenario.sync_ns);
        process.stopping.ended_at.is_some_and(|ended| ended > decided_at)
    }

    /// Whether another member holds the acknowledged commit, as far as the driver can know. No deadline has passed for
    /// it: it may have died, stand still or have been told to leave a moment ago.
    fn is_held_by_a_member(&mut self, process: u32, acknowledged: Option<u64>) -> bool {
        let standings = self.driver.cores().map(|cores| {
            let counted = cores.driver.standings().filter(|(_, standing)| {
                matches!(standing, WorkerStanding::Engaged | WorkerStanding::Ready)
            });
            counted.map(|(worker, _)| worker.clone()).collect::<BTreeSet<_>>()
        });
        let others = self.driver.members.iter().filter(|other| **other != process);
        let mut others = others.filter_map(|other| self.processes.get(*other as usize));
        let was_just_noticed = |other: &SimulatedProcess| {
            other.stopping.noticed_at.is_some_and(|at| at + JUST_NOTICED_NS > self.now)
        };
        others.any(|other| {
            other.put_out_by.is_none()
                && (!other.is_leaving || was_just_noticed(other))
                && (self.has_just_died(other)
                    || standings.as_ref().is_none_or(|counted| counted.contains(&other.id)))
                && other.program.saved.map(|saved| saved.model.samples) >= acknowledged
        })
    }

    /// World time at which the driver decided the reset under way. Its event may come much later: it waits for the disk.
    fn reset_decided_at(&mut self) -> u64 {
        let told = self.driver.reset_since.unwrap_or(self.now);
        let now = self.driver.clock.local(self.now);
        let Some(cores) = self.driver.cores() else { return told };
        let reset = cores.driver.status(now, &|time| time.0.to_string()).last_reset;
        let decided = reset.and_then(|reset| reset.at.parse().ok()).map(Time);
        decided.map_or(told, |at| self.driver.clock.world(at).min(told))
    }

    /// A change was undone: schedules a check that paused members are told to go on.
    fn expect_resumption(&mut self) {
        let since = self.now;
        for process in self.driver.members.clone() {
            let is_there = self.processes.get(process as usize);
            if is_there.is_some_and(|process| process.program.pause_flag) {
                let at = since + RESUMPTION_NS;
                self.agenda.push(at, Happening::Resumed { process, since });
            }
        }
    }

    /// Checks that a member paused for an undone change trains again, or is out of reach.
    pub(in crate::cores) fn check_resumed(&mut self, process: u32, since: u64) {
        let entry = &self.processes[process as usize];
        let host = &self.hosts[entry.host as usize];
        let program = &entry.program;
        let is_paused = entry.is_alive
            && program.pause_flag
            && program.paused_since <= since
            && program.stamp == self.driver.stamp
            && self.driver.phase == ObservedPhase::Run;
        if !is_paused || self.is_over() {
            return;
        }
        let is_cut = host.cut_to_driver > 0 || host.cut_from_driver > 0;
        let has_session = self.links[entry.link as usize].is_in_touch();
        let is_excused =
            entry.stopped > 0 || is_cut || !has_session || !self.driver_acts_since(RESUMPTION_NS);
        if is_excused {
            let at = self.now + RESUMPTION_NS;
            return self.agenda.push(at, Happening::Resumed { process, since });
        }
        let id = entry.id.clone();
        self.fail_safety(format!(
            "G-9: {id} was told to pause for a change that was undone, and is not told to go on"
        ));
    }
}
