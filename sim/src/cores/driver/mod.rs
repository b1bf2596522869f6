//! The driver's node: the driver, its host manager and its registry, as cores or as actors. The driver's process may
//! be killed and started again, and a former one may still exist while the next one acts. Each is a [`DriverLife`],
//! which goes on from the journal in its state directory.

mod dead_disk;
mod discovery;
mod events;
mod inputs;
mod interregnum;
mod journal;
mod lives;
mod outputs;
mod parting;
mod standbys;
mod succession;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::SystemTime;

use elastic_driver::ElasticMode;
use elastic_driver::journal::GenerationProgress;
use elastic_driver::recording::{DriverRecorder, DriverStart, RecordedDriver};
use elastic_host_manager::{DiscoveryError, HostFault, HostManagerCore, HostSource, HostsSnapshot};
use elastic_protocol::{
    GenerationId, HostName, Incarnation, JobId, JobResult, Stamp, Term, Time, WorkerId,
};
use elastic_registry::{GenerationVerdict, Incident, RegistryCore, RestartBudget};
use elastic_runtime::random::stream;
use elastic_transport::peers::LinkId;
use tokio::sync::oneshot;

use self::dead_disk::EndOnDeadDisk;
pub(super) use self::interregnum::Interregnum;
use self::journal::JournalSeat;
pub(super) use self::journal::Tenancy;
use self::parting::PartingDue;
pub(in crate::cores) use self::parting::REFUSAL;
use self::standbys::Standbys;
use super::checkpoints::before_leaving::SaveBeforeLeaving;
use super::checkpoints::before_stop::SaveBeforeStop;
use super::network::{Peers, new_peers};
use super::{Happening, MS, World};
use crate::actors::DriverNode;
use crate::actors::hub::Hub;
use crate::clock::NodeClock;
use crate::dataset::mix;
use crate::decisions::words;
use crate::oracle::Cooldowns;
use crate::scenario::Scenario;

/// Allowance for the actions of nodes at the end of a driver's wait for them.
const LATE_NS: u64 = 1_000 * MS;

/// Messages between the parts of the driver's node, where they are cores.
#[derive(Debug)]
enum LocalMessage {
    Open { stamp: Stamp, members: Vec<WorkerId>, budget: RestartBudget },
    Incident(Incident),
    Vote(elastic_protocol::messages::Vote),
    NameMissing(Stamp),
    Joined { host: HostName, slots: u32 },
    Left(HostName),
    Failed { host: HostName, fault: HostFault, reason: String },
    Verdict(GenerationVerdict),
    Missing { stamp: Stamp, missing: Vec<WorkerId> },
    Hosts(HostsSnapshot),
    Fatal { reason: String, hint: &'static str },
}

impl LocalMessage {
    /// The message in words, for the recorded decisions.
    fn words(&self) -> String {
        match self {
            Self::Open { stamp, members, budget } => {
                let (stamp, members) = (words::stamp(*stamp), words::list(members));
                format!("open {stamp} of {members}; {}", words::budget(budget))
            }
            Self::Incident(incident) => words::incident(incident),
            Self::Vote(vote) => words::vote(vote),
            Self::NameMissing(stamp) => format!("who is missing in {}?", words::stamp(*stamp)),
            Self::Joined { host, slots } => format!("{host} has joined with {slots} slots"),
            Self::Left(host) => format!("{host} has left"),
            Self::Failed { host, fault, reason } => {
                format!("{host} is to be blacklisted ({fault:?}): {reason}")
            }
            Self::Verdict(verdict) => words::verdict(verdict),
            Self::Missing { stamp, missing } => {
                format!("missing in {}: {}", words::stamp(*stamp), words::list(missing))
            }
            Self::Hosts(snapshot) => words::hosts(snapshot),
            Self::Fatal { reason, hint } => format!("fatal: {reason}; hint: {hint}"),
        }
    }
}

/// The driver's phase, as its outputs tell.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum ObservedPhase {
    #[default]
    Gather,
    Form,
    Run,
    Over,
}

/// Form in which the driver's logic runs.
#[derive(Debug)]
pub(super) enum DriverSeat {
    /// Cores that the world calls.
    Cores(Box<DriverCores>),
    /// Actors.
    Actors(DriverActors),
}

/// The cores of the driver's node.
#[derive(Debug)]
pub(super) struct DriverCores {
    pub(super) driver: RecordedDriver,
    pub(super) host_manager: HostManagerCore,
    registry: RegistryCore,
    /// Messages in transit between the cores.
    local: VecDeque<LocalMessage>,
    journal: JournalSeat,
    armed: u64,
    host_manager_armed: u64,
    /// Inputs since the invariants of the driver's core were last checked.
    inputs_unchecked: usize,
}

impl DriverCores {
    pub(super) const fn registry(&self) -> &RegistryCore {
        &self.registry
    }

    /// Whether a batch of the journal is being stored.
    pub(super) const fn waits_for_its_disk(&self) -> bool {
        self.journal.is_busy()
    }
}

/// The world's knowledge of a driver's node of actors.
#[derive(Debug)]
pub(super) struct DriverActors {
    pub(super) node: DriverNode,
    /// The hosts in the host manager's latest message.
    pub(super) hosts: HostsSnapshot,
    /// Whether the latest discovery failed: the list must not change then.
    pub(super) hosts_must_stay: bool,
    /// The pending request for the discovery script's answer.
    pub(super) discovery: Option<oneshot::Sender<Result<String, DiscoveryError>>>,
}

/// One life of the driver's process.
#[derive(Debug)]
pub(super) struct DriverLife {
    /// Number of this life, from 1.
    pub(super) life: u32,
    /// The job that it drives, named by the life that began the job. A driver that finds no journal begins another
    /// job.
    pub(super) job: u32,
    /// The driver's term in that job.
    pub(super) term: Term,
    /// The driver's logic; `None` once the process is dead.
    pub(super) seat: Option<DriverSeat>,
    pub(super) clock: NodeClock,
    pub(super) stopped: u32,
    /// World time at which this life stood still last.
    pub(super) stopped_at: u64,
    /// World time at which this life began or last continued.
    pub(super) continued_at: u64,
    /// World time by which the predecessor's nodes must be back, if this life has taken over.
    pub(super) settled_at: u64,
    /// World time from which on this life knows which nodes are gone, after a long stop.
    pub(super) knows_from: u64,
    /// Events that came while the process stood still.
    pub(super) frozen: Vec<Happening>,
    /// Whether the operator starts the driver again.
    pub(super) comes_back: bool,
    /// Set while a kill is pending: outputs left until then, and the downtime in microseconds.
    pub(super) dies_midway: Option<(u32, u64)>,
    /// Whether the job is over and every node has been told.
    pub(super) has_left: bool,
    /// The driver's sessions with all nodes.
    pub(super) peers: Peers,
    /// Inputs of the sessions since their invariants were checked.
    pub(super) sessions_unchecked: usize,
    /// The link of each connection that carries a session.
    pub(super) carriers: BTreeMap<LinkId, u32>,
    /// World time of the next check of the sessions.
    pub(super) peers_armed: u64,
    /// World time at which the disk last refused a batch of records.
    pub(super) refused_batch_at: Option<u64>,
    /// World time since which it has refused each batch; none once it has stored one, and the messages that waited for that
    /// batch are sent.
    pub(super) refused_since: Option<u64>,
    polls: u64,
    /// World time at which the list of hosts last changed.
    pub(super) hosts_since: u64,
    /// Blacklist stays, as the oracle follows them.
    cooldowns: Cooldowns,
    /// Resets decided by this life.
    pub(super) resets: u32,
    /// The generation that the last of these resets ended.
    pub(super) last_reset: Option<GenerationId>,
    /// The step of a checkpoint that is gone, until this life has told so.
    pub(in crate::cores) gone_checkpoint: Option<u64>,
    /// The step that is said to be saved, and the number of batches given before that, until the journal has stored it: the next
    /// driver does not know of it otherwise.
    pub(in crate::cores) saved_unstored: Option<(u64, u64)>,
    /// Workers whose death has ended a generation under this driver.
    deaths: BTreeMap<Incarnation, GenerationId>,
    /// Hosts and workers that the driver must part from others.
    parting: PartingDue,
    /// Workers whose exit status the driver has taken.
    pub(in crate::cores) explained: BTreeSet<Incarnation>,
    pub(super) phase: ObservedPhase,
    /// World time at which the phase began.
    pub(super) phase_since: u64,
    /// World time at which a generation last began to train under this life; 0: none has.
    pub(super) trained_from: u64,
    /// World time at which the pending reset was decided.
    pub(super) reset_since: Option<u64>,
    pub(super) stamp: Stamp,
    pub(super) members: Vec<u32>,
    /// The hosts, as the driver has last heard of them from the host manager.
    pub(super) heard_hosts: HostsSnapshot,
    /// Whether the driver has just told that committed steps are lost.
    pub(super) loss_is_told: bool,
    /// The generation that begins from a checkpoint, and the checkpoint's step.
    pub(super) loaded: Option<(GenerationId, u64)>,
    /// The acknowledged samples that the generation formed last begins without, until that is told.
    pub(super) untold_loss: Option<u64>,
    /// Workers that this life of it has stopped before their processes existed.
    pub(super) stopped_unstarted: BTreeSet<WorkerId>,
    /// The result that the driver has decided.
    pub(super) result: Option<JobResult>,
    /// The commit with which training has ended on all ranks, until the driver has said that it could not be saved.
    pub(super) last_commit: Option<u64>,
    pub(super) before_stop: SaveBeforeStop,
    pub(super) before_leaving: Option<SaveBeforeLeaving>,
    /// Whether processes outlive the generation that they were started for: the program is known to use the library.
    pub(super) keeps_processes: bool,
    /// The drivers that stand by for this one.
    pub(super) standbys: Standbys,
    /// Whether the job was to be ended by this life.
    pub(super) is_asked_to_stop: bool,
    /// Whether a former life has stored the operator's request to end the job.
    pub(super) is_to_end: bool,
    /// The generation that this life has taken back: the job begins again with its processes.
    pub(super) taken_back: Option<Stamp>,
    /// World time at which a look first found that the driver was told that another journal stands in its place.
    pub(super) displaced_since: Option<u64>,
    /// The end that the operator has asked for on a disk that stores nothing any more.
    pub(super) dead_disk: Option<EndOnDeadDisk>,
}

/// Number, start and clock of a driver's life.
#[derive(Clone, Copy, Debug)]
pub(super) struct DriverBirth {
    pub(super) life: u32,
    /// Start, in world time.
    pub(super) at: u64,
    /// Millionths by which its clock is too fast.
    pub(super) ppm: i64,
}

impl DriverLife {
    pub(super) fn new(
        hub: Option<&Rc<Hub>>,
        scenario: &Scenario,
        seed: u64,
        birth: DriverBirth,
        (tenancy, recorder): (Tenancy, Option<DriverRecorder>),
    ) -> Self {
        let DriverBirth { life, at, ppm } = birth;
        let Tenancy { tenure, handle } = tenancy;
        let job = job_number(seed, life, tenure.job);
        let term = tenure.image.term;
        let is_takeover = tenure.is_takeover();
        let (phase, stamp) = match &tenure.image.current {
            None => (ObservedPhase::Gather, Stamp::default()),
            Some(current) => {
                let phase = match current.progress {
                    GenerationProgress::Forming => ObservedPhase::Form,
                    GenerationProgress::Running => ObservedPhase::Run,
                    // The gather phase begins with the decision to reset.
                    GenerationProgress::Stopping { .. } | GenerationProgress::Ended { .. } => {
                        ObservedPhase::Gather
                    }
                };
                (phase, current.formation.stamp)
            }
        };
        let result = tenure.image.result.clone();
        let phase = if result.is_some() { ObservedPhase::Over } else { phase };
        let is_to_end = tenure.image.stop_asked.is_some();
        let keeps_processes = match scenario.driver.mode {
            ElasticMode::InProcess => true,
            ElasticMode::Restart => false,
            ElasticMode::Auto => tenure.image.program_attaches,
        };
        let config = scenario.driver.clone();
        let return_ns = config.deadlines.return_grace().as_nanos() as u64 + LATE_NS;
        let mut hosts = scenario.host_manager.clone();
        hosts.known = tenure.image.known_hosts();
        let cooldowns = Cooldowns::of(&hosts.known);
        let seat = match hub {
            None => {
                let rng = stream(seed, "driver", u64::from(life) - 1);
                let hosts_rng = stream(seed, "host manager", u64::from(life) - 1);
                let last = tenure.last;
                let start = DriverStart::Journal { config, tenure: Box::new(tenure) };
                let wall = SystemTime::UNIX_EPOCH;
                DriverSeat::Cores(Box::new(DriverCores {
                    driver: RecordedDriver::begin(start, rng, Time::ZERO, wall, recorder),
                    host_manager: HostManagerCore::new(hosts, hosts_rng, Time::ZERO),
                    registry: RegistryCore::new(),
                    local: VecDeque::new(),
                    journal: JournalSeat::new(handle, last),
                    armed: u64::MAX,
                    host_manager_armed: u64::MAX,
                    inputs_unchecked: 0,
                }))
            }
            Some(hub) => {
                let seed = mix(seed, u64::from(life) - 1);
                let birth = (life, seed, ppm);
                DriverSeat::Actors(DriverActors {
                    node: DriverNode::start(hub, birth, (tenure, handle, recorder), config, hosts),
                    hosts: HostsSnapshot::default(),
                    hosts_must_stay: false,
                    discovery: None,
                })
            }
        };
        Self {
            life,
            job,
            term,
            seat: Some(seat),
            clock: NodeClock::new(at, ppm),
            stopped: 0,
            stopped_at: at,
            continued_at: at,
            settled_at: if is_takeover { at + return_ns } else { at },
            knows_from: at,
            frozen: Vec::new(),
            comes_back: false,
            dies_midway: None,
            has_left: false,
            peers: new_peers(&scenario.driver.deadlines),
            sessions_unchecked: 0,
            carriers: BTreeMap::new(),
            peers_armed: u64::MAX,
            refused_batch_at: None,
            refused_since: None,
            polls: 0,
            hosts_since: at,
            cooldowns,
            resets: 0,
            last_reset: None,
            gone_checkpoint: None,
            saved_unstored: None,
            deaths: BTreeMap::new(),
            parting: PartingDue::default(),
            explained: BTreeSet::new(),
            phase,
            phase_since: at,
            trained_from: 0,
            reset_since: Some(at),
            stamp,
            members: Vec::new(),
            heard_hosts: HostsSnapshot::default(),
            loss_is_told: false,
            loaded: None,
            untold_loss: None,
            stopped_unstarted: BTreeSet::new(),
            result,
            last_commit: None,
            before_stop: SaveBeforeStop::default(),
            before_leaving: None,
            keeps_processes,
            standbys: Standbys::default(),
            is_asked_to_stop: is_to_end,
            is_to_end,
            taken_back: None,
            displaced_since: None,
            dead_disk: None,
        }
    }

    pub(super) fn enter_phase(&mut self, now: u64, phase: ObservedPhase) {
        self.phase = phase;
        self.phase_since = now;
    }

    /// Whether the process exists.
    pub(super) const fn is_alive(&self) -> bool {
        self.seat.is_some()
    }

    /// Whether the process exists and is not stopped.
    pub(super) const fn runs(&self) -> bool {
        self.is_alive() && self.stopped == 0
    }

    pub(super) fn cores(&mut self) -> Option<&mut DriverCores> {
        match &mut self.seat {
            Some(DriverSeat::Cores(cores)) => Some(cores),
            _ => None,
        }
    }

    /// The cores, to look at.
    pub(super) const fn cores_here(&self) -> Option<&DriverCores> {
        match &self.seat {
            Some(DriverSeat::Cores(cores)) => Some(cores),
            _ => None,
        }
    }

    pub(super) fn actors(&mut self) -> Option<&mut DriverActors> {
        match &mut self.seat {
            Some(DriverSeat::Actors(actors)) => Some(actors),
            _ => None,
        }
    }

    /// The driver's node, where nodes are actors.
    pub(super) fn node(&self) -> Option<&DriverNode> {
        match &self.seat {
            Some(DriverSeat::Actors(actors)) => Some(&actors.node),
            _ => None,
        }
    }

    /// The hosts, as the host manager sees them.
    pub(super) fn hosts(&self) -> HostsSnapshot {
        match &self.seat {
            Some(DriverSeat::Cores(cores)) => cores.host_manager.snapshot(),
            Some(DriverSeat::Actors(actors)) => actors.hosts.clone(),
            None => HostsSnapshot::default(),
        }
    }
}

/// The id of a job of a seed.
pub(super) fn job_id(seed: u64, job: u32) -> JobId {
    JobId(uuid::Uuid::from_u64_pair(seed, u64::from(job)))
}

/// The job number (a driver's life) that belongs to a job id.
fn job_number(seed: u64, life: u32, id: JobId) -> u32 {
    (1..=life).find(|job| job_id(seed, *job) == id).unwrap_or(life)
}

impl World {
    pub(in crate::cores) fn driver_now(&self) -> Time {
        self.driver.clock.local(self.now)
    }

    /// Whether hosts come by joining.
    pub(super) fn hosts_join(&self) -> bool {
        self.scenario.host_manager.source == HostSource::Joined
    }
}
