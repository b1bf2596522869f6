//! Takeover: a core that goes on from the journal of its predecessors. Called by the driver's process at its start,
//! and by the core's handlers.
//!
//! Agents and workers went on without a driver. Each reports its state when it finds the new one. Nothing is started,
//! formed or interrupted until all have reported, or [`Deadlines::lost`](elastic_protocol::Deadlines) has passed
//! twice. A generation whose members are all still in it is left alone: only a cause that would have ended it under
//! the former driver ends it (D-3).

use std::collections::BTreeSet;
use std::time::Duration;

use elastic_protocol::messages::{DriverToWorker, FormationTable, JobPhase};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{GenerationId, HostName, ResetCause, Stamp, Step, Time, WorkerId};
use rand_chacha::ChaCha8Rng;

use super::DriverCore;
use super::checkpoints::Checkpoints;
use super::config::DriverConfig;
use super::divergence::Divergence;
use super::event::EventKind;
use super::former_nodes::Takeover;
use super::output::DriverOutput;
use super::phase::{FormedGeneration, Gather, RoundPhase};
use super::table::{PeerLink, Stance, WorkerRecord};
use super::timers::Timer;
use super::trained_state::TrainedState;
use crate::journal::{GenerationImage, GenerationProgress, RecordLedger, Tenure};

/// Time that an agent that is back may take to report a process that ended meanwhile.
const REPORTED_WITHIN: Duration = Duration::from_millis(250);

impl DriverCore {
    /// A driver with a journal. It goes on from the journal's state, or begins the job if that is new, and records
    /// its own decisions.
    pub fn with_journal(config: DriverConfig, tenure: Tenure, rng: ChaCha8Rng, now: Time) -> Self {
        let Tenure { job, image, last, begins_at_ms } = tenure;
        let mut core = Self::new(config, job, image.term, rng, now);
        let restored = (image.clone(), image.workers.is_empty() && image.current.is_none());
        let between = core.config.records_between_snapshots;
        core.outbox.keep_records(RecordLedger::new(image, last, between));
        let (image, is_fresh) = restored;
        core.round.restore(&image);
        if image.program_attaches && !is_planted(Bug::ProgramForgotten) {
            core.roster.note_program_starts();
        }
        if !is_planted(Bug::IncarnationsBeginAnew) {
            core.roster.restore_incarnation(image.incarnation);
        }
        core.state = TrainedState::restored(&image, now, begins_at_ms);
        core.checkpoints = Checkpoints::restored(Some(&image));
        for ((host, number), slot) in &image.slots {
            let id = (host.clone(), *number);
            core.roster.restore_slot(id, slot.failures, slot.closed_under);
        }
        core.divergence = Divergence::restored(&image);
        core.restore_rests(now, image.resting.clone());
        core.restore_paces(now, image.shard_paces.clone(), image.deals);
        if image.result.is_none() {
            core.stop_asked = image.stop_asked.clone().map(|stop| (stop.signal, stop.reason));
        }
        if is_fresh && image.result.is_none() {
            if !image.hosts.is_empty() {
                // Hosts of the former driver may be gone, although no takeover waits for them.
                core.agenda.set(now + core.config.deadlines.return_grace(), Timer::Takeover);
            }
            core.stop_after_takeover(now);
            return core;
        }
        core.await_the_others(now, &image.workers.keys().cloned().collect::<Vec<_>>());
        let is_over = image.result.is_some();
        for (worker, known) in &image.workers {
            let is_member =
                image.current.as_ref().is_some_and(|current| current.alive.contains(worker));
            if let Some(process) = known.process.filter(|_| !is_planted(Bug::ProcessesNotTakenOver))
            {
                let ended =
                    |it: &GenerationImage| matches!(it.progress, GenerationProgress::Ended { .. });
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
            core.roster.restore(worker, record);
            let deadline = now + core.config.deadlines.start;
            core.agenda.set(deadline, Timer::Start(worker.clone()));
        }
        core.event(EventKind::TakeoverBegun {
            hosts: core.takeover.as_ref().map_or(0, |takeover| takeover.hosts()),
            workers: image.workers.len(),
            members: image.current.as_ref().map(GenerationImage::members).unwrap_or_default(),
            phase: image.current.as_ref().map_or(JobPhase::Gather, GenerationImage::phase),
        });
        if let Some(current) = image.current {
            core.restore_generation(now, current);
        }
        if let Some(result) = image.result {
            core.end_again(now, result);
        }
        core.agenda.ask_review(now);
        core
    }

    fn await_the_others(&mut self, now: Time, workers: &[WorkerId]) {
        let patience = self.config.deadlines.return_grace();
        let deadline = if is_planted(Bug::TakeoverDoesNotWait) { now } else { now + patience };
        self.agenda.set(deadline, Timer::Takeover);
        let elastic = deadline + self.config.deadlines.elastic;
        self.round.gather_until(elastic, &mut self.agenda);
        let hosts = workers.iter().map(|worker| worker.host.clone()).collect();
        self.takeover = Some(Takeover::new(now, deadline, hosts));
    }

    fn restore_generation(&mut self, now: Time, image: GenerationImage) {
        let GenerationImage { formation, alive, progress } = image;
        let FormationTable::Full(assignment) = &formation.table else { return };
        let (stamp, assignment) = (formation.stamp, assignment.clone());
        // The root's commit is not on record. It can be of the generation before at the latest.
        let GenerationId(number) = stamp.generation;
        let before = (GenerationId(number.saturating_sub(1)), formation.step);
        let began_from = (formation.step > Step::default()).then_some(before);
        let untold = BTreeSet::new();
        self.round.resume(FormedGeneration {
            stamp,
            assignment,
            formation,
            record: 0,
            next_reserved: None,
            alive: alive.clone(),
            began_from,
            untold,
        });
        // The order to begin is not on record: assume that it was given.
        self.note_shared_commit();
        let members: Vec<WorkerId> = self
            .round
            .current()
            .into_iter()
            .flat_map(|current| current.assignment.members())
            .map(|member| member.worker)
            .collect();
        // No decision is made before the takeover window is over.
        let window = self.takeover.as_ref().map_or(now, Takeover::deadline);
        let elastic = window + self.config.deadlines.elastic;
        let phase = match progress {
            GenerationProgress::Forming => {
                RoundPhase::Form { deadline: window + self.config.deadlines.form }
            }
            GenerationProgress::Running => RoundPhase::Run,
            GenerationProgress::Stopping { boundary, cause } => {
                self.round.start_reset_record(now, cause, now);
                RoundPhase::Stopping { deadline: elastic, boundary, waiting_for: alive }
            }
            GenerationProgress::Ended { cause } => {
                self.round.start_reset_record(now, cause, now);
                let known = |worker: &WorkerId| self.roster.has_worker(worker);
                let waiting_for = alive.into_iter().filter(known).collect();
                let (deadline, ends_by) = (elastic, self.ends_by(now, &waiting_for));
                let gather = Gather { since: now, deadline, waiting_for, ends_by, changed_at: now };
                RoundPhase::Gather(gather)
            }
        };
        self.enter_phase(now, phase);
        if self.round.phase().is_generation_active() && !self.is_by_restart() {
            let trains = !matches!(self.round.phase(), RoundPhase::Form { .. });
            let trains_on = matches!(self.round.phase(), RoundPhase::Run);
            if self.state.resumed(now, trains, trains_on) {
                self.record_state(now);
            }
            if trains {
                self.begin_checkpoints(now);
            }
        }
        if self.round.phase().is_generation_active() {
            let budget = self.restart_budget();
            self.output(DriverOutput::OpenGeneration { stamp, members, budget });
            self.watch_failed_slots(now);
            self.watch_activity(now);
            self.watch_unused_checkpoints(now);
            self.vote_again_for_the_done();
        }
    }

    /// Repeats to a member of a former driver's generation, which is back, the orders that it has missed.
    pub(crate) fn brief_member(&mut self, worker: &WorkerId, theirs: Stamp, is_active: bool) {
        let Some(current) = self.round.current() else { return };
        let stamp = current.stamp;
        match self.round.phase() {
            // The member was never told of the generation that others are in by now.
            RoundPhase::Form { .. } if theirs < stamp => {
                let formation = current.formation.clone();
                self.tell(worker, DriverToWorker::Assign(formation));
            }
            // The member was never told of this generation, which has ended by now. It rests, and is waited for until
            // it says so.
            RoundPhase::Gather(_) if theirs < stamp => self.tell_ended(worker, stamp),
            _ if theirs != stamp || !is_active => {}
            // Promises to a former driver do not bind this one: a stop that followed from them would be on record.
            RoundPhase::Run => {
                self.tell(worker, DriverToWorker::Resume { stamp });
                self.repeat_checkpoint_orders(worker);
            }
            RoundPhase::Pausing { .. } => self.tell(worker, DriverToWorker::Pause { stamp }),
            RoundPhase::Stopping { boundary, .. } => {
                let boundary = *boundary;
                self.tell(worker, DriverToWorker::StopAt { stamp, boundary });
            }
            RoundPhase::Gather(_) => self.tell_ended(worker, stamp),
            RoundPhase::Form { .. }
            | RoundPhase::Sync { .. }
            | RoundPhase::Failing { .. }
            | RoundPhase::Ending { .. }
            | RoundPhase::Ended { .. } => {}
        }
    }

    pub(crate) fn tell_ended(&mut self, worker: &WorkerId, stamp: Stamp) {
        let cause = self.round.reset().map(|reset| reset.cause.clone());
        let cause = cause.unwrap_or(ResetCause::HostLost {
            host: worker.host.clone(),
            reason: "its generation has ended".to_owned(),
        });
        self.tell(worker, DriverToWorker::Abort { stamp, cause });
    }

    /// During a takeover, waits for the reports on processes that ended without a driver. Their agent may be about to
    /// tell how. False outside of a takeover.
    pub(crate) fn await_reports(
        &mut self,
        now: Time,
        host: &HostName,
        vanished: &[WorkerId],
    ) -> bool {
        let Some(takeover) = &mut self.takeover else { return false };
        takeover.agent_is_back(host, vanished);
        let awaited: Vec<HostName> = match takeover.hosts() {
            0 => takeover.hosts_of_vanished().cloned().collect(),
            _ if vanished.is_empty() => Vec::new(),
            _ => vec![host.clone()],
        };
        for host in awaited {
            self.agenda.set(now + REPORTED_WITHIN, Timer::Reports(host));
        }
        true
    }

    /// Ends the wait for an agent's reports: its vanished workers are lost. A worker that is in session is alive: its own agent is
    /// waited for until the takeover's deadline. A process that lives for one generation has no session, and is lost once all agents
    /// are back: only an agent that is back can stop the other processes of its generation.
    pub(crate) fn handle_reports_deadline(&mut self, now: Time, host: &HostName) {
        let Some(takeover) = &mut self.takeover else { return };
        let awaits_agents = takeover.hosts() > 0;
        let is_awaited = |worker: &WorkerId| {
            self.roster.worker(worker).is_some_and(|record| match record.stage {
                None => record.link == PeerLink::Up,
                Some(_) => awaits_agents,
            })
        };
        let vanished = takeover.take_vanished(host);
        let (awaited, ended): (Vec<_>, Vec<_>) = vanished.into_iter().partition(is_awaited);
        takeover.agent_is_back(host, &awaited);
        for worker in ended {
            self.handle_ended_unseen(now, &worker);
        }
        self.agenda.ask_review(now);
    }

    /// Removes a worker that its agent does not have under this driver, and has not told the end of. It counts as lost if a member.
    fn handle_ended_unseen(&mut self, now: Time, worker: &WorkerId) {
        let counts = self.round.is_member(worker) && !self.roster.is_done(worker);
        if let Some(takeover) = self.takeover.as_mut().filter(|_| counts) {
            takeover.count_lost(1);
        }
        self.handle_vanished(now, worker, "its process ended while there was no driver");
    }

    /// Whether decisions must wait, since agents or workers of the former driver are neither back nor lost. Ends the
    /// takeover if none is left.
    pub(crate) fn is_taking_over(&mut self, now: Time) -> bool {
        let Some(takeover) = &self.takeover else { return false };
        let is_back = |worker: &WorkerId| {
            self.roster.worker(worker).is_none_or(|record| match record.stance {
                Stance::Starting => record.data_address.is_none(),
                Stance::Lost => false,
                Stance::Dying => true,
                _ => record.link != PeerLink::Down,
            })
        };
        if takeover.has_all_agents() && self.roster.worker_ids().all(is_back) {
            self.end_takeover(now);
        }
        self.takeover.is_some()
    }

    /// Ends the takeover at its deadline: hosts and workers that are not back are lost.
    pub(crate) fn handle_takeover_deadline(&mut self, now: Time) {
        self.forget_absent_hosts();
        let Some(takeover) = &mut self.takeover else { return };
        if takeover.deadline() > now {
            return;
        }
        let waited_ms = u64::try_from(now.since(takeover.since()).as_millis()).unwrap_or(u64::MAX);
        let (hosts, vanished) = takeover.give_up();
        takeover.count_lost(hosts.len());
        for worker in vanished {
            self.handle_ended_unseen(now, &worker);
        }
        for host in hosts {
            let reason = "it did not come back to the new driver";
            self.handle_host_lost(now, &host, reason, waited_ms);
        }
        let missing: Vec<WorkerId> = self
            .roster
            .workers()
            .filter(|(_, record)| {
                record.link == PeerLink::Down
                    && record.stance != Stance::Starting
                    && !record.stance.is_gone()
            })
            .map(|(worker, _)| worker.clone())
            .collect();
        if let Some(takeover) = &mut self.takeover {
            takeover.count_lost(missing.len());
        }
        for worker in missing {
            let reason = "it did not come back to the new driver";
            self.handle_worker_gone(now, &worker, reason, waited_ms);
        }
        self.end_takeover(now);
        self.continue_ending(now);
        self.agenda.ask_review(now);
    }

    /// If hosts may join at will, has the host manager forget hosts of the former driver that have no agent under this one
    /// (G-7). The takeover waits for hosts with workers only, and may have ended before the deadline.
    fn forget_absent_hosts(&mut self) {
        if !self.config.hosts_join {
            return;
        }
        let names = self.roster.hosts().iter().map(|entry| &entry.name);
        let absent: Vec<HostName> =
            names.filter(|host| self.roster.agent(host).is_none()).cloned().collect();
        for host in absent {
            self.output(DriverOutput::HostLeft { host });
        }
    }

    fn end_takeover(&mut self, now: Time) {
        let Some(takeover) = self.takeover.take() else { return };
        let lost = takeover.lost();
        self.round.gather_changed(now);
        self.event(EventKind::TakeoverDone { lost, ms: now.ms_since(takeover.since()) });
        self.count_training_without_a_driver(now);
        self.give_up_the_incomplete(now);
        self.answer_restored_divergence(now);
        if is_planted(Bug::TakeoverResets) && self.round.phase().is_generation_active() {
            let phase = "takeover".to_owned();
            let cause = ResetCause::DeadlinePassed { phase, waiting_for: Vec::new() };
            self.begin_abort(now, cause, now);
        }
        self.stop_after_takeover(now);
    }
}
