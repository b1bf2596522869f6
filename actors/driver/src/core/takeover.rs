//! Taking over: a core that goes on from what its predecessors have written down.
//!
//! Agents and workers went on without a driver. Each says where it is when it finds the new one; until all
//! have, or [`Deadlines::lost`](elastic_protocol::Deadlines) has passed twice, nothing is started, formed or
//! interrupted. A generation whose members are all still in it is left alone: only what would have ended it
//! under the former driver ends it (D-3).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use elastic_protocol::messages::{DriverToWorker, Table};
use elastic_protocol::{HostName, ResetCause, Stamp, Time, WorkerId};
use elastic_runtime::planted::{Bug, is_planted};
use rand_chacha::ChaCha8Rng;

use super::DriverCore;
use super::config::DriverConfig;
use super::output::{DriverOutput, EventKind};
use super::phase::{Gather, Generation, Phase};
use super::table::{Link, SlotRecord, Stance, WorkerRecord};
use super::timers::Timer;
use crate::journal::{GenerationImage, Ledger, Progress, Tenure};

/// The longest wait between two attempts of a node to reach a driver, with the handshake.
const REACHED_WITHIN: Duration = Duration::from_secs(2);

/// How long an agent that is back may take to tell of a process that ended meanwhile.
const REPORTED_WITHIN: Duration = Duration::from_millis(250);

/// The time until those who were there before are back or lost.
#[derive(Debug)]
pub(crate) struct Takeover {
    since: Time,
    deadline: Time,
    /// Hosts whose agents have not joined yet.
    hosts: BTreeSet<HostName>,
    /// Workers that their agents do not have any more, by host: the agent tells how they ended, or does not.
    vanished: BTreeMap<HostName, Vec<WorkerId>>,
}

impl DriverCore {
    /// A driver that goes on from what was written down, or begins a job of which nothing was but its
    /// beginning. What it decides is written down.
    pub fn with_journal(config: DriverConfig, tenure: Tenure, rng: ChaCha8Rng, now: Time) -> Self {
        let Tenure { job, image, last } = tenure;
        let mut core = Self::new(config, job, image.term, rng, now);
        let restored = (image.clone(), image.workers.is_empty() && image.current.is_none());
        core.ledger = Some(Ledger::new(image, last));
        let (image, is_fresh) = restored;
        core.generation = image.generation;
        if !is_planted(Bug::IncarnationsBeginAnew) {
            core.incarnation = image.incarnation;
        }
        core.resets = image.resets;
        core.started_with = image.started_with;
        core.program_attaches = image.program_attaches;
        core.restarts = image.restarts;
        for ((host, number), slot) in &image.slots {
            let record = SlotRecord {
                failures: slot.failures,
                closed_under: slot.closed_under,
                ..SlotRecord::default()
            };
            core.slots.insert((host.clone(), *number), record);
        }
        if is_fresh && image.result.is_none() {
            return core;
        }
        core.await_the_others(now, &image.workers.keys().cloned().collect::<Vec<_>>());
        let is_over = image.result.is_some();
        for (worker, known) in &image.workers {
            let is_member =
                image.current.as_ref().is_some_and(|current| current.alive.contains(worker));
            if let Some(process) = known.process.filter(|_| !is_planted(Bug::ProcessesNotTakenOver))
            {
                let ended = |it: &GenerationImage| matches!(it.progress, Progress::Ended { .. });
                let takes_part =
                    is_member && !is_over && !image.current.as_ref().is_some_and(ended);
                core.restore_process(now, worker, process, takes_part);
                continue;
            }
            let mut record = WorkerRecord::starting(now);
            record.data_address = known.data_address;
            record.commit = known.commit;
            record.step = known.commit.map_or(record.step, |commit| commit.step);
            let stance = match known.data_address {
                Some(_) if is_member => Stance::Member,
                Some(_) => Stance::Lost,
                None => Stance::Starting,
            };
            record.take_stance(now, stance);
            core.workers.insert(worker.clone(), record);
            core.hold_slot(worker);
            let deadline = now + core.config.deadlines.start;
            core.timers.set(deadline, Timer::Start(worker.clone()));
        }
        core.event(EventKind::TakeoverBegun {
            hosts: core.takeover.as_ref().map_or(0, |takeover| takeover.hosts.len()),
            workers: image.workers.len(),
        });
        if let Some(current) = image.current {
            core.restore_generation(now, current);
        }
        if let Some(result) = image.result {
            core.end_again(now, result);
        }
        core.ask_review(now);
        core
    }

    /// The newest of a slot's workers is the one that it has.
    pub(crate) fn hold_slot(&mut self, worker: &WorkerId) {
        let slot = self.slots.get_or_default((worker.host.clone(), worker.slot));
        if slot.worker.as_ref().is_none_or(|held| held.incarnation < worker.incarnation) {
            slot.worker = Some(worker.clone());
        }
    }

    fn await_the_others(&mut self, now: Time, workers: &[WorkerId]) {
        let patience = self.config.deadlines.lost * 2 + REACHED_WITHIN;
        let deadline = if is_planted(Bug::TakeoverDoesNotWait) { now } else { now + patience };
        self.timers.set(deadline, Timer::Takeover);
        let hosts = workers.iter().map(|worker| worker.host.clone()).collect();
        self.takeover = Some(Takeover { since: now, deadline, hosts, vanished: BTreeMap::new() });
    }

    fn restore_generation(&mut self, now: Time, image: GenerationImage) {
        let GenerationImage { formation, alive, progress } = image;
        let Table::Full(assignment) = &formation.table else { return };
        let (stamp, assignment) = (formation.stamp, assignment.clone());
        self.current =
            Some(Generation { stamp, assignment, formation, record: 0, alive: alive.clone() });
        let members: Vec<WorkerId> = self
            .current
            .iter()
            .flat_map(|current| current.assignment.members())
            .map(|member| member.worker)
            .collect();
        let elastic = now + self.config.deadlines.elastic;
        self.phase = match progress {
            Progress::Forming => {
                let window = self.takeover.as_ref().map_or(now, |takeover| takeover.deadline);
                let deadline = window + self.config.deadlines.form;
                self.timers.set(deadline, Timer::Phase);
                Phase::Form { deadline }
            }
            Progress::Running => Phase::Run,
            Progress::Stopping { boundary, cause } => {
                self.timers.set(elastic, Timer::Phase);
                self.start_reset_record(now, cause, now);
                Phase::Stopping { deadline: elastic, boundary, waiting_for: alive }
            }
            Progress::Ended { cause } => {
                self.start_reset_record(now, cause, now);
                self.timers.set(elastic, Timer::Phase);
                let known = |worker: &WorkerId| self.workers.contains_key(worker);
                let waiting_for = alive.into_iter().filter(known).collect();
                let gather = Gather { since: now, deadline: elastic, waiting_for, changed_at: now };
                Phase::Gather(gather)
            }
        };
        if self.phase.is_generation_active() {
            self.output(DriverOutput::OpenGeneration { stamp, members });
            self.watch_failed_slots(now);
            self.vote_again_for_the_done();
        }
    }

    /// A member of a former driver's generation is back: it is told what it has missed.
    pub(crate) fn brief_member(&mut self, worker: &WorkerId, theirs: Stamp, is_active: bool) {
        let Some(current) = &self.current else { return };
        let stamp = current.stamp;
        match &self.phase {
            // It was never told of the generation that others are in by now.
            Phase::Form { .. } if theirs < stamp => {
                let formation = current.formation.clone();
                self.tell(worker, DriverToWorker::Assign(formation));
            }
            // Nor was this one, and it has ended by now: it rests, and is waited for until it says so.
            Phase::Gather(_) if theirs < stamp => self.tell_ended(worker, stamp),
            _ if theirs != stamp || !is_active => {}
            // Whatever it has promised the former driver was not taken up, or that would be on record.
            Phase::Run => self.tell(worker, DriverToWorker::Resume { stamp }),
            Phase::Pausing { .. } => self.tell(worker, DriverToWorker::Pause { stamp }),
            Phase::Stopping { boundary, .. } => {
                let boundary = *boundary;
                self.tell(worker, DriverToWorker::StopAt { stamp, boundary });
            }
            Phase::Gather(_) => self.tell_ended(worker, stamp),
            Phase::Form { .. }
            | Phase::Sync { .. }
            | Phase::Ending { .. }
            | Phase::Ended { .. } => {}
        }
    }

    fn tell_ended(&mut self, worker: &WorkerId, stamp: Stamp) {
        let cause = self.reset.as_ref().map(|reset| reset.cause.clone());
        let cause = cause.unwrap_or(ResetCause::HostLost {
            host: worker.host.clone(),
            reason: "its generation has ended".to_owned(),
        });
        self.tell(worker, DriverToWorker::Abort { stamp, cause });
    }

    /// While taking over: these processes ended without a driver. Their agent may be about to tell how.
    pub(crate) fn await_reports(
        &mut self,
        now: Time,
        host: &HostName,
        vanished: &[WorkerId],
    ) -> bool {
        let Some(takeover) = &mut self.takeover else { return false };
        takeover.hosts.remove(host);
        if vanished.is_empty() {
            return true;
        }
        takeover.vanished.insert(host.clone(), vanished.to_vec());
        self.timers.set(now + REPORTED_WITHIN, Timer::Reports(host.clone()));
        true
    }

    /// An agent has had the time to tell how its processes ended.
    pub(crate) fn handle_reports_deadline(&mut self, now: Time, host: &HostName) {
        let takeover = self.takeover.as_mut();
        let vanished = takeover.and_then(|takeover| takeover.vanished.remove(host));
        for worker in vanished.into_iter().flatten() {
            self.handle_vanished(now, &worker, "its process ended while there was no driver");
        }
        self.ask_review(now);
    }

    /// Whether decisions must wait: those who were there before are neither back nor lost.
    pub(crate) fn is_taking_over(&mut self, now: Time) -> bool {
        let Some(takeover) = &self.takeover else { return false };
        let is_back = |worker: &WorkerId| {
            self.workers.get(worker).is_none_or(|record| match record.stance {
                Stance::Starting => record.data_address.is_none(),
                Stance::Lost => false,
                _ => record.link != Link::Down,
            })
        };
        let (hosts, vanished) = (takeover.hosts.is_empty(), takeover.vanished.is_empty());
        if hosts && vanished && self.workers.keys().all(is_back) {
            self.end_takeover(now, 0);
        }
        self.takeover.is_some()
    }

    /// Those who are not back by now are lost.
    pub(crate) fn handle_takeover_deadline(&mut self, now: Time) {
        let Some(takeover) = &mut self.takeover else { return };
        if takeover.deadline > now {
            return;
        }
        let waited_ms = u64::try_from(now.since(takeover.since).as_millis()).unwrap_or(u64::MAX);
        let hosts = std::mem::take(&mut takeover.hosts);
        let vanished = std::mem::take(&mut takeover.vanished);
        for worker in vanished.into_values().flatten() {
            self.handle_vanished(now, &worker, "its process ended while there was no driver");
        }
        let mut lost = hosts.len();
        for host in hosts {
            let reason = "it did not come back to the new driver";
            self.handle_host_lost(now, &host, reason, waited_ms);
        }
        let missing: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(_, record)| {
                record.link == Link::Down
                    && !matches!(record.stance, Stance::Starting | Stance::Leaving | Stance::Lost)
            })
            .map(|(worker, _)| worker.clone())
            .collect();
        for worker in missing {
            lost += 1;
            let reason = "it did not come back to the new driver";
            self.handle_worker_gone(now, &worker, reason, waited_ms);
        }
        self.end_takeover(now, lost);
        self.continue_ending(now);
        self.ask_review(now);
    }

    fn end_takeover(&mut self, now: Time, lost: usize) {
        let Some(takeover) = self.takeover.take() else { return };
        self.gather_changed(now);
        self.event(EventKind::TakeoverDone { lost, ms: now.ms_since(takeover.since) });
        self.give_up_the_unstarted(now);
        if is_planted(Bug::TakeoverResets) && self.phase.is_generation_active() {
            let phase = "takeover".to_owned();
            let cause = ResetCause::DeadlinePassed { phase, waiting_for: Vec::new() };
            self.begin_abort(now, cause, now);
        }
    }
}
