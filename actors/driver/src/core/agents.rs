//! Messages and links of agents: hosts join, drain, are lost, and come back. Called by `actor`.

use elastic_host_manager::HostFault;
use elastic_protocol::job::shorten;
use elastic_protocol::messages::{AgentToDriver, DriverToAgent, LiveWorker};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{GenerationId, HostName, NodeId, NodeName, ResetCause, Time, WorkerId};
use elastic_runtime::transport::LinkEvent;

use super::DriverCore;
use super::event::EventKind;
use super::first_cause::FailureWords;
use super::losses::{ProcessExit, last_heard};
use super::output::DriverOutput;
use super::table::{PeerLink, PendingJoin, WorkerRecord};
use super::timers::Timer;
use crate::journal::JournalRecord;

impl DriverCore {
    /// Handles a change of the link with a node.
    pub fn handle_link(&mut self, now: Time, peer: &NodeId, event: &LinkEvent) {
        if matches!(event, LinkEvent::Up) {
            self.forget_untold(peer);
        }
        match &peer.name {
            NodeName::Agent(host) => self.handle_agent_link(now, peer, &host.clone(), event),
            NodeName::Worker(..) => self.handle_worker_link(now, peer, event),
            NodeName::Driver | NodeName::Client => {}
        }
    }

    /// Handles an agent's message.
    pub fn handle_agent(&mut self, now: Time, from: &NodeId, message: AgentToDriver) {
        let NodeName::Agent(host) = &from.name else { return self.drop_message() };
        if let AgentToDriver::Join { host: name, slots, role, meeting, run_id, nodes, live } =
            message
        {
            if name == *host {
                if let (Some(ours), Some(theirs)) = (&self.config.run_id, &run_id)
                    && ours != theirs
                {
                    let theirs = shorten(theirs);
                    let reason = format!(
                        "this is the job {ours}, and --rdzv-id names {theirs}: give another job another --rdzv-endpoint"
                    );
                    return self.refuse(from, host, &reason);
                }
                if let Some(reason) = nodes.and_then(|nodes| self.config.refuses_command(&nodes)) {
                    return self.refuse(from, host, &reason);
                }
                let (node, deadline) = (from.clone(), now);
                let join = PendingJoin { node, slots, role, meeting, live, deadline };
                return self.handle_join(now, join);
            }
            return self.drop_message();
        }
        if !self.roster.is_agent_of(host, from) {
            return self.drop_message();
        }
        match message {
            AgentToDriver::Join { .. } => {}
            AgentToDriver::Started { worker, pid } => {
                self.roster.note_program_starts();
                self.roster.note_pid(&worker, pid);
                if self.roster.worker(&worker).is_some() {
                    self.event(EventKind::ProcessStarted { worker: worker.clone(), pid });
                }
                self.process_started(&worker);
            }
            AgentToDriver::StartFailed { worker, reason, is_programs } => {
                self.handle_start_failed(now, &worker, &reason, is_programs);
            }
            AgentToDriver::Dying { worker } => self.handle_dying(now, &worker),
            AgentToDriver::Exited { worker, status, stopped_by, killed_after_grace, library } => {
                let exit = ProcessExit { status, stopped_by, killed_after_grace, library };
                self.handle_exit(now, &worker, &exit);
            }
            AgentToDriver::LastWords { worker, tail, error, out_of_memory } => {
                if let Some(detail) = &out_of_memory {
                    let (worker, detail) = (worker.clone(), shorten(detail));
                    self.event(EventKind::WorkerOutOfMemory { worker, detail });
                }
                let words = match (error, out_of_memory) {
                    (Some(error), _) => {
                        FailureWords { message: error.message, failed_at: error.at }
                    }
                    (None, Some(detail)) => {
                        let message = format!("{tail}\n{detail}").trim_start().to_owned();
                        FailureWords { message, failed_at: None }
                    }
                    (None, None) => FailureWords { message: tail, failed_at: None },
                };
                self.handle_last_words(now, &worker, &words);
            }
            AgentToDriver::HostChanged { meeting, hanging } => {
                self.roster.note_host(now, host, meeting, hanging);
            }
            AgentToDriver::Inspected { worker, sight } => {
                self.handle_inspected(now, &worker, *sight);
            }
            AgentToDriver::HealthChecked { number, failure } => {
                self.handle_health_checked(now, host, number, failure);
            }
            AgentToDriver::Drain { reason } => {
                self.roster.drain(host, reason);
                self.agenda.ask_review(now);
            }
        }
    }

    fn handle_agent_link(&mut self, now: Time, peer: &NodeId, host: &HostName, event: &LinkEvent) {
        if let LinkEvent::Lost { .. } = event
            && self.roster.pending_join(host).is_some_and(|pending| pending.node == *peer)
        {
            self.roster.take_pending_join(host);
        }
        let Some(agent) = self.roster.agent(host).filter(|agent| agent.node == *peer) else {
            return;
        };
        // An agent that asked to leave ends by itself once its last worker has: its dismissal may not be decided yet.
        let leaves =
            agent.dismissed || self.roster.has_drained(host) || self.round.phase().is_over();
        self.roster.set_agent_link(host, PeerLink::after(event));
        match event {
            LinkEvent::Lost { reason, .. } if leaves => {
                self.note_host_lost_at_end(host, &reason.to_string());
                self.forget_agent(now, host);
            }
            LinkEvent::Lost { reason, silent_ms } => {
                self.handle_host_lost(now, host, &reason.to_string(), *silent_ms);
            }
            LinkEvent::Up | LinkEvent::Heard | LinkEvent::Silent { .. } => {}
        }
    }

    /// Handles the join of a host's agent, for the first time or again.
    fn handle_join(&mut self, now: Time, join: PendingJoin) {
        let NodeName::Agent(host) = join.node.name.clone() else { return };
        let (from, host) = (&join.node, &host);
        if self.round.phase().is_over() && self.takeover.is_none() {
            return self.refuse(from, host, "the job is over");
        }
        let taken = self
            .roster
            .agent(host)
            .is_some_and(|agent| agent.node != *from && agent.link != PeerLink::Down);
        if taken && self.is_agent_of_the_vanished(host, &join) {
            if let Some(idle) = self.roster.agent(host).map(|agent| agent.node.clone()) {
                let reason = format!("another agent of host {host} has this job's workers");
                self.refuse(&idle, host, &reason);
            }
        } else if taken {
            // The known agent may be dead without the driver's knowledge: the newcomer waits until that is clear. A driver
            // that stood still a moment ago judges no silence for a while.
            let deadlines = &self.config.deadlines;
            let deadline = now + deadlines.judged_after_pause() + deadlines.suspect;
            self.roster.keep_waiting(host, PendingJoin { deadline, ..join });
            self.agenda.set(deadline, Timer::Join(host.clone()));
            return;
        }
        self.accept_join(now, host, &join);
    }

    /// Whether an agent has workers of a former driver that are missed since another agent of its host joined before it, which
    /// has none of them: two agents of one host outlived that driver.
    fn is_agent_of_the_vanished(&self, host: &HostName, join: &PendingJoin) -> bool {
        let Some(takeover) = &self.takeover else { return false };
        let vanished = takeover.vanished_from(host);
        let has_some = join.live.iter().any(|process| vanished.contains(&process.worker));
        has_some && self.roster.workers_of(host).iter().all(|worker| vanished.contains(worker))
    }

    fn accept_join(&mut self, now: Time, host: &HostName, join: &PendingJoin) {
        let PendingJoin { node: from, slots, live, .. } = join;
        let slots = *slots;
        let mut live_workers = live.iter().map(|process| &process.worker);
        if live_workers.any(|it| self.retires_as_outdated(it, GenerationId::default())) {
            return;
        }
        if self.roster.admit(now, host, join) {
            // An agent that a launcher started offers the largest possible number of slots: the list gives the number of
            // used ones.
            let listed = self.roster.seating().listing(host);
            let used = listed.map_or(slots, |listing| listing.slots_of_list.min(slots));
            self.event(EventKind::HostJoined { host: host.clone(), slots: used });
            if let Some(message) = self.surplus_of_nodes() {
                self.event(EventKind::Warning { message });
            }
            self.open_slots(host, from.incarnation);
        }
        // An agent drops messages before its welcome: they were decided before the driver knew its processes. The welcome
        // overtakes messages that wait for the disk, and the agent would obey those after it. So they are withdrawn.
        self.forget_untold(from);
        let welcome = DriverToAgent::Welcome {
            job: self.job,
            term: self.term,
            program: self.config.program.clone(),
            deadlines: self.config.deadlines,
            output: Box::new(self.config.output.clone()),
        };
        self.welcome(DriverOutput::ToAgent { to: from.clone(), message: welcome });
        self.tell_of_drivers(from.clone());
        self.reconcile_processes(now, from, host, live);
        self.output(DriverOutput::HostJoined { host: host.clone(), slots });
        self.round.gather_changed(now);
        self.agenda.ask_review(now);
    }

    /// Compares an agent's processes with those on record.
    fn reconcile_processes(
        &mut self,
        now: Time,
        from: &NodeId,
        host: &HostName,
        live: &[LiveWorker],
    ) {
        if !live.is_empty() {
            self.roster.note_program_starts();
        }
        for process in live {
            self.stop_if_left_behind(now, &process.worker);
            if self.roster.process_is_there(now, &process.worker, process.pid) {
                for wait in [self.config.deadlines.start, self.rest_deadline()] {
                    self.agenda.set(now + wait, Timer::Start(process.worker.clone()));
                }
                self.process_started(&process.worker);
                if process.is_being_stopped && !is_planted(Bug::StopOfAnotherUnknown) {
                    self.handle_being_stopped(now, &process.worker);
                }
            } else {
                let message = DriverToAgent::Stop {
                    worker: process.worker.clone(),
                    grace_ms: 0,
                    reason: "it is not part of this job any more".to_owned(),
                };
                self.output(DriverOutput::ToAgent { to: from.clone(), message });
            }
        }
        let mut vanished = self.roster.workers_of(host);
        vanished.retain(|worker| live.iter().all(|process| process.worker != *worker));
        if self.await_reports(now, host, &vanished) {
            return;
        }
        for worker in vanished {
            self.handle_vanished(now, &worker, "its agent started anew");
        }
    }

    /// Removes a worker that its agent does not know: it died with an earlier life of the agent.
    pub(crate) fn handle_vanished(&mut self, now: Time, worker: &WorkerId, reason: &str) {
        if self.roster.is_done(worker) {
            return;
        }
        self.note_gone_at_end(worker, reason);
        let Some(record) = self.roster.worker(worker) else { return };
        let is_in_reach = record.link != PeerLink::Down;
        let cause = ResetCause::HostLost { host: worker.host.clone(), reason: reason.to_owned() };
        self.lose_member(now, worker, &cause, now);
        self.open_slot_of(worker);
        self.forget_worker(worker);
        if is_in_reach {
            self.tell_leave(worker, "its agent knows nothing of it");
        }
    }

    pub(crate) fn resolve_pending_join(&mut self, now: Time, host: &HostName) {
        let Some(pending) = self.roster.pending_join(host) else { return };
        let free = self.roster.agent(host).is_none_or(|agent| agent.link == PeerLink::Down);
        if free {
            if let Some(pending) = self.roster.take_pending_join(host) {
                self.accept_join(now, host, &pending);
            }
        } else if pending.deadline <= now {
            let node = pending.node.clone();
            self.roster.take_pending_join(host);
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

    /// Reports a host as failed on which the launcher cannot start an agent: the host is at fault, not the job.
    pub fn handle_launch_failed(&mut self, host: &HostName, reason: &str) {
        if self.round.phase().is_over() {
            return;
        }
        let message = format!("no agent can be started on host {host}: {}", shorten(reason));
        self.event(EventKind::Warning { message: message.clone() });
        self.first_cause.note_launch_failure(message);
        self.report_failed_host(host.clone(), HostFault::Failed, reason.to_owned());
    }

    /// Reports a host to the host manager, which blacklists it.
    pub(crate) fn report_failed_host(&mut self, host: HostName, fault: HostFault, reason: String) {
        self.roster.blame(&host, &reason);
        self.output(DriverOutput::HostFailed { host, fault, reason });
    }

    /// Handles the loss of an agent: its workers are lost with it.
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
        let workers = self.roster.workers_of(host);
        for worker in &workers {
            self.note_gone_at_end(worker, &host_is_gone(&reason));
        }
        let mut in_reach = Vec::new();
        for worker in &workers {
            if self.forget_without_process(worker) {
                continue;
            }
            if self.roster.lose_with_host(now, worker) && self.round.is_member(worker) {
                in_reach.push(worker.clone());
            }
        }
        let stamp = self.round.stamp().unwrap_or_default();
        let cause = ResetCause::HostLost { host: host.clone(), reason };
        for worker in &workers {
            self.lose_member(now, worker, &cause, evidence);
        }
        // The workers may be in reach although their agent is not: they rest until their host is back.
        self.tell_broken(in_reach, stamp, &cause);
        if !is_planted(Bug::LostHostNotTold) {
            self.output(DriverOutput::HostLeft { host: host.clone() });
        }
        self.resolve_pending_join(now, host);
        self.round.gather_changed(now);
        self.agenda.ask_review(now);
    }

    /// Tells of a host that is lost while the programs of a finished job still run, and fails the job for members whose
    /// processes have not ended as far as is known (G-10). An agent that was told to leave, or has nothing to do, has left.
    fn note_host_lost_at_end(&mut self, host: &HostName, reason: &str) {
        let has_left = self.roster.agent(host).is_none_or(|agent| agent.dismissed);
        let workers = self.roster.workers_of(host);
        if has_left || workers.is_empty() || !self.ends_after_training() {
            return;
        }
        self.event(EventKind::HostLost { host: host.clone(), reason: reason.to_owned() });
        for worker in &workers {
            self.note_gone_at_end(worker, &host_is_gone(reason));
        }
    }

    /// Forgets an agent that has left as told, or is lost while the job ends.
    fn forget_agent(&mut self, now: Time, host: &HostName) {
        for worker in self.roster.workers_of(host) {
            self.forget_worker(&worker);
        }
        self.roster.remove_agent(host);
        self.output(DriverOutput::HostLeft { host: host.clone() });
        self.resolve_pending_join(now, host);
        self.continue_ending(now);
    }

    /// Removes the record of a worker whose process is gone.
    pub(crate) fn forget_worker(&mut self, worker: &WorkerId) -> Option<WorkerRecord> {
        if self.roster.has_worker(worker) {
            self.record(&JournalRecord::WorkerGone { worker: worker.clone() });
        }
        self.roster.remove(worker)
    }
}

/// Why the end of a process will not be known.
fn host_is_gone(reason: &str) -> String {
    format!("its host was lost ({reason})")
}
