//! What the driver's core wants done, and what the oracle says to it.

use elastic_driver::DriverOutput;
use elastic_protocol::messages::{DriverToAgent, DriverToWorker};
use elastic_protocol::{HostName, Incarnation, NodeId, Stamp, WorkerId};

use super::super::network::{Frame, Lane, Owner};
use super::super::{Happening, NONE, World};
use super::{Local, Phase};
use crate::trace::{Kind, Place};

impl World {
    pub(in crate::cores) fn drain_driver(&mut self) {
        let mut outputs = 0_usize;
        while let Some(output) = self.driver.cores().and_then(|cores| cores.driver.poll_output()) {
            outputs += 1;
            if self.dies_midway() {
                return;
            }
            self.carry_out(output);
        }
        self.store_batch();
        let bound = 256 + 64 * (self.hosts.len() * (2 + self.options.slots as usize));
        if outputs > bound {
            self.fail_safety(format!("one input of the driver gave {outputs} outputs"));
        }
        let (now, life, clock) = (self.now, self.driver.life, self.driver.clock);
        let waits = matches!(self.driver.phase, Phase::Gather | Phase::Form);
        let Some(cores) = self.driver.cores() else { return };
        if let Some(at) = cores.driver.poll_timeout() {
            let at = clock.world(at).max(now);
            if at < cores.armed {
                cores.armed = at;
                self.agenda.push(at, Happening::DriverTimer { life });
            }
        } else if waits {
            self.fail_safety("G-9: the driver waits without a deadline".to_owned());
        }
    }

    fn carry_out(&mut self, output: DriverOutput) {
        match output {
            DriverOutput::ToAgent { to, message } => self.tell_agent(&to, message),
            DriverOutput::StartWorker { agent, worker, environment, place } => {
                self.check_recorded(&worker);
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
            DriverOutput::OpenGeneration { stamp, members } => {
                // One that a former driver has formed is known.
                if !self.oracle.knows(self.driver.job, stamp) {
                    self.check_recorded_generation(stamp);
                    self.open_generation(stamp, &members);
                }
                self.local(Local::Open { stamp, members });
            }
            DriverOutput::Vote(vote) => self.local(Local::Vote(vote)),
            DriverOutput::NameMissing { stamp } => self.local(Local::NameMissing(stamp)),
            DriverOutput::HostJoined { host, slots } => self.local(Local::Joined { host, slots }),
            DriverOutput::HostLeft { host } => self.local(Local::Left(host)),
            DriverOutput::HostFailed { host, reason } => {
                // What is on a blacklisted host goes with it: that is what the user has asked for.
                let of_host = self.hosts.iter().find(|entry| entry.name == host);
                for process in of_host.into_iter().flat_map(|entry| &entry.processes) {
                    self.processes[*process as usize].is_leaving = true;
                }
                self.local(Local::Failed { host, reason });
            }
            DriverOutput::Event(event) => self.driver_event(event.kind),
            DriverOutput::Ended(result) => self.driver_ended(result),
            DriverOutput::Abandoned { reason } => self.abandon(&reason),
            DriverOutput::KnownDrivers { .. } | DriverOutput::HandedOver => {
                self.fail_safety("the driver has standbys that nobody gave it".to_owned());
            }
        }
    }

    pub(in crate::cores) fn link_of_incarnation(&self, job: u32, incarnation: u64) -> Option<u32> {
        let link = *self.by_incarnation.get(job as usize)?.get(incarnation as usize)?;
        (link != NONE).then_some(link)
    }

    /// The link of an agent's life.
    pub(in crate::cores) fn link_of_agent(&self, agent: &NodeId) -> Option<u32> {
        // Its number, less the term in which it came.
        let first = Incarnation::enrolled(agent.incarnation.enrolled_in(), 0);
        self.agent_links.get((agent.incarnation.0 - first.0) as usize).copied()
    }

    fn tell_agent(&mut self, to: &NodeId, message: DriverToAgent) {
        let Some(link) = self.link_of_agent(to) else { return };
        let _undelivered = self.send(link, Lane::ToPeer, Frame::ToAgent(message));
    }

    fn tell_worker(&mut self, to: &WorkerId, message: DriverToWorker) {
        if let DriverToWorker::Assign(formation) = &message {
            let checked = self.oracle.assigned(self.driver.job, self.driver.term, formation, to);
            self.demand(checked);
        }
        let Some(link) = self.link_of_incarnation(self.driver.job, to.incarnation.0) else {
            return;
        };
        let _undelivered = self.send(link, Lane::ToPeer, Frame::ToWorker(message));
    }

    /// The process of a job's worker, if it was ever started.
    pub(in crate::cores) fn process_of(&self, job: u32, worker: &WorkerId) -> Option<u32> {
        let link = self.link_of_incarnation(job, worker.incarnation.0)?;
        match self.links[link as usize].owner {
            Owner::Worker { process } => Some(process),
            Owner::Agent { .. } => None,
        }
    }

    pub(in crate::cores) fn open_generation(&mut self, stamp: Stamp, members: &[WorkerId]) {
        let job = self.driver.job;
        let processes = self.processes_of(members);
        self.record(Kind::Form, Place::DRIVER, (stamp.generation.0, members.len() as u64), || {
            members.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        });
        // A member that has died unseen counts: its generation breaks, and nothing is lost by having tried.
        let held = |process: &u32| {
            let program = &self.processes.get(*process as usize)?.program;
            program.saved.as_ref().map(|saved| saved.model.samples)
        };
        let best = processes.iter().filter_map(held).max();
        let checked = self.oracle.formed(job, self.driver.term, stamp, members, best);
        self.demand(checked);
        // Scripts are started for it.
        if self.options.job.is_in_process() && processes.contains(&NONE) {
            let generation = stamp.generation;
            self.fail_safety(format!("generation {generation} has a member that never started"));
        }
        // What was there when a former driver formed it nobody knows any more.
        if stamp.term == self.driver.term {
            let checked = self.check_commit_kept(best);
            self.demand(checked);
            // Nobody holds what is later: the job trains it anew, and that may come to the same number of samples.
            self.oracle.begin_again_from(job, best);
        }
        self.driver.phase = Phase::Form;
        self.take_generation(stamp, processes);
    }

    /// The newest driver's generation is this one.
    pub(super) fn take_generation(&mut self, stamp: Stamp, members: Vec<u32>) {
        self.driver.stamp = stamp;
        self.driver.members = members;
        for index in 0..self.driver.members.len() {
            let process = self.driver.members[index];
            if process != NONE && self.processes[process as usize].has_died() {
                self.expect_notice(process);
            }
        }
    }

    /// Members' processes, by rank.
    pub(super) fn processes_of(&self, members: &[WorkerId]) -> Vec<u32> {
        let job = self.driver.job;
        members.iter().map(|worker| self.process_of(job, worker).unwrap_or(NONE)).collect()
    }

    /// D-4: what gives a number out leaves the driver when its successor would know.
    pub(in crate::cores) fn check_recorded(&mut self, worker: &WorkerId) {
        if !self.state_dir.archive().has_incarnation(worker.incarnation) {
            self.fail_safety(format!("D-4: {worker} is to start, and that is not stored"));
        }
        let checked = self.oracle.given(self.driver.job, worker);
        self.demand(checked);
    }

    /// D-4: the same of a generation.
    pub(in crate::cores) fn check_recorded_generation(&mut self, stamp: Stamp) {
        if !self.state_dir.archive().has_generation(stamp.generation) {
            let generation = stamp.generation;
            self.fail_safety(format!(
                "D-4: generation {generation} is formed, and that is not stored"
            ));
        }
    }

    /// G-5, at the moment when a generation is formed: what every rank of an earlier one acknowledged is in the
    /// hands of a member, or of nobody whom the driver hears.
    fn check_commit_kept(&self, best: Option<u64>) -> Result<(), String> {
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
        // What a blacklisted host holds goes with it: that is what the user has asked for.
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
