//! A driver core, a registry core, and fake agents and workers that follow the protocol. Used by the scenarios in
//! this folder.

mod hosts;
mod outputs;
mod workers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use elastic_host_manager::{HostEntry, HostState, HostsSnapshot};
use elastic_protocol::DataPlane;
use elastic_protocol::messages::{
    AgentToDriver, Ballot, CheckpointOrder, CheckpointSource, DriverToAgent, DriverToWorker,
    FormationTable, JobCommand, JobPhase, KnownDrivers, LibraryTrace, LiveWorker, Placement,
    ProcessActivity, ProcessSight, ProgramError, ReportedValues, StoppedBy, SyncPlan,
    UnreachableHost, Vote, WorkerToDriver,
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

/// The wall clock at a time of the cluster.
fn wall_clock(now: Time) -> SystemTime {
    SystemTime::UNIX_EPOCH + now.since(Time::ZERO)
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
    pub(super) config: DriverConfig,
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
    /// Whether members do not reach the boundary of a planned stop.
    pub(super) slow_steps: bool,
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
    /// Members that were told to have failed after their generation was broken, with their errors.
    pub(super) late_failures: Vec<(WorkerId, String)>,
    /// Training time that each reset has undone, in milliseconds.
    pub(super) lost_ms: Vec<u64>,
    /// Causes of the resets that were reported as done.
    pub(super) reported: Vec<ResetCause>,
    /// Reports of first steps, each with the number of resets reported before.
    pub(super) first_steps: Vec<(usize, BTreeMap<HostName, HostResetMs>)>,
    /// Number of generations whose processes were kept for another one.
    pub(super) taken_back: u32,
    /// Hosts that the host manager was told have left.
    pub(super) hosts_left: Vec<HostName>,
    /// Hosts that were told to be lost.
    pub(super) lost_hosts: Vec<HostName>,
    /// The job's phase at each takeover.
    pub(super) taken_over: Vec<JobPhase>,
    /// Number of hosts and members that each takeover has lost.
    pub(super) lost_in_takeovers: Vec<usize>,
    pub(super) skipped_syncs: u32,
    /// Members that were told the changes, and not the full table.
    pub(super) deltas: u32,
    pub(super) roots: Vec<Option<u32>>,
    pub(super) failed_hosts: Vec<HostName>,
    /// Hosts that have joined, as it was told, with their slots.
    pub(super) joined: Vec<(HostName, u32)>,
    /// Whether the host manager does not blacklist a failing host by itself.
    pub(super) host_manager_is_slow: bool,
    /// Events about two hosts that do not reach each other.
    pub(super) unreachable: Vec<UnreachableHost>,
    pub(super) warnings: Vec<String>,
    pub(super) out_of_memory: Vec<WorkerId>,
    /// Agents' sights of processes; a stack is shown only if it was asked for.
    pub(super) sights: BTreeMap<WorkerId, ProcessSight>,
    /// Orders to look at a process, with whether its stack was wanted.
    pub(super) looks: Vec<(WorkerId, bool)>,
    /// Events about hangs.
    pub(super) stalls: Vec<EventKind>,
    /// Workers whose commits have other content than their step should give.
    pub(super) damaged: BTreeSet<WorkerId>,
    /// Events about replicas that differ, or are not compared.
    pub(super) divergence: Vec<EventKind>,
    /// Events about the shares of step time.
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
    /// The step that the last of these orders spares.
    pub(super) spared: Option<Step>,
    /// The last checkpoint source that members were given.
    pub(super) source: Option<CheckpointSource>,
    /// Whether processes that are told to end wait until they are let go.
    pub(super) hold_stops: bool,
    /// Whether agents keep the last words of ended processes back.
    pub(super) is_silent_at_end: bool,
    /// The release of the library in processes that end, if the driver has refused them for it.
    pub(super) library: LibraryTrace,
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
        let tenure = begin(&mut journal).beginning_at(wall_clock(now));
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
            slow_steps: false,
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
            late_failures: Vec::new(),
            lost_ms: Vec::new(),
            reported: Vec::new(),
            first_steps: Vec::new(),
            taken_back: 0,
            taken_over: Vec::new(),
            lost_in_takeovers: Vec::new(),
            hosts_left: Vec::new(),
            lost_hosts: Vec::new(),
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
            spared: None,
            source: None,
            hold_stops: false,
            is_silent_at_end: false,
            library: LibraryTrace::default(),
            leaving: Vec::new(),
            attaches,
            environments: BTreeMap::new(),
        }
    }

    /// The job's logical shards.
    pub(super) const fn shards(&self) -> Option<u32> {
        self.config.shards
    }

    /// The last placement of a worker.
    pub(super) fn placement_of(&self, worker: &WorkerId) -> Option<&Placement> {
        self.workers.get(worker)?.placement.as_ref()
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
