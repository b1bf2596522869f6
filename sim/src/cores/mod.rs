//! The simulated cluster from the cores alone. The driver, host manager and registry share one node. Each host has an
//! agent's core, each process a State's core and a training program. Sessions connect them, and one agenda drives
//! them all.
//!
//! Each file of this folder is one part of the [`World`]. Every part reacts to events from the agenda ([`Happening`])
//! and puts follow-up events onto it. The oracle checks them.

mod agents;
mod bounds;
mod causes;
mod checkpoints;
mod collectives;
mod driver;
mod early;
mod faults;
mod hangs;
mod happening;
mod healing;
mod health;
mod links;
mod look;
mod membership;
mod network;
mod passes;
mod processes;
mod program;
mod rebalancing;
mod recorded;
mod replacements;
mod replicas;
mod reports;
mod seats;
mod state;
mod stops;
mod stragglers;
mod talk;
mod truth;
mod welcomes;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::rc::Rc;

use elastic_protocol::{HostName, Stamp, Term};
use elastic_runtime::random::stream;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use self::agents::{AgentLife, SimulatedHost};
use self::bounds::{Calm, PACE_NS};
use self::checkpoints::SharedStorage;
use self::collectives::CollectiveGroup;
use self::driver::{DriverBirth, DriverLife, Interregnum, Tenancy};
use self::hangs::HangWatch;
use self::happening::Happening;
use self::health::HealthWatch;
use self::links::LinkWatch;
use self::membership::SlotWatch;
use self::network::SimulatedLink;
use self::passes::PassWatch;
use self::processes::SimulatedProcess;
use self::program::TrainedModel;
use self::rebalancing::RebalanceWatch;
use self::recorded::recorded_driver;
use self::replacements::ReplacementWatch;
use self::replicas::ReplicaWatch;
use self::stragglers::StragglerWatch;
use self::wire::Wiretap;
use crate::actors::hub::Hub;
use crate::agenda::WorldAgenda;
use crate::dataset::SampleSet;
use crate::options::RunOptions;
use crate::oracle::{JobNumber, Oracle};
use crate::plan::{DiscoveryFault, DiskFault, PlannedFault, plan};
use crate::report::{RunFailure, RunReport, RunVerdict};
use crate::scenario::Scenario;
use crate::state_dir::SimulatedStateDir;
use crate::tape::DriverTape;
use crate::trace::{Recording, RunTrace, TraceKind, TracePlace};

const MS: u64 = 1_000_000;

/// Marks an absent entry in an index of links or processes.
const NONE: u32 = u32::MAX;

/// Interval between two looks at `status` and at the states of the cores, if decisions or states are recorded.
const LOOK_EVERY_NS: u64 = 1_000 * MS;

/// Most events within [`AT_ONCE_NS`]. More of them mean an endless loop.
const EVENTS_AT_ONCE_MAX: u64 = 200_000;
const AT_ONCE_NS: u64 = MS;

/// The simulated cluster.
pub(crate) struct World {
    options: RunOptions,
    scenario: Scenario,
    /// State shared with the pump, where nodes are actors.
    hub: Option<Rc<Hub>>,
    /// Reads the messages of actors, where nodes are actors.
    wiretap: Wiretap,
    now: u64,
    agenda: WorldAgenda<Happening>,
    pub(crate) trace: RunTrace,
    /// Recordings of the driver's lives.
    tape: DriverTape,
    oracle: Oracle,
    /// Random stream of frame delays.
    net: ChaCha8Rng,
    /// Random stream of durations of processes, threads and collectives.
    machine: ChaCha8Rng,
    /// The newest life of the driver.
    driver: DriverLife,
    /// Number of starts of the driver's process.
    lives: u32,
    /// Number of the last life that began.
    newest: u32,
    /// The term of each life.
    terms: Vec<Term>,
    state_dir: SimulatedStateDir,
    /// Active disk faults, each with its fault's number.
    disk_faults: Vec<(u32, DiskFault)>,
    /// World time at which the last disk fault ended.
    disk_mended_at: u64,
    /// World time at which a cut link was mended last.
    link_mended_at: Option<u64>,
    /// Batches given to the journal.
    batches: u64,
    /// World time of the last event, beside the driver's death, that may be why a generation ends.
    disturbed_at: u64,
    /// Processes given to each slot since its host was last blamed for it.
    tries: BTreeMap<(HostName, u32), u32>,
    slot_watch: SlotWatch,
    /// World time at which a fault last began or ended.
    faulted_at: u64,
    /// Time without a fault, in this phase of the job, before the last fault began.
    calm_before_fault: u64,
    calm: Calm,
    hangs: HangWatch,
    stragglers: StragglerWatch,
    links_watch: LinkWatch,
    health: HealthWatch,
    replacements: ReplacementWatch,
    rebalancing: RebalanceWatch,
    replicas: ReplicaWatch,
    passes: PassWatch,
    interregnum: Option<Interregnum>,
    /// Number of interregna so far.
    interregna: u64,
    /// Earlier lives of the driver whose processes still exist.
    former: Vec<DriverLife>,
    /// Millionths by which the driver's clock is too fast.
    driver_ppm: i64,
    /// Active discovery faults, each with its fault's number.
    lies: Vec<(u32, DiscoveryFault)>,
    hosts: Vec<SimulatedHost>,
    processes: Vec<SimulatedProcess>,
    links: Vec<SimulatedLink>,
    /// The link of each worker's incarnation, by job.
    by_incarnation: Vec<Vec<u32>>,
    /// The link of each agent's incarnation.
    agent_links: Vec<u32>,
    groups: BTreeMap<(JobNumber, Stamp), CollectiveGroup>,
    /// Pairs of hosts: a worker of the first one has itself failed to reach a worker of the second.
    witnessed: BTreeSet<(HostName, HostName)>,
    data: SampleSet,
    /// Checkpoints that scripts have written to shared storage, by job.
    checkpoints: BTreeMap<JobNumber, TrainedModel>,
    /// Storage for the checkpoints of programs that use the library.
    storage: SharedStorage,
    plan: Vec<PlannedFault>,
    /// Faults that wait for a reset: number of the reset, delay after it, number of the fault.
    after_resets: Vec<(u64, u64, u32)>,
    /// Faults that wait for a journal batch, in the same form.
    after_batches: Vec<(u64, u64, u32)>,
    /// Nodes stopped by faults: number of the fault, and the process or the life of the agent.
    stopped_by: Vec<(u32, u32)>,
    /// Whether a node hears a driver that it knows to be succeeded. By D-2, that must have no effect.
    hears_outdated: bool,
    healed_at: Option<u64>,
    /// When the job first was healthy after healing.
    healthy_since: Option<u64>,
    /// When all processes must have left, once the driver has gone.
    gone_by: Option<u64>,
    failure: Option<RunFailure>,
    is_done: bool,
}

impl World {
    /// A world whose nodes are cores.
    pub(crate) fn new(options: &RunOptions, recording: Recording) -> Self {
        let mut world = Self::prepare(options, recording, None);
        match &options.from {
            Some(moment) => world.begin_from(moment),
            None => world.begin(),
        }
        world
    }

    fn prepare(options: &RunOptions, recording: Recording, hub: Option<&Rc<Hub>>) -> Self {
        let scenario = Scenario::of(options);
        let seed = options.seed;
        let mut clocks = stream(seed, "clocks", 0);
        let ppm = scenario.clock_ppm;
        let driver_ppm = clocks.random_range(-ppm..=ppm);
        let birth = DriverBirth { life: 1, at: 0, ppm: driver_ppm };
        let state_dir = SimulatedStateDir::new(seed, hub.is_some());
        let tape = DriverTape::new(recording.drivers);
        let driver = match &options.from {
            Some(moment) => recorded_driver(moment, &scenario, seed, birth),
            None => {
                let tenancy = Tenancy::begin(&state_dir, &scenario.driver.program, seed, (1, 0))
                    .expect("an empty state directory on a sound disk");
                let recorder = tape.recorder(1);
                DriverLife::new(hub, &scenario, seed, birth, (tenancy, recorder))
            }
        };
        let mut oracle = Oracle::default();
        let _first = oracle.driver_began(driver.job, driver.term);
        let hosts = (0..options.hosts.max(1))
            .map(|host| {
                let slots = scenario.slots[host as usize];
                let name = scenario.names[host as usize].clone();
                SimulatedHost::new(host, name, slots, clocks.random_range(-ppm..=ppm))
            })
            .collect();
        let plan = plan(options);
        Self {
            hub: hub.map(Rc::clone),
            wiretap: Wiretap::default(),
            now: 0,
            agenda: WorldAgenda::new(),
            trace: RunTrace::new(recording),
            tape,
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
            link_mended_at: None,
            batches: 0,
            disturbed_at: 0,
            tries: BTreeMap::new(),
            slot_watch: SlotWatch::default(),
            faulted_at: 0,
            calm_before_fault: 0,
            calm: Calm::default(),
            hangs: HangWatch::default(),
            stragglers: StragglerWatch::default(),
            links_watch: LinkWatch::default(),
            health: HealthWatch::default(),
            replacements: ReplacementWatch::default(),
            rebalancing: RebalanceWatch::default(),
            replicas: ReplicaWatch::default(),
            passes: PassWatch::default(),
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
            witnessed: BTreeSet::new(),
            data: SampleSet::new(scenario.length, seed, scenario.plan()),
            checkpoints: BTreeMap::new(),
            storage: SharedStorage::new(seed, options.draws),
            plan,
            after_resets: Vec::new(),
            after_batches: Vec::new(),
            stopped_by: Vec::new(),
            hears_outdated: false,
            healed_at: None,
            healthy_since: None,
            gone_by: None,
            failure: None,
            is_done: false,
            options: options.clone(),
            scenario,
        }
    }

    /// Schedules the fixed events of a run: the faults, their end, and the looks at all nodes.
    fn schedule_run(&mut self) {
        if self.options.draws >= 1 {
            self.agenda.push(self.now + PACE_NS, Happening::InTime);
        }
        if self.is_looked_at() {
            self.agenda.push(self.now + LOOK_EVERY_NS, Happening::LookedAt);
        }
        self.schedule_plan();
        self.agenda.push(self.now + self.options.seconds * 1_000 * MS, Happening::Heal);
    }

    fn begin(&mut self) {
        self.schedule_run();
        for host in 0..self.hosts.len() as u32 {
            let at = self.scenario.arrives[host as usize];
            self.agenda.push(at, Happening::AgentBoot { host, life: 0 });
        }
        self.drain_host_manager();
        self.drain_driver();
    }

    /// Runs to the end: the job has proved progress after the faults, or a check has failed.
    pub(crate) fn run(mut self) -> RunReport {
        self.run_until(u64::MAX);
        self.report()
    }

    /// Handles the events due up to a moment. Returns early if the run is over.
    fn run_until(&mut self, end: u64) {
        // A clock of another rate lets a moment's timers come a nanosecond apart.
        let (mut since, mut at_once) = (self.now, 0);
        while self.failure.is_none() && !self.is_done {
            if self.agenda.next_at().is_some_and(|at| at > end) {
                return;
            }
            let Some((at, happening)) = self.agenda.pop() else {
                self.fail_liveness("nothing is left to happen".to_owned());
                break;
            };
            self.now = self.now.max(at);
            if self.now >= since + AT_ONCE_NS {
                (since, at_once) = (self.now, 0);
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
        kind: TraceKind,
        place: TracePlace,
        numbers: (u64, u64),
        words: impl FnOnce() -> String,
    ) {
        self.trace.record(self.now, kind, place, numbers, words);
    }

    /// Notes a decision of a node, if decisions are recorded.
    #[inline]
    fn decide(&mut self, place: TracePlace, words: impl FnOnce() -> String) {
        self.trace.decisions.note(self.now, place, words);
    }

    /// The same for the driver's node.
    #[inline]
    fn driver_decides(&mut self, words: impl FnOnce() -> String) {
        self.decide(TracePlace::DRIVER, words);
    }

    /// Notes an output of a core, if states are recorded.
    #[inline]
    fn put_out(&mut self, place: TracePlace, core: &'static str, output: &dyn Debug) {
        self.trace.states.put_out(self.now, place, core, output);
    }

    pub(crate) fn fail_safety(&mut self, reason: String) {
        self.failure.get_or_insert(RunFailure { verdict: RunVerdict::Safety, reason });
    }

    fn fail_liveness(&mut self, reason: String) {
        self.failure.get_or_insert(RunFailure { verdict: RunVerdict::Liveness, reason });
    }

    /// Records an oracle's complaint as a safety failure.
    fn demand(&mut self, checked: Result<(), String>) {
        if let Err(reason) = checked {
            self.fail_safety(reason);
        }
    }

    fn report(&mut self) -> RunReport {
        self.trace.finish();
        let faults = self
            .plan
            .iter()
            .enumerate()
            .map(|(index, planned)| format!("{index}: {:?} {:?}", planned.moment, planned.fault))
            .collect();
        RunReport {
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
            shards: self.scenario.driver.shards,
            plan: faults,
            result: self.driver.result.as_ref().map(|result| result.reason.clone()),
            failure: self.failure.take(),
            decisions: self.trace.decisions.take(),
            states: self.trace.states.take(),
            recordings: self.tape.take(),
            last_events: self.trace.columns(),
        }
    }

    /// Draws a number of nanoseconds between the two bounds.
    fn draw_ns(&mut self, low: u64, high: u64) -> u64 {
        self.machine.random_range(low..=high.max(low))
    }

    fn agent_mut(&mut self, host: u32, life: u32) -> Option<&mut AgentLife> {
        self.hosts[host as usize].agent.as_mut().filter(|agent| agent.life == life)
    }
}
