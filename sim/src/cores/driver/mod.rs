//! The driver's node: the driver, its host manager and its registry, as cores or as actors. The driver's process
//! may be killed and started again, and a former one may still be there while the next acts: each is a
//! [`DriverLife`].

mod discovery;
mod events;
mod inputs;
mod lives;
mod outputs;

use std::collections::VecDeque;
use std::rc::Rc;

use elastic_driver::DriverCore;
use elastic_host_manager::{DiscoveryError, HostManagerCore, HostSource, HostsSnapshot};
use elastic_protocol::{HostName, JobId, JobResult, Stamp, Term, Time, WorkerId};
use elastic_registry::{RegistryCore, Verdict};
use elastic_runtime::random::stream;
use tokio::sync::oneshot;

use super::{Happening, World};
use crate::actors::DriverNode;
use crate::actors::hub::Hub;
use crate::clock::NodeClock;
use crate::dataset::mix;
use crate::scenario::Scenario;

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
    /// Its number, from 1; its term is the same.
    pub(super) life: u32,
    /// Which job it drives: a driver that cannot take its predecessor's over begins another.
    pub(super) job: u32,
    /// None once the process is dead.
    pub(super) seat: Option<DriverSeat>,
    pub(super) clock: NodeClock,
    pub(super) stopped: u32,
    /// When it began, or stood still last.
    pub(super) continued_at: u64,
    /// What came to it while it stood still.
    pub(super) frozen: Vec<Happening>,
    /// Whether its operator starts it again.
    pub(super) comes_back: bool,
    /// Whether the job is over and everybody has been told.
    pub(super) has_left: bool,
    polls: u64,
    pub(super) phase: Phase,
    pub(super) stamp: Stamp,
    pub(super) members: Vec<u32>,
    /// How the job was decided to end.
    pub(super) result: Option<JobResult>,
}

/// Which life of the driver, of which job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Birth {
    pub(super) life: u32,
    pub(super) job: u32,
    /// World time.
    pub(super) at: u64,
    /// How many millionths its clock is too fast.
    pub(super) ppm: i64,
}

impl DriverLife {
    pub(super) fn new(hub: Option<&Rc<Hub>>, scenario: &Scenario, seed: u64, birth: Birth) -> Self {
        let Birth { life, job, at, ppm } = birth;
        let term = Term(u64::from(life));
        let config = scenario.driver.clone();
        let hosts = scenario.host_manager.clone();
        let job_id = job_id(seed, job);
        let seat = match hub {
            None => {
                let rng = stream(seed, "driver", u64::from(life) - 1);
                let hosts_rng = stream(seed, "host manager", u64::from(life) - 1);
                DriverSeat::Cores(Box::new(DriverCores {
                    driver: DriverCore::new(config, job_id, term, rng, Time::ZERO),
                    host_manager: HostManagerCore::new(hosts, hosts_rng, Time::ZERO),
                    registry: RegistryCore::new(),
                    local: VecDeque::new(),
                    armed: u64::MAX,
                    host_manager_armed: u64::MAX,
                }))
            }
            Some(hub) => {
                let seed = mix(seed, u64::from(life) - 1);
                DriverSeat::Actors(DriverActors {
                    node: DriverNode::start(hub, (life, seed, ppm), job_id, config, hosts),
                    hosts: HostsSnapshot::default(),
                    hosts_must_stay: false,
                    discovery: None,
                })
            }
        };
        Self {
            life,
            job,
            seat: Some(seat),
            clock: NodeClock::new(at, ppm),
            stopped: 0,
            continued_at: at,
            frozen: Vec::new(),
            comes_back: false,
            has_left: false,
            polls: 0,
            phase: Phase::Gather,
            stamp: Stamp::default(),
            members: Vec::new(),
            result: None,
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

impl World {
    fn driver_now(&self) -> Time {
        self.driver.clock.local(self.now)
    }

    /// Whether hosts come by joining.
    pub(super) fn hosts_join(&self) -> bool {
        self.scenario.host_manager.source == HostSource::Joined
    }
}
