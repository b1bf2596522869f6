//! Hosts and their agents: start of an agent's process, orders to start and stop workers, reports of their ends. Part
//! of the simulated world.

mod lanes;
mod shell;

use std::collections::BTreeMap;

use elastic_agent::ProcessEvent;
use elastic_agent::core::{AgentCore, AgentSettings, SpawnOrder, StartFailure};
use elastic_protocol::{ExitStatus, HostName};

use self::lanes::HostLane;
use super::network::LinkOwner;
use super::processes::CATCH_UP_NS;
use super::stops::EarlyStop;
use super::{Happening, MS, World};
use crate::actors::AgentNode;
use crate::clock::NodeClock;
use crate::trace::{TraceKind, TracePlace};

/// Range from which the start time of an agent's process is drawn.
const AGENT_BOOT_NS: (u64, u64) = (20 * MS, 300 * MS);

/// Upper bounds of the time an agent takes to read the last output of an ended process: usual, and with a slow disk.
const LAST_WORDS_NS: (u64, u64) = (5 * MS, 2_000 * MS);

/// One read in this many is slow.
const SLOW_READS_ONE_IN: u64 = 8;

/// Range of the delay until the operator starts an ended agent again.
const AGENT_AGAIN_NS: (u64, u64) = (300 * MS, 3_000 * MS);

/// A host.
#[derive(Debug)]
pub(super) struct SimulatedHost {
    pub(super) number: u32,
    pub(super) name: HostName,
    /// Slots that the host really has.
    pub(super) slots: u32,
    /// Slots that discovery reports.
    pub(super) listed_slots: u32,
    /// Number of active faults that keep the host out of the discovery's list.
    pub(super) unlisted: u32,
    pub(super) agent: Option<AgentLife>,
    /// World time at which the last agent ended, if none has followed.
    pub(super) gone_since: Option<u64>,
    /// Counts the agents of this host. An event for one agent thus does not reach the next.
    pub(super) lives: u32,
    /// Number of active faults that keep the host or its agent down.
    pub(super) down: u32,
    pub(super) cut_to_driver: u32,
    pub(super) cut_from_driver: u32,
    pub(super) cut_data: u32,
    pub(super) extra_delay: u64,
    /// Extra delay of collectives' results at this host, in nanoseconds.
    pub(super) data_delay: u64,
    /// Slow-down factor of the data that comes in, by sending host.
    pub(super) slow_data: BTreeMap<u32, u64>,
    /// Number of active faults under which its health checks fail, and the world time at which the last one ended.
    pub(super) sick: u32,
    pub(super) sick_until: u64,
    pub(super) slow_times: u64,
    /// Slow-down factor of the training steps, by slot.
    pub(super) slow_slots: BTreeMap<u32, u64>,
    /// World time at which the last step ends that was begun while the host was slow.
    pub(super) slow_until: u64,
    pub(super) no_spawn: u32,
    /// Number of active faults that take the program away.
    pub(super) no_program: u32,
    /// Whether there ever was one.
    pub(super) has_lacked_program: bool,
    /// World time at which an agent was last killed that was starved; 0: none was.
    pub(super) starved_gone_at: u64,
    /// Active faults under which the host's workers cannot form groups: cause unknown to the worker, cause known to
    /// it.
    pub(super) no_forming: [u32; 2],
    /// Number of active faults under which the host's workers do not reach each other.
    pub(super) no_loopback: u32,
    pub(super) hang_start: u32,
    /// Number of active faults under which the library that its processes load is of another release.
    pub(super) other_release: u32,
    /// Number of the host's address. It grows when the host is renumbered.
    pub(super) address: u8,
    pub(super) lane: HostLane,
    /// Whether a worker left on notice. The driver then leaves its slot empty.
    pub(super) has_closed_slots: bool,
    pub(super) ppm: i64,
    /// Living processes.
    pub(super) processes: Vec<u32>,
    /// Events that wait until the data network is restored.
    pub(super) held: Vec<Happening>,
}

/// One life of an agent.
#[derive(Debug)]
pub(super) struct AgentLife {
    pub(super) life: u32,
    seat: AgentSeat,
    pub(super) link: u32,
    pub(super) clock: NodeClock,
    /// Number of active faults under which the process does not run.
    pub(super) stopped: u32,
    /// Those of them under which it waits for its machine.
    pub(super) starved: u32,
    /// World time until which it last waited for its machine before it was stopped besides; 0 if it never was.
    pub(super) starved_until: u64,
    /// World time at which it ran again after it was stopped or starved; 0 if it never was.
    pub(super) continued_at: u64,
    pub(super) frozen: Vec<Happening>,
    armed: u64,
    spawning: Vec<(u64, SpawnOrder)>,
    spawns: u64,
    /// Whether the agent has a reason to end, and with it its workers.
    pub(super) may_leave: bool,
    /// Whether the agent may end its workers without grace.
    pub(super) is_hurried: bool,
    /// Orders to stop workers whose processes have not been started yet.
    pub(super) early_stops: Vec<EarlyStop>,
    /// World time at which the driver told the agent to leave: an order to stop all of its processes.
    pub(super) left_at: Option<u64>,
    /// World time at which the host was asked to leave.
    pub(super) drained_at: Option<u64>,
    /// World time at which the agent lost its last driver, and whether it has heard a driver's welcome since. If the agent is
    /// an actor, its incoming messages are not inspected: the first loss counts.
    pub(super) alone_since: Option<u64>,
    pub(super) is_welcomed: bool,
    /// World time at which a driver has welcomed it in the session that it has.
    pub(super) in_session_since: Option<u64>,
}

/// Form in which an agent's logic runs.
#[derive(Debug)]
enum AgentSeat {
    /// A core that the world calls.
    Core(Box<AgentCore>),
    /// An actor.
    Actor(AgentNode),
}

impl AgentLife {
    pub(in crate::cores) fn core(&mut self) -> Option<&mut AgentCore> {
        match &mut self.seat {
            AgentSeat::Core(core) => Some(core),
            AgentSeat::Actor(_) => None,
        }
    }

    /// The core, to look at.
    pub(super) const fn core_here(&self) -> Option<&AgentCore> {
        match &self.seat {
            AgentSeat::Core(core) => Some(core),
            AgentSeat::Actor(_) => None,
        }
    }

    pub(super) const fn node(&self) -> Option<&AgentNode> {
        match &self.seat {
            AgentSeat::Core(_) => None,
            AgentSeat::Actor(node) => Some(node),
        }
    }

    /// Keeps an order to start a process. Returns the token that finds it again.
    pub(super) fn keep_order(&mut self, order: SpawnOrder) -> u64 {
        self.spawns += 1;
        self.spawning.push((self.spawns, order));
        self.spawns
    }

    /// Whether the process has neither stood still nor been starved for that long.
    pub(super) const fn has_run_for(&self, passed: u64, now: u64) -> bool {
        self.stopped == 0 && self.continued_at + passed <= now
    }

    /// Whether the kernel says that the process waits for its machine. It says "stopped" of one that was stopped besides.
    pub(super) const fn waits_for_its_machine(&self) -> bool {
        self.starved > 0 && self.stopped == self.starved
    }

    /// Delivers one more SIGSTOP.
    pub(super) fn stop(&mut self, now: u64) {
        if self.waits_for_its_machine() {
            self.starved_until = now;
        }
        self.stopped += 1;
        if let AgentSeat::Actor(node) = &self.seat {
            node.set_stopped(true);
        }
    }
}

impl SimulatedHost {
    /// Slow-down factor of the training steps of a slot, 1 if nothing slows them.
    pub(super) fn times_of(&self, slot: u32) -> u64 {
        self.slow_slots.get(&slot).copied().unwrap_or(1).max(self.slow_times)
    }

    /// Whether the steps of a slot take longer than usual.
    pub(super) fn steps_slowly(&self) -> bool {
        self.slow_times > 1 || !self.slow_slots.is_empty()
    }

    /// Whether processes start here, and come to the library.
    pub(super) const fn starts_processes(&self) -> bool {
        self.no_spawn + self.no_program + self.hang_start + self.other_release == 0
    }

    /// Whether data for collectives comes in later than usual.
    pub(super) fn data_is_late(&self) -> bool {
        self.data_delay > 0 || !self.slow_data.is_empty()
    }

    pub(super) fn new(number: u32, name: HostName, slots: u32, ppm: i64) -> Self {
        Self {
            number,
            name,
            slots,
            listed_slots: slots,
            unlisted: 0,
            agent: None,
            gone_since: None,
            lives: 0,
            down: 0,
            cut_to_driver: 0,
            cut_from_driver: 0,
            cut_data: 0,
            extra_delay: 0,
            data_delay: 0,
            slow_data: BTreeMap::new(),
            sick: 0,
            sick_until: 0,
            slow_times: 1,
            slow_slots: BTreeMap::new(),
            slow_until: 0,
            no_spawn: 0,
            no_program: 0,
            has_lacked_program: false,
            starved_gone_at: 0,
            no_forming: [0; 2],
            no_loopback: 0,
            hang_start: 0,
            other_release: 0,
            address: 1,
            lane: HostLane::default(),
            has_closed_slots: false,
            ppm,
            processes: Vec::new(),
            held: Vec::new(),
        }
    }
}

impl World {
    /// Starts the agent's process, unless the host has gone on to another life, is down, or the job is over.
    pub(super) fn boot_agent(&mut self, host: u32, life: u32) {
        let entry = &self.hosts[host as usize];
        if entry.agent.is_some() || entry.lives != life || entry.down > 0 || self.is_over() {
            return;
        }
        self.disturb();
        let entry = &self.hosts[host as usize];
        let (name, slots, ppm) = (entry.name.clone(), entry.slots, entry.ppm);
        let life = life + 1;
        self.record(TraceKind::Start, TracePlace::agent(host), (u64::from(life), 0), String::new);
        let clock = NodeClock::new(self.now, ppm);
        let mut settings = AgentSettings::new(name, slots);
        settings.join_within = self.scenario.driver.deadlines.orphan;
        let place = TracePlace::agent(host);
        let wait = self.draw_ns(AGENT_BOOT_NS.0, AGENT_BOOT_NS.1);
        let owner = LinkOwner::Agent { host, life };
        let link = {
            let link = self.new_link(owner, host, None, place);
            self.add_link(link, self.now + wait)
        };
        let seat = match self.hub.clone() {
            None => AgentSeat::Core(Box::new(AgentCore::new(clock.local(self.now), settings))),
            Some(hub) => {
                AgentSeat::Actor(self.start_agent_node(&hub, (host, life, link), settings))
            }
        };
        let entry = &mut self.hosts[host as usize];
        entry.lives = life;
        entry.gone_since = None;
        entry.agent = Some(AgentLife {
            life,
            seat,
            link,
            clock,
            stopped: 0,
            starved: 0,
            starved_until: 0,
            continued_at: 0,
            frozen: Vec::new(),
            armed: u64::MAX,
            spawning: Vec::new(),
            spawns: 0,
            may_leave: false,
            is_hurried: false,
            early_stops: Vec::new(),
            left_at: None,
            drained_at: None,
            alone_since: None,
            is_welcomed: true,
            in_session_since: None,
        });
        self.update_hearing(link);
        self.drain_agent(host);
    }

    /// The job that an agent works for.
    pub(super) fn job_of_agent(&self, host: u32) -> u32 {
        let agent = self.hosts[host as usize].agent.as_ref();
        agent.and_then(|agent| self.links[agent.link as usize].job).unwrap_or(self.driver.job)
    }

    /// The operator starts an agent again, unless the host is down or the job over.
    pub(super) fn boot_agent_later(&mut self, host: u32) {
        let wait = self.draw_ns(AGENT_AGAIN_NS.0, AGENT_AGAIN_NS.1);
        let life = self.hosts[host as usize].lives;
        self.agenda.push(self.now + wait, Happening::AgentBoot { host, life });
    }

    /// The agent's process is gone; its workers get SIGKILL with it (PDEATHSIG).
    pub(super) fn end_agent(&mut self, host: u32, is_clean: bool) {
        let Some(agent) = self.hosts[host as usize].agent.take() else { return };
        self.hosts[host as usize].gone_since = Some(self.now);
        if agent.starved > 0 || self.now < agent.continued_at.max(agent.starved_until) + CATCH_UP_NS
        {
            self.hosts[host as usize].starved_gone_at = self.now;
        }
        self.disturb();
        let is_told = self.scenario.death_is_told;
        self.end_peer(agent.link, is_clean, is_told);
        for process in self.hosts[host as usize].processes.clone() {
            self.kill_process(process);
        }
    }

    pub(super) fn handle_spawned(&mut self, host: u32, life: u32, token: u64) {
        let SimulatedHost { no_spawn, no_program, .. } = self.hosts[host as usize];
        let Some(agent) = self.agent_mut(host, life) else { return };
        if agent.stopped > 0 {
            return agent.frozen.push(Happening::Spawned { host, life, token });
        }
        let Some(index) = agent.spawning.iter().position(|(number, _)| *number == token) else {
            return;
        };
        let (_, order) = agent.spawning.remove(index);
        let job = self.job_of_agent(host);
        let SpawnOrder { worker, place, environment, .. } = order;
        let result = if no_spawn > 0 {
            Err(StartFailure::from("simulated: no such file".to_owned()))
        } else if no_program > 0 {
            let reason = "simulated: the program is missing".to_owned();
            Err(StartFailure { reason, is_programs: true })
        } else {
            let is_script = place.is_some() && !self.options.job.is_in_process();
            let (process, pid) = self.start_process(host, (life, job), worker.clone(), is_script);
            if let Some(place) = place {
                self.begin_in_place(process, place, &environment);
            }
            Ok(pid)
        };
        if let Some(node) = self.agent_mut(host, life).and_then(|agent| agent.node()) {
            return node.process_event(ProcessEvent::Spawned { worker, result });
        }
        self.with_agent(host, life, |core, now| core.handle_spawned(now, &worker, result));
    }

    /// Reports to the agent that the lock of a worker has lost its owner.
    pub(super) fn handle_dying(&mut self, host: u32, life: u32, process: u32) {
        let Some(agent) = self.agent_mut(host, life) else { return };
        if agent.stopped > 0 {
            return agent.frozen.push(Happening::Dying { host, life, process });
        }
        let worker = self.processes[process as usize].id.clone();
        if let Some(node) = self.agent_mut(host, life).and_then(|agent| agent.node()) {
            return node.process_event(ProcessEvent::Dying { worker });
        }
        self.with_agent(host, life, |core, _| core.handle_dying(&worker));
    }

    /// Reports the end of a process to the agent.
    pub(super) fn handle_reaped(&mut self, host: u32, life: u32, process: u32) {
        let Some(agent) = self.agent_mut(host, life) else { return };
        if agent.stopped > 0 {
            return agent.frozen.push(Happening::Reaped { host, life, process });
        }
        let entry = &self.processes[process as usize];
        let status = entry.end.unwrap_or(ExitStatus::Signal(9));
        let worker = entry.id.clone();
        let library = entry.library();
        let is_slow = self.draw_ns(1, SLOW_READS_ONE_IN) == 1;
        let wait = if is_slow { LAST_WORDS_NS.1 } else { LAST_WORDS_NS.0 };
        let at = self.now + self.draw_ns(0, wait);
        self.agenda.push(at, Happening::Read { host, life, process });
        if let Some(node) = self.agent_mut(host, life).and_then(|agent| agent.node()) {
            return node.process_event(ProcessEvent::Exited { worker, status, library });
        }
        self.with_agent(host, life, |core, _| {
            core.handle_exited(&worker, status, library);
        });
    }

    /// Gives the agent the last output of an ended process.
    pub(super) fn handle_last_words(&mut self, host: u32, life: u32, process: u32) {
        let Some(agent) = self.agent_mut(host, life) else { return };
        if agent.stopped > 0 {
            return agent.frozen.push(Happening::Read { host, life, process });
        }
        let entry = &self.processes[process as usize];
        let worker = entry.id.clone();
        let said = self.last_words(process);
        if let Some(node) = self.agent_mut(host, life).and_then(|agent| agent.node()) {
            return node.process_event(ProcessEvent::LastWords { worker, said });
        }
        self.with_agent(host, life, |core, _| core.handle_last_words(&worker, said));
    }
}
