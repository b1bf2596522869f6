//! The driver's node: the cores of driver, host manager and registry, what they tell each other, what they tell
//! the others, and the discovery script.

use std::collections::VecDeque;

use elastic_driver::{DriverCore, DriverOutput, EventKind};
use elastic_host_manager::{
    DiscoveryError, HostManagerCore, HostManagerOutput, HostSource, HostsSnapshot, JoinDecision,
};
use elastic_protocol::messages::{
    AgentToDriver, DriverToAgent, DriverToWorker, Vote, WorkerToDriver,
};
use elastic_protocol::{
    ExitStatus, HostName, JobId, JobResult, NodeId, Stamp, Term, Time, WorkerId,
};
use elastic_registry::{RegistryCore, Verdict};
use elastic_runtime::random::stream;
use elastic_runtime::transport::LinkEvent;
use tokio::sync::oneshot;

use super::network::{Frame, Lane, Owner};
use super::{Happening, MS, NONE, World};
use crate::clock::NodeClock;
use crate::dataset::mix;
use crate::plan::Lie;
use crate::scenario::Scenario;
use crate::trace::{Kind, Place};

/// Between the actors of the driver's node.
#[derive(Debug)]
enum Local {
    Open { stamp: Stamp, members: Vec<WorkerId> },
    Vote(Vote),
    NameMissing(Stamp),
    Joined { host: HostName, slots: u32 },
    Left(HostName),
    Failed { host: HostName, reason: String },
    Verdict(Verdict),
    Missing { stamp: Stamp, missing: Vec<WorkerId> },
    Hosts(HostsSnapshot),
    Fatal { reason: String, hint: &'static str },
}

/// Where the driver is, as its outputs tell.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Phase {
    #[default]
    Gather,
    Form,
    Run,
    Over,
}

/// The driver's node.
#[derive(Debug)]
pub(super) struct DriverNode {
    pub(super) core: DriverCore,
    pub(super) host_manager: HostManagerCore,
    pub(super) registry: RegistryCore,
    pub(super) clock: NodeClock,
    pub(super) is_alive: bool,
    pub(super) stopped: u32,
    /// When it stood still last.
    pub(super) continued_at: u64,
    /// What came to it while it stood still.
    pub(super) frozen: Vec<Happening>,
    /// Whether the job is over and everybody has been told.
    pub(super) has_left: bool,
    armed: u64,
    host_manager_armed: u64,
    local: VecDeque<Local>,
    polls: u64,
    pub(super) lies: Vec<(u32, Lie)>,
    pub(super) phase: Phase,
    pub(super) stamp: Stamp,
    pub(super) members: Vec<u32>,
    /// Where nodes are actors: this one.
    pub(super) actor: Option<crate::actors::DriverNode>,
    /// Where nodes are actors: the hosts as the host manager told them last.
    pub(super) hosts: HostsSnapshot,
    /// Where nodes are actors: whether the discovery failed last, so that the list must not change.
    pub(super) hosts_must_stay: bool,
    /// Where nodes are actors: who waits for the discovery script.
    pub(super) discovery: Option<oneshot::Sender<Result<String, DiscoveryError>>>,
    /// How the job was decided to end.
    pub(super) result: Option<JobResult>,
}

impl DriverNode {
    pub(super) fn new(scenario: &Scenario, seed: u64, ppm: i64) -> Self {
        let job = JobId(uuid::Uuid::from_u64_pair(seed, 1));
        let config = scenario.driver.clone();
        let rng = stream(seed, "driver", 0);
        let hosts_rng = stream(seed, "host manager", 0);
        Self {
            core: DriverCore::new(config, job, Term(1), rng, Time::ZERO),
            host_manager: HostManagerCore::new(
                scenario.host_manager.clone(),
                hosts_rng,
                Time::ZERO,
            ),
            registry: RegistryCore::new(),
            clock: NodeClock::new(0, ppm),
            is_alive: true,
            stopped: 0,
            continued_at: 0,
            frozen: Vec::new(),
            has_left: false,
            armed: u64::MAX,
            host_manager_armed: u64::MAX,
            local: VecDeque::new(),
            polls: 0,
            lies: Vec::new(),
            phase: Phase::Gather,
            stamp: Stamp::default(),
            members: Vec::new(),
            actor: None,
            hosts: HostsSnapshot::default(),
            hosts_must_stay: false,
            discovery: None,
            result: None,
        }
    }

    /// Whether its process runs.
    pub(super) const fn runs(&self) -> bool {
        self.is_alive && self.stopped == 0
    }
}

impl World {
    fn driver_now(&self) -> Time {
        self.driver.clock.local(self.now)
    }

    pub(super) fn driver_hears_agent(&mut self, link: u32, message: AgentToDriver) {
        let now = self.driver_now();
        let Some(node) = self.links[link as usize].node.as_ref() else { return };
        self.driver.core.handle_agent(now, node, message);
        self.drain_driver();
    }

    pub(super) fn driver_hears_worker(&mut self, link: u32, message: WorkerToDriver) {
        let now = self.driver_now();
        let Some(node) = self.links[link as usize].node.as_ref() else { return };
        self.driver.core.handle_worker(now, node, message);
        self.drain_driver();
    }

    pub(super) fn driver_link_event(&mut self, link: u32, event: &LinkEvent) {
        let now = self.driver_now();
        let Some(node) = self.links[link as usize].node.as_ref() else { return };
        self.driver.core.handle_link(now, node, event);
        self.drain_driver();
    }

    pub(super) fn registry_hears(&mut self, link: u32, vote: Vote) {
        let now = self.driver_now();
        let Some(node) = self.links[link as usize].node.as_ref() else { return };
        self.oracle.voted(&vote);
        let _decision = self.driver.registry.handle_vote_from(now, node, &vote);
        self.drain_registry();
    }

    fn drain_registry(&mut self) {
        while let Some(verdict) = self.driver.registry.poll_output() {
            self.local(Local::Verdict(verdict));
        }
    }

    fn local(&mut self, message: Local) {
        self.driver.local.push_back(message);
        self.agenda.push(self.now + self.scenario.local_ns, Happening::Local);
    }

    pub(super) fn handle_local(&mut self) {
        if !self.driver.is_alive {
            return;
        }
        if self.driver.stopped > 0 {
            return self.driver.frozen.push(Happening::Local);
        }
        let now = self.driver_now();
        let Some(message) = self.driver.local.pop_front() else { return };
        let code = match &message {
            Local::Open { .. } => 0,
            Local::Vote(_) => 1,
            Local::NameMissing(_) => 2,
            Local::Joined { .. } => 3,
            Local::Left(_) => 4,
            Local::Failed { .. } => 5,
            Local::Verdict(_) => 6,
            Local::Missing { .. } => 7,
            Local::Hosts(_) => 8,
            Local::Fatal { .. } => 9,
        };
        self.record(Kind::Local, Place::DRIVER, (code, 0), || format!("{message:?}"));
        match message {
            Local::Open { stamp, members } => {
                if let Err(error) = self.driver.registry.open(now, stamp, members) {
                    self.fail_safety(format!(
                        "G-2/G-3: the registry refused a generation: {error}"
                    ));
                }
                self.drain_registry();
            }
            Local::Vote(vote) => {
                let _decision = self.driver.registry.handle_vote(now, &vote);
                self.drain_registry();
            }
            Local::NameMissing(stamp) => {
                if self.driver.registry.open_stamp() == Some(stamp) {
                    let missing = self.driver.registry.missing();
                    self.local(Local::Missing { stamp, missing });
                }
            }
            Local::Joined { host, slots } => {
                let decision = self.driver.host_manager.handle_joined(now, host, slots);
                if let JoinDecision::Refused(refusal) = decision {
                    self.record(Kind::Log, Place::DRIVER, (50, 0), || refusal.to_string());
                }
                self.drain_host_manager();
            }
            Local::Left(host) => {
                let _decision = self.driver.host_manager.handle_left(now, &host);
                self.drain_host_manager();
            }
            Local::Failed { host, reason } => {
                let _decision = self.driver.host_manager.handle_failure(now, &host, &reason);
                self.drain_host_manager();
            }
            Local::Verdict(verdict) => {
                if let Verdict::AllReady { stamp } = &verdict {
                    let checked = self.oracle.barrier_opened(*stamp);
                    self.demand(checked);
                }
                self.driver.core.handle_verdict(now, verdict);
                self.drain_driver();
            }
            Local::Missing { stamp, missing } => {
                self.driver.core.handle_missing(now, stamp, missing);
                self.drain_driver();
            }
            Local::Hosts(snapshot) => {
                self.driver.core.handle_hosts(now, snapshot);
                self.drain_driver();
            }
            Local::Fatal { reason, hint } => {
                self.driver.core.handle_fatal(now, &reason, Some(hint));
                self.drain_driver();
            }
        }
    }

    pub(super) fn handle_driver_timer(&mut self) {
        if self.driver.armed != self.now || !self.driver.is_alive {
            return;
        }
        if self.driver.stopped > 0 {
            return self.driver.frozen.push(Happening::DriverTimer);
        }
        self.driver.armed = u64::MAX;
        let now = self.driver_now();
        if self.driver.core.poll_timeout().is_some_and(|at| at <= now) {
            self.record(Kind::Timer, Place::DRIVER, (0, 0), String::new);
            self.driver.core.handle_timeout(now);
        }
        self.drain_driver();
    }

    pub(super) fn handle_host_manager_timer(&mut self) {
        if self.driver.host_manager_armed != self.now || !self.driver.is_alive {
            return;
        }
        if self.driver.stopped > 0 {
            return self.driver.frozen.push(Happening::HostManagerTimer);
        }
        self.driver.host_manager_armed = u64::MAX;
        let now = self.driver_now();
        if self.driver.host_manager.poll_timeout().is_some_and(|at| at <= now) {
            self.record(Kind::Timer, Place::DRIVER, (1, 0), String::new);
            self.driver.host_manager.handle_timeout(now);
        }
        self.drain_host_manager();
    }

    /// The hosts, as the host manager sees them.
    pub(super) fn hosts_snapshot(&self) -> HostsSnapshot {
        match self.hub {
            None => self.driver.host_manager.snapshot(),
            Some(_) => self.driver.hosts.clone(),
        }
    }

    /// Puts the timers that came while the driver stood still onto the agenda.
    pub(super) fn thaw_driver(&mut self) {
        if let Some(actor) = &self.driver.actor {
            actor.set_stopped(false);
        }
        for happening in std::mem::take(&mut self.driver.frozen) {
            match happening {
                Happening::DriverTimer => self.driver.armed = self.now,
                Happening::HostManagerTimer => self.driver.host_manager_armed = self.now,
                _ => {}
            }
            self.agenda.push(self.now, happening);
        }
    }

    pub(super) fn drain_host_manager(&mut self) {
        while let Some(output) = self.driver.host_manager.poll_output() {
            match output {
                HostManagerOutput::RunDiscovery { timeout } => {
                    self.discover(timeout.as_nanos() as u64)
                }
                HostManagerOutput::HostsChanged(snapshot) => self.local(Local::Hosts(snapshot)),
                HostManagerOutput::Fatal(failure) => {
                    let reason = failure.to_string();
                    self.local(Local::Fatal { reason, hint: failure.hint });
                }
            }
        }
        if let Some(at) = self.driver.host_manager.poll_timeout() {
            let at = self.driver.clock.world(at).max(self.now);
            if at < self.driver.host_manager_armed {
                self.driver.host_manager_armed = at;
                self.agenda.push(at, Happening::HostManagerTimer);
            }
        }
    }

    pub(super) fn discover(&mut self, timeout_ns: u64) {
        self.driver.polls += 1;
        let poll = self.driver.polls;
        let takes = if self.lie() == Some(Lie::Hang) && poll > 1 {
            timeout_ns
        } else {
            self.draw_ns(5 * MS, 200 * MS).min(timeout_ns)
        };
        self.agenda.push(self.now + takes, Happening::Discovered { poll });
    }

    fn lie(&self) -> Option<Lie> {
        self.driver.lies.last().map(|(_, lie)| *lie)
    }

    pub(super) fn handle_discovered(&mut self, poll: u64) {
        if !self.driver.is_alive {
            return;
        }
        if self.driver.stopped > 0 {
            return self.driver.frozen.push(Happening::Discovered { poll });
        }
        // The first poll is always answered: that its failure ends the job is the host manager's own test.
        let lie = if poll == 1 { None } else { self.lie() };
        let result = self.discovery_answer(lie);
        let code = lie.map_or(0, |lie| lie as u64 + 1);
        self.record(Kind::Discovery, Place::DRIVER, (poll, code), || format!("{result:?}"));
        let has_failed = matches!(lie, Some(Lie::Fail | Lie::Hang | Lie::Garbage));
        if let Some(answer) = self.driver.discovery.take() {
            self.driver.hosts_must_stay = has_failed;
            let _taken = answer.send(result).is_ok();
            return;
        }
        let now = self.driver_now();
        let before = self.driver.host_manager.snapshot().hosts.len();
        self.driver.host_manager.handle_discovery(now, result);
        let after = self.driver.host_manager.snapshot().hosts.len();
        if has_failed && before != after {
            self.fail_safety("H-15: a discovery that failed changed the list of hosts".to_owned());
        }
        self.drain_host_manager();
    }

    fn discovery_answer(&self, lie: Option<Lie>) -> Result<String, DiscoveryError> {
        let command = "discover".to_owned();
        let stderr = "simulated".to_owned();
        match lie {
            Some(Lie::Fail) => {
                Err(DiscoveryError::Failed { command, status: ExitStatus::Code(1), stderr })
            }
            Some(Lie::Hang) => {
                let limit = self.scenario.host_manager.script_timeout;
                Err(DiscoveryError::TimedOut { command, limit, stderr })
            }
            Some(Lie::Garbage) => Ok("<html>\n\u{7}:1\n".to_owned()),
            Some(Lie::Nothing) => Ok(String::new()),
            Some(Lie::HalfGarbage) => Ok(format!("h9999999:nine\n{}", self.listed_hosts())),
            None => Ok(self.listed_hosts()),
        }
    }

    fn listed_hosts(&self) -> String {
        let mut text = String::new();
        for (index, host) in self.hosts.iter().enumerate() {
            if host.unlisted == 0 && self.scenario.arrives[index] <= self.now {
                text += &format!("{}:{}\n", host.name, host.listed_slots);
            }
        }
        text
    }

    pub(super) fn drain_driver(&mut self) {
        let mut outputs = 0_usize;
        while let Some(output) = self.driver.core.poll_output() {
            outputs += 1;
            self.carry_out(output);
        }
        let bound = 256 + 64 * (self.hosts.len() * (2 + self.options.slots as usize));
        if outputs > bound {
            self.fail_safety(format!("one input of the driver gave {outputs} outputs"));
        }
        if let Some(at) = self.driver.core.poll_timeout() {
            let at = self.driver.clock.world(at).max(self.now);
            if at < self.driver.armed {
                self.driver.armed = at;
                self.agenda.push(at, Happening::DriverTimer);
            }
        } else if matches!(self.driver.phase, Phase::Gather | Phase::Form) && !self.driver.has_left
        {
            self.fail_safety("G-9: the driver waits without a deadline".to_owned());
        }
    }

    fn carry_out(&mut self, output: DriverOutput) {
        match output {
            DriverOutput::ToAgent { to, message } => self.tell_agent(&to, message),
            DriverOutput::StartWorker { agent, worker, environment } => {
                self.know(worker.incarnation.0, NONE);
                let credential = String::new();
                let message = DriverToAgent::Start { worker, environment, credential };
                self.tell_agent(&agent, message);
            }
            DriverOutput::ToWorker { to, message } => self.tell_worker(&to, message),
            DriverOutput::OpenGeneration { stamp, members } => {
                self.open_generation(stamp, &members);
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
        }
    }

    pub(super) fn link_of_incarnation(&self, incarnation: u64) -> Option<u32> {
        let link = *self.by_incarnation.get(incarnation as usize)?;
        (link != NONE).then_some(link)
    }

    fn tell_agent(&mut self, to: &NodeId, message: DriverToAgent) {
        let Some(link) = self.agent_links.get(to.incarnation.0 as usize).copied() else { return };
        let _undelivered = self.send(link, Lane::ToPeer, Frame::ToAgent(message));
    }

    fn tell_worker(&mut self, to: &WorkerId, message: DriverToWorker) {
        if let DriverToWorker::Assign(placement) = &message {
            let checked = self.oracle.assigned(placement, to);
            self.demand(checked);
        }
        let Some(link) = self.link_of_incarnation(to.incarnation.0) else { return };
        let _undelivered = self.send(link, Lane::ToPeer, Frame::ToWorker(message));
    }

    /// The process of a worker, if it was ever started.
    pub(super) fn process_of(&self, worker: &WorkerId) -> Option<u32> {
        let link = self.link_of_incarnation(worker.incarnation.0)?;
        match self.links[link as usize].owner {
            Owner::Worker { process } => Some(process),
            Owner::Agent { .. } => None,
        }
    }

    pub(super) fn open_generation(&mut self, stamp: Stamp, members: &[WorkerId]) {
        let processes: Vec<u32> =
            members.iter().map(|worker| self.process_of(worker).unwrap_or(NONE)).collect();
        self.record(Kind::Form, Place::DRIVER, (stamp.generation.0, members.len() as u64), || {
            members.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        });
        // A member that has died unseen counts: its generation breaks, and nothing is lost by having tried.
        let held = |process: &u32| {
            let program = &self.processes.get(*process as usize)?.program;
            program.saved.as_ref().map(|saved| saved.model.samples)
        };
        let best = processes.iter().filter_map(held).max();
        let checked = self.oracle.formed(stamp, members, &processes, best);
        self.demand(checked);
        let checked = self.check_commit_kept(best);
        self.demand(checked);
        self.driver.phase = Phase::Form;
        self.driver.stamp = stamp;
        self.driver.members = processes;
        for index in 0..self.driver.members.len() {
            let process = self.driver.members[index];
            if process != NONE && self.processes[process as usize].has_died() {
                self.expect_notice(process);
            }
        }
    }

    /// G-5, at the moment when a generation is formed: what every rank of an earlier one acknowledged is in the
    /// hands of a member, or of nobody whom the driver hears.
    fn check_commit_kept(&self, best: Option<u64>) -> Result<(), String> {
        let Some(acknowledged) = self.oracle.acknowledged() else { return Ok(()) };
        let progress = |process: u32| {
            self.processes.get(process as usize).and_then(|process| process.saved_progress())
        };
        if best >= Some(acknowledged) {
            return Ok(());
        }
        let length = self.scenario.length;
        let snapshot = self.hosts_snapshot();
        let is_blacklisted = |name: &HostName| {
            snapshot.hosts.iter().any(|entry| entry.name == *name && entry.usable_slots() == 0)
        };
        // What a blacklisted host holds goes with it: that is what the user has asked for.
        for host in self.hosts.iter().filter(|host| !is_blacklisted(&host.name)) {
            for process in &host.processes {
                if self.processes[*process as usize].stays()
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

    pub(crate) fn driver_event(&mut self, kind: EventKind) {
        let words = if self.trace.wants_words() { format!("{kind:?}") } else { String::new() };
        let (code, number) = match &kind {
            EventKind::ResetDecided { way, .. } => (1, way.len() as u64),
            EventKind::GenerationRunning { world_size } => (2, u64::from(*world_size)),
            EventKind::JobEnded { result } => (3, result.code.unsigned_abs().into()),
            EventKind::ResetDone { .. } => (4, 0),
            EventKind::ResetCalledOff { .. } => (5, 0),
            EventKind::HostsChanged { hosts } => (6, hosts.len() as u64),
            EventKind::Warning { message } => (7, message.len() as u64),
            EventKind::WorkerExited { expected, .. } => (8, u64::from(*expected)),
            _ => (9, 0),
        };
        self.record(Kind::Log, Place::DRIVER, (code, number), || words);
        match kind {
            EventKind::ResetDecided { .. } => {
                self.driver.phase = Phase::Gather;
                self.oracle.resets += 1;
                self.record(Kind::Reset, Place::DRIVER, (self.oracle.resets, 0), String::new);
                self.release_faults_after_reset();
            }
            EventKind::WorkerStopped { worker, reason } if reason == "its host was blacklisted" => {
                let incarnation =
                    worker.rsplit_once('#').and_then(|(_, number)| number.parse().ok());
                let link = incarnation.and_then(|number| self.link_of_incarnation(number));
                if let Some(Owner::Worker { process }) =
                    link.map(|link| self.links[link as usize].owner)
                {
                    self.processes[process as usize].is_leaving = true;
                }
            }
            EventKind::GenerationRunning { .. } => {
                self.driver.phase = Phase::Run;
                let generation = self.driver.stamp.generation.0;
                self.record(Kind::Run, Place::DRIVER, (generation, 0), String::new);
            }
            EventKind::JobEnded { result } => {
                self.driver.phase = Phase::Over;
                if self.driver.result.is_some() {
                    self.fail_safety("G-10: the job ended twice".to_owned());
                }
                let checked = self.check_result(&result);
                self.demand(checked);
                self.driver.result = Some(result);
            }
            _ => {}
        }
    }

    pub(crate) fn driver_ended(&mut self, result: JobResult) {
        let code = mix(u64::from(result.code.unsigned_abs()), result.reason.len() as u64);
        self.record(Kind::Ended, Place::DRIVER, (code, 0), || format!("{result:?}"));
        if self.driver.has_left {
            return self.fail_safety("G-10: the driver gave two results".to_owned());
        }
        self.driver.has_left = true;
        self.driver.result = Some(result);
        self.everybody_goes();
        self.driver.is_alive = false;
        self.driver.actor = None;
        self.close_all_links();
    }

    /// Whether hosts come by joining.
    pub(super) fn hosts_join(&self) -> bool {
        self.scenario.host_manager.source == HostSource::Joined
    }
}
