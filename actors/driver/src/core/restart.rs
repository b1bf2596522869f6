//! `--mode restart`: workers whose processes live for one generation each.
//!
//! Gather, barrier, registry and reset are those of the in-process mode. A slot's next process is *planned*:
//! it counts as a worker that has arrived. When the generation is formed it is started with the environment
//! of its rank; that it runs is its READY, and there is nothing to sync. When the generation ends, the agents
//! stop what still runs, and the ends of the processes are the arrivals. Exit code 0 is success, once all have
//! it.
//!
//! `--mode auto` begins so. The first process that attaches through the library shows that the program is
//! elastic in process: from then on everybody's process is kept, and the generation is taken back.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use elastic_protocol::messages::{Ballot, ProcessPlace};
use elastic_protocol::{ExitStatus, HostName, ResetCause, Time, WorkerId};
use elastic_runtime::planted::{Bug, is_planted};

use super::DriverCore;
use super::config::Mode;
use super::output::{DriverOutput, EventKind};
use super::phase::Phase;
use super::table::{Link, SlotId, Stance, WorkerRecord};
use super::timers::Timer;
use crate::journal::Record;

/// The data address of workers whose collectives are not ours.
pub(crate) const NOWHERE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Where a process stands that lives for one generation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stage {
    /// To be started when a generation is formed.
    Planned,
    /// Started, and not heard to have ended.
    Running,
    /// Ended with exit code 0.
    Done,
}

impl DriverCore {
    /// Whether the next processes are for one generation each.
    pub(crate) fn is_by_restart(&self) -> bool {
        match self.config.mode {
            Mode::Restart => true,
            Mode::Auto => !self.program_attaches,
            Mode::InProcess => false,
        }
    }

    /// Has a slot take part in the next generation, with a process of its own for it.
    pub(crate) fn plan_process(&mut self, now: Time, slot: &SlotId) {
        let worker = self.take_slot(slot);
        let record = WorkerRecord {
            stance: Stance::Arrived,
            link: Link::Up,
            data_address: Some(NOWHERE),
            stage: Some(Stage::Planned),
            ..WorkerRecord::starting(now)
        };
        self.workers.insert(worker, record);
    }

    /// Starts the processes of a generation that was formed just now.
    pub(crate) fn start_members(&mut self) {
        let Some(current) = &self.current else { return };
        let (stamp, assignment) = (current.stamp, std::sync::Arc::clone(&current.assignment));
        let mut hosts: Vec<(HostName, Vec<u32>)> = Vec::new();
        for member in assignment.members() {
            match hosts.last_mut().filter(|(host, _)| *host == member.worker.host) {
                Some((_, slots)) => slots.push(member.worker.slot),
                None => hosts.push((member.worker.host, vec![member.worker.slot])),
            }
        }
        let layout = self.layout(hosts.iter().map(|(host, slots)| (host, slots.clone())));
        for (rank, member) in (0..).zip(assignment.members()) {
            let worker = member.worker;
            let environment = self.worker_environment(&worker, &layout);
            let agent = self.agent_of(&worker);
            let Some(record) = self.workers.get_mut(&worker) else { continue };
            let (Some(Stage::Planned), Some(agent)) = (record.stage, agent) else { continue };
            record.stage = Some(Stage::Running);
            self.record(&Record::ProcessStarted { worker: worker.clone() });
            self.event(EventKind::WorkerStarted { worker: worker.to_string() });
            let rank = if is_planted(Bug::RankOfAnother) { rank + 1 } else { rank };
            let place = Some(ProcessPlace { stamp, rank, local_rank: member.local_rank });
            self.output(DriverOutput::StartWorker { agent, worker, environment, place });
        }
    }

    /// An agent has started a process, or tells a new driver that it has: for one that lives for a generation that
    /// is all there is to forming it.
    pub(crate) fn process_started(&mut self, worker: &WorkerId) {
        let record = self.workers.get(worker);
        let runs = record.is_some_and(|record| record.stage == Some(Stage::Running));
        if runs && self.is_member(worker) {
            self.vote_for_standing(worker);
        }
    }

    /// A process that takes part is as far as its generation is.
    pub(crate) fn vote_for_standing(&mut self, worker: &WorkerId) {
        let is_forming = matches!(self.phase, Phase::Form { .. });
        self.vote_for(worker, if is_forming { Ballot::Ready } else { Ballot::Synced });
    }

    /// All have started: none has any state to take over.
    pub(crate) fn sync_processes(&mut self) {
        for worker in self.members_at(|stage| stage != Stage::Planned) {
            self.vote_for(&worker, Ballot::Synced);
        }
    }

    /// The generation runs: those that have ended by now have done so well.
    pub(crate) fn vote_for_the_done(&mut self) {
        for worker in self.members_at(|stage| stage == Stage::Done) {
            self.vote_for(&worker, Ballot::Success);
        }
    }

    pub(crate) fn members_at(&self, is_meant: impl Fn(Stage) -> bool) -> Vec<WorkerId> {
        let members = self.current.iter().flat_map(|current| &current.alive);
        let meant = members.filter(|worker| {
            self.workers.get(worker).and_then(|record| record.stage).is_some_and(&is_meant)
        });
        meant.cloned().collect()
    }

    /// A process of the generation under way ended with exit code 0. False if it was another kind of end.
    pub(crate) fn handle_process_done(&mut self, worker: &WorkerId, status: ExitStatus) -> bool {
        let is_active = self.phase.is_generation_active() && self.is_member(worker);
        let Some(record) = self.workers.get_mut(worker) else { return false };
        let is_member = record.stage == Some(Stage::Running) && record.stance == Stance::Member;
        if !(is_active && is_member && status.is_success()) {
            return false;
        }
        record.stage = Some(Stage::Done);
        record.pid = None;
        self.record(&Record::ProcessDone { worker: worker.clone() });
        if matches!(self.phase, Phase::Run) {
            self.vote_for(worker, Ballot::Success);
        }
        true
    }

    /// The generation has ended: processes that live for it are stopped.
    ///
    /// These orders overtake nothing, unlike `tell_broken`, as there is nothing to overtake: the numbers of a generation
    /// by restart and of all its processes are recorded at once when it is formed, and no other is given out before it
    /// has ended. So an order to stop a process is never behind more than its own start.
    pub(crate) fn stop_processes(&mut self, now: Time, members: &[WorkerId], cause: &ResetCause) {
        if is_planted(Bug::ProcessesOutliveGeneration) {
            return;
        }
        let reason = format!("its generation ended: {cause}");
        for worker in members {
            let has_process = self
                .workers
                .get(worker)
                .is_some_and(|record| record.stage.is_some() && record.stance != Stance::Lost);
            if has_process {
                self.stop_process(now, worker, self.grace_ms(), &reason);
            }
        }
    }

    /// Whether the next generation has to wait for the end of this worker's process.
    pub(crate) fn is_ending(&self, worker: &WorkerId) -> bool {
        self.workers.get(worker).is_some_and(|record| {
            record.stage == Some(Stage::Running) && record.stance == Stance::Leaving
        })
    }

    /// Removes a worker that has no process. False if it has one.
    pub(crate) fn forget_without_process(&mut self, worker: &WorkerId) -> bool {
        let stage = self.workers.get(worker).and_then(|record| record.stage);
        let has_none = matches!(stage, Some(Stage::Planned | Stage::Done));
        if has_none {
            self.forget_worker(worker);
        }
        has_none
    }

    /// Whether a worker's process has ended well, and its generation goes on.
    pub(crate) fn is_done(&self, worker: &WorkerId) -> bool {
        self.workers.get(worker).is_some_and(|record| record.stage == Some(Stage::Done))
    }

    /// The job has succeeded: what has ended well needs no waiting for.
    pub(crate) fn forget_the_done(&mut self) {
        let workers: Vec<WorkerId> = self.workers.keys().cloned().collect();
        for worker in workers {
            self.forget_without_process(&worker);
        }
    }

    /// A host that was out of reach is back, with a process of a generation that went on without it.
    pub(crate) fn stop_if_left_behind(&mut self, now: Time, worker: &WorkerId) {
        let is_left = self
            .workers
            .get(worker)
            .is_some_and(|record| record.stage.is_some() && record.stance == Stance::Lost);
        if is_left {
            self.stop_process(now, worker, 0, "its generation went on without it");
        }
    }

    /// Whether slots are empty for a moment after a failure, or still have a process that ends: that is worth
    /// waiting for, since whoever comes later costs everybody another start.
    pub(crate) fn is_room_coming(&self, now: Time) -> bool {
        let waits = |until: Option<Time>| until.is_some_and(|until| until > now);
        self.is_by_restart()
            && (self.slots.values().any(|it| it.worker.is_none() && waits(it.backoff_until))
                || self.workers.keys().any(|worker| self.is_ending(worker)))
    }

    /// Counts a reset that a failure has caused, and ends the job if it may have no more of them. Changes of
    /// the membership are not counted (T-4).
    pub(crate) fn restarts_are_spent(&mut self, now: Time, cause: &ResetCause) -> bool {
        if !cause.is_failure() || !self.is_by_restart() {
            return false;
        }
        match self.config.max_job_restarts {
            Some(max) if self.restarts >= u64::from(max) => {
                let reason = match max {
                    0 => "a worker failed, and no restart is allowed".to_owned(),
                    max => format!("a worker failed after {max} of {max} restarts"),
                };
                self.fail_with_first_cause(now, &reason);
                true
            }
            _ => {
                self.restarts += 1;
                false
            }
        }
    }

    /// A process has attached through the library. In `--mode auto` that settles what the program is: every
    /// process is kept from now on. Says whether it is welcome.
    pub(crate) fn adopt(&mut self, now: Time, attached: &WorkerId) -> bool {
        let is_for_one_generation =
            self.workers.get(attached).is_some_and(|record| record.stage.is_some());
        if !is_for_one_generation {
            return true;
        }
        if self.config.mode == Mode::Restart {
            let reason = format!("{attached} uses the library, which is elastic in process");
            self.fail(now, &reason, Some("leave --mode restart out, or give --mode in-process"));
            return false;
        }
        self.program_attaches = true;
        if self.phase.is_generation_active() {
            self.event(EventKind::GenerationTakenBack { worker: attached.to_string() });
            self.enter_gather(now, BTreeSet::new());
        }
        self.current = None;
        self.started_with = None;
        let workers: Vec<WorkerId> = self.workers.keys().cloned().collect();
        for worker in workers {
            if self.forget_without_process(&worker) {
                continue;
            }
            let deadline = now + self.config.deadlines.start;
            let Some(record) = self.workers.get_mut(&worker) else { continue };
            record.stage = None;
            record.data_address = None;
            if worker != *attached {
                record.link = Link::Down;
            }
            if record.stance == Stance::Member {
                record.take_stance(now, Stance::Starting);
                self.timers.set(deadline, Timer::Start(worker));
            }
        }
        true
    }
}
