//! Messages and links of workers: attach, arrive, report. Called by `actor`. Losses are in `losses`.

use std::net::SocketAddr;

use elastic_protocol::job::shorten;
use elastic_protocol::messages::{DriverToAgent, DriverToWorker, UndoneTraining, WorkerToDriver};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{CommitId, NodeId, ResetCause, Stamp, Time, WorkerId};
use elastic_runtime::transport::LinkEvent;

use super::DriverCore;
use super::event::EventKind;
use super::output::DriverOutput;
use super::phase::RoundPhase;
use super::restart::ProcessStage;
use super::roster::{AttachedAs, WorkerDeparture};
use super::table::{PeerLink, Stance, WorkerRecord};
use super::timers::Timer;
use crate::journal::JournalRecord;

impl DriverCore {
    /// Handles a worker's message. `from` is its authenticated node.
    pub fn handle_worker(&mut self, now: Time, from: &NodeId, message: WorkerToDriver) {
        let Some(worker) = from.as_worker() else { return self.drop_message() };
        if let WorkerToDriver::Attach { pid, data_address, stamp, active, commit } = message {
            let attach = Attach { pid, data_address, stamp, active, commit };
            return self.handle_attach(now, &worker, attach);
        }
        if !self.roster.has_worker(&worker) {
            return self.drop_message();
        }
        match message {
            WorkerToDriver::Attach { .. } => {}
            WorkerToDriver::Arrived { stamp, commit, undone } => {
                self.handle_arrived(now, &worker, stamp, commit, undone);
            }
            WorkerToDriver::Paused { stamp, boundary } => {
                self.handle_paused(now, &worker, stamp, boundary);
            }
            WorkerToDriver::CollectiveFailed { stamp, peer, told_by, error } => {
                self.handle_collective_failed(now, worker, stamp, (peer, told_by), error);
            }
            WorkerToDriver::Progress { stamp, step, note, reported, steps, links, digests } => {
                if self.round.stamp() != Some(stamp) {
                    return self.drop_message();
                }
                self.roster.note_progress(&worker, step, note, reported);
                self.note_first_step(now, &worker, step);
                if let Some(times) = steps {
                    self.handle_step_times(now, &worker, stamp, times);
                    self.handle_link_paces(&worker, links, times);
                }
                self.record_progress(now);
                self.note_committed(now, step);
                self.note_later_step(now, Some(step));
                match digests {
                    Some(digests) => self.handle_digests(now, &worker, stamp, digests),
                    None => self.handle_no_digests(&worker, stamp, step),
                }
            }
            WorkerToDriver::Moves { stamp, bytes } => {
                if self.round.stamp() != Some(stamp) {
                    return self.drop_message();
                }
                self.roster.note_moved(&worker, stamp, bytes);
            }
            WorkerToDriver::Standstill { stamp, position, for_ms } => {
                self.handle_standstill(now, &worker, stamp, position, for_ms);
            }
            WorkerToDriver::Checkpoint { stamp, step, report } => {
                self.handle_checkpoint_report(now, &worker, stamp, step, report);
            }
            WorkerToDriver::NotResumed { stamp, reason, hint } => {
                self.handle_not_resumed(now, stamp, &reason, hint.as_deref());
            }
            WorkerToDriver::Resumed { stamp, step, notes, is_gone } => {
                self.handle_resumed(now, stamp, (step, is_gone), notes);
            }
            WorkerToDriver::Warning { text } => self.handle_worker_warning(&worker, &text),
            WorkerToDriver::Leaving { reason } => self.handle_leaving(now, &worker, reason),
            WorkerToDriver::TableWanted { stamp } => self.handle_table_wanted(&worker, stamp),
        }
    }

    /// Passes on a worker's warning. The bounds hold here too: a worker may be another program than ours.
    fn handle_worker_warning(&mut self, worker: &WorkerId, text: &str) {
        if !self.roster.note_warning(worker) {
            return self.drop_message();
        }
        self.event(EventKind::Warning { message: format!("{worker}: {}", shorten(text)) });
    }

    pub(crate) fn handle_worker_link(&mut self, now: Time, peer: &NodeId, event: &LinkEvent) {
        let Some(worker) = peer.as_worker() else { return };
        let agent_is_heard = self.roster.is_host_heard(&worker.host);
        let link = PeerLink::after(event);
        let Some(record) = self.roster.set_worker_link(&worker, link) else { return };
        match event {
            LinkEvent::Up => {}
            LinkEvent::Heard => self.handle_heard_again(now, &worker),
            LinkEvent::Silent { silent_ms } => {
                if agent_is_heard {
                    self.look_at_silent(&worker);
                    // The process is at fault if the host answers and the worker does not. But if the network is cut,
                    // one of the two falls silent first, by up to a beat.
                    let at = now + self.config.deadlines.beat * 2;
                    self.agenda.set(at, Timer::Silence(worker));
                } else if record.accused {
                    // A peer has seen the link break: waiting gains nothing.
                    self.handle_silent_worker(now, &worker, *silent_ms);
                }
            }
            LinkEvent::Lost { reason, silent_ms } => {
                if record.stance == Stance::Starting || record.stance.is_gone() {
                    return;
                }
                let reason = reason.to_string();
                self.handle_worker_gone(now, &worker, &reason, *silent_ms);
            }
        }
        self.agenda.ask_review(now);
    }

    /// Takes back a worker that was given up for its silence, or with its host, if its session has not ended. It goes on in a
    /// generation that is over, and no other message tells it so. To a newcomer in no generation the message is no news.
    fn handle_heard_again(&mut self, now: Time, worker: &WorkerId) {
        let host_is_there = self.roster.agent_of(worker).is_some();
        let was_given_up = self.roster.worker(worker).is_some_and(|record| {
            matches!(record.stance, Stance::Lost | Stance::Attached) && record.stage.is_none()
        });
        let Some(stamp) = self.round.stamp().filter(|_| was_given_up && host_is_there) else {
            return;
        };
        if !self.roster.heard_again(now, worker) {
            self.tell_ended(worker, stamp);
        }
        self.agenda.set(now + self.rest_deadline(), Timer::Start(worker.clone()));
        self.round.gather_changed(now);
    }

    /// Checks a worker that was silent a moment ago while its host was heard.
    pub(crate) fn handle_silence_deadline(&mut self, now: Time, worker: &WorkerId) {
        let agent_is_heard = self.roster.is_host_heard(&worker.host);
        let Some(record) = self.roster.worker(worker) else { return };
        let is_silent = record.link == PeerLink::Silent;
        // If the host fell silent meanwhile, the report of a peer whose link to the worker broke is evidence enough.
        if is_silent && (agent_is_heard || record.accused) {
            let waited_ms = (self.config.deadlines.beat * 2).as_millis() as u64;
            self.handle_silent_worker(now, worker, self.silent_ms() + waited_ms);
        }
    }

    fn handle_attach(&mut self, now: Time, worker: &WorkerId, attach: Attach) {
        if self.retires_as_outdated(worker, attach.stamp.generation) {
            return;
        }
        if let Some(result) = self.result_for_workers() {
            return self.tell(worker, DriverToWorker::Finished { result });
        }
        // The worker is told with all the others when the job ends.
        if matches!(self.round.phase(), RoundPhase::Failing { .. }) {
            return;
        }
        // Another driver may have started this worker under a number that this one has given out, too; or its process has ended
        // by now.
        let has_no_process = self.roster.worker(worker).is_some_and(|record| {
            matches!(record.stage, Some(ProcessStage::Planned | ProcessStage::Done))
        });
        if has_no_process {
            return self.tell_leave(worker, "its slot has another worker now");
        }
        if !self.adopt(now, worker) {
            return;
        }
        let pid = Some(attach.pid).filter(|_| !is_planted(Bug::ProcessNotNamed));
        let attached_as = self.roster.attach(now, worker, pid, attach.data_address, attach.commit);
        let goes_on = match attached_as {
            None => return self.tell_leave(worker, "its slot has another worker now"),
            Some(AttachedAs::Leaving) => return self.tell_leave(worker, "it was told to leave"),
            Some(AttachedAs::Member) => true,
            Some(AttachedAs::WithoutHost) => false,
            Some(AttachedAs::Newcomer) => {
                let deadline = now + self.rest_deadline();
                self.agenda.set(deadline, Timer::Start(worker.clone()));
                false
            }
        };
        self.round.note_attached();
        if !is_planted(Bug::ProgramForgotten) {
            self.roster.note_program_starts();
        }
        self.record(&JournalRecord::WorkerAttached {
            worker: worker.clone(),
            data_address: attach.data_address,
        });
        self.record_commit(worker, attach.commit);
        self.note_later_step(now, attach.commit.map(|commit| commit.step));
        let welcome = DriverToWorker::Welcome {
            job: self.job,
            term: self.term,
            deadlines: self.config.deadlines,
        };
        if self.roster.listens(worker) {
            self.welcome(DriverOutput::ToWorker { to: worker.clone(), message: welcome });
        }
        self.tell_of_drivers(NodeId::worker(worker));
        self.event(EventKind::WorkerAttached { worker: worker.clone(), pid: attach.pid });
        if attach.active && !(goes_on && self.round.stamp() == Some(attach.stamp)) {
            let host = worker.host.clone();
            let reason = "it was out of reach, and the others went on without it".to_owned();
            let cause = ResetCause::HostLost { host, reason };
            self.tell(worker, DriverToWorker::Abort { stamp: attach.stamp, cause });
        } else if goes_on {
            self.brief_member(worker, attach.stamp, attach.active);
        }
        self.round.gather_changed(now);
        self.agenda.ask_review(now);
    }

    fn handle_arrived(
        &mut self,
        now: Time,
        worker: &WorkerId,
        stamp: Stamp,
        commit: Option<CommitId>,
        undone: UndoneTraining,
    ) {
        let current = self.round.stamp();
        let is_active = self.round.phase().is_generation_active();
        let Some(stance) = self.roster.worker(worker).map(|record| record.stance) else { return };
        let ours = matches!(stance, Stance::Member | Stance::Finished);
        // A former driver may have told members of a generation that has no record. No other generation is later than the last
        // one on record.
        if ours && current.is_none_or(|current| stamp < current) {
            // The message is about an older generation than the worker's current one (G-2).
            return self.drop_message();
        }
        if stance == Stance::Starting {
            return self.drop_message();
        }
        self.roster.note_rest(worker, commit);
        self.record_commit(worker, commit);
        self.note_later_step(now, commit.map(|commit| commit.step));
        if stance.is_gone() {
            // The worker may yet come back with its host, and will not repeat this report.
            return;
        }
        if ours && is_active && !matches!(self.round.phase(), RoundPhase::Stopping { .. }) {
            // The generation broke at this member before any other report of it.
            let reporter = worker.clone();
            let error = "it gave the generation up".to_owned();
            let cause = ResetCause::PeerBroken { reporter, peer: None, error };
            self.accuse_generation(cause, now);
        }
        self.roster.set_stance(now, worker, Stance::Arrived);
        self.round.note_undone(undone);
        self.no_longer_waited_for(now, worker);
        if !ours {
            self.round.gather_changed(now);
            self.agenda.ask_review(now);
        }
    }

    fn handle_collective_failed(
        &mut self,
        now: Time,
        worker: WorkerId,
        stamp: Stamp,
        (peer, told_by): (Option<u32>, Option<u32>),
        error: String,
    ) {
        if self.round.stamp() != Some(stamp) || !self.round.is_member(&worker) {
            return self.drop_message();
        }
        let member = |rank: Option<u32>| {
            let current = self.round.current()?;
            Some(current.assignment.member(rank?)?.worker.clone())
        };
        let (peer, told_by) = (member(peer), member(told_by));
        if peer.as_ref() == Some(&worker) {
            return self.handle_refused_by_its_system(now, worker, &error);
        }
        if let Some(peer) = &peer
            && let Some(link) = self.roster.accuse(peer)
        {
            self.quarrels.note(&worker, peer, told_by.clone(), &error);
            // A worker whose host is heard is given two more beats.
            if link == PeerLink::Silent && !self.roster.is_host_heard(&peer.host) {
                self.handle_silent_worker(now, peer, self.silent_ms());
            }
        }
        if self.round.phase().is_generation_active() {
            let reporter = told_by.unwrap_or(worker);
            let cause = ResetCause::PeerBroken { reporter, peer, error };
            self.accuse_generation(cause, now);
        }
    }

    fn handle_leaving(&mut self, now: Time, worker: &WorkerId, reason: String) {
        match self.roster.ask_to_leave(worker, &reason) {
            None => return,
            // The worker says so because its agent stops it: it need not wait for others.
            Some(WorkerDeparture::UnderWay) => return self.tell_leave(worker, &reason),
            Some(WorkerDeparture::Asked) => {
                self.close_slot_of(worker);
                self.await_departure(now, worker);
            }
            Some(WorkerDeparture::AskedAgain) => {}
        }
        self.agenda.ask_review(now);
    }

    /// Least time that a silent node has been silent, in milliseconds.
    pub(crate) fn silent_ms(&self) -> u64 {
        u64::try_from(self.config.deadlines.suspect.as_millis()).unwrap_or(u64::MAX)
    }

    /// Tells a worker to end by itself, and remembers that its exit is expected.
    pub(crate) fn dismiss(&mut self, now: Time, worker: &WorkerId, reason: &str) {
        if self.roster.worker(worker).is_some_and(|record| record.stage.is_some()) {
            return self.stop_process(now, worker, self.grace_ms(), reason);
        }
        if !self.roster.set_stance(now, worker, Stance::Leaving) {
            return;
        }
        self.event(EventKind::WorkerStopped { worker: worker.clone(), reason: reason.to_owned() });
        self.tell_leave(worker, reason);
        // The worker leaves by itself (G-11); if it does not, its departure timer has the agent stop it.
        self.await_departure(now, worker);
    }

    /// Has the agent stop a worker's process: SIGTERM, and SIGKILL after `grace_ms`. Without an agent in reach, the worker
    /// counts as lost.
    pub(crate) fn stop_process(
        &mut self,
        now: Time,
        worker: &WorkerId,
        grace_ms: u64,
        reason: &str,
    ) {
        if self.forget_without_process(worker) {
            return;
        }
        self.roster.set_stance(now, worker, Stance::Leaving);
        self.event(EventKind::WorkerStopped { worker: worker.clone(), reason: reason.to_owned() });
        if let Some(agent) = self.roster.agent_of(worker) {
            let message =
                DriverToAgent::Stop { worker: worker.clone(), grace_ms, reason: reason.to_owned() };
            self.output(DriverOutput::ToAgent { to: agent, message });
        } else {
            self.roster.set_stance(now, worker, Stance::Lost);
            self.tell_to_rest_without_agent(worker, reason);
        }
    }

    /// Tells a worker whose agent is out of reach that its generation is over, if the worker itself is in reach: it rests until
    /// its host is back. Otherwise it would train on, and would not be told once its agent is there.
    fn tell_to_rest_without_agent(&mut self, worker: &WorkerId, reason: &str) {
        let is_in_reach = self.roster.worker(worker).is_some_and(WorkerRecord::may_be_told);
        let Some(stamp) = self.round.stamp().filter(|_| is_in_reach) else { return };
        let cause = ResetCause::HostLost { host: worker.host.clone(), reason: reason.to_owned() };
        self.tell_broken(vec![worker.clone()], stamp, &cause);
    }

    pub(crate) fn grace_ms(&self) -> u64 {
        u64::try_from(self.config.deadlines.grace.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A worker's first message on a session.
struct Attach {
    pid: u32,
    data_address: SocketAddr,
    stamp: Stamp,
    active: bool,
    commit: Option<CommitId>,
}
