//! The driver's node: the driver, its host manager and its registry, as cores or as actors. The driver's process
//! may be killed and started again, and a former one may still be there while the next acts: each is a
//! [`DriverLife`], which goes on from what the journal in its state directory says.

mod discovery;
mod events;
mod inputs;
mod interregnum;
mod journal;
mod lives;
mod outputs;
mod succession;

use std::collections::VecDeque;
use std::rc::Rc;

use elastic_driver::DriverCore;
use elastic_driver::journal::Progress;
use elastic_host_manager::{DiscoveryError, HostManagerCore, HostSource, HostsSnapshot};
use elastic_protocol::{HostName, JobId, JobResult, Stamp, Term, Time, WorkerId};
use elastic_registry::{RegistryCore, Verdict};
use elastic_runtime::random::stream;
use tokio::sync::oneshot;

pub(super) use self::interregnum::Interregnum;
use self::journal::JournalSeat;
pub(super) use self::journal::Tenancy;
use super::{Happening, MS, World};
use crate::actors::DriverNode;
use crate::actors::hub::Hub;
use crate::clock::NodeClock;
use crate::dataset::mix;
use crate::scenario::Scenario;

/// How long a driver waits for those who were there before it: twice `lost`, 2 s, and a little.
const TAKEOVER_NS: u64 = 7_000 * MS;

/// Between the actors of the driver's node, where they are cores.
#[derive(Debug)]
enum Local {
    Open { stamp: Stamp, members: Vec<WorkerId> },
    Vote(elastic_protocol::messages::Vote),
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

/// Where the driver's logic sits.
#[derive(Debug)]
pub(super) enum DriverSeat {
    /// In cores that the world calls.
    Cores(Box<DriverCores>),
    /// In actors.
    Actors(DriverActors),
}

/// The cores of the driver's node.
#[derive(Debug)]
pub(super) struct DriverCores {
    pub(super) driver: DriverCore,
    pub(super) host_manager: HostManagerCore,
    registry: RegistryCore,
    /// What they have told each other.
    local: VecDeque<Local>,
    journal: JournalSeat,
    armed: u64,
    host_manager_armed: u64,
}

/// What the world knows of a driver's node of actors.
#[derive(Debug)]
pub(super) struct DriverActors {
    pub(super) node: DriverNode,
    /// The hosts as the host manager told them last.
    pub(super) hosts: HostsSnapshot,
    /// Whether the discovery failed last, so that the list must not change.
    pub(super) hosts_must_stay: bool,
    /// Who waits for the discovery script.
    pub(super) discovery: Option<oneshot::Sender<Result<String, DiscoveryError>>>,
}

/// One life of the driver's process.
#[derive(Debug)]
pub(super) struct DriverLife {
    /// Its number, from 1.
    pub(super) life: u32,
    /// Which job it drives, by the life that began it: a driver that finds nothing of its predecessor's begins
    /// another.
    pub(super) job: u32,
    /// Which incarnation of that job's driver it is.
    pub(super) term: Term,
    /// None once the process is dead.
    pub(super) seat: Option<DriverSeat>,
    pub(super) clock: NodeClock,
    pub(super) stopped: u32,
    /// When it began, or stood still last.
    pub(super) continued_at: u64,
    /// When those who were there before must be back, if it has taken over.
    pub(super) settled_at: u64,
    /// What came to it while it stood still.
    pub(super) frozen: Vec<Happening>,
    /// Whether its operator starts it again.
    pub(super) comes_back: bool,
    /// It is about to be killed: how many more things it gets done, and for how long it is away then.
    pub(super) dies_midway: Option<(u32, u64)>,
    /// Whether the job is over and everybody has been told.
    pub(super) has_left: bool,
    polls: u64,
    pub(super) phase: Phase,
    pub(super) stamp: Stamp,
    pub(super) members: Vec<u32>,
    /// How the job was decided to end.
    pub(super) result: Option<JobResult>,
}

/// Which life of the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Birth {
    pub(super) life: u32,
    /// World time.
    pub(super) at: u64,
    /// How many millionths its clock is too fast.
    pub(super) ppm: i64,
}

impl DriverLife {
    pub(super) fn new(
        hub: Option<&Rc<Hub>>,
        scenario: &Scenario,
        seed: u64,
        birth: Birth,
        tenancy: Tenancy,
    ) -> Self {
        let Birth { life, at, ppm } = birth;
        let Tenancy { tenure, handle } = tenancy;
        let job = job_number(seed, life, tenure.job);
        let term = tenure.image.term;
        let is_takeover = tenure.is_takeover();
        let (phase, stamp) = match &tenure.image.current {
            None => (Phase::Gather, Stamp::default()),
            Some(current) => {
                let phase = match current.progress {
                    Progress::Forming => Phase::Form,
                    Progress::Running => Phase::Run,
                    // As from the decision on.
                    Progress::Stopping { .. } | Progress::Ended { .. } => Phase::Gather,
                };
                (phase, current.formation.stamp)
            }
        };
        let result = tenure.image.result.clone();
        let phase = if result.is_some() { Phase::Over } else { phase };
        let config = scenario.driver.clone();
        let mut hosts = scenario.host_manager.clone();
        hosts.known = journal::known_hosts(&tenure.image);
        let seat = match hub {
            None => {
                let rng = stream(seed, "driver", u64::from(life) - 1);
                let hosts_rng = stream(seed, "host manager", u64::from(life) - 1);
                DriverSeat::Cores(Box::new(DriverCores {
                    driver: DriverCore::with_journal(config, tenure, rng, Time::ZERO),
                    host_manager: HostManagerCore::new(hosts, hosts_rng, Time::ZERO),
                    registry: RegistryCore::new(),
                    local: VecDeque::new(),
                    journal: JournalSeat::new(handle),
                    armed: u64::MAX,
                    host_manager_armed: u64::MAX,
                }))
            }
            Some(hub) => {
                let seed = mix(seed, u64::from(life) - 1);
                let birth = (life, seed, ppm);
                DriverSeat::Actors(DriverActors {
                    node: DriverNode::start(hub, birth, (tenure, handle), config, hosts),
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
            continued_at: at,
            settled_at: if is_takeover { at + TAKEOVER_NS } else { at },
            frozen: Vec::new(),
            comes_back: false,
            dies_midway: None,
            has_left: false,
            polls: 0,
            phase,
            stamp,
            members: Vec::new(),
            result,
        }
    }

    /// Whether its process is there.
    pub(super) const fn is_alive(&self) -> bool {
        self.seat.is_some()
    }

    /// Whether its process runs.
    pub(super) const fn runs(&self) -> bool {
        self.is_alive() && self.stopped == 0
    }

    pub(super) fn cores(&mut self) -> Option<&mut DriverCores> {
        match &mut self.seat {
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

    /// Its node, where nodes are actors.
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

/// The number of a job that a life of the driver has, by its id.
fn job_number(seed: u64, life: u32, id: JobId) -> u32 {
    (1..=life).find(|job| job_id(seed, *job) == id).unwrap_or(life)
}

impl World {
    fn driver_now(&self) -> Time {
        self.driver.clock.local(self.now)
    }

    /// Whether hosts come by joining.
    pub(super) fn hosts_join(&self) -> bool {
        self.scenario.host_manager.source == HostSource::Joined
    }
}
