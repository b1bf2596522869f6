//! Ports of nodes that are actors, beside the network: hosts, discovery, processes, the training thread. Called by the
//! actors' ports.

use std::rc::Rc;
use std::time::Duration;

use elastic_agent::core::{AgentSettings, SpawnOrder, StopSignal};
use elastic_host_manager::{DiscoveryError, HostsSnapshot};
use elastic_protocol::messages::ReportedValues;
use elastic_protocol::{NodeId, Step, WorkerId};
use elastic_worker::state::core::{TrainingCommand, TrainingProgress};
use elastic_worker::state::training::{ThreadMessage, TrainingControl};
use tokio::sync::oneshot;

use super::super::state::ThreadTell;
use super::super::{Happening, MS, World};
use super::StateSeat;
use crate::actors::hub::Hub;
use crate::actors::{AgentNode, NodeBirth, Side, StateNode};
use crate::dataset::mix;
use crate::decisions::words;
use crate::trace::{TraceKind, TracePlace};

/// The driver's node.
impl World {
    pub(crate) fn hosts_changed(&mut self, hosts: &HostsSnapshot) {
        let Some(actors) = self.driver.actors() else { return };
        let has_changed = actors.hosts.hosts.len() != hosts.hosts.len();
        actors.hosts = hosts.clone();
        if actors.hosts_must_stay && has_changed {
            self.fail_safety("H-15: a discovery that failed changed the list of hosts".to_owned());
        }
    }

    pub(crate) fn discovery_begins(
        &mut self,
        limit: Duration,
        answer: oneshot::Sender<Result<String, DiscoveryError>>,
    ) {
        if let Some(actors) = self.driver.actors() {
            actors.discovery = Some(answer);
            self.discover(limit.as_nanos() as u64);
        }
    }
}

/// Agents' nodes.
impl World {
    pub(in crate::cores) fn start_agent_node(
        &mut self,
        hub: &Rc<Hub>,
        (host, life, link): (u32, u32, u32),
        settings: AgentSettings,
    ) -> AgentNode {
        let id = self.enrol(link);
        let seed = mix(self.options.seed, 1 << 32 | u64::from(link));
        let (side, ppm) = (Side::Peer { link }, self.hosts[host as usize].ppm);
        AgentNode::start(hub, NodeBirth { id, seed, side, ppm }, (host, life), settings)
    }

    pub(crate) fn agent_spawns(&mut self, host: u32, order: SpawnOrder) {
        let link = self.hosts[host as usize].agent.as_ref().map(|agent| agent.link);
        if self.hub.is_some() && link.is_some_and(|link| self.is_outdated(link, false)) {
            let worker = &order.worker;
            self.fail_safety(format!("D-2: {worker} is started for a driver that was succeeded"));
        }
        self.decide(TracePlace::agent(host), || words::spawn(&order));
        let wait = self.draw_ns(MS, 50 * MS);
        let Some(agent) = self.hosts[host as usize].agent.as_mut() else { return };
        let (life, token) = (agent.life, agent.keep_order(order));
        self.agenda.push(self.now + wait, Happening::Spawned { host, life, token });
    }

    pub(crate) fn agent_signals(&mut self, host: u32, worker: &WorkerId, signal: StopSignal) {
        self.decide(TracePlace::agent(host), || format!("{signal} to {worker}"));
        if let Some(process) = self.process_of(self.job_of_agent(host), worker) {
            let wait = self.draw_ns(20_000, 300_000);
            let kills = signal == StopSignal::Kill;
            let checked = self.check_signal(host, process, kills);
            self.demand(checked);
            self.agenda.push(self.now + wait, Happening::Signalled { process, kills });
        }
    }

    pub(crate) fn agent_ended(&mut self, host: u32, life: u32, code: i32, reason: String) {
        if self.agent_mut(host, life).is_none() {
            return;
        }
        self.decide(TracePlace::agent(host), || format!("exit with code {code}: {reason}"));
        let numbers = (u64::from(code.unsigned_abs()), 0);
        self.record(TraceKind::Exit, TracePlace::agent(host), numbers, || reason);
        self.end_agent(host, true);
        self.boot_agent_later(host);
    }
}

/// Workers' nodes.
impl World {
    /// Starts the State's actor when its process has come to the library.
    pub(in crate::cores) fn start_state_node(&mut self, process: u32) {
        let Some(hub) = self.hub.clone() else { return };
        let entry = &mut self.processes[process as usize];
        let (side, id) = (Side::Peer { link: entry.link }, NodeId::worker(&entry.id));
        let ppm = self.hosts[entry.host as usize].ppm;
        let StateSeat::Actor { config, node, .. } = &mut entry.state else { return };
        let Some(config) = config.take() else { return };
        let seed = mix(self.options.seed, 2 << 32 | u64::from(process));
        let birth = NodeBirth { id, seed, side, ppm };
        *node = Some(StateNode::start(&hub, birth, process, *config));
    }

    pub(crate) fn state_commands(
        &mut self,
        process: u32,
        command: TrainingCommand,
    ) -> Result<(), String> {
        let entry = &mut self.processes[process as usize];
        let waiting = entry.program.commands_waiting();
        if waiting >= TrainingControl::COMMANDS_MAX {
            return Err(format!("{waiting} commands wait already"));
        }
        match (&command, &mut entry.state) {
            (TrainingCommand::Exit(_), StateSeat::Actor { is_exited, .. }) => *is_exited = true,
            (TrainingCommand::Form(placement), _) => {
                let stamp = placement.stamp;
                let checked = self.oracle.state_stamp(entry.job, &mut entry.program.newest, stamp);
                let id = entry.id.clone();
                self.demand(checked.map_err(|error| format!("{error} at {id}")));
            }
            _ => {}
        }
        self.command(process, command);
        Ok(())
    }

    /// Sets or clears the pause flag. Returns the boundary that the thread has reached.
    pub(crate) fn set_pause_flag(&mut self, process: u32, is_set: bool) -> u64 {
        let program = &mut self.processes[process as usize].program;
        program.set_pause_flag(is_set, self.now);
        program.boundary
    }

    pub(crate) fn clear_boundary(&mut self, process: u32) {
        let program = &mut self.processes[process as usize].program;
        program.boundary = 0;
        program.paces.samples.begin_generation();
    }

    pub(crate) fn progress_of(&mut self, process: u32) -> TrainingProgress {
        let digests = self.take_digests(process);
        let entry = &mut self.processes[process as usize];
        let now = entry.clock.local(self.now);
        // Medians are dear, and most of them would not be told.
        let is_told = entry.state.core().is_none_or(|core| core.is_step_time_due(now));
        let noises = self.link_noises(process);
        let steps = is_told.then(|| self.step_times_of(process)).flatten();
        let links =
            steps.map_or_else(Vec::new, |steps| self.link_paces_of(process, steps, &noises));
        let saved = self.processes[process as usize].program.saved.as_ref();
        let progress = TrainingProgress {
            step: Step(saved.map_or(0, |saved| saved.model.step)),
            note: String::new(),
            reported: ReportedValues::default(),
            position: self.position_of(process),
            steps,
            links,
            digests,
            moved: None,
        };
        self.talk(process, progress)
    }

    /// Delivers the training thread's message to the actor's mailbox.
    pub(in crate::cores) fn tell_state_actor(&mut self, process: u32, tell: ThreadTell) {
        let entry = &self.processes[process as usize];
        let Some(node) = entry.state.node() else { return };
        node.hear_thread(match tell {
            ThreadTell::Event(event) => ThreadMessage::Event(event),
            ThreadTell::Boundary(boundary) => {
                ThreadMessage::Boundary { stamp: entry.program.stamp, boundary }
            }
            ThreadTell::Progress => ThreadMessage::FirstCommit,
            ThreadTell::Checkpoint(outcome) => ThreadMessage::Checkpoint(outcome),
        });
    }

    /// Whether the answer at a boundary comes as a command.
    pub(in crate::cores) const fn answers_by_command(&self) -> bool {
        self.hub.is_some()
    }
}
