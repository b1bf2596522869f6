//! Inputs of the driver's node if it consists of cores: frames, timers, and messages between its cores. Part of the simulated
//! world.

use elastic_driver::{DriverInput, ElasticMode};
use elastic_host_manager::JoinDecision;
use elastic_protocol::messages::{AgentToDriver, Vote, WorkerToDriver};
use elastic_protocol::{NodeId, Time, WorkerId};
use elastic_registry::GenerationVerdict;
use elastic_runtime::transport::LinkEvent;

use super::super::{Happening, World};
use super::{DriverCores, LocalMessage, ObservedPhase};
use crate::trace::{TraceKind, TracePlace};

impl World {
    pub(super) fn driver_takes(&mut self, input: DriverInput) {
        let now = self.driver_now();
        if let Some(cores) = self.driver.cores() {
            cores.driver.handle(now, input);
            self.drain_driver();
        }
    }

    fn with_driver_of(&mut self, link: u32, input: impl FnOnce(&mut DriverCores, Time, &NodeId)) {
        let now = self.driver_now();
        let Some(node) = self.links[link as usize].node.as_ref() else { return };
        if let Some(cores) = self.driver.cores() {
            input(cores, now, node);
            self.drain_driver();
        }
    }

    pub(in crate::cores) fn driver_hears_agent(&mut self, link: u32, message: AgentToDriver) {
        self.note_report(&message);
        let ended = match &message {
            AgentToDriver::Exited { worker, .. } => Some(worker.clone()),
            _ => None,
        };
        let being_stopped: Vec<WorkerId> = match &message {
            AgentToDriver::Join { live, .. } => {
                let stopped = live.iter().filter(|process| process.is_being_stopped);
                stopped.map(|process| process.worker.clone()).collect()
            }
            _ => Vec::new(),
        };
        self.with_driver_of(link, |cores, now, node| {
            cores.driver.handle(now, DriverInput::Agent { from: node.clone(), message });
        });
        if let Some(worker) = ended {
            let checked = self.check_explained(&worker);
            self.demand(checked);
        }
        let checked = self.check_not_counted_on(link, &being_stopped);
        self.demand(checked);
    }

    pub(in crate::cores) fn driver_hears_worker(&mut self, link: u32, message: WorkerToDriver) {
        self.note_leaving(link, &message);
        self.with_driver_of(link, |cores, now, node| {
            cores.driver.handle(now, DriverInput::Worker { from: node.clone(), message });
        });
    }

    pub(in crate::cores) fn driver_link_event(&mut self, link: u32, event: &LinkEvent) {
        self.with_driver_of(link, |cores, now, node| {
            let (peer, event) = (node.clone(), event.clone());
            cores.driver.handle(now, DriverInput::Link { peer, event });
        });
    }

    pub(in crate::cores) fn registry_hears(&mut self, link: u32, vote: &Vote) {
        self.oracle.voted(self.driver.job, vote, self.now);
        self.with_driver_of(link, |cores, now, node| {
            let _decision = cores.registry.handle_vote_from(now, node, vote);
        });
        self.drain_registry();
    }

    /// Whether processes outlive the generation that they were started for. In mode auto a driver learns that as the first one of them
    /// attaches.
    pub(in crate::cores) const fn keeps_processes(&self) -> bool {
        self.driver.keeps_processes
    }

    /// The driver has taken a worker that attaches. If it is the first one, and the last generation has ended already, that
    /// generation is taken back without a word: the next one is the first of the library.
    pub(super) fn note_attached(&mut self) {
        if self.scenario.driver.mode != ElasticMode::Auto {
            return;
        }
        let is_first = !std::mem::replace(&mut self.driver.keeps_processes, true);
        if is_first && self.driver.phase == ObservedPhase::Gather {
            self.driver.taken_back = Some(self.driver.stamp);
        }
    }

    /// Checks that a generation is taken back only where the program may turn out to use the library, and once by each driver.
    pub(super) fn check_taken_back(&mut self, worker: &WorkerId) -> Result<(), String> {
        self.note_attached();
        self.driver.enter_phase(self.now, ObservedPhase::Gather);
        let may_be =
            self.scenario.driver.mode == ElasticMode::Auto && self.options.job.is_in_process();
        let is_first = self.driver.taken_back.replace(self.driver.stamp).is_none();
        match may_be && is_first {
            true => Ok(()),
            false => Err(format!("auto: a generation is taken back, since {worker} has attached")),
        }
    }

    /// Sends SIGTERM to the driver: the job is to end.
    pub(in crate::cores) fn stop_job(&mut self) {
        self.driver.is_asked_to_stop = true;
        if let Some(node) = self.driver.node() {
            return node.stop_job(15);
        }
        self.driver_takes(DriverInput::Stop { signal: 15 });
    }

    /// A client asks the driver to end the job.
    pub(in crate::cores) fn ask_to_stop(&mut self) {
        match self.driver.node() {
            Some(node) => node.stop_job(2),
            None => {
                self.driver.is_asked_to_stop = true;
                self.driver_takes(DriverInput::StopAsked);
            }
        }
    }

    /// The launcher cannot start an agent on a host.
    pub(in crate::cores) fn launch_fails(&mut self, host: u32) {
        let host = self.hosts[host as usize].name.clone();
        let reason = "simulated: no route to host".to_owned();
        self.driver_takes(DriverInput::LaunchFailed { host, reason });
    }

    fn drain_registry(&mut self) {
        while let Some(verdict) = self.driver.cores().and_then(|cores| cores.registry.poll_output())
        {
            self.put_out(TracePlace::DRIVER, "registry", &verdict);
            self.local(LocalMessage::Verdict(verdict));
        }
        let checked = self.driver.cores().map_or(Ok(()), |cores| cores.registry.check());
        self.demand(checked);
    }

    pub(super) fn local(&mut self, message: LocalMessage) {
        let life = self.driver.life;
        if let Some(cores) = self.driver.cores() {
            cores.local.push_back(message);
            self.agenda.push(self.now + self.scenario.local_ns, Happening::Local { life });
        }
    }

    pub(in crate::cores) fn handle_local(&mut self, life: u32) {
        if self.driver.stopped > 0 {
            return self.driver.frozen.push(Happening::Local { life });
        }
        let now = self.driver_now();
        let Some(cores) = self.driver.cores() else { return };
        let Some(message) = cores.local.pop_front() else { return };
        let code = match &message {
            LocalMessage::Open { .. } => 0,
            LocalMessage::Vote(_) => 1,
            LocalMessage::NameMissing(_) => 2,
            LocalMessage::Joined { .. } => 3,
            LocalMessage::Left(_) => 4,
            LocalMessage::Failed { .. } => 5,
            LocalMessage::Verdict(_) => 6,
            LocalMessage::Missing { .. } => 7,
            LocalMessage::Hosts(_) => 8,
            LocalMessage::Fatal { .. } => 9,
            LocalMessage::Incident(_) => 10,
        };
        self.record(TraceKind::Local, TracePlace::DRIVER, (code, 0), || format!("{message:?}"));
        if self.trace.decisions.is_wanted() {
            let words = message.words();
            self.driver_decides(|| words);
        }
        if let LocalMessage::Verdict(GenerationVerdict::AllReady { stamp }) = &message {
            let checked = self.oracle.barrier_opened(self.driver.job, *stamp);
            self.demand(checked);
        }
        self.take_local(now, message);
    }

    fn take_local(&mut self, now: Time, message: LocalMessage) {
        let Some(cores) = self.driver.cores() else { return };
        match message {
            LocalMessage::Open { stamp, members, budget } => {
                if let Err(error) = cores.registry.open(now, stamp, members, budget) {
                    self.fail_safety(format!(
                        "G-2/G-3: the registry refused a generation: {error}"
                    ));
                }
                self.drain_registry();
            }
            LocalMessage::Vote(vote) => {
                let _decision = cores.registry.handle_vote(now, &vote);
                self.drain_registry();
            }
            LocalMessage::Incident(incident) => {
                cores.registry.handle_incident(now, incident);
                self.drain_registry();
            }
            LocalMessage::NameMissing(stamp) => {
                if cores.registry.open_stamp() == Some(stamp) {
                    let missing = cores.registry.missing();
                    self.local(LocalMessage::Missing { stamp, missing });
                }
            }
            LocalMessage::Joined { host, slots } => {
                let decision = cores.host_manager.handle_joined(now, host, slots);
                if let JoinDecision::Refused(refusal) = decision {
                    self.record(TraceKind::Log, TracePlace::DRIVER, (50, 0), || {
                        refusal.to_string()
                    });
                }
                self.drain_host_manager();
            }
            LocalMessage::Left(host) => {
                let _decision = cores.host_manager.handle_left(now, &host);
                self.drain_host_manager();
            }
            LocalMessage::Failed { host, fault, reason } => {
                let _decision = cores.host_manager.handle_failure(now, &host, fault, &reason);
                self.driver.cooldowns.blamed(&host);
                self.drain_host_manager();
            }
            LocalMessage::Verdict(verdict) => {
                self.driver_takes(DriverInput::Verdict(verdict));
            }
            LocalMessage::Missing { stamp, missing } => {
                self.driver_takes(DriverInput::Missing { stamp, missing });
            }
            LocalMessage::Hosts(snapshot) => {
                self.driver.heard_hosts = snapshot.clone();
                self.driver_takes(DriverInput::Hosts(snapshot));
            }
            LocalMessage::Fatal { reason, hint } => {
                self.driver_takes(DriverInput::Fatal { reason, hint: Some(hint.to_owned()) });
            }
        }
    }

    pub(in crate::cores) fn handle_driver_timer(&mut self, life: u32) {
        let (now, world, stopped) = (self.driver_now(), self.now, self.driver.stopped > 0);
        let Some(cores) = self.driver.cores().filter(|cores| cores.armed == world) else { return };
        if stopped {
            return self.driver.frozen.push(Happening::DriverTimer { life });
        }
        cores.armed = u64::MAX;
        if cores.driver.poll_timeout().is_some_and(|at| at <= now) {
            cores.driver.handle(now, DriverInput::Timeout);
            self.record(TraceKind::Timer, TracePlace::DRIVER, (0, 0), String::new);
        }
        self.drain_driver();
    }

    pub(in crate::cores) fn handle_host_manager_timer(&mut self, life: u32) {
        let (now, world, stopped) = (self.driver_now(), self.now, self.driver.stopped > 0);
        let cores = self.driver.cores();
        let Some(cores) = cores.filter(|cores| cores.host_manager_armed == world) else { return };
        if stopped {
            return self.driver.frozen.push(Happening::HostManagerTimer { life });
        }
        cores.host_manager_armed = u64::MAX;
        if cores.host_manager.poll_timeout().is_some_and(|at| at <= now) {
            cores.host_manager.handle_timeout(now);
            self.record(TraceKind::Timer, TracePlace::DRIVER, (1, 0), String::new);
        }
        self.drain_host_manager();
    }

    /// Puts the events that came while the driver stood still onto the agenda.
    pub(in crate::cores) fn thaw_driver(&mut self) {
        self.expect_fence();
        if let Some(node) = self.driver.node() {
            node.set_stopped(false);
        }
        let now = self.now;
        for happening in std::mem::take(&mut self.driver.frozen) {
            match (happening, self.driver.cores()) {
                (Happening::DriverTimer { .. }, Some(cores)) => cores.armed = now,
                (Happening::HostManagerTimer { .. }, Some(cores)) => cores.host_manager_armed = now,
                _ => {}
            }
            self.agenda.push(now, happening);
        }
    }
}
