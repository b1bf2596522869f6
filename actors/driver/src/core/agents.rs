//! Agents: hosts that join, drain, are lost, come back.

use elastic_protocol::messages::{AgentToDriver, DriverToAgent, DriverToWorker, LiveWorker};
use elastic_protocol::{HostName, Incarnation, NodeId, NodeName, ResetCause, Time, WorkerId};
use elastic_runtime::transport::LinkEvent;

use super::DriverCore;
use super::first_failure::shorten;
use super::losses::{Exit, last_heard};
use super::output::{DriverOutput, EventKind};
use super::table::{AgentRecord, Link, PendingJoin, Stance, WorkerRecord};
use super::timers::Timer;
use crate::journal::Record;

impl DriverCore {
    /// The link with a node changed.
    pub fn handle_link(&mut self, now: Time, peer: &NodeId, event: &LinkEvent) {
        match &peer.name {
            NodeName::Agent(host) => self.handle_agent_link(now, peer, &host.clone(), event),
            NodeName::Worker(..) => self.handle_worker_link(now, peer, event),
            NodeName::Driver | NodeName::Client => {}
        }
    }

    /// An agent said something.
    pub fn handle_agent(&mut self, now: Time, from: &NodeId, message: AgentToDriver) {
        let NodeName::Agent(host) = &from.name else { return self.drop_message() };
        if let AgentToDriver::Join { host: name, slots, role, live } = message {
            if name == *host {
                let (node, deadline) = (from.clone(), now);
                let join = PendingJoin { node, slots, role, live, deadline };
                return self.handle_join(now, join);
            }
            return self.drop_message();
        }
        if self.agents.get(host).is_none_or(|agent| agent.node != *from) {
            return self.drop_message();
        }
        match message {
            AgentToDriver::Join { .. } => {}
            AgentToDriver::Started { worker, pid } => {
                if let Some(record) = self.workers.get_mut_untouched(&worker) {
                    record.pid = Some(pid);
                }
                self.process_started(&worker);
            }
            AgentToDriver::StartFailed { worker, reason } => {
                self.handle_start_failed(now, &worker, &reason);
            }
            AgentToDriver::Exited {
                worker,
                status,
                stopped_by,
                killed_after_grace,
                tail,
                error,
            } => {
                let (tail, failed_at) = match error {
                    Some(error) => (error.message, error.at),
                    None => (tail, None),
                };
                self.sharpen_first_failure(&worker, status, &tail, failed_at);
                let exit = Exit { status, stopped_by, killed_after_grace, tail };
                self.handle_exit(now, &worker, &exit);
            }
            AgentToDriver::Drain { reason } => {
                if let Some(agent) = self.agents.get_mut(host) {
                    agent.draining = Some(reason);
                }
                self.ask_review(now);
            }
        }
    }

    fn handle_agent_link(&mut self, now: Time, peer: &NodeId, host: &HostName, event: &LinkEvent) {
        if let LinkEvent::Lost { .. } = event
            && self.pending_joins.get(host).is_some_and(|pending| pending.node == *peer)
        {
            self.pending_joins.remove(host);
        }
        let Some(agent) = self.agents.get_mut(host).filter(|agent| agent.node == *peer) else {
            return;
        };
        match event {
            LinkEvent::Up | LinkEvent::Heard => agent.link = Link::Up,
            LinkEvent::Silent { .. } => agent.link = Link::Silent,
            LinkEvent::Lost { reason, silent_ms } => {
                agent.link = Link::Down;
                if agent.dismissed || self.phase.is_over() {
                    self.forget_agent(now, host);
                } else {
                    self.handle_host_lost(now, host, &reason.to_string(), *silent_ms);
                }
            }
        }
    }

    /// A host's agent is there, for the first time or again.
    fn handle_join(&mut self, now: Time, join: PendingJoin) {
        let NodeName::Agent(host) = join.node.name.clone() else { return };
        let (from, host) = (&join.node, &host);
        if self.phase.is_over() && self.takeover.is_none() {
            return self.refuse(from, host, "the job is over");
        }
        let taken = self
            .agents
            .get(host)
            .is_some_and(|agent| agent.node != *from && agent.link != Link::Down);
        if taken {
            // The one that is known may be dead without our knowing yet: the newcomer waits until that
            // is clear.
            let deadline = now + self.config.deadlines.lost + self.config.deadlines.suspect;
            self.pending_joins.insert(host.clone(), PendingJoin { deadline, ..join });
            self.timers.set(deadline, Timer::Join(host.clone()));
            return;
        }
        self.accept_join(now, host, &join);
    }

    fn accept_join(&mut self, now: Time, host: &HostName, join: &PendingJoin) {
        let PendingJoin { node: from, slots, role, live, .. } = join;
        let slots = *slots;
        let record = AgentRecord {
            node: from.clone(),
            slots,
            role: role.clone(),
            link: Link::Up,
            draining: None,
            dismissed: false,
        };
        let known = self.agents.insert(host.clone(), record);
        if known.is_none_or(|known| known.node != *from) {
            self.event(EventKind::HostJoined { host: host.clone(), slots });
            self.open_slots(host, from.incarnation);
        }
        let welcome = DriverToAgent::Welcome {
            job: self.job,
            term: self.term,
            program: self.config.program.clone(),
            deadlines: self.config.deadlines,
            output: Box::new(self.config.output.clone()),
        };
        self.output(DriverOutput::ToAgent { to: from.clone(), message: welcome });
        self.tell_of_drivers(from.clone());
        self.reconcile_processes(now, from, host, live);
        self.output(DriverOutput::HostJoined { host: host.clone(), slots });
        self.gather_changed(now);
        self.ask_review(now);
    }

    /// Compares the processes that an agent has with those that are on record.
    fn reconcile_processes(
        &mut self,
        now: Time,
        from: &NodeId,
        host: &HostName,
        live: &[LiveWorker],
    ) {
        for process in live {
            self.stop_if_left_behind(now, &process.worker);
            let wanted = self.workers.get_mut(&process.worker).is_some_and(|record| {
                record.pid = Some(process.pid);
                if record.stance == Stance::Lost {
                    record.come_back(now);
                }
                record.stance != Stance::Leaving
            });
            if wanted {
                let deadline = now + self.config.deadlines.start;
                self.timers.set(deadline, Timer::Start(process.worker.clone()));
                self.process_started(&process.worker);
            } else {
                let message = DriverToAgent::Stop {
                    worker: process.worker.clone(),
                    grace_ms: 0,
                    reason: "it is not part of this job any more".to_owned(),
                };
                self.output(DriverOutput::ToAgent { to: from.clone(), message });
            }
        }
        let mut vanished = self.workers_of(host);
        vanished.retain(|worker| live.iter().all(|process| process.worker != *worker));
        if self.await_reports(now, host, &vanished) {
            return;
        }
        for worker in vanished {
            self.handle_vanished(now, &worker, "its agent started anew");
        }
    }

    /// A worker that its agent knows nothing of: it died with an earlier life of the agent.
    pub(crate) fn handle_vanished(&mut self, now: Time, worker: &WorkerId, reason: &str) {
        if !self.workers.contains_key(worker) || self.is_done(worker) {
            return;
        }
        let cause = ResetCause::HostLost { host: worker.host.clone(), reason: reason.to_owned() };
        self.lose_member(now, worker, &cause, now);
        self.open_slot_of(worker);
        if self.forget_worker(worker).is_some_and(|record| record.link != Link::Down) {
            self.tell_leave(worker, "its agent knows nothing of it");
        }
    }

    pub(crate) fn resolve_pending_join(&mut self, now: Time, host: &HostName) {
        let Some(pending) = self.pending_joins.get(host) else { return };
        let free = self.agents.get(host).is_none_or(|agent| agent.link == Link::Down);
        if free {
            let pending = self.pending_joins.remove(host);
            if let Some(pending) = pending {
                self.accept_join(now, host, &pending);
            }
        } else if pending.deadline <= now {
            let node = pending.node.clone();
            self.pending_joins.remove(host);
            let reason = format!(
                "host {host} already has an agent; give this one another --host, or stop that one"
            );
            self.refuse(&node, host, &reason);
        }
    }

    fn refuse(&mut self, agent: &NodeId, host: &HostName, reason: &str) {
        self.event(EventKind::HostRefused { host: host.clone(), reason: reason.to_owned() });
        let message = DriverToAgent::Refused { reason: reason.to_owned() };
        self.output(DriverOutput::ToAgent { to: agent.clone(), message });
    }

    /// The launcher cannot start an agent on a host: the host is at fault, not the job.
    pub fn handle_launch_failed(&mut self, host: &HostName, reason: &str) {
        if self.phase.is_over() {
            return;
        }
        let message = format!("no agent can be started on host {host}: {}", shorten(reason));
        self.event(EventKind::Warning { message: message.clone() });
        self.first_launch_failure.get_or_insert(message);
        self.output(DriverOutput::HostFailed { host: host.clone(), reason: reason.to_owned() });
    }

    /// An agent went away without being asked to: its workers are lost with it.
    pub(crate) fn handle_host_lost(
        &mut self,
        now: Time,
        host: &HostName,
        reason: &str,
        silent_ms: u64,
    ) {
        let reason = reason.to_owned();
        self.event(EventKind::HostLost { host: host.clone(), reason: reason.clone() });
        let evidence = last_heard(now, silent_ms);
        let workers = self.workers_of(host);
        let mut in_reach = Vec::new();
        for worker in &workers {
            if self.forget_without_process(worker) {
                continue;
            }
            let is_member = self.is_member(worker);
            let Some(record) = self.workers.get_mut(worker) else { continue };
            if record.stance != Stance::Leaving {
                record.take_stance(now, Stance::Lost);
            }
            if is_member && record.link != Link::Down && record.stage.is_none() {
                in_reach.push(worker.clone());
            }
        }
        let stamp = self.current_stamp().unwrap_or_default();
        let cause = ResetCause::HostLost { host: host.clone(), reason };
        for worker in &workers {
            self.lose_member(now, worker, &cause, evidence);
        }
        for worker in &in_reach {
            // It may be in reach where its agent is not: it rests until its host is back.
            self.tell(worker, DriverToWorker::Abort { stamp, cause: cause.clone() });
        }
        self.output(DriverOutput::HostLeft { host: host.clone() });
        self.resolve_pending_join(now, host);
        self.gather_changed(now);
        self.ask_review(now);
    }

    /// An agent that was told to leave has left.
    fn forget_agent(&mut self, now: Time, host: &HostName) {
        for worker in self.workers_of(host) {
            self.forget_worker(&worker);
        }
        self.agents.remove(host);
        self.output(DriverOutput::HostLeft { host: host.clone() });
        self.resolve_pending_join(now, host);
        self.continue_ending(now);
    }

    pub(crate) fn workers_of(&self, host: &HostName) -> Vec<WorkerId> {
        self.records_of(host).map(|(worker, _)| worker.clone()).collect()
    }

    pub(crate) fn records_of(
        &self,
        host: &HostName,
    ) -> impl Iterator<Item = (&WorkerId, &WorkerRecord)> {
        let bound = |slot, incarnation| WorkerId {
            host: host.clone(),
            slot,
            incarnation: Incarnation(incarnation),
        };
        self.workers.range(bound(0, 0)..=bound(u32::MAX, u64::MAX))
    }

    /// Removes a worker's record: its process is gone.
    pub(crate) fn forget_worker(&mut self, worker: &WorkerId) -> Option<WorkerRecord> {
        let slot = (worker.host.clone(), worker.slot);
        if let Some(slot) = self.slots.get_mut(&slot)
            && slot.worker.as_ref() == Some(worker)
        {
            slot.worker = None;
        }
        if self.workers.contains_key(worker) {
            self.record(&Record::WorkerGone { worker: worker.clone() });
        }
        self.workers.remove(worker)
    }

    /// Whether a host's agent is there, and has not fallen silent.
    pub(crate) fn is_host_heard(&self, host: &HostName) -> bool {
        self.agents.get(host).is_some_and(|agent| agent.link == Link::Up)
    }

    /// The agent that can reach a worker's process.
    pub(crate) fn agent_of(&self, worker: &WorkerId) -> Option<NodeId> {
        let agent = self.agents.get(&worker.host)?;
        (agent.link != Link::Down).then(|| agent.node.clone())
    }
}
