//! The simulated cluster from the cores alone: driver, host manager and registry on one node, an agent's core
//! per host, a State's core and a training program per process, sessions between them, one agenda for all.
//!
//! Each file of this folder is one part of the [`World`]; every one reacts to what comes off the agenda
//! ([`Happening`]) and puts what follows onto it. The oracle looks on.

mod agents;
mod collectives;
mod driver;
mod faults;
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
use self::driver::{Birth, DriverLife};
use self::network::{End, Lane, Link};
use self::processes::Process;
use self::wire::Wiretap;
use crate::actors::hub::Hub;
use crate::agenda::Agenda;
use crate::dataset::Dataset;
use crate::options::Options;
use crate::oracle::Oracle;
use crate::plan::{Lie, Planned, plan};
use crate::report::{Failure, Report, Verdict};
use crate::scenario::Scenario;
use crate::trace::{Kind, Place, Recording, Trace};

const MS: u64 = 1_000_000;

/// Nothing, in an index of links or processes.
const NONE: u32 = u32::MAX;

/// Most events at one and the same moment: beyond it somebody runs in circles.
const EVENTS_AT_ONCE_MAX: u64 = 2_000_000;

/// What is on the agenda.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Deliver {
        link: u32,
        lane: Lane,
    },
    Silence {
        link: u32,
        end: End,
        epoch: u32,
        is_lost: bool,
    },
    Forget {
        link: u32,
        end: End,
        session: u32,
    },
    Dial {
        link: u32,
        token: u32,
    },
    /// A former driver hears no more from somebody who has turned to the next.
    Outlived {
        link: u32,
        life: u32,
    },
    DriverTimer {
        life: u32,
    },
    HostManagerTimer {
        life: u32,
    },
    AgentTimer {
        host: u32,
        life: u32,
    },
    StateTimer {
        process: u32,
    },
    Local {
        life: u32,
    },
    Discovered {
        life: u32,
        poll: u64,
    },
    AgentBoot {
        host: u32,
        life: u32,
    },
    Spawned {
        host: u32,
        life: u32,
        token: u64,
    },
    Booted {
        process: u32,
    },
    Signalled {
        process: u32,
        kills: bool,
    },
    Exited {
        process: u32,
        code: i32,
    },
    Reaped {
        host: u32,
        life: u32,
        process: u32,
    },
    Command {
        process: u32,
    },
    Told {
        process: u32,
    },
    Computed {
        process: u32,
        token: u32,
    },
    AbortSeen {
        process: u32,
        token: u32,
    },
    Entered {
        process: u32,
        generation: Stamp,
        operation: u32,
        value: u64,
    },
    Result {
        process: u32,
        generation: Stamp,
        operation: u32,
        value: u64,
    },
    /// A collective's deadline may have passed.
    Overdue {
        process: u32,
    },
    PeerBroken {
        process: u32,
        generation: Stamp,
        rank: u32,
    },
    Fault(u32),
    Mended(u32),
    Heal,
    Check,
    /// Who was paused for a change that was undone must train again by now.
    Resumed {
        process: u32,
        since: u64,
    },
    /// A member's death must have been noticed by now.
    Noticed {
        process: u32,
        generation: Stamp,
    },
}

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
    /// How many lives of the driver there were.
    lives: u32,
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
    groups: BTreeMap<Stamp, Group>,
    data: Dataset,
    plan: Vec<Planned>,
    /// Faults that wait for a reset: its number, how long after it, which.
    after_resets: Vec<(u64, u64, u32)>,
    /// Whom faults have stopped: the fault, and the process or the life of the agent.
    stopped_by: Vec<(u32, u32)>,
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
        let birth = Birth { life: 1, job: 1, at: 0, ppm: driver_ppm };
        let driver = DriverLife::new(hub, &scenario, seed, birth);
        let mut oracle = Oracle::default();
        oracle.job_began(Term(1));
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
            driver,
            lives: 1,
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
            plan,
            after_resets: Vec::new(),
            stopped_by: Vec::new(),
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

    fn handle(&mut self, happening: Happening) {
        match happening {
            Happening::Deliver { link, lane } => self.handle_deliver(link, lane),
            Happening::Silence { link, end, epoch, is_lost } => {
                self.handle_silence(link, end, epoch, is_lost);
            }
            Happening::Forget { link, end, session } => self.handle_forget(link, end, session),
            Happening::Dial { link, token } => self.handle_dial(link, token),
            Happening::Outlived { link, life } => self.handle_outlived(link, life),
            Happening::DriverTimer { life } => {
                self.in_life(life, |world| world.handle_driver_timer(life));
            }
            Happening::HostManagerTimer { life } => {
                self.in_life(life, |world| world.handle_host_manager_timer(life));
            }
            Happening::AgentTimer { host, life } => self.handle_agent_timer(host, life),
            Happening::StateTimer { process } => self.handle_state_timer(process),
            Happening::Local { life } => {
                self.in_life(life, |world| world.handle_local(life));
            }
            Happening::Discovered { life, poll } => {
                self.in_life(life, |world| world.handle_discovered(life, poll));
            }
            Happening::AgentBoot { host, life } => self.boot_agent(host, life),
            Happening::Spawned { host, life, token } => self.handle_spawned(host, life, token),
            Happening::Booted { process } => self.handle_booted(process),
            Happening::Signalled { process, kills } => self.handle_signalled(process, kills),
            Happening::Exited { process, code } => self.handle_exited(process, code),
            Happening::Reaped { host, life, process } => self.handle_reaped(host, life, process),
            Happening::Command { process } => self.handle_command(process),
            Happening::Told { process } => self.handle_told(process),
            Happening::Computed { process, token } => self.handle_computed(process, token),
            Happening::AbortSeen { process, token } => self.handle_abort_seen(process, token),
            Happening::Entered { process, generation, operation, value } => {
                self.handle_entered(process, generation, operation, value, true);
            }
            Happening::Result { process, generation, operation, value } => {
                self.handle_result(process, generation, operation, value);
            }
            Happening::Overdue { process } => self.handle_overdue(process),
            Happening::PeerBroken { process, generation, rank } => {
                self.handle_peer_broken(process, generation, rank);
            }
            Happening::Fault(index) => self.begin_fault(index),
            Happening::Mended(index) => self.end_fault(index),
            Happening::Heal => self.heal(),
            Happening::Check => self.check_liveness(),
            Happening::Resumed { process, since } => self.check_resumed(process, since),
            Happening::Noticed { process, generation } => self.check_noticed(process, generation),
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
