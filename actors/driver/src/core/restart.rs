//! `--mode restart`: workers whose processes live for one generation each. Called by the core's handlers.
//!
//! Gather, barrier, registry and reset are those of the in-process mode. A slot's next process is *planned*: it
//! counts as an arrived worker. When the generation is formed, the process is started with the environment of its
//! rank. Its start counts as its READY, and there is nothing to sync. When the generation ends, the agents stop the
//! processes that still run, and the ends of the processes are the arrivals. Exit code 0 is success, once all have
//! it.
//!
//! `--mode auto` begins in this way. The first process that attaches through the library shows that the program is
//! elastic in process. From then on every process is kept, and the generation is taken back.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use elastic_protocol::messages::{Ballot, LibraryTrace, ProcessPlace};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{ExitStatus, HostName, ResetCause, Time, WorkerId};
use serde::{Deserialize, Serialize};

use super::DriverCore;
use super::config::ElasticMode;
use super::event::EventKind;
use super::output::DriverOutput;
use super::phase::RoundPhase;
use super::table::{SlotId, Stance};
use super::timers::Timer;
use crate::journal::JournalRecord;

/// Data address of workers that bring their own collectives.
pub(crate) const NOWHERE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Time after the grace period for which others wait for a process to end, by restart. A process with much memory takes seconds to
/// end after SIGKILL.
const UNENDING_AFTER: Duration = Duration::from_secs(20);

/// Stage of a process that lives for one generation.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum ProcessStage {
    /// Not started yet; the process is started when a generation is formed.
    Planned,
    /// Started, and not known to have ended.
    Running,
    /// Ended with exit code 0.
    Done,
}

impl DriverCore {
    /// Whether new processes live for one generation each.
    pub(crate) fn is_by_restart(&self) -> bool {
        match self.config.mode {
            ElasticMode::Restart => true,
            ElasticMode::Auto => !self.round.program_attaches(),
            ElasticMode::InProcess => false,
        }
    }

    /// Plans a process on a slot: it is started for the next generation.
    pub(crate) fn plan_process(&mut self, now: Time, slot: &SlotId) {
        self.roster.plan(now, slot);
    }

    /// Starts the processes of a generation that was formed just now.
    pub(crate) fn start_members(&mut self) {
        let Some(current) = self.round.current() else { return };
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
            let agent = self.roster.agent_of(&worker).filter(|_| self.roster.run_planned(&worker));
            let Some(agent) = agent else { continue };
            self.record(&JournalRecord::ProcessStarted { worker: worker.clone() });
            self.event(EventKind::WorkerStarted { worker: worker.clone() });
            let rank = if is_planted(Bug::RankOfAnother) { rank + 1 } else { rank };
            let place = Some(ProcessPlace { stamp, rank, local_rank: member.local_rank });
            self.output(DriverOutput::StartWorker { agent, worker, environment, place });
        }
    }

    /// Handles the report that a process runs, from its agent or, after a takeover, from the agent's list. For a process
    /// that lives for one generation, the start is the READY vote.
    pub(crate) fn process_started(&mut self, worker: &WorkerId) {
        let record = self.roster.worker(worker);
        let runs = record.is_some_and(|record| record.stage == Some(ProcessStage::Running));
        if runs && self.round.is_member(worker) {
            self.vote_for_standing(worker);
        }
    }

    /// Votes for a process that lives for one generation, as far as its generation has come.
    pub(crate) fn vote_for_standing(&mut self, worker: &WorkerId) {
        let is_forming = matches!(self.round.phase(), RoundPhase::Form { .. });
        self.vote_for(worker, if is_forming { Ballot::Ready } else { Ballot::Synced });
    }

    /// Votes SYNCED for all members that have started: they have no state to take over.
    pub(crate) fn sync_processes(&mut self) {
        for worker in self.members_at(|stage| stage != ProcessStage::Planned) {
            self.vote_for(&worker, Ballot::Synced);
        }
    }

    /// Votes SUCCESS for members that have ended by now, since the generation runs.
    pub(crate) fn vote_for_the_done(&mut self) {
        for worker in self.members_at(|stage| stage == ProcessStage::Done) {
            self.vote_for(&worker, Ballot::Success);
        }
    }

    pub(crate) fn members_at(&self, is_meant: impl Fn(ProcessStage) -> bool) -> Vec<WorkerId> {
        let members = self.round.current().into_iter().flat_map(|current| &current.alive);
        let meant = members.filter(|worker| {
            self.roster.worker(worker).and_then(|record| record.stage).is_some_and(&is_meant)
        });
        meant.cloned().collect()
    }

    /// Notes that a process of the generation under way ended with exit code 0. False if the end was of another kind. A process
    /// that has used the library leaves its job with that code, too, without having done its part: this driver, or its journal,
    /// may not know yet that the program uses the library.
    pub(crate) fn handle_process_done(
        &mut self,
        worker: &WorkerId,
        status: ExitStatus,
        library: &LibraryTrace,
    ) -> bool {
        let is_active = self.round.phase().is_generation_active() && self.round.is_member(worker);
        let uses_library = *library == LibraryTrace::Used && !is_planted(Bug::LeftCountsAsDone);
        if !(is_active && !uses_library && status.is_success() && self.roster.note_done(worker)) {
            return false;
        }
        self.record(&JournalRecord::ProcessDone { worker: worker.clone() });
        if *library == LibraryTrace::Unseen {
            self.note_done_without_library();
        }
        if matches!(self.round.phase(), RoundPhase::Run) {
            self.vote_for(worker, Ballot::Success);
        } else {
            // Its start may be unknown: it started and ended while there was no driver.
            self.vote_for_standing(worker);
        }
        true
    }

    /// Stops the processes of a generation that has ended.
    ///
    /// These orders do not overtake others, unlike `tell_broken`, and need not. The numbers of a generation by
    /// restart and of all its processes are recorded at once when it is formed, and no other number is given out
    /// before it has ended. So only its own start can be ahead of an order to stop a process.
    pub(crate) fn stop_processes(&mut self, now: Time, members: &[WorkerId], cause: &ResetCause) {
        if is_planted(Bug::ProcessesOutliveGeneration) {
            return;
        }
        let reason = format!("its generation ended: {cause}");
        for worker in members {
            let has_process = self
                .roster
                .worker(worker)
                .is_some_and(|record| record.stage.is_some() && record.stance != Stance::Lost);
            if has_process {
                self.stop_process(now, worker, self.grace_ms(), &reason);
            }
        }
    }

    /// Time until which the next generation waits for processes that were told to end; none if none was.
    pub(crate) fn ends_by(&self, now: Time, waiting_for: &BTreeSet<WorkerId>) -> Option<Time> {
        let waits = self.is_by_restart() && !waiting_for.is_empty();
        waits.then(|| now + self.config.deadlines.grace + UNENDING_AFTER)
    }

    /// Goes on without processes that SIGKILL has not ended, such as one that writes to a frozen file system. Their slots stay
    /// empty until they have ended (G-9).
    pub(crate) fn go_on_without_unending(&mut self, now: Time, mut late: Vec<WorkerId>) {
        late.retain(|worker| {
            self.roster.worker(worker).is_some_and(|record| record.stance == Stance::Leaving)
        });
        for worker in late {
            let error = format!(
                "its process has not ended for {} s after its grace period, in spite of SIGKILL",
                UNENDING_AFTER.as_secs()
            );
            let cause = ResetCause::WorkerFailed { worker: worker.clone(), error };
            self.evict(now, std::slice::from_ref(&worker), &cause);
            if self.round.phase().is_over() {
                return;
            }
        }
        self.agenda.ask_review(now);
    }

    /// Removes a worker that has no process. False if it has one.
    pub(crate) fn forget_without_process(&mut self, worker: &WorkerId) -> bool {
        let stage = self.roster.worker(worker).and_then(|record| record.stage);
        let has_none = matches!(stage, Some(ProcessStage::Planned | ProcessStage::Done));
        if has_none {
            self.forget_worker(worker);
        }
        has_none
    }

    /// Forgets workers without a process, since the job has succeeded: they need no waiting for.
    pub(crate) fn forget_the_done(&mut self) {
        let workers: Vec<WorkerId> = self.roster.worker_ids().cloned().collect();
        for worker in workers {
            self.forget_without_process(&worker);
        }
    }

    /// Stops a process on a host that was out of reach and is back, if its generation went on without it.
    pub(crate) fn stop_if_left_behind(&mut self, now: Time, worker: &WorkerId) {
        let is_left = self
            .roster
            .worker(worker)
            .is_some_and(|record| record.stage.is_some() && record.stance == Stance::Lost);
        if is_left {
            self.stop_process(now, worker, 0, "its generation went on without it");
        }
    }

    /// Whether a slot is in back-off, or its process is about to end. The next generation waits for such slots, since
    /// a later newcomer costs every worker another start.
    pub(crate) fn is_room_coming(&self, now: Time) -> bool {
        let waits = |until: Option<Time>| until.is_some_and(|until| until > now);
        self.is_by_restart()
            && (self
                .roster
                .slots()
                .map(|(_, slot)| slot)
                .any(|it| it.worker.is_none() && waits(it.backoff_until))
                || self.roster.worker_ids().any(|worker| self.roster.is_ending(worker)))
    }

    /// Notes that a process has attached through the library; true if it may stay. In `--mode auto` the program is
    /// then elastic in process: every process is kept from now on.
    pub(crate) fn adopt(&mut self, now: Time, attached: &WorkerId) -> bool {
        // A process that is to end is told so again. It is not recorded as attached: that record would tell a successor that
        // the program uses the library.
        let is_for_one_generation = self
            .roster
            .worker(attached)
            .is_some_and(|record| record.stage.is_some() && record.stance != Stance::Leaving);
        if !is_for_one_generation {
            return true;
        }
        if self.config.mode == ElasticMode::Restart {
            let reason = format!("{attached} uses the library, which is elastic in process");
            self.fail(now, &reason, Some("leave --mode restart out, or give --mode in-process"));
            return false;
        }
        self.round.note_attached();
        self.note_library_used();
        if self.round.phase().is_generation_active() {
            self.event(EventKind::GenerationTakenBack { worker: attached.clone() });
            self.enter_gather(now, BTreeSet::new());
        }
        self.round.take_back();
        self.state.forget();
        let workers: Vec<WorkerId> = self.roster.worker_ids().cloned().collect();
        for worker in workers {
            if self.forget_without_process(&worker) {
                continue;
            }
            let is_awaited = self.roster.keep_process(now, &worker, worker == *attached);
            if is_awaited && !is_planted(Bug::KeptNotAwaited) {
                let deadline = now + self.config.deadlines.start;
                self.agenda.set(deadline, Timer::Start(worker));
            }
        }
        true
    }
}
