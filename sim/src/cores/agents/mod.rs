//! Hosts and their agents: boot, orders to start and stop processes, reports of their ends.

mod shell;

use elastic_protocol::{ExitStatus, HostName};
use elastic_worker::agent::ProcessEvent;
use elastic_worker::agent::core::{AgentCore, AgentSettings, SpawnOrder};

use super::network::{Link, Owner};
use super::{Happening, MS, World};
use crate::actors::AgentNode;
use crate::clock::NodeClock;
use crate::scenario::host_name;
use crate::trace::{Kind, Place};

/// How long an agent's process takes to start.
const AGENT_BOOT_NS: (u64, u64) = (20 * MS, 300 * MS);

/// How long its operator takes to start an agent that has ended once more.
const AGENT_AGAIN_NS: (u64, u64) = (300 * MS, 3_000 * MS);

/// A host.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) number: u32,
    pub(super) name: HostName,
    /// What it has.
    pub(super) slots: u32,
    /// What discovery says it has.
    pub(super) listed_slots: u32,
    /// How many faults keep it out of the discovery's list.
    pub(super) unlisted: u32,
    pub(super) agent: Option<Agent>,
    /// Counts agents, so that what is meant for one does not reach the next.
    pub(super) lives: u32,
    /// How many faults keep it down, or its agent.
    pub(super) down: u32,
    pub(super) cut_to_driver: u32,
    pub(super) cut_from_driver: u32,
    pub(super) cut_data: u32,
    pub(super) extra_delay: u64,
    /// How much later collectives deliver here.
    pub(super) data_delay: u64,
    pub(super) slow_times: u64,
    pub(super) no_spawn: u32,
    pub(super) hang_start: u32,
    /// Whether a worker left it on notice, so that the driver leaves its slot empty.
    pub(super) has_closed_slots: bool,
    pub(super) ppm: i64,
    /// Processes that live.
    pub(super) processes: Vec<u32>,
    /// What waits for its data network.
    pub(super) held: Vec<Happening>,
}

/// One life of an agent.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) life: u32,
    seat: AgentSeat,
    pub(super) link: u32,
    clock: NodeClock,
    pub(super) stopped: u32,
    pub(super) frozen: Vec<Happening>,
    armed: u64,
    spawning: Vec<(u64, SpawnOrder)>,
    spawns: u64,
}

/// Where an agent's logic sits.
#[derive(Debug)]
enum AgentSeat {
    /// In a core that the world calls.
    Core(Box<AgentCore>),
    /// In an actor.
    Actor(AgentNode),
}

impl Agent {
    fn core(&mut self) -> Option<&mut AgentCore> {
        match &mut self.seat {
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

    /// Keeps an order to start a process; what it is found by.
    pub(super) fn keep_order(&mut self, order: SpawnOrder) -> u64 {
        self.spawns += 1;
        self.spawning.push((self.spawns, order));
        self.spawns
    }

    /// SIGSTOP, once more.
    pub(super) fn stop(&mut self) {
        self.stopped += 1;
        if let AgentSeat::Actor(node) = &self.seat {
            node.set_stopped(true);
        }
    }
}

impl Host {
    pub(super) fn new(number: u32, slots: u32, ppm: i64) -> Self {
        Self {
            number,
            name: host_name(number),
            slots,
            listed_slots: slots,
            unlisted: 0,
            agent: None,
            lives: 0,
            down: 0,
            cut_to_driver: 0,
            cut_from_driver: 0,
            cut_data: 0,
            extra_delay: 0,
            data_delay: 0,
            slow_times: 1,
            no_spawn: 0,
            hang_start: 0,
            has_closed_slots: false,
            ppm,
            processes: Vec::new(),
            held: Vec::new(),
        }
    }
}

impl World {
    /// An agent's process starts, if this is still what the host waits for.
    pub(super) fn boot_agent(&mut self, host: u32, life: u32) {
        let entry = &self.hosts[host as usize];
        if entry.agent.is_some() || entry.lives != life || entry.down > 0 || self.is_over() {
            return;
        }
        self.disturb();
        let entry = &self.hosts[host as usize];
        let (name, slots, ppm) = (entry.name.clone(), entry.slots, entry.ppm);
        let life = life + 1;
        self.record(Kind::Start, Place::agent(host), (u64::from(life), 0), String::new);
        let clock = NodeClock::new(self.now, ppm);
        let mut settings = AgentSettings::new(name, slots);
        settings.join_within = self.scenario.driver.deadlines.orphan;
        let place = Place::agent(host);
        let wait = self.draw_ns(AGENT_BOOT_NS.0, AGENT_BOOT_NS.1);
        let owner = Owner::Agent { host, life };
        let link = self.add_link(Link::new(owner, host, None, place), self.now + wait);
        let seat = match self.hub.clone() {
            None => AgentSeat::Core(Box::new(AgentCore::new(clock.local(self.now), settings))),
            Some(hub) => {
                AgentSeat::Actor(self.start_agent_node(&hub, (host, life, link), settings))
            }
        };
        let entry = &mut self.hosts[host as usize];
        entry.lives = life;
        entry.agent = Some(Agent {
            life,
            seat,
            link,
            clock,
            stopped: 0,
            frozen: Vec::new(),
            armed: u64::MAX,
            spawning: Vec::new(),
            spawns: 0,
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
        self.disturb();
        let is_told = self.scenario.death_is_told;
        self.end_peer(agent.link, is_clean, is_told);
        for process in self.hosts[host as usize].processes.clone() {
            self.kill_process(process);
        }
    }

    pub(super) fn handle_spawned(&mut self, host: u32, life: u32, token: u64) {
        let no_spawn = self.hosts[host as usize].no_spawn > 0;
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
        let result = if no_spawn {
            Err("simulated: no such file".to_owned())
        } else {
            let is_script = place.is_some();
            let (process, pid) = self.start_process(host, (life, job), worker.clone(), is_script);
            if let Some(place) = place {
                self.begin_script(process, place, &environment);
            }
            Ok(pid)
        };
        if let Some(node) = self.agent_mut(host, life).and_then(|agent| agent.node()) {
            return node.process_event(ProcessEvent::Spawned { worker, result });
        }
        self.with_agent(host, life, |core, now| core.handle_spawned(now, &worker, result));
    }

    /// The agent sees the end of a process.
    pub(super) fn handle_reaped(&mut self, host: u32, life: u32, process: u32) {
        let Some(agent) = self.agent_mut(host, life) else { return };
        if agent.stopped > 0 {
            return agent.frozen.push(Happening::Reaped { host, life, process });
        }
        let entry = &self.processes[process as usize];
        let status = entry.end.unwrap_or(ExitStatus::Signal(9));
        let worker = entry.id.clone();
        let tail = if status.is_success() { String::new() } else { "simulated end".to_owned() };
        if let Some(node) = self.agent_mut(host, life).and_then(|agent| agent.node()) {
            return node.process_event(ProcessEvent::Exited { worker, status, said: tail.into() });
        }
        self.with_agent(host, life, |core, _| core.handle_exited(&worker, status, tail));
    }
}
