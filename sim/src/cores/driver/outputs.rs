//! Outputs of the driver's core: their effects, and the oracle's checks of each. Part of the simulated world.

use std::time::SystemTime;

use elastic_driver::{DriverOutput, OnTotalLoss};
use elastic_protocol::messages::{DriverToAgent, DriverToWorker};
use elastic_protocol::{HostName, Incarnation, NodeId, Stamp, WorkerId};

use super::super::network::{LinkDirection, LinkFrame, LinkOwner};
use super::super::processes::SimulatedProcess;
use super::super::{Happening, MS, NONE, World};
use super::{LocalMessage, ObservedPhase};
use crate::trace::{TraceKind, TracePlace};

/// Longest time for which the driver may count on a dead worker whose end it has not been told.
const UNTOLD_NS: u64 = 10_000 * MS;

/// Part of the reason for leaving out a host that does not reach others.
const PARTED: &str = "do not reach each other";

/// Longest time that a member's word of its first commit takes to the driver.
const UNHEARD_NS: u64 = 1_000 * MS;

impl World {
    pub(in crate::cores) fn drain_driver(&mut self) {
        let mut outputs = 0_usize;
        while let Some(output) = self.driver.cores().and_then(|cores| cores.driver.poll_output()) {
            outputs += 1;
            if self.dies_midway() {
                return;
            }
            self.put_out(TracePlace::DRIVER, "driver", &output);
            self.carry_out(output);
        }
        self.store_batch();
        let now = self.driver_now();
        if let Some(cores) = self.driver.cores() {
            cores.driver.end_step(now, || SystemTime::UNIX_EPOCH);
        }
        let bound = 256 + 64 * (self.hosts.len() * (2 + self.options.slots as usize));
        if outputs > bound {
            self.fail_safety(format!("one input of the driver gave {outputs} outputs"));
        }
        let (now, life, clock) = (self.now, self.driver.life, self.driver.clock);
        let waits = matches!(self.driver.phase, ObservedPhase::Gather | ObservedPhase::Form);
        let inputs_a_check = self.inputs_a_check();
        let Some(cores) = self.driver.cores() else { return };
        cores.inputs_unchecked += 1;
        let checked = if cores.inputs_unchecked >= inputs_a_check {
            cores.inputs_unchecked = 0;
            cores.driver.check()
        } else {
            Ok(())
        };
        self.demand(checked);
        let Some(cores) = self.driver.cores() else { return };
        if let Some(at) = cores.driver.poll_timeout() {
            let at = clock.world(at).max(now);
            if at < cores.armed {
                cores.armed = at;
                self.agenda.push(at, Happening::DriverTimer { life });
            }
        } else if waits && cores.local.is_empty() && !cores.journal.is_busy() {
            self.fail_safety("G-9: the driver waits without a deadline".to_owned());
        }
    }

    /// Number of the driver's inputs between two checks of its invariants: one for each slot. The check visits every worker
    /// and seats all hosts anew, so that its cost for each input is the same in small jobs and large ones. A part that is
    /// broken stays broken until it is looked at.
    fn inputs_a_check(&self) -> usize {
        self.hosts.len() * self.options.slots as usize
    }

    fn carry_out(&mut self, output: DriverOutput) {
        match output {
            DriverOutput::ToAgent { to, message } => self.tell_agent(&to, message),
            DriverOutput::StartWorker { agent, worker, environment, place } => {
                self.check_recorded(&worker);
                let checked = self.check_slot_open(&agent, &worker);
                self.demand(checked);
                *self.tries.entry((worker.host.clone(), worker.slot)).or_default() += 1;
                self.know(self.driver.job, worker.incarnation.0, NONE);
                let credential = String::new();
                let message = DriverToAgent::Start { worker, environment, place, credential };
                self.tell_agent(&agent, message);
            }
            DriverOutput::ToWorker { to, message } => self.tell_worker(&to, message),
            DriverOutput::ToWorkers { to, message } => {
                for worker in &to {
                    self.tell_worker(worker, message.clone());
                }
            }
            DriverOutput::OpenGeneration { stamp, members, budget } => {
                // A generation of a former driver is known already.
                if !self.oracle.knows(self.driver.job, stamp) {
                    self.check_recorded_generation(stamp);
                    self.open_generation(stamp, &members);
                }
                self.local(LocalMessage::Open { stamp, members, budget });
            }
            DriverOutput::Incident(incident) => self.local(LocalMessage::Incident(incident)),
            DriverOutput::Vote(vote) => self.local(LocalMessage::Vote(vote)),
            DriverOutput::NameMissing { stamp } => self.local(LocalMessage::NameMissing(stamp)),
            DriverOutput::HostJoined { host, slots } => {
                self.local(LocalMessage::Joined { host, slots })
            }
            DriverOutput::HostLeft { host } => self.local(LocalMessage::Left(host)),
            DriverOutput::HostFailed { host, fault, reason } => {
                let checked = self
                    .check_blame(&host, &reason)
                    .and_then(|()| self.check_parted_without_the_commit(&host, &reason));
                self.demand(checked);
                // State on a blacklisted host is lost with it, as the user has asked.
                let of_host = self.hosts.iter().find(|entry| entry.name == host);
                for process in of_host.into_iter().flat_map(|entry| &entry.processes) {
                    self.processes[*process as usize].note_host_blacklisted();
                }
                self.local(LocalMessage::Failed { host, fault, reason });
            }
            DriverOutput::Event(event) => self.driver_event(event),
            DriverOutput::Ended(result) => self.driver_ended(result),
            DriverOutput::Abandoned { reason, .. } => self.abandon(&reason),
            DriverOutput::KnownDrivers { to, message } => {
                let checked = self.check_told_of_drivers(to, &message);
                self.demand(checked);
            }
            DriverOutput::HandedOver => self.handed_over(),
        }
    }

    /// Checks a host that is blamed for a slot: the slot failed often enough, with a separate process each time.
    fn check_blame(&mut self, host: &HostName, reason: &str) -> Result<(), String> {
        let Some((slot, count)) = blamed(reason) else { return Ok(()) };
        let tries = self.tries.remove(&(host.clone(), slot)).unwrap_or(0);
        let allowed = self.scenario.driver.max_restarts;
        // A new driver may not know that its predecessor has blamed the host already.
        if count == allowed + 1 && (tries >= count || self.lives > 1) {
            return Ok(());
        }
        Err(format!(
            "{host} is blamed for {count} failures of slot {slot}, which had {tries} processes since it was blamed last: \
             {allowed} are allowed"
        ))
    }

    /// Checks G-5 for a host that is left out because it and others do not reach each other: others hold its commit.
    fn check_parted_without_the_commit(&self, host: &HostName, reason: &str) -> Result<(), String> {
        let acknowledged = self.oracle.acknowledged(self.driver.job);
        let Some(samples) = acknowledged.filter(|_| reason.contains(PARTED)) else { return Ok(()) };
        let holds = |process: &&SimulatedProcess| {
            let saved = process.program.saved.as_ref();
            process.job == self.driver.job
                && saved.is_some_and(|saved| saved.model.samples >= samples)
        };
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            self.processes.iter().filter(holds).partition(|process| process.id.host == *host);
        let is_there = |it: &&SimulatedProcess| it.is_alive || self.has_just_died(it);
        // As far as the driver knows, a worker that has died on a host that is away may come back with it.
        let may_be_there = |it: &&SimulatedProcess| {
            let ended = it.stopping.ended_at;
            let is_untold = ended.is_some_and(|ended| ended + UNTOLD_NS > self.now)
                && !self.driver.explained.contains(&it.id.incarnation);
            is_untold || is_there(it)
        };
        let is_held = elsewhere.into_iter().any(|it| may_be_there(&it));
        match here.into_iter().find(is_there).filter(|_| !is_held) {
            Some(holder) => Err(format!(
                "G-5: {} alone holds the acknowledged commit at {samples} samples, and its host is parted from others",
                holder.id
            )),
            None => Ok(()),
        }
    }

    pub(in crate::cores) fn link_of_incarnation(&self, job: u32, incarnation: u64) -> Option<u32> {
        let link = *self.by_incarnation.get(job as usize)?.get(incarnation as usize)?;
        (link != NONE).then_some(link)
    }

    /// The link of an agent's life.
    pub(in crate::cores) fn link_of_agent(&self, agent: &NodeId) -> Option<u32> {
        // The index is the incarnation's number without the term in which the agent enrolled.
        let first = Incarnation::enrolled(agent.incarnation.enrolled_in(), 0);
        self.agent_links.get((agent.incarnation.0 - first.0) as usize).copied()
    }

    fn tell_agent(&mut self, to: &NodeId, message: DriverToAgent) {
        let Some(link) = self.link_of_agent(to) else { return };
        let _undelivered = self.send(link, LinkDirection::ToPeer, LinkFrame::ToAgent(message));
    }

    fn tell_worker(&mut self, to: &WorkerId, message: DriverToWorker) {
        if let DriverToWorker::Assign(formation) = &message {
            let checked = self.oracle.assigned(self.driver.job, self.driver.term, formation, to);
            self.demand(checked);
        }
        if let DriverToWorker::Go { stamp, .. } = &message {
            self.check_opened(*stamp);
        }
        let Some(link) = self.link_of_incarnation(self.driver.job, to.incarnation.0) else {
            return;
        };
        let _undelivered = self.send(link, LinkDirection::ToPeer, LinkFrame::ToWorker(message));
    }

    /// The process of a job's worker, if it was ever started.
    pub(in crate::cores) fn process_of(&self, job: u32, worker: &WorkerId) -> Option<u32> {
        let link = self.link_of_incarnation(job, worker.incarnation.0)?;
        match self.links[link as usize].owner {
            LinkOwner::Worker { process } => Some(process),
            LinkOwner::Agent { .. } => None,
        }
    }

    pub(in crate::cores) fn open_generation(&mut self, stamp: Stamp, members: &[WorkerId]) {
        let job = self.driver.job;
        let processes = self.processes_of(members);
        self.record(
            TraceKind::Form,
            TracePlace::DRIVER,
            (stamp.generation.0, members.len() as u64),
            || members.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        );
        // A member that died unnoticed counts. Its generation breaks, and the attempt loses nothing.
        let held = |process: &u32| {
            let program = &self.processes.get(*process as usize)?.program;
            program.saved.as_ref().map(|saved| saved.model.samples)
        };
        let best = processes.iter().filter_map(held).max();
        let takes_effect = self.oracle.takes_effect(job, self.driver.term, stamp);
        if self.keeps_processes() && takes_effect.is_err() {
            // It cannot store the generation, so that nobody is told to go.
            return self.oracle.forms_in_vain(job, stamp, members);
        }
        self.demand(takes_effect);
        let checked = self.oracle.formed(job, stamp, members, best);
        self.demand(checked);
        if self.keeps_processes() {
            let checked = self.oracle.paced(self.driver.term, self.now);
            self.demand(checked);
        }
        let checked = self.check_members(stamp, members);
        self.demand(checked);
        // Only scripts are started after their generation is formed.
        if self.keeps_processes() && processes.contains(&NONE) {
            let generation = stamp.generation;
            self.fail_safety(format!("generation {generation} has a member that never started"));
        }
        // The state at the time when a former driver formed the generation is unknown.
        if stamp.term == self.driver.term {
            let checked = self.check_commit_kept(best);
            self.demand(checked);
            let checked = self.check_loss_allowed(best);
            self.demand(checked);
            // No process holds the later commit. The job trains it anew and may reach the same number of samples.
            self.oracle.begin_again_from(job, best);
        }
        self.driver.enter_phase(self.now, ObservedPhase::Form);
        self.take_generation(stamp, processes);
    }

    /// Makes this the generation of the newest driver.
    pub(super) fn take_generation(&mut self, stamp: Stamp, members: Vec<u32>) {
        self.driver.stamp = stamp;
        for member in &members {
            if let Some(process) = self.processes.get_mut(*member as usize) {
                process.note_taken_back();
            }
        }
        self.driver.members = members;
        for index in 0..self.driver.members.len() {
            let process = self.driver.members[index];
            if process != NONE && self.processes[process as usize].has_died() {
                self.expect_notice(process);
            }
        }
    }

    /// The members' processes, by rank.
    pub(super) fn processes_of(&self, members: &[WorkerId]) -> Vec<u32> {
        let job = self.driver.job;
        members.iter().map(|worker| self.process_of(job, worker).unwrap_or(NONE)).collect()
    }

    /// Checks D-4: a worker's number leaves the driver only after it is stored for a successor.
    pub(in crate::cores) fn check_recorded(&mut self, worker: &WorkerId) {
        if !self.state_dir.archive().has_incarnation(worker.incarnation) {
            self.fail_safety(format!("D-4: {worker} is to start, and that is not stored"));
        }
        let checked = self.oracle.given(self.driver.job, worker);
        self.demand(checked);
    }

    /// Checks D-4 for a generation whose members are told to go: a successor knows it, so that it is left alone (D-3).
    pub(in crate::cores) fn check_opened(&mut self, stamp: Stamp) {
        if !self.state_dir.archive().has_opened(stamp) {
            let generation = stamp.generation;
            self.fail_safety(format!(
                "D-4: generation {generation} begins, and that is not stored"
            ));
        }
        if let Some(samples) = self.driver.untold_loss.take() {
            self.fail_safety(format!(
                "L-1: training begins again from the start, and the loss of {samples} acknowledged samples is not told"
            ));
        }
    }

    /// Checks D-4 for a generation that members are told: a successor does not use its number again, and a driver that has found
    /// a request to end the job in the journal forms none.
    pub(in crate::cores) fn check_recorded_generation(&mut self, stamp: Stamp) {
        if self.driver.is_to_end && stamp.term == self.driver.term {
            let generation = stamp.generation;
            self.fail_safety(format!(
                "D-4: generation {generation} is formed, and the job was asked to end under a former driver"
            ));
        }
        if !self.state_dir.archive().has_generation(stamp.generation) {
            let generation = stamp.generation;
            self.fail_safety(format!(
                "D-4: generation {generation} is formed, and that is not stored"
            ));
        }
    }

    /// Checks L-1 when a generation is formed that begins from nothing although a commit was acknowledged: the job may go on
    /// after it, and the loss is told before members are told to go. Actors' events come by another way than their generations.
    fn check_loss_allowed(&mut self, best: Option<u64>) -> Result<(), String> {
        let is_told = std::mem::take(&mut self.driver.loss_is_told);
        // A member that has not heard that it was left out may commit once more, in the training whose loss was told.
        let trained_from = match is_told {
            true => std::mem::take(&mut self.driver.trained_from),
            false => self.driver.trained_from,
        };
        self.driver.untold_loss = None;
        let acknowledged = self.oracle.acknowledged(self.driver.job).filter(|samples| *samples > 0);
        let Some(samples) = acknowledged.filter(|_| best.is_none()) else { return Ok(()) };
        if self.driver.cores().is_none() || !self.keeps_processes() {
            return Ok(());
        }
        let is_saved = self.storage.newest(self.driver.job).is_some();
        // Members that are gone so soon may have told of no commit, or not even that they train.
        let ended_at = self.driver.reset_since.unwrap_or(self.now);
        if trained_from == 0 || ended_at.saturating_sub(trained_from) < UNHEARD_NS {
            return Ok(());
        }
        if self.scenario.driver.on_total_loss == Some(OnTotalLoss::Fail) && !is_saved {
            return Err(format!(
                "L-1: training begins again from the start, {samples} acknowledged samples are lost, and the job was \
                 to fail"
            ));
        }
        self.driver.untold_loss = (!is_told).then_some(samples);
        Ok(())
    }

    /// Checks G-5 when a generation is formed. A member holds the commit that every rank of an earlier generation
    /// acknowledged, or no process in the driver's reach does.
    pub(in crate::cores) fn check_commit_kept(&self, best: Option<u64>) -> Result<(), String> {
        let Some(acknowledged) = self.oracle.acknowledged(self.driver.job) else { return Ok(()) };
        let progress = |process: u32| {
            self.processes.get(process as usize).and_then(|process| process.saved_progress())
        };
        if best >= Some(acknowledged) {
            return Ok(());
        }
        let length = self.scenario.length;
        let snapshot = self.driver.hosts();
        let is_blacklisted = |name: &HostName| {
            snapshot.hosts.iter().any(|entry| entry.name == *name && entry.usable_slots() == 0)
        };
        // State on a blacklisted host is lost with it, as the user has asked.
        for host in self.hosts.iter().filter(|host| !is_blacklisted(&host.name)) {
            for process in &host.processes {
                if self.processes[*process as usize].job == self.driver.job
                    && self.processes[*process as usize].stays()
                    && progress(*process) >= Some(acknowledged)
                {
                    return Err(format!(
                        "G-5: generation {} begins from {:?} samples of {length}, but {} holds the \
                         acknowledged commit at {acknowledged}",
                        self.driver.stamp.generation.0 + 1,
                        best,
                        self.processes[*process as usize].id,
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Slot and failure count, parsed from the reason for which a host is put out.
fn blamed(reason: &str) -> Option<(u32, u32)> {
    let (slot, rest) = reason.strip_prefix("slot ")?.split_once(" failed ")?;
    Some((slot.parse().ok()?, rest.strip_suffix(" times")?.parse().ok()?))
}
