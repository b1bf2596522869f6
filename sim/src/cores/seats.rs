//! Where the logic of a node sits: in a core that the world calls, or in the product's actors, which call the
//! world through their ports. Everything here is for the actors.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use elastic_host_manager::{DiscoveryError, HostsSnapshot};
use elastic_protocol::messages::DriverToWorker;
use elastic_protocol::{NodeId, NodeName, Stamp, Step, WorkerId};
use elastic_runtime::session::Limits;
use elastic_runtime::transport::{Conversation, LinkEvent, SendErrorReason, TransportEvent};
use elastic_runtime::{Exit, PanicRecord};
use elastic_worker::agent::core::{SpawnOrder, StopSignal};
use elastic_worker::state::core::{Progress, StateConfig, StateCore, TrainingCommand};
use elastic_worker::state::training::{Control, ThreadMessage};
use tokio::sync::oneshot;

use super::driver::DriverLife;
use super::network::{End, Frame, Lane, Owner};
use super::program::Program;
use super::state::Tell;
use super::wire::Packet;
use super::{Happening, MS, World};
use crate::actors::hub::Hub;
use crate::actors::{AgentNode, Birth, DriverNode, Side, StateNode};
use crate::dataset::mix;
use crate::options::Options;
use crate::report::Verdict;
use crate::trace::{Kind, Place, Recording};

/// Where a State's logic sits.
#[derive(Debug)]
pub(super) enum StateSeat {
    /// In a core that the world calls.
    Core(Box<StateCore>),
    /// In an actor: `config` until its process has come to the library, `node` from then on to the end.
    Actor { config: Option<Box<StateConfig>>, node: Option<StateNode>, is_exited: bool },
}

impl StateSeat {
    /// Whether it has told the training thread to leave `run`.
    pub(super) fn is_exited(&self) -> bool {
        match self {
            Self::Core(core) => core.is_exited(),
            Self::Actor { is_exited, .. } => *is_exited,
        }
    }

    /// The generation that it is in; of an actor, the one that its program was told last.
    pub(super) fn stamp(&self, program: &Program) -> Stamp {
        match self {
            Self::Core(core) => core.stamp(),
            Self::Actor { .. } => program.newest,
        }
    }

    pub(super) fn core(&mut self) -> Option<&mut StateCore> {
        match self {
            Self::Core(core) => Some(core),
            Self::Actor { .. } => None,
        }
    }

    pub(super) const fn node(&self) -> Option<&StateNode> {
        match self {
            Self::Core(_) => None,
            Self::Actor { node, .. } => node.as_ref(),
        }
    }

    /// Its process has ended.
    pub(super) fn end(&mut self) {
        if let Self::Actor { node, .. } = self {
            *node = None;
        }
    }
}

/// Of the world, for the pump.
impl World {
    /// A world whose nodes are actors.
    pub(crate) fn with_actors(
        options: &Options,
        recording: Recording,
        hub: &Rc<Hub>,
    ) -> Rc<RefCell<Self>> {
        let mut world = Self::prepare(options, recording, Some(hub));
        world.begin();
        hub.connect(world)
    }

    /// Does what is due; the next moment of which something is known, or none if the run is over.
    pub(crate) fn advance(&mut self, now: u64) -> Option<u64> {
        self.run_until(now);
        self.now = self.now.max(now);
        if self.failure.is_some() || self.is_done { None } else { self.agenda.next_at() }
    }

    /// A node calls.
    pub(crate) fn called<R>(&mut self, now: u64, call: impl FnOnce(&mut Self) -> R) -> (R, u64) {
        self.now = self.now.max(now);
        let result = call(self);
        let next =
            if self.failure.is_some() { 0 } else { self.agenda.next_at().unwrap_or(u64::MAX) };
        (result, next)
    }

    pub(crate) fn node_panicked(&mut self, panic: &PanicRecord) {
        self.fail_safety(format!("a node panicked: {panic}"));
    }

    pub(crate) fn actor_failed(&mut self, who: &str, exit: &Exit) {
        self.fail_safety(format!("{who} {exit}"));
    }

    /// Asks the driver what it waits for, if that is what a failed run is about.
    pub(crate) fn status_question(
        &self,
        within: Duration,
    ) -> Option<impl Future<Output = String> + use<>> {
        let is_asked =
            self.failure.as_ref().is_some_and(|failure| failure.verdict == Verdict::Liveness);
        let driver = self.driver.node().filter(|_| is_asked && self.driver.runs());
        driver.map(|driver| driver.status(within))
    }

    pub(crate) fn explain_failure(&mut self, words: String) {
        if let Some(failure) = &mut self.failure {
            failure.reason += &words;
        }
    }

    /// Drops all nodes, and reports.
    pub(crate) fn end(&mut self) -> crate::report::Report {
        self.driver.seat = None;
        self.former.clear();
        for host in &mut self.hosts {
            host.agent = None;
        }
        for process in &mut self.processes {
            process.state.end();
        }
        self.report()
    }
}

/// The network, from the nodes' side.
impl World {
    fn lane(end: End) -> Lane {
        match end {
            End::Driver => Lane::ToPeer,
            End::Peer => Lane::ToDriver,
        }
    }

    fn place_of_end(&self, side: Side, peer: &NodeId) -> Option<(u32, End)> {
        match side {
            Side::Peer { link } => Some((link, End::Peer)),
            Side::Driver { .. } => {
                let number = peer.incarnation.0;
                let link = match peer.name {
                    NodeName::Agent(_) => *self.agent_links.get(number as usize)?,
                    NodeName::Worker(..) => self.link_of_incarnation(self.driver.job, number)?,
                    _ => return None,
                };
                let is_same = self.links[link as usize].node.as_ref() == Some(peer);
                is_same.then_some((link, End::Driver))
            }
        }
    }

    /// Does something as the node that is at this side.
    pub(crate) fn at_side<R>(&mut self, side: Side, act: impl FnOnce(&mut Self) -> R) -> Option<R> {
        match side {
            Side::Driver { life } => self.in_life(life, act),
            Side::Peer { .. } => Some(act(self)),
        }
    }

    pub(crate) fn node_sends(
        &mut self,
        side: Side,
        to: &NodeId,
        conversation: Conversation,
        bytes: &Bytes,
    ) -> Result<(), SendErrorReason> {
        let frame = self.wiretap.read(bytes);
        if let Some(Frame::ToWorker(DriverToWorker::Assign(formation))) = &frame {
            if formation.stamp > self.driver.stamp {
                match self.oracle.members_told(formation) {
                    Ok(members) => self.open_generation(formation.stamp, &members),
                    Err(reason) => self.fail_safety(reason),
                }
            }
            let checked = match self.worker_named(to) {
                Some(worker) => self.oracle.assigned(formation, &worker),
                None => Err(format!("an assignment is sent to {to}")),
            };
            self.demand(checked);
        }
        if let Some(Frame::ToWorker(DriverToWorker::Go { stamp })) = &frame
            && *stamp > self.wiretap.gone
        {
            self.wiretap.gone = *stamp;
            let checked = self.oracle.barrier_opened(*stamp);
            self.demand(checked);
        }
        let Some((link, end)) = self.place_of_end(side, to) else {
            return Err(SendErrorReason::NoSession);
        };
        if let Some(Frame::FromWorker(message)) = &frame
            && let Owner::Worker { process } = self.links[link as usize].owner
        {
            self.check_said(process, message);
        }
        let lane = Self::lane(end);
        if self.links[link as usize].queued(lane) >= Limits::DEFAULT.control_frames {
            return Err(SendErrorReason::Full);
        }
        let is_goodbye = matches!(
            frame,
            Some(Frame::ToWorker(DriverToWorker::Leave { .. } | DriverToWorker::Finished { .. }))
        );
        let code = frame.as_ref().map_or(0, Frame::code);
        let vote = match frame {
            Some(Frame::Vote(vote)) => Some(Box::new(vote)),
            _ => None,
        };
        let packet = Packet { bytes: bytes.clone(), conversation, code, is_goodbye, vote };
        self.send(link, lane, Frame::Wire(packet)).map_err(|_frame| SendErrorReason::NoSession)
    }

    fn worker_named(&self, node: &NodeId) -> Option<WorkerId> {
        let NodeName::Worker(host, slot) = &node.name else { return None };
        Some(WorkerId { host: host.clone(), slot: *slot, incarnation: node.incarnation })
    }

    /// An end closes its session for good; for how long it had not heard the other, if there was a session.
    pub(crate) fn node_closes(&mut self, side: Side, peer: &NodeId) -> Option<u64> {
        let (link, end) = self.place_of_end(side, peer)?;
        self.close(link, end)
    }

    fn tell_node(&self, link: u32, end: End, event: TransportEvent) {
        match (end, self.links[link as usize].owner) {
            (End::Driver, _) => {
                let life = self.life(self.links[link as usize].life);
                if let Some(driver) = life.and_then(DriverLife::node) {
                    driver.tell(event);
                }
            }
            (End::Peer, Owner::Agent { host, life }) => {
                let agent = self.hosts[host as usize].agent.as_ref();
                let agent = agent.filter(|agent| agent.life == life);
                if let Some(node) = agent.and_then(|agent| agent.node()) {
                    node.tell(event);
                }
            }
            (End::Peer, Owner::Worker { process }) => {
                if let Some(node) = self.processes[process as usize].state.node() {
                    node.tell(event);
                }
            }
        }
    }

    /// Whom an end of a link is linked with.
    fn other_end(&self, link: u32, end: End) -> Option<NodeId> {
        match end {
            End::Driver => self.links[link as usize].node.clone(),
            End::Peer => Some(DriverNode::id(self.links[link as usize].life)),
        }
    }

    pub(super) fn tell_node_of_link(&mut self, link: u32, end: End, event: &LinkEvent) {
        if let Some(peer) = self.other_end(link, end) {
            self.tell_node(link, end, TransportEvent::Link { peer, event: event.clone() });
        }
    }

    pub(super) fn hand_packet(&mut self, link: u32, end: End, packet: Packet) {
        if packet.is_goodbye
            && let Owner::Worker { process } = self.links[link as usize].owner
        {
            self.processes[process as usize].is_leaving = true;
        }
        if let Some(vote) = &packet.vote {
            self.oracle.voted(vote);
        }
        if let Some(from) = self.other_end(link, end) {
            let Packet { bytes: frame, conversation, .. } = packet;
            self.tell_node(link, end, TransportEvent::Frame { from, conversation, frame });
        }
    }

    pub(super) fn hand_back(&mut self, link: u32, end: End, packet: Packet) {
        if let Some(to) = self.other_end(link, end) {
            let Packet { bytes: frame, conversation, .. } = packet;
            self.tell_node(link, end, TransportEvent::Undeliverable { to, conversation, frame });
        }
    }
}

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
    pub(super) fn start_agent_node(
        &mut self,
        hub: &Rc<Hub>,
        (host, life, link): (u32, u32, u32),
        settings: elastic_worker::agent::core::AgentSettings,
    ) -> AgentNode {
        let id = self.enrol(link);
        let seed = mix(self.options.seed, 1 << 32 | u64::from(link));
        let (side, ppm) = (Side::Peer { link }, self.hosts[host as usize].ppm);
        AgentNode::start(hub, Birth { id, seed, side, ppm }, (host, life), settings)
    }

    pub(crate) fn agent_spawns(&mut self, host: u32, order: SpawnOrder) {
        let wait = self.draw_ns(MS, 50 * MS);
        let Some(agent) = self.hosts[host as usize].agent.as_mut() else { return };
        let (life, token) = (agent.life, agent.keep_order(order));
        self.agenda.push(self.now + wait, Happening::Spawned { host, life, token });
    }

    pub(crate) fn agent_signals(&mut self, host: u32, worker: &WorkerId, signal: StopSignal) {
        if let Some(process) = self.process_of(self.job_of_agent(host), worker) {
            let wait = self.draw_ns(20_000, 300_000);
            let kills = signal == StopSignal::Kill;
            self.agenda.push(self.now + wait, Happening::Signalled { process, kills });
        }
    }

    pub(crate) fn agent_ended(&mut self, host: u32, life: u32, code: i32, reason: String) {
        if self.agent_mut(host, life).is_none() {
            return;
        }
        let numbers = (u64::from(code.unsigned_abs()), 0);
        self.record(Kind::Exit, Place::agent(host), numbers, || reason);
        self.end_agent(host, true);
        self.boot_agent_later(host);
    }
}

/// Workers' nodes.
impl World {
    /// Its process has come to the library, which starts the State's actor.
    pub(super) fn start_state_node(&mut self, process: u32) {
        let Some(hub) = self.hub.clone() else { return };
        let entry = &mut self.processes[process as usize];
        let (side, id) = (Side::Peer { link: entry.link }, NodeId::worker(&entry.id));
        let ppm = self.hosts[entry.host as usize].ppm;
        let StateSeat::Actor { config, node, .. } = &mut entry.state else { return };
        let Some(config) = config.take() else { return };
        let seed = mix(self.options.seed, 2 << 32 | u64::from(process));
        let birth = Birth { id, seed, side, ppm };
        *node = Some(StateNode::start(&hub, birth, process, *config));
    }

    pub(crate) fn state_commands(
        &mut self,
        process: u32,
        command: TrainingCommand,
    ) -> Result<(), String> {
        let entry = &mut self.processes[process as usize];
        let waiting = entry.program.commands_waiting();
        if waiting >= Control::COMMANDS_MAX {
            return Err(format!("{waiting} commands wait already"));
        }
        match (&command, &mut entry.state) {
            (TrainingCommand::Exit(_), StateSeat::Actor { is_exited, .. }) => *is_exited = true,
            (TrainingCommand::Form(placement), _) => {
                let stamp = placement.stamp;
                let checked = self.oracle.state_stamp(&mut entry.program.newest, stamp);
                let id = entry.id.clone();
                self.demand(checked.map_err(|error| format!("{error} at {id}")));
            }
            _ => {}
        }
        self.command(process, command);
        Ok(())
    }

    /// The boundary that the thread has reached.
    pub(crate) fn set_pause_flag(&mut self, process: u32, is_set: bool) -> u64 {
        let program = &mut self.processes[process as usize].program;
        program.set_pause_flag(is_set, self.now);
        program.boundary
    }

    pub(crate) fn clear_boundary(&mut self, process: u32) {
        self.processes[process as usize].program.boundary = 0;
    }

    pub(crate) fn progress_of(&self, process: u32) -> Progress {
        let saved = self.processes[process as usize].program.saved.as_ref();
        Progress { step: Step(saved.map_or(0, |saved| saved.model.step)), note: String::new() }
    }

    /// The training thread's word reaches the actor's mailbox.
    pub(super) fn tell_state_actor(&mut self, process: u32, tell: Tell) {
        let entry = &self.processes[process as usize];
        let Some(node) = entry.state.node() else { return };
        node.hear_thread(match tell {
            Tell::Event(event) => ThreadMessage::Event(event),
            Tell::Boundary(boundary) => {
                ThreadMessage::Boundary { stamp: entry.program.stamp, boundary }
            }
            Tell::Progress => ThreadMessage::FirstCommit,
        });
    }

    /// Whether a training thread that asks at a boundary gets its answer as a command.
    pub(super) const fn answers_by_command(&self) -> bool {
        self.hub.is_some()
    }
}
