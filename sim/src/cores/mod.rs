//! The simulated cluster from the cores alone: driver, host manager and registry on one node, an agent's core
//! per host, a State's core and a training program per process, sessions between them, one agenda for all.
//!
//! Each file of this folder is one part of the [`World`]; every one reacts to what comes off the agenda
//! ([`Happening`]) and puts what follows onto it. The oracle looks on.

mod agents;
mod collectives;
mod driver;
mod faults;
mod happening;
mod healing;
mod network;
mod processes;
mod program;
mod seats;
mod state;
mod wire;

use std::collections::BTreeMap;
use std::rc::Rc;

use elastic_protocol::{Stamp, Term};
use elastic_runtime::random::stream;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use self::agents::{Agent, Host};
use self::collectives::Group;
use self::driver::{Birth, DriverLife, Interregnum, Tenancy};
use self::happening::Happening;
use self::network::Link;
use self::processes::Process;
use self::program::Model;
use self::wire::Wiretap;
use crate::actors::hub::Hub;
use crate::agenda::Agenda;
use crate::dataset::Dataset;
use crate::options::Options;
use crate::oracle::{JobNumber, Oracle};
use crate::plan::{DiskFault, Lie, Planned, plan};
use crate::report::{Failure, Report, Verdict};
use crate::scenario::Scenario;
use crate::state_dir::StateDir;
use crate::trace::{Kind, Place, Recording, Trace};

const MS: u64 = 1_000_000;

/// Nothing, in an index of links or processes.
const NONE: u32 = u32::MAX;

/// Most events at one and the same moment: beyond it somebody runs in circles.
const EVENTS_AT_ONCE_MAX: u64 = 2_000_000;

/// The simulated cluster.
pub(crate) struct World {
    options: Options,
    scenario: Scenario,
    /// Where nodes are actors: what they share with the pump.
    hub: Option<Rc<Hub>>,
    /// Where nodes are actors: reads what they send.
    wiretap: Wiretap,
    now: u64,
    agenda: Agenda<Happening>,
    pub(crate) trace: Trace,
    oracle: Oracle,
    /// Delays of frames.
    net: ChaCha8Rng,
    /// How long processes, threads and collectives take.
    machine: ChaCha8Rng,
    /// The newest life of the driver.
    driver: DriverLife,
    /// How often the driver's process was started.
    lives: u32,
    /// The last life that began.
    newest: u32,
    /// The term of each life.
    terms: Vec<Term>,
    state_dir: StateDir,
    /// What is wrong with the disk under it, by fault.
    disk_faults: Vec<(u32, DiskFault)>,
    /// When that was mended last.
    disk_mended_at: u64,
    /// Batches that the journal was given.
    batches: u64,
    /// When something happened last that may be why a generation ends, beside the driver's death.
    disturbed_at: u64,
    interregnum: Option<Interregnum>,
    /// How many of these there were.
    interregna: u64,
    /// Earlier lives whose processes are still there.
    former: Vec<DriverLife>,
    /// How many millionths the driver's clock is too fast.
    driver_ppm: i64,
    /// What discovery says instead of the truth, by fault.
    lies: Vec<(u32, Lie)>,
    hosts: Vec<Host>,
    processes: Vec<Process>,
    links: Vec<Link>,
    /// The link of each worker's incarnation, by job.
    by_incarnation: Vec<Vec<u32>>,
    /// The link of each agent's incarnation.
    agent_links: Vec<u32>,
    groups: BTreeMap<(JobNumber, Stamp), Group>,
    data: Dataset,
    /// By job: what scripts have written where all hosts can read it.
    checkpoints: BTreeMap<JobNumber, Model>,
    plan: Vec<Planned>,
    /// Faults that wait for a reset: its number, how long after it, which.
    after_resets: Vec<(u64, u64, u32)>,
    /// The same, for a batch that the journal is given.
    after_batches: Vec<(u64, u64, u32)>,
    /// Whom faults have stopped: the fault, and the process or the life of the agent.
    stopped_by: Vec<(u32, u32)>,
    /// Whether a node hears a driver that was succeeded, and knows it: D-2, that must have no effect.
    hears_outdated: bool,
    healed_at: Option<u64>,
    /// When everybody must have left, once the driver has gone.
    gone_by: Option<u64>,
    failure: Option<Failure>,
    is_done: bool,
}

impl World {
    /// A world whose nodes are cores.
    pub(crate) fn new(options: &Options, recording: Recording) -> Self {
        let mut world = Self::prepare(options, recording, None);
        world.begin();
        world
    }

    fn prepare(options: &Options, recording: Recording, hub: Option<&Rc<Hub>>) -> Self {
        let scenario = Scenario::draw(options);
        let seed = options.seed;
        let mut clocks = stream(seed, "clocks", 0);
        let ppm = scenario.clock_ppm;
        let driver_ppm = clocks.random_range(-ppm..=ppm);
        let birth = Birth { life: 1, at: 0, ppm: driver_ppm };
        let state_dir = StateDir::new(seed, hub.is_some());
        let tenancy = Tenancy::begin(&state_dir, &scenario.driver.program, seed, 1)
            .expect("an empty state directory on a sound disk");
        let driver = DriverLife::new(hub, &scenario, seed, birth, tenancy);
        let mut oracle = Oracle::default();
        let _first = oracle.driver_began(driver.job, driver.term);
        let hosts = (0..options.hosts.max(1))
            .map(|host| {
                let slots = scenario.slots[host as usize];
                Host::new(host, slots, clocks.random_range(-ppm..=ppm))
            })
            .collect();
        let plan = plan(options);
        Self {
            hub: hub.map(Rc::clone),
            wiretap: Wiretap::default(),
            now: 0,
            agenda: Agenda::new(),
            trace: Trace::new(recording),
            oracle,
            net: stream(seed, "net", 0),
            machine: stream(seed, "machine", 0),
            lives: 1,
            newest: 1,
            terms: vec![Term::default(), driver.term],
            driver,
            state_dir,
            disk_faults: Vec::new(),
            disk_mended_at: 0,
            batches: 0,
            disturbed_at: 0,
            interregnum: None,
            interregna: 0,
            former: Vec::new(),
            driver_ppm,
            lies: Vec::new(),
            hosts,
            processes: Vec::new(),
            links: Vec::new(),
            by_incarnation: Vec::new(),
            agent_links: Vec::new(),
            groups: BTreeMap::new(),
            data: Dataset::new(scenario.length, seed),
            checkpoints: BTreeMap::new(),
            plan,
            after_resets: Vec::new(),
            after_batches: Vec::new(),
            stopped_by: Vec::new(),
            hears_outdated: false,
            healed_at: None,
            gone_by: None,
            failure: None,
            is_done: false,
            options: options.clone(),
            scenario,
        }
    }

    fn begin(&mut self) {
        self.schedule_plan();
        for host in 0..self.hosts.len() as u32 {
            let at = self.scenario.arrives[host as usize];
            self.agenda.push(at, Happening::AgentBoot { host, life: 0 });
        }
        self.agenda.push(self.options.seconds * 1_000 * MS, Happening::Heal);
        self.drain_host_manager();
        self.drain_driver();
    }

    /// Runs to the end: until the job has shown that it goes on after the faults, or somebody was wrong.
    pub(crate) fn run(mut self) -> Report {
        self.run_until(u64::MAX);
        self.report()
    }

    /// Handles what is due up to a moment, or less if the run is over.
    fn run_until(&mut self, end: u64) {
        let mut at_once = 0;
        while self.failure.is_none() && !self.is_done {
            if self.agenda.next_at().is_some_and(|at| at > end) {
                return;
            }
            let Some((at, happening)) = self.agenda.pop() else {
                self.fail_liveness("nothing is left to happen".to_owned());
                break;
            };
            if at > self.now {
                self.now = at;
                at_once = 0;
            }
            at_once += 1;
            if at_once > EVENTS_AT_ONCE_MAX {
                self.fail_liveness(format!("time stands still: {happening:?} again and again"));
                break;
            }
            self.handle(happening);
        }
    }

    #[inline]
    fn record(
        &mut self,
        kind: Kind,
        place: Place,
        numbers: (u64, u64),
        words: impl FnOnce() -> String,
    ) {
        self.trace.record(self.now, kind, place, numbers, words);
    }

    pub(crate) fn fail_safety(&mut self, reason: String) {
        self.failure.get_or_insert(Failure { verdict: Verdict::Safety, reason });
    }

    fn fail_liveness(&mut self, reason: String) {
        self.failure.get_or_insert(Failure { verdict: Verdict::Liveness, reason });
    }

    /// Takes an oracle's complaint.
    fn demand(&mut self, checked: Result<(), String>) {
        if let Err(reason) = checked {
            self.fail_safety(reason);
        }
    }

    fn report(&mut self) -> Report {
        self.trace.finish();
        let faults = self
            .plan
            .iter()
            .enumerate()
            .map(|(index, planned)| format!("{index}: {:?} {:?}", planned.moment, planned.fault))
            .collect();
        Report {
            options: self.options.clone(),
            events: self.trace.count(),
            nanoseconds: self.now,
            hash: self.trace.hash(),
            checkpoints: self.trace.checkpoints().to_vec(),
            resets: self.oracle.resets,
            generations: self.oracle.generations_formed,
            commits: self.oracle.commits,
            faults: self.plan.len(),
            interregna: self.interregna,
            plan: faults,
            result: self.driver.result.as_ref().map(|result| result.reason.clone()),
            failure: self.failure.take(),
            last_events: self.trace.columns(),
        }
    }

    /// A number of nanoseconds between the two.
    fn draw_ns(&mut self, low: u64, high: u64) -> u64 {
        self.machine.random_range(low..=high.max(low))
    }

    fn agent_mut(&mut self, host: u32, life: u32) -> Option<&mut Agent> {
        self.hosts[host as usize].agent.as_mut().filter(|agent| agent.life == life)
    }
}
