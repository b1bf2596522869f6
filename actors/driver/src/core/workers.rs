//! Workers: attach, arrive, report. Their losses are in `losses`.

use std::net::SocketAddr;

use elastic_protocol::messages::{DriverToAgent, DriverToWorker, WorkerToDriver};
use elastic_protocol::{CommitId, NodeId, ResetCause, Stamp, Time, WorkerId};
use elastic_runtime::transport::LinkEvent;

use super::DriverCore;
use super::output::{DriverOutput, EventKind};
use super::phase::Phase;
use super::table::{Link, Stance};
use super::timers::Timer;
use crate::journal::Record;

impl DriverCore {
    /// A worker said something. `from` is its authenticated node.
    pub fn handle_worker(&mut self, now: Time, from: &NodeId, message: WorkerToDriver) {
        let Some(worker) = from.as_worker() else { return self.drop_message() };
        if let WorkerToDriver::Attach { pid, data_address, stamp, active, commit } = message {
            let attach = Attach { pid, data_address, stamp, active, commit };
            return self.handle_attach(now, &worker, attach);
        }
        if !self.workers.contains_key(&worker) {
            return self.drop_message();
        }
        match message {
            WorkerToDriver::Attach { .. } => {}
            WorkerToDriver::Arrived { stamp, commit, steps_lost } => {
                self.handle_arrived(now, &worker, stamp, commit, steps_lost);
            }
            WorkerToDriver::Paused { stamp, boundary } => {
                self.handle_paused(now, &worker, stamp, boundary);
            }
            WorkerToDriver::CollectiveFailed { stamp, peer, error } => {
                self.handle_collective_failed(now, worker, stamp, peer, error);
            }
            WorkerToDriver::Progress { stamp, step, note } => {
                if self.current_stamp() != Some(stamp) {
                    return self.drop_message();
                }
                if let Some(record) = self.workers.get_mut_untouched(&worker) {
                    record.step = step;
                    record.note = note;
                }
            }
            WorkerToDriver::Leaving { reason } => self.handle_leaving(now, &worker, reason),
            WorkerToDriver::TableWanted { stamp } => self.handle_table_wanted(&worker, stamp),
        }
    }

    pub(crate) fn handle_worker_link(&mut self, now: Time, peer: &NodeId, event: &LinkEvent) {
        let Some(worker) = peer.as_worker() else { return };
        let agent_is_heard = self.is_host_heard(&worker.host);
        let Some(record) = self.workers.get_mut(&worker) else { return };
        if record.stage.is_some() {
            // It is watched by its agent, until it attaches.
            return;
        }
        match event {
            LinkEvent::Up | LinkEvent::Heard => record.link = Link::Up,
            LinkEvent::Silent { silent_ms } => {
                record.link = Link::Silent;
                if agent_is_heard {
                    // It may be the process, if the host answers and the worker does not; but where the network
                    // is cut, one of the two falls silent first, by up to a beat.
                    let at = now + self.config.deadlines.beat * 2;
                    self.timers.set(at, Timer::Silence(worker));
                } else if record.accused {
                    // A peer has seen its link break: nothing is gained by waiting.
                    self.handle_silent_worker(now, &worker, *silent_ms);
                }
            }
            LinkEvent::Lost { reason, silent_ms } => {
                record.link = Link::Down;
                if matches!(record.stance, Stance::Starting | Stance::Leaving | Stance::Lost) {
                    return;
                }
                let reason = reason.to_string();
                self.handle_worker_gone(now, &worker, &reason, *silent_ms);
            }
        }
        self.ask_review(now);
    }

    /// A worker was silent a moment ago, and its host was not.
    pub(crate) fn handle_silence_deadline(&mut self, now: Time, worker: &WorkerId) {
        let agent_is_heard = self.is_host_heard(&worker.host);
        let is_silent = self.workers.get(worker).is_some_and(|record| record.link == Link::Silent);
        if agent_is_heard && is_silent {
            let waited_ms = (self.config.deadlines.beat * 2).as_millis() as u64;
            self.handle_silent_worker(now, worker, self.silent_ms() + waited_ms);
        }
    }

    fn handle_attach(&mut self, now: Time, worker: &WorkerId, attach: Attach) {
        if let Phase::Ending { result, .. } = &self.phase {
            let message = DriverToWorker::Finished { result: result.clone() };
            return self.tell(worker, message);
        }
        if !self.adopt(now, worker) {
            return;
        }
        let host_is_there = self.agent_of(worker).is_some();
        let Some(record) = self.workers.get_mut(worker) else {
            return self.tell_leave(worker, "its slot has another worker now");
        };
        record.pid = Some(attach.pid);
        record.data_address = Some(attach.data_address);
        record.link = Link::Up;
        record.at_rest = false;
        if attach.commit.is_some() {
            record.commit = attach.commit;
        }
        if record.stance == Stance::Leaving {
            return self.tell_leave(worker, "it was told to leave");
        }
        self.program_attaches = true;
        record.accused = false;
        self.record(&Record::WorkerAttached {
            worker: worker.clone(),
            data_address: attach.data_address,
        });
        self.record_commit(worker, attach.commit);
        let Some(record) = self.workers.get_mut(worker) else { return };
        let goes_on = matches!(record.stance, Stance::Member | Stance::Finished);
        if !goes_on && host_is_there {
            record.take_stance(now, Stance::Attached);
        } else if record.stance == Stance::Starting {
            // It has found a new driver before its agent has: it is there once its host is.
            record.take_stance(now, Stance::Lost);
        }
        let welcome = DriverToWorker::Welcome {
            job: self.job,
            term: self.term,
            deadlines: self.config.deadlines,
        };
        self.tell(worker, welcome);
        self.tell_of_drivers(NodeId::worker(worker));
        self.event(EventKind::WorkerAttached { worker: worker.to_string(), pid: attach.pid });
        if attach.active && !(goes_on && self.current_stamp() == Some(attach.stamp)) {
            let host = worker.host.clone();
            let reason = "it was out of reach, and the others went on without it".to_owned();
            let cause = ResetCause::HostLost { host, reason };
            self.tell(worker, DriverToWorker::Abort { stamp: attach.stamp, cause });
        } else if goes_on {
            self.brief_member(worker, attach.stamp, attach.active);
        }
        self.gather_changed(now);
        self.ask_review(now);
    }

    fn handle_arrived(
        &mut self,
        now: Time,
        worker: &WorkerId,
        stamp: Stamp,
        commit: Option<CommitId>,
        steps_lost: u64,
    ) {
        let current = self.current_stamp();
        let is_active = self.phase.is_generation_active();
        let Some(record) = self.workers.get_mut(worker) else { return };
        let ours = matches!(record.stance, Stance::Member | Stance::Finished);
        if ours && Some(stamp) != current {
            // Of a generation before the one it has been given since (G-2).
            return self.drop_message();
        }
        if record.stance == Stance::Starting {
            return self.drop_message();
        }
        record.at_rest = true;
        record.commit = commit;
        self.record_commit(worker, commit);
        let Some(record) = self.workers.get_mut(worker) else { return };
        record.step = commit.map_or(record.step, |commit| commit.step);
        if matches!(record.stance, Stance::Leaving | Stance::Lost) {
            // It may yet come back with its host, and will not say it again.
            return;
        }
        if ours && is_active && !matches!(self.phase, Phase::Stopping { .. }) {
            // The generation broke at this member before anyone else told us.
            let reporter = worker.clone();
            let error = "it gave the generation up".to_owned();
            let cause = ResetCause::PeerBroken { reporter, peer: None, error };
            self.begin_abort(now, cause, now);
            if self.phase.is_over() {
                return;
            }
        }
        if let Some(record) = self.workers.get_mut(worker) {
            record.take_stance(now, Stance::Arrived);
        }
        if let Some(reset) = &mut self.reset {
            reset.steps_lost = reset.steps_lost.max(steps_lost);
        }
        self.no_longer_waited_for(now, worker);
        if !ours {
            self.gather_changed(now);
            self.ask_review(now);
        }
    }

    fn handle_collective_failed(
        &mut self,
        now: Time,
        worker: WorkerId,
        stamp: Stamp,
        peer: Option<u32>,
        error: String,
    ) {
        if self.current_stamp() != Some(stamp) || !self.is_member(&worker) {
            return self.drop_message();
        }
        let peer = self
            .current
            .as_ref()
            .and_then(|current| Some(current.assignment.member(peer?)?.worker.clone()));
        if let Some(peer) = &peer
            && let Some(record) = self.workers.get_mut(peer)
        {
            record.accused = true;
            self.quarrels.note(&worker, peer);
            // Where its host is heard, it is given two beats yet.
            if record.link == Link::Silent && !self.is_host_heard(&peer.host) {
                self.handle_silent_worker(now, peer, self.silent_ms());
            }
        }
        if self.phase.is_generation_active() {
            let cause = ResetCause::PeerBroken { reporter: worker, peer, error };
            self.begin_abort(now, cause, now);
        }
    }

    fn handle_leaving(&mut self, now: Time, worker: &WorkerId, reason: String) {
        let Some(record) = self.workers.get_mut(worker) else { return };
        if record.stance == Stance::Leaving {
            // It says so because its agent stops it: it need not wait for anybody.
            return self.tell_leave(worker, &reason);
        }
        if record.leaving.is_none() {
            record.leaving = Some(reason);
            self.close_slot_of(worker);
            let deadline = now + self.config.deadlines.grace;
            self.timers.set(deadline, Timer::Departure(worker.clone()));
        }
        self.ask_review(now);
    }

    /// How long a silent node has been silent at least.
    pub(crate) fn silent_ms(&self) -> u64 {
        u64::try_from(self.config.deadlines.suspect.as_millis()).unwrap_or(u64::MAX)
    }

    /// Tells a worker to end by itself, and remembers that its exit is expected.
    pub(crate) fn dismiss(&mut self, now: Time, worker: &WorkerId, reason: &str) {
        if self.workers.get(worker).is_some_and(|record| record.stage.is_some()) {
            return self.stop_process(now, worker, self.grace_ms(), reason);
        }
        let Some(record) = self.workers.get_mut(worker) else { return };
        record.take_stance(now, Stance::Leaving);
        self.event(EventKind::WorkerStopped {
            worker: worker.to_string(),
            reason: reason.to_owned(),
        });
        self.tell_leave(worker, reason);
        // It leaves by itself (G-11); if it does not, its departure timer has the agent stop it.
        let deadline = now + self.config.deadlines.grace;
        self.timers.set(deadline, Timer::Departure(worker.clone()));
    }

    /// Has the agent stop a worker's process: SIGTERM, and SIGKILL after `grace_ms`.
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
        if let Some(record) = self.workers.get_mut(worker) {
            record.take_stance(now, Stance::Leaving);
        }
        self.event(EventKind::WorkerStopped {
            worker: worker.to_string(),
            reason: reason.to_owned(),
        });
        if let Some(agent) = self.agent_of(worker) {
            let message =
                DriverToAgent::Stop { worker: worker.clone(), grace_ms, reason: reason.to_owned() };
            self.output(DriverOutput::ToAgent { to: agent, message });
        } else if let Some(record) = self.workers.get_mut(worker) {
            record.take_stance(now, Stance::Lost);
        }
    }

    pub(crate) fn grace_ms(&self) -> u64 {
        u64::try_from(self.config.deadlines.grace.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A worker's first word on a session.
struct Attach {
    pid: u32,
    data_address: SocketAddr,
    stamp: Stamp,
    active: bool,
    commit: Option<CommitId>,
}
