//! A driver core, a registry core, and fake agents and workers that follow the protocol. Used by the scenarios in
//! this folder.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use elastic_host_manager::{HostEntry, HostState, HostsSnapshot};
use elastic_protocol::DataPlane;
use elastic_protocol::messages::{
    AgentToDriver, Ballot, CheckpointOrder, CheckpointSource, DriverToAgent, DriverToWorker,
    FormationTable, KnownDrivers, LiveWorker, NodeCount, Placement, ProcessActivity, ProcessSight,
    ProgramError, ReportedValues, StoppedBy, SyncPlan, UnreachableHost, Vote, WorkerToDriver,
};
use elastic_protocol::{
    Assignment, BaseMismatch, CommitId, ExitStatus, HostName, Incarnation, JobResult, NodeId,
    NodeName, ProgramSpec, ResetCause, Stamp, Step, Time, WorkerId,
};
use elastic_registry::{GenerationVerdict, RegistryCore};
use elastic_runtime::transport::{LinkEvent, LossReason};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use elastic_journal::Journal as _;

use crate::core::{DriverConfig, DriverCore, DriverOutput, ElasticMode, EventKind, HostResetMs};
use crate::journal::tests::{MemoryJournal, begin};

pub(super) fn host(name: &str) -> HostName {
    HostName::new(name).expect("a literal")
}

#[derive(Default)]
struct FakeWorker {
    placement: Option<Placement>,
    table: Arc<Assignment>,
    commit: Option<CommitId>,
    boundary: u64,
    active: bool,
}

pub(super) struct Cluster {
    pub(super) core: DriverCore,
    config: DriverConfig,
    pub(super) journal: MemoryJournal,
    /// Whether the journal stores nothing.
    pub(super) disk_hangs: bool,
    /// Whether members that are to look for a checkpoint get no answer.
    pub(super) storage_hangs: bool,
    registry: RegistryCore,
    /// Verdicts of the registry that the driver has not heard.
    verdicts: VecDeque<GenerationVerdict>,
    /// Whether the driver hears no verdicts.
    pub(super) hold_verdicts: bool,
    pub(super) now: Time,
    workers: BTreeMap<WorkerId, FakeWorker>,
    agents: BTreeMap<HostName, NodeId>,
    next_agent: u64,
    /// Workers that answer nothing.
    pub(super) deaf: BTreeSet<WorkerId>,
    /// Workers that are never connected with the others: their generations do not form.
    pub(super) unconnected: BTreeSet<WorkerId>,
    /// Whether new processes neither start, nor attach by themselves.
    pub(super) slow_start: bool,
    pub(super) hosts: Vec<HostEntry>,
    /// Nodes that the driver has told of other drivers.
    pub(super) told_of_drivers: Vec<(Vec<NodeId>, KnownDrivers)>,
    /// Whether the driver left the job to another.
    pub(super) handed_over: bool,
    /// Reasons why drivers gave the job up.
    pub(super) abandoned: Vec<(String, bool)>,
    /// World sizes of the generations that ran.
    pub(super) sizes: Vec<u32>,
    /// Numbers of the generations that were formed, as far as they were stored.
    pub(super) formed: Vec<u64>,
    pub(super) resets: Vec<ResetCause>,
    /// Losses of committed steps: the committed step, the step at which training went on, all lost steps.
    pub(super) losses: Vec<(u64, u64, u64)>,
    /// Lost steps of each reset.
    pub(super) steps_lost: Vec<u64>,
    /// Causes of the resets that were reported as done.
    pub(super) reported: Vec<ResetCause>,
    /// Reports of first steps, each with the number of resets reported before.
    pub(super) first_steps: Vec<(usize, BTreeMap<HostName, HostResetMs>)>,
    /// Number of generations whose processes were kept for another one.
    pub(super) taken_back: u32,
    pub(super) skipped_syncs: u32,
    /// Members that were told the changes, and not the full table.
    pub(super) deltas: u32,
    pub(super) roots: Vec<Option<u32>>,
    pub(super) failed_hosts: Vec<HostName>,
    /// Hosts that have joined, as it was told, with their slots.
    pub(super) joined: Vec<(HostName, u32)>,
    /// Whether the host manager does not blacklist a failing host by itself.
    pub(super) host_manager_is_slow: bool,
    /// Events that say which host does not reach which.
    pub(super) unreachable: Vec<UnreachableHost>,
    pub(super) warnings: Vec<String>,
    pub(super) out_of_memory: Vec<WorkerId>,
    /// What agents see when they look at a process; a stack is shown only if it was asked for.
    pub(super) sights: BTreeMap<WorkerId, ProcessSight>,
    /// Orders to look at a process, with whether its stack was wanted.
    pub(super) looks: Vec<(WorkerId, bool)>,
    /// Events about hangs.
    pub(super) stalls: Vec<EventKind>,
    /// Workers whose content differs from what their step says.
    pub(super) damaged: BTreeSet<WorkerId>,
    /// Events about replicas that differ, or are not compared.
    pub(super) divergence: Vec<EventKind>,
    /// What steps went into, as it was told.
    pub(super) measured: Vec<EventKind>,
    /// Agents that were asked for a health check, with the number of the question.
    pub(super) checks: Vec<(NodeId, u64)>,
    /// Events of stragglers, and of slow links.
    pub(super) stragglers: Vec<EventKind>,
    pub(super) left: Vec<WorkerId>,
    pub(super) stops: Vec<(WorkerId, u64)>,
    /// Nodes that were welcomed.
    pub(super) welcomed: Vec<NodeId>,
    pub(super) refused: Vec<String>,
    pub(super) finished: Vec<WorkerId>,
    pub(super) result: Option<JobResult>,
    /// Orders to save a step, in the order in which they came.
    pub(super) saves: Vec<(WorkerId, CheckpointOrder)>,
    /// Orders to make a step's checkpoint whole.
    pub(super) seals: Vec<(WorkerId, u64)>,
    /// The last place that members were told to look for their state.
    pub(super) source: Option<CheckpointSource>,
    /// Whether processes that are told to end wait until they are let go.
    pub(super) hold_stops: bool,
    /// Whether agents keep the last words of ended processes back.
    pub(super) is_silent_at_end: bool,
    /// The release of the library in processes that end, if the driver has refused them for it.
    pub(super) refused_release: Option<String>,
    /// Agents that were told to leave, and are held back.
    leaving: Vec<NodeId>,
    /// Whether the program uses the library.
    pub(super) attaches: bool,
    /// Environment of every process that was ever started.
    pub(super) environments: BTreeMap<WorkerId, BTreeMap<String, String>>,
}

impl Cluster {
    pub(super) fn new(change: impl FnOnce(&mut DriverConfig)) -> Self {
        let program = ProgramSpec { argv: vec!["train".to_owned()], environment: Vec::new() };
        let mut config = DriverConfig {
            hosts_join: false,
            mode: ElasticMode::InProcess,
            ..DriverConfig::new(program)
        };
        change(&mut config);
        let attaches = config.mode == ElasticMode::InProcess;
        let config = config.validate().expect("a valid configuration");
        let now = Time::from_ms(1);
        let rng = ChaCha8Rng::seed_from_u64(1);
        let mut journal = MemoryJournal::default();
        let tenure = begin(&mut journal);
        Self {
            core: DriverCore::with_journal(config.clone(), tenure, rng, now),
            config,
            journal,
            disk_hangs: false,
            registry: RegistryCore::new(),
            verdicts: VecDeque::new(),
            hold_verdicts: false,
            now,
            workers: BTreeMap::new(),
            agents: BTreeMap::new(),
            next_agent: 1,
            storage_hangs: false,
            deaf: BTreeSet::new(),
            unconnected: BTreeSet::new(),
            slow_start: false,
            hosts: Vec::new(),
            told_of_drivers: Vec::new(),
            handed_over: false,
            abandoned: Vec::new(),
            sizes: Vec::new(),
            formed: Vec::new(),
            resets: Vec::new(),
            losses: Vec::new(),
            steps_lost: Vec::new(),
            reported: Vec::new(),
            first_steps: Vec::new(),
            taken_back: 0,
            skipped_syncs: 0,
            deltas: 0,
            roots: Vec::new(),
            failed_hosts: Vec::new(),
            joined: Vec::new(),
            host_manager_is_slow: false,
            unreachable: Vec::new(),
            warnings: Vec::new(),
            out_of_memory: Vec::new(),
            sights: BTreeMap::new(),
            looks: Vec::new(),
            stalls: Vec::new(),
            damaged: BTreeSet::new(),
            divergence: Vec::new(),
            measured: Vec::new(),
            checks: Vec::new(),
            stragglers: Vec::new(),
            left: Vec::new(),
            stops: Vec::new(),
            welcomed: Vec::new(),
            refused: Vec::new(),
            finished: Vec::new(),
            result: None,
            saves: Vec::new(),
            seals: Vec::new(),
            source: None,
            hold_stops: false,
            is_silent_at_end: false,
            refused_release: None,
            leaving: Vec::new(),
            attaches,
            environments: BTreeMap::new(),
        }
    }

    /// The job's logical shards.
    pub(super) const fn shards(&self) -> Option<u32> {
        self.config.shards
    }

    /// Where a worker was placed last.
    pub(super) fn placement_of(&self, worker: &WorkerId) -> Option<&Placement> {
        self.workers.get(worker)?.placement.as_ref()
    }

    /// Kills the driver and starts it again from the journal. No agent or worker has found it yet.
    pub(super) fn restart_driver(&mut self) {
        self.disk_hangs = false;
        let tenure = begin(&mut self.journal);
        let rng = ChaCha8Rng::seed_from_u64(tenure.image.term.0);
        self.core = DriverCore::with_journal(self.config.clone(), tenure, rng, self.now);
        self.registry = RegistryCore::new();
        self.verdicts.clear();
        self.list_hosts();
        self.settle();
    }

    /// Has the agents of these hosts find the driver, and then their workers.
    pub(super) fn come_back(&mut self, hosts: &[&str]) {
        for name in hosts {
            let node = self.agents[&host(name)].clone();
            let of_host = self.workers.keys().filter(|worker| worker.host == host(name));
            let live = of_host.map(|worker| LiveWorker { worker: worker.clone(), pid: 1 });
            let live = live.collect();
            self.rejoin(&node, 2, live);
            if !self.attaches {
                continue;
            }
            let workers: Vec<WorkerId> = self.workers.keys().cloned().collect();
            for worker in workers.into_iter().filter(|worker| worker.host == host(name)) {
                self.attach(&worker);
                self.settle();
            }
        }
        self.settle();
    }

    /// A host is out of reach, with its workers, whose collectives fail.
    pub(super) fn lose_host(&mut self, name: &str) {
        let agent = self.agent(name);
        for LiveWorker { worker, .. } in self.live_on(name) {
            self.worker_link(&worker, lost());
            self.workers.get_mut(&worker).expect("it lives").active = false;
        }
        self.core.handle_link(self.now, &agent, &lost());
        self.settle();
    }

    /// Ends a worker's process while no driver is there.
    pub(super) fn end_unseen(&mut self, worker: &WorkerId) {
        self.workers.remove(worker);
    }

    /// Number of workers that are active in a generation.
    pub(super) fn active(&self) -> usize {
        self.workers.values().filter(|worker| worker.active).count()
    }

    /// Lists a host and has its agent join.
    pub(super) fn add_host(&mut self, name: &str, slots: u32) {
        let name = host(name);
        self.hosts.retain(|entry| entry.name != name);
        self.hosts.push(HostEntry { name: name.clone(), slots, state: HostState::Listed });
        self.list_hosts();
        if !self.agents.contains_key(&name) {
            self.join(&name, slots, Vec::new());
        }
        self.settle();
    }

    pub(super) fn join(&mut self, name: &HostName, slots: u32, live: Vec<LiveWorker>) -> NodeId {
        let node = NodeId {
            name: NodeName::Agent(name.clone()),
            incarnation: Incarnation(self.next_agent),
        };
        self.next_agent += 1;
        self.agents.insert(name.clone(), node.clone());
        self.rejoin(&node, slots, live);
        node
    }

    pub(super) fn rejoin(&mut self, node: &NodeId, slots: u32, live: Vec<LiveWorker>) {
        self.join_job(node, slots, live, (None, None));
    }

    /// An agent joins that was told to join a job of this name, with so many hosts.
    pub(super) fn join_job(
        &mut self,
        node: &NodeId,
        slots: u32,
        live: Vec<LiveWorker>,
        (run_id, nodes): (Option<&str>, Option<NodeCount>),
    ) {
        let NodeName::Agent(name) = &node.name else { return };
        self.core.handle_link(self.now, node, &LinkEvent::Up);
        let join = AgentToDriver::Join {
            host: name.clone(),
            slots,
            role: "default".to_owned(),
            meeting: None,
            run_id: run_id.map(ToOwned::to_owned),
            nodes,
            live,
        };
        self.core.handle_agent(self.now, node, join);
        self.settle();
    }

    pub(super) fn remove_host(&mut self, name: &str) {
        self.hosts.retain(|entry| entry.name != host(name));
        self.list_hosts();
        self.settle();
    }

    /// Takes a host of one slot off the list, and puts it back before the job has stopped for it: the worker of slot 0 of host "a" hears of
    /// nothing meanwhile, and pauses once all is undone.
    pub(super) fn remove_host_for_a_moment(
        &mut self,
        name: &str,
        meanwhile: impl FnOnce(&mut Self),
    ) {
        let slow = self.worker("a", 0);
        self.deaf.insert(slow.clone());
        self.remove_host(name);
        meanwhile(self);
        self.add_host(name, 1);
        self.deaf.clear();
        let stamp = self.stamp();
        self.say(&slow, WorkerToDriver::Paused { stamp, boundary: 10 });
        self.settle();
    }

    pub(super) fn list_hosts(&mut self) {
        let snapshot = HostsSnapshot { hosts: self.hosts.clone(), ..HostsSnapshot::default() };
        self.core.handle_hosts(self.now, snapshot);
    }

    /// The operator takes a host out, or lets it in again.
    pub(super) fn drain(&mut self, name: &str, is_out: bool) {
        for entry in &mut self.hosts {
            if entry.name == host(name) {
                entry.state = if is_out { HostState::Drained } else { HostState::Listed };
            }
        }
        self.list_hosts();
    }

    pub(super) fn blacklist(&mut self, name: &str) {
        for entry in &mut self.hosts {
            if entry.name == host(name) {
                entry.state = HostState::Blacklisted { until: None };
            }
        }
        self.list_hosts();
        self.settle();
    }

    pub(super) fn agent(&self, name: &str) -> NodeId {
        self.agents[&host(name)].clone()
    }

    /// The processes that run.
    pub(super) fn live(&self) -> impl Iterator<Item = &WorkerId> {
        self.workers.keys()
    }

    /// The running processes of one host, as its agent reports them.
    pub(super) fn live_on(&self, name: &str) -> Vec<LiveWorker> {
        let on_host = self.live().filter(|worker| worker.host == host(name));
        on_host.map(|worker| LiveWorker { worker: worker.clone(), pid: 1 }).collect()
    }

    /// Ends all held processes that were told to end.
    pub(super) fn release_stops(&mut self) {
        self.hold_stops = false;
        for (worker, _) in self.stops.clone() {
            if self.workers.contains_key(&worker) {
                self.report_exit(&worker, ExitStatus::Signal(15));
            }
        }
        for agent in std::mem::take(&mut self.leaving) {
            self.leave(&agent);
        }
        self.settle();
    }

    /// Has an agent stop its processes and leave.
    fn leave(&mut self, agent: &NodeId) {
        let of_agent = |worker: &&WorkerId| agent.name == NodeName::Agent(worker.host.clone());
        let live: Vec<WorkerId> = self.live().filter(of_agent).cloned().collect();
        for worker in live {
            self.report_exit(&worker, ExitStatus::Signal(15));
        }
        self.core.handle_link(self.now, agent, &lost());
    }

    /// The live worker on a slot.
    pub(super) fn worker(&self, name: &str, slot: u32) -> WorkerId {
        let of_slot = |worker: &&WorkerId| worker.host == host(name) && worker.slot == slot;
        self.workers.keys().rfind(of_slot).cloned().expect("a worker on this slot")
    }

    pub(super) fn has_worker(&self, name: &str, slot: u32) -> bool {
        self.workers.keys().any(|worker| worker.host == host(name) && worker.slot == slot)
    }

    pub(super) fn members(&self) -> Vec<WorkerId> {
        let active = self.workers.values().filter(|worker| worker.active);
        let newest = active.filter_map(|worker| worker.placement.as_ref()).max_by_key(|p| p.stamp);
        newest.map_or_else(Vec::new, |placement| {
            placement.assignment.members().map(|member| member.worker).collect()
        })
    }

    /// Makes a worker lose its table.
    pub(super) fn forget_table(&mut self, worker: &WorkerId) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.table = Arc::default();
        }
    }

    /// Has every active member commit `steps` times.
    pub(super) fn train(&mut self, steps: u64) {
        for (id, worker) in self.workers.iter_mut().filter(|(_, worker)| worker.active) {
            worker.boundary += steps;
            let Some(commit) = &mut worker.commit else { continue };
            commit.step = Step(commit.step.0 + steps);
            let damage = u64::from(self.damaged.contains(id)) << 32;
            commit.digest = commit.step.0 | damage;
        }
    }

    /// Removes a process that could not be started; its agent has yet to say so.
    pub(super) fn fail_to_start(&mut self, worker: &WorkerId) {
        self.workers.remove(worker);
    }

    /// Gives the driver a message of a host's agent.
    pub(super) fn hear_agent(&mut self, host: &str, message: AgentToDriver) {
        let agent = self.agent(host);
        self.core.handle_agent(self.now, &agent, message);
        self.settle();
    }

    pub(super) fn kill(&mut self, worker: &WorkerId) {
        self.exit(worker, ExitStatus::Signal(9));
    }

    pub(super) fn exit(&mut self, worker: &WorkerId, status: ExitStatus) {
        self.report_exit(worker, status);
        self.settle();
    }

    pub(super) fn report_exit(&mut self, worker: &WorkerId, status: ExitStatus) {
        self.report_end(worker, status, None, None);
    }

    pub(super) fn report_end(
        &mut self,
        worker: &WorkerId,
        status: ExitStatus,
        stopped_by: Option<StoppedBy>,
        error: Option<ProgramError>,
    ) {
        self.workers.remove(worker);
        let message = AgentToDriver::Exited {
            worker: worker.clone(),
            status,
            stopped_by,
            killed_after_grace: false,
            refused_release: self.refused_release.clone(),
        };
        let agent = self.agents[&worker.host].clone();
        self.core.handle_agent(self.now, &agent, message);
        if !self.is_silent_at_end {
            let (worker, tail, out_of_memory) = (worker.clone(), String::new(), None);
            let words = AgentToDriver::LastWords { worker, tail, error, out_of_memory };
            self.core.handle_agent(self.now, &agent, words);
        }
        self.worker_link(worker, lost());
    }

    pub(super) fn worker_link(&mut self, worker: &WorkerId, event: LinkEvent) {
        self.core.handle_link(self.now, &NodeId::worker(worker), &event);
    }

    /// A worker reports that it cannot reach another one.
    pub(super) fn accuse(&mut self, reporter: &WorkerId, peer: &WorkerId) {
        let (stamp, error) = (self.stamp(), "no route to it".to_owned());
        let (peer, told_by) = (Some(self.rank_of(peer)), None);
        self.say(reporter, WorkerToDriver::CollectiveFailed { stamp, peer, told_by, error });
    }

    /// A worker passes on that `told_by` has reported another one as lost.
    pub(super) fn pass_on(&mut self, reporter: &WorkerId, told_by: &WorkerId, peer: &WorkerId) {
        let (stamp, error) = (self.stamp(), "it was reported lost".to_owned());
        let (peer, told_by) = (Some(self.rank_of(peer)), Some(self.rank_of(told_by)));
        self.say(reporter, WorkerToDriver::CollectiveFailed { stamp, peer, told_by, error });
    }

    fn rank_of(&self, worker: &WorkerId) -> u32 {
        let rank = self.members().iter().position(|member| member == worker);
        u32::try_from(rank.expect("it is a member")).expect("a small world")
    }

    pub(super) fn say(&mut self, worker: &WorkerId, message: WorkerToDriver) {
        self.core.handle_worker(self.now, &NodeId::worker(worker), message);
    }

    /// A worker says that it has committed this step.
    pub(super) fn say_step(&mut self, worker: &WorkerId, step: u64) {
        self.say(worker, progress(self.stamp(), step, String::new(), ReportedValues::default()));
    }

    pub(super) fn vote(&mut self, worker: &WorkerId, ballot: Ballot) {
        let Some(placement) = self.workers.get(worker).and_then(|w| w.placement.clone()) else {
            return;
        };
        let vote = Vote { stamp: placement.stamp, worker: worker.clone(), ballot };
        self.registry.handle_vote(self.now, &vote);
        self.settle();
    }

    /// Has every member's training function return.
    pub(super) fn finish_all(&mut self) {
        for worker in self.members() {
            self.vote(&worker, Ballot::Success);
        }
    }

    /// The last stamp that a worker was given.
    pub(super) fn stamp(&self) -> Stamp {
        let placements = self.workers.values().filter_map(|worker| worker.placement.as_ref());
        placements.map(|placement| placement.stamp).max().unwrap_or_default()
    }

    /// Transport of each placed worker's data, and whether it was told to encrypt.
    pub(super) fn data_paths(&self) -> Vec<(DataPlane, bool)> {
        let placements = self.workers.values().filter_map(|worker| worker.placement.as_ref());
        placements.map(|placement| (placement.data_plane, placement.encrypts)).collect()
    }

    /// Lets time pass, and fires all timers that fall due.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        while let Some(next) = self.core.poll_timeout().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.core.handle_timeout(self.now);
            self.settle_now();
        }
        self.now = end;
    }

    /// Carries out all outputs that are due now or within the review's delay.
    pub(super) fn settle(&mut self) {
        self.settle_now();
        let soon = self.now + Duration::from_millis(5);
        while let Some(next) = self.core.poll_timeout().filter(|next| *next <= soon) {
            self.now = self.now.max(next);
            self.core.handle_timeout(self.now);
            self.settle_now();
        }
        self.core.roster.refresh_seating(self.now, &self.core.round);
    }

    fn settle_now(&mut self) {
        for _ in 0..10_000 {
            if let Some(output) = self.core.poll_output() {
                self.carry_out(output);
            } else if let Some(verdict) = self.next_verdict() {
                self.core.handle_verdict(self.now, verdict);
            } else if !self.store() {
                return;
            }
        }
        panic!("the driver does not come to rest");
    }

    fn next_verdict(&mut self) -> Option<GenerationVerdict> {
        if self.hold_verdicts {
            return None;
        }
        self.verdicts.pop_front().or_else(|| self.registry.poll_output())
    }

    /// Stores what the core has recorded. Returns whether there was anything.
    pub(super) fn store(&mut self) -> bool {
        if self.disk_hangs {
            return false;
        }
        let Some(batch) = self.core.poll_batch() else { return false };
        self.journal.append(&batch).expect("memory");
        self.core.handle_journaled(self.now, batch.last());
        true
    }

    fn carry_out(&mut self, output: DriverOutput) {
        match output {
            DriverOutput::StartWorker { agent, worker, environment, place } => {
                self.workers.insert(worker.clone(), FakeWorker::default());
                self.environments.insert(worker.clone(), environment.into_iter().collect());
                if place.is_some() && !self.slow_start {
                    let started = AgentToDriver::Started { worker: worker.clone(), pid: 1 };
                    self.core.handle_agent(self.now, &agent, started);
                }
                if place.is_none() && !self.slow_start {
                    self.attach(&worker);
                }
            }
            DriverOutput::ToWorker { to, message } if self.deaf.contains(&to) => drop(message),
            DriverOutput::ToWorker { to, message } => self.tell_worker(&to, message),
            DriverOutput::ToWorkers { to, message } => {
                for worker in to {
                    self.carry_out(DriverOutput::ToWorker { to: worker, message: message.clone() });
                }
            }
            DriverOutput::ToAgent { to, message } => self.tell_agent(&to, message),
            DriverOutput::OpenGeneration { stamp, members, budget } => {
                self.registry.open(self.now, stamp, members, budget).expect("a newer generation");
            }
            DriverOutput::Incident(incident) => {
                self.registry.handle_incident(self.now, incident);
                self.verdicts.extend(std::iter::from_fn(|| self.registry.poll_output()));
            }
            DriverOutput::Vote(vote) => {
                self.registry.handle_vote(self.now, &vote);
            }
            DriverOutput::NameMissing { stamp } => {
                let missing = self.registry.missing();
                self.core.handle_missing(self.now, stamp, missing);
            }
            DriverOutput::HostFailed { host, .. } => {
                self.failed_hosts.push(host.clone());
                if !self.host_manager_is_slow {
                    self.blacklist(host.as_str());
                }
            }
            DriverOutput::HostJoined { .. } | DriverOutput::HostLeft { .. } => {}
            DriverOutput::Event(event) => match event.kind {
                EventKind::GenerationRunning { world_size } => self.sizes.push(world_size),
                EventKind::HostJoined { host, slots } => self.joined.push((host, slots)),
                EventKind::ResetDecided { cause, .. } => self.resets.push(cause),
                EventKind::ResetDone { steps_lost, cause, .. } => {
                    self.steps_lost.push(steps_lost);
                    self.reported.push(cause);
                }
                EventKind::StateLost { committed, begins_at, steps_lost } => {
                    self.losses.push((committed, begins_at, steps_lost));
                }
                EventKind::FirstSteps { hosts, .. } => {
                    self.first_steps.push((self.reported.len(), hosts));
                }
                EventKind::GenerationFormed { root, .. } => {
                    self.roots.push(root);
                    self.formed.push(event.generation.0);
                }
                EventKind::WorkerOutOfMemory { worker, .. } => self.out_of_memory.push(worker),
                EventKind::Warning { message } => self.warnings.push(message),
                EventKind::HostUnreachable(report) => self.unreachable.push(report),
                kind @ (EventKind::WorkerStalled { .. } | EventKind::StallEnded { .. }) => {
                    self.stalls.push(kind);
                }
                kind @ EventKind::StepsMeasured { .. } => self.measured.push(kind),
                kind @ (EventKind::StragglerFound { .. }
                | EventKind::StragglerRecovered { .. }
                | EventKind::SlowLinkFound { .. }
                | EventKind::HealthCheckPassed { .. }
                | EventKind::HealthCheckFailed { .. }
                | EventKind::SlowLinkRecovered { .. }
                | EventKind::WorkerReplaced { .. }
                | EventKind::WorkerNotReplaced { .. }
                | EventKind::ReplacementTook { .. }
                | EventKind::SlotRested { .. }
                | EventKind::ShardsRebalanced { .. }
                | EventKind::NotRebalanced { .. }
                | EventKind::RebalanceTook { .. }) => {
                    self.stragglers.push(kind);
                }
                kind @ (EventKind::ReplicasDiffer { .. } | EventKind::NotCompared { .. }) => {
                    self.divergence.push(kind);
                }
                EventKind::GenerationTakenBack { .. } => self.taken_back += 1,
                _ => {}
            },
            DriverOutput::Ended(result) => self.result = Some(result),
            DriverOutput::Abandoned { reason, is_outdated } => {
                self.abandoned.push((reason, is_outdated));
            }
            DriverOutput::KnownDrivers { to, message } => self.told_of_drivers.push((to, message)),
            DriverOutput::HandedOver => self.handed_over = true,
        }
    }

    pub(super) fn attach(&mut self, worker: &WorkerId) {
        self.worker_link(worker, LinkEvent::Up);
        let Some(fake) = self.workers.get(worker) else { return };
        let stamp = fake.placement.as_ref().map(|placement| placement.stamp).unwrap_or_default();
        let (active, commit) = (fake.active, fake.commit);
        let data_address = SocketAddr::from(([127, 0, 0, 1], 1));
        let attach = WorkerToDriver::Attach { pid: 1, data_address, stamp, active, commit };
        self.say(worker, attach);
        if !active {
            self.say(worker, WorkerToDriver::Arrived { stamp, commit, steps_lost: 0 });
        } else {
            // The worker is at least READY; its commit says whether it has synced.
            self.vote_quietly(worker, Ballot::Ready);
            if commit.is_some_and(|commit| commit.generation == stamp.generation) {
                self.vote_quietly(worker, Ballot::Synced);
            }
        }
    }

    fn tell_worker(&mut self, to: &WorkerId, message: DriverToWorker) {
        let Some(worker) = self.workers.get_mut(to) else { return };
        let stamp = worker.placement.as_ref().map(|placement| placement.stamp);
        match message {
            DriverToWorker::Assign(formation) => {
                let (of, table, sync) = (formation.stamp, formation.table, formation.sync);
                assert!(Some(of) > stamp, "G-2: stamps only grow");
                let assignment = match table {
                    FormationTable::Full(assignment) => assignment,
                    FormationTable::Delta(delta) => {
                        self.deltas += 1;
                        match delta.apply(&worker.table) {
                            Ok(assignment) => Arc::new(assignment),
                            Err(BaseMismatch) => {
                                return self.say(to, WorkerToDriver::TableWanted { stamp: of });
                            }
                        }
                    }
                };
                let rank = assignment.rank_of(to).expect("a member has a rank (G-3)");
                if sync == SyncPlan::Skip && rank == 0 {
                    self.skipped_syncs += 1;
                }
                worker.table = Arc::clone(&assignment);
                let stamp = of;
                worker.placement = Some(Placement {
                    stamp,
                    assignment,
                    rank,
                    sync,
                    step: formation.step,
                    key: formation.key,
                    encrypts: formation.encrypts,
                    data_plane: formation.data_plane,
                    shards: formation.shards,
                });
                worker.active = true;
                worker.boundary = 0;
                if !self.unconnected.contains(to) {
                    self.vote_quietly(to, Ballot::Ready);
                }
            }
            DriverToWorker::SaveCheckpoint(order) => self.saves.push((to.clone(), order)),
            DriverToWorker::SealCheckpoint { step, .. } => self.seals.push((to.clone(), step.0)),
            DriverToWorker::Go { stamp: of, source } if stamp == Some(of) => {
                self.source = source;
                if self.storage_hangs && self.source.is_some() {
                    return;
                }
                let step = worker.placement.as_ref().map(|p| p.step).unwrap_or_default();
                let digest = step.0;
                worker.commit = Some(CommitId { generation: of.generation, step, digest });
                self.vote_quietly(to, Ballot::Synced);
            }
            DriverToWorker::Pause { stamp: of } if stamp == Some(of) => {
                let boundary = worker.boundary;
                self.say(to, WorkerToDriver::Paused { stamp: of, boundary });
            }
            DriverToWorker::StopAt { stamp: of, boundary } if stamp == Some(of) => {
                assert!(boundary > worker.boundary, "a boundary that was not passed");
                if let Some(commit) = &mut worker.commit {
                    commit.step = Step(commit.step.0 + boundary - worker.boundary);
                    let damage = u64::from(self.damaged.contains(to)) << 32;
                    commit.digest = commit.step.0 | damage;
                }
                self.arrive(to, 0);
            }
            DriverToWorker::Abort { stamp: of, .. } if stamp == Some(of) && worker.active => {
                self.arrive(to, 1);
            }
            DriverToWorker::Welcome { .. } => self.welcomed.push(NodeId::worker(to)),
            DriverToWorker::Leave { .. } => {
                self.left.push(to.clone());
                self.report_exit(to, ExitStatus::Code(0));
            }
            DriverToWorker::Finished { .. } => {
                self.finished.push(to.clone());
                self.report_exit(to, ExitStatus::Code(0));
            }
            _ => {}
        }
    }

    pub(super) fn vote_quietly(&mut self, worker: &WorkerId, ballot: Ballot) {
        if matches!(ballot, Ballot::Failure { .. }) {
            // The process is about to end: it answers nothing more.
            self.deaf.insert(worker.clone());
        }
        let stamp = self.workers[worker].placement.as_ref().map(|p| p.stamp).unwrap_or_default();
        let vote = Vote { stamp, worker: worker.clone(), ballot };
        self.registry.handle_vote(self.now, &vote);
    }

    pub(super) fn arrive(&mut self, worker: &WorkerId, steps_lost: u64) {
        let Some(fake) = self.workers.get_mut(worker) else { return };
        fake.active = false;
        let stamp = fake.placement.as_ref().map(|p| p.stamp).unwrap_or_default();
        let commit = fake.commit;
        self.say(worker, WorkerToDriver::Arrived { stamp, commit, steps_lost });
    }

    fn tell_agent(&mut self, to: &NodeId, message: DriverToAgent) {
        match message {
            DriverToAgent::Stop { worker, grace_ms, .. } => {
                self.stops.push((worker.clone(), grace_ms));
                self.deaf.remove(&worker);
                if self.workers.contains_key(&worker) && !self.hold_stops {
                    let signal = if grace_ms == 0 { 9 } else { 15 };
                    self.report_exit(&worker, ExitStatus::Signal(signal));
                }
            }
            DriverToAgent::Inspect { worker, with_stack } => {
                self.looks.push((worker.clone(), with_stack));
                let Some(sight) = self.sights.get_mut(&worker) else { return };
                if sight.activity == ProcessActivity::Working {
                    sight.counters.cpu_ms += 1_000;
                }
                let mut sight = sight.clone();
                if !with_stack {
                    sight.drop_stacks();
                }
                let sight = Box::new(sight);
                self.core.handle_agent(self.now, to, AgentToDriver::Inspected { worker, sight });
            }
            DriverToAgent::CheckHealth { number, .. } => self.checks.push((to.clone(), number)),
            DriverToAgent::Leave { .. } if self.hold_stops => self.leaving.push(to.clone()),
            DriverToAgent::Leave { .. } => self.leave(to),
            DriverToAgent::Refused { reason } => self.refused.push(reason),
            DriverToAgent::Welcome { .. } => self.welcomed.push(to.clone()),
            DriverToAgent::Start { .. } => {}
        }
    }
}

pub(super) fn lost() -> LinkEvent {
    LinkEvent::Lost { reason: LossReason::Closed("gone".to_owned()), silent_ms: 0 }
}

pub(super) fn silence(silent_ms: u64) -> LinkEvent {
    LinkEvent::Lost { reason: LossReason::Silence { silent_ms }, silent_ms }
}

/// A worker's word of progress that says no more than this.
pub(super) fn progress(
    stamp: Stamp,
    step: u64,
    note: String,
    reported: ReportedValues,
) -> WorkerToDriver {
    let (steps, links, digests) = (None, Vec::new(), None);
    WorkerToDriver::Progress { stamp, step: Step(step), note, reported, steps, links, digests }
}
