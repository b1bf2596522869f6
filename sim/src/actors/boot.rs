//! Nodes with their actors, started as the product's processes start them. Called by the world where nodes are actors.

use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use actix::Addr;
use elastic_agent::core::AgentSettings;
use elastic_agent::{AgentActor, Drain, HostChange, ProcessEvent};
use elastic_driver::journal::Tenure;
use elastic_driver::recording::{DriverRecorder, DriverStart, RecordedDriver};
use elastic_driver::{Driver, DriverConfig, DriverParts, JournalPort, StopJob};
use elastic_host_manager::HostManagerConfig;
use elastic_protocol::messages::{ClientRequest, ClientResponse};
use elastic_protocol::{ActorName, Incarnation, NodeId, NodeName, Term};
use elastic_runtime::transport::TransportEvent;
use elastic_runtime::{ChildExit, NodeHandle, OffloadPort, spawn_child};
use elastic_worker::state::actor::{Depart, StateActor};
use elastic_worker::state::core::StateConfig;
use elastic_worker::state::training::ThreadMessage;

use super::hub::{Hub, Port};
use super::node::{NodeBirth, SimulatedNode};
use super::ports::{NoCredentials, SimDiscovery, SimDisk, SimObserver, SimProcesses, SimTraining};
use super::transport::Side;
use crate::state_dir::SimulatedJournal;

/// Reports an actor's abnormal end to the world.
fn watch(port: &Port, who: String) -> impl FnOnce(ChildExit) + use<> {
    let port = port.clone();
    move |exit| {
        if !exit.is_normal() {
            port.call(|world| world.actor_failed(&who, &exit));
        }
    }
}

/// The driver's node: driver, host manager and registry.
pub(crate) struct DriverNode {
    node: SimulatedNode,
    handle: NodeHandle,
    address: Addr<Driver>,
}

impl DriverNode {
    /// The driver's node id in a term.
    pub(crate) const fn id(term: Term) -> NodeId {
        NodeId { name: NodeName::Driver, incarnation: Incarnation(term.0) }
    }

    pub(crate) fn start(
        hub: &Rc<Hub>,
        (life, seed, ppm): (u32, u64, i64),
        (tenure, journal, recorder): (Tenure, SimulatedJournal, Option<DriverRecorder>),
        config: DriverConfig,
        host_manager: HostManagerConfig,
    ) -> Self {
        let id = Self::id(tenure.image.term);
        let birth = NodeBirth { id, seed, side: Side::Driver { life }, ppm };
        let (node, (handle, address)) = SimulatedNode::start(hub, birth, |node, port| {
            let random = node.random("driver", 0);
            let start = DriverStart::Journal { config, tenure: Box::new(tenure) };
            let wall = SystemTime::UNIX_EPOCH;
            let core = RecordedDriver::begin(start, random, node.now(), wall, recorder);
            let disk = OffloadPort::new(SimDisk { port: port.clone(), life });
            let parts = DriverParts {
                core,
                journal: Some(JournalPort::new(Box::new(journal), disk)),
                host_manager,
                discovery: Box::new(SimDiscovery { port: port.clone(), life }),
                credentials: Rc::new(NoCredentials),
                observer: Box::new(SimObserver { port: port.clone(), life }),
                permit: Box::new(|| true),
            };
            let address = Driver::start(node, parts, watch(port, "the driver".to_owned()));
            (node.clone(), address)
        });
        Self { node, handle, address }
    }

    pub(crate) fn tell(&self, event: TransportEvent) {
        self.node.tell(event);
    }

    /// Sends a signal to the driver's process.
    pub(crate) fn stop_job(&self, signal: i32) {
        self.address.do_send(StopJob { signal });
    }

    pub(crate) fn set_stopped(&self, is_stopped: bool) {
        self.node.set_stopped(is_stopped);
    }

    /// Asks the question of `elastic-node status`.
    pub(crate) fn status(&self, within: Duration) -> impl Future<Output = String> + use<> {
        let reference = self.handle.reference::<ClientRequest>(self.handle.id(ActorName::STATUS));
        let answer = reference.ask(ClientRequest::Status, within);
        async move {
            match answer.await {
                Ok(ClientResponse::Status(status)) => status.to_string(),
                Ok(answer) => format!("the driver answers something else: {answer:?}"),
                Err(error) => format!("the driver does not say: {error}"),
            }
        }
    }
}

/// A host's node: its agent.
pub(crate) struct AgentNode {
    node: SimulatedNode,
    address: Addr<AgentActor>,
}

impl AgentNode {
    pub(crate) fn start(
        hub: &Rc<Hub>,
        birth: NodeBirth,
        (host, life): (u32, u32),
        settings: AgentSettings,
    ) -> Self {
        let who = birth.id.to_string();
        let (node, address) = SimulatedNode::start(hub, birth, |node, port| {
            let processes = SimProcesses { port: port.clone(), host };
            let end_port = port.clone();
            let on_end = move |end: elastic_agent::AgentExit| {
                end_port.call(|world| world.agent_ended(host, life, end.code, end.reason));
            };
            let agent = AgentActor::new(node.clone(), settings, Box::new(processes), on_end);
            spawn_child(|_| agent, watch(port, who))
        });
        Self { node, address }
    }

    pub(crate) fn tell(&self, event: TransportEvent) {
        self.node.tell(event);
    }

    pub(crate) fn process_event(&self, event: ProcessEvent) {
        self.address.do_send(event);
    }

    pub(crate) fn host_changed(&self, change: HostChange) {
        self.address.do_send(change);
    }

    /// Sends SIGTERM to the agent.
    pub(crate) fn drain(&self) {
        self.address.do_send(Drain { reason: "SIGTERM".to_owned(), code: 143 });
    }

    pub(crate) fn set_stopped(&self, is_stopped: bool) {
        self.node.set_stopped(is_stopped);
    }
}

/// A worker's node: its State.
pub(crate) struct StateNode {
    node: SimulatedNode,
    address: Addr<StateActor>,
}

impl StateNode {
    pub(crate) fn start(
        hub: &Rc<Hub>,
        birth: NodeBirth,
        process: u32,
        config: StateConfig,
    ) -> Self {
        let who = format!("the State of {}", config.worker);
        let (node, address) = SimulatedNode::start(hub, birth, |node, port| {
            let training = SimTraining { port: port.clone(), process };
            let state = StateActor::new(node.clone(), config, training);
            spawn_child(|_| state, watch(port, who))
        });
        Self { node, address }
    }

    pub(crate) fn tell(&self, event: TransportEvent) {
        self.node.tell(event);
    }

    /// Delivers a message of the training thread.
    pub(crate) fn hear_thread(&self, message: ThreadMessage) {
        self.address.do_send(message);
    }

    /// Sends SIGTERM to the worker.
    pub(crate) fn depart(&self) {
        self.address.do_send(Depart);
    }

    pub(crate) fn set_stopped(&self, is_stopped: bool) {
        self.node.set_stopped(is_stopped);
    }
}

macro_rules! opaque_debug {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(stringify!($name))
            }
        }
    )*};
}

opaque_debug!(DriverNode, AgentNode, StateNode);
