//! Tests of the agent's actor between a driver node and processes: stubs under a paused clock, and real
//! processes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, Context, Handler, Recipient};
use bytes::Bytes;
use elastic_protocol::messages::{AgentToDriver, DriverToAgent, LibraryTrace, StoppedBy};
use elastic_protocol::{
    ActorId, ActorName, Deadlines, ExitStatus, HostName, Incarnation, JobId, NodeId, NodeName,
    ProgramSpec, Term, WorkerId,
};
use elastic_runtime::transport::{
    Conversation, LinkEvent, LossReason, SendError, Transport, TransportEvent,
};
use elastic_runtime::{ActorRef, Delivery, NodeHandle, Routes, spawn_child, system};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::core::{AgentSettings, LastWords, SpawnOrder, StopSignal};
use super::*;

/// Timeout that a busy machine keeps; no test waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(30);

/// Carries frames between the two nodes of a test, in order, and reports closed sessions.
struct Wire {
    local: NodeId,
    frames: mpsc::UnboundedSender<(NodeId, TransportEvent)>,
    closed: Rc<RefCell<Vec<String>>>,
}

impl Transport for Wire {
    fn local(&self) -> NodeId {
        self.local.clone()
    }

    fn send(&self, to: &NodeId, conversation: Conversation, frame: Bytes) -> Result<(), SendError> {
        let from = self.local.clone();
        let event = TransportEvent::Frame { from, conversation, frame };
        let _ = self.frames.send((to.clone(), event));
        Ok(())
    }

    fn close(&self, _peer: &NodeId, reason: &str) {
        self.closed.borrow_mut().push(reason.to_owned());
    }
}

/// The driver's side: passes on the messages of agents.
struct Driver(mpsc::UnboundedSender<AgentToDriver>);

impl Actor for Driver {
    type Context = Context<Self>;
}

impl Handler<Delivery<AgentToDriver>> for Driver {
    type Result = ();

    fn handle(&mut self, delivery: Delivery<AgentToDriver>, _ctx: &mut Context<Self>) {
        let _ = self.0.send(delivery.message);
    }
}

/// Simulated processes, kept in a table: they start at once, and end on SIGKILL only.
#[derive(Default)]
struct Stubborn(BTreeMap<WorkerId, Recipient<ProcessEvent>>);

impl ProcessPort for Stubborn {
    fn spawn(&mut self, order: SpawnOrder, events: Recipient<ProcessEvent>) {
        let worker = order.worker;
        events.do_send(ProcessEvent::Spawned { worker: worker.clone(), result: Ok(100) });
        self.0.insert(worker, events);
    }

    fn signal(&mut self, worker: &WorkerId, signal: StopSignal) {
        if signal == StopSignal::Terminate {
            return;
        }
        if let Some(events) = self.0.remove(worker) {
            let (worker, status) = (worker.clone(), ExitStatus::Signal(9));
            events.do_send(ProcessEvent::Exited {
                worker: worker.clone(),
                status,
                library: LibraryTrace::Unseen,
            });
            let said = LastWords::default();
            events.do_send(ProcessEvent::LastWords { worker, said });
        }
    }

    fn inspect(&mut self, _: &WorkerId, _: bool, _: Recipient<ProcessEvent>) {}

    fn check_health(&mut self, _: String, _: Duration, _: Recipient<ProcessEvent>) {}
}

struct Cluster {
    agent_node: NodeHandle,
    driver_node: NodeHandle,
    events: mpsc::UnboundedSender<(NodeId, TransportEvent)>,
    closed: Rc<RefCell<Vec<String>>>,
    agent: Addr<AgentActor>,
    orders: ActorRef<DriverToAgent>,
    heard: mpsc::UnboundedReceiver<AgentToDriver>,
    end: oneshot::Receiver<AgentExit>,
}

fn host() -> HostName {
    HostName::new("a").expect("a valid name")
}

fn worker() -> WorkerId {
    WorkerId { host: host(), slot: 0, incarnation: Incarnation(1) }
}

impl Cluster {
    fn new(processes: Box<dyn ProcessPort>) -> Self {
        let name = |name| NodeId { name, incarnation: Incarnation(1) };
        let (agent_id, driver_id) = (name(NodeName::Agent(host())), name(NodeName::Driver));
        let (events, mut carried) = mpsc::unbounded_channel::<(NodeId, TransportEvent)>();
        let closed = Rc::<RefCell<Vec<String>>>::default();
        let node = |local: &NodeId| {
            let node = NodeHandle::new(local.clone(), 7);
            let (frames, closed) = (events.clone(), closed.clone());
            node.attach(Rc::new(Wire { local: local.clone(), frames, closed }));
            node
        };
        let (agent_node, driver_node) = (node(&agent_id), node(&driver_id));
        let sinks = BTreeMap::from([
            (agent_id.clone(), agent_node.sink()),
            (driver_id, driver_node.sink()),
        ]);
        tokio::task::spawn_local(async move {
            while let Some((to, event)) = carried.recv().await {
                sinks[&to](event);
            }
        });
        let (words, heard) = mpsc::unbounded_channel();
        let driver = spawn_child(|_ctx| Driver(words), |_exit| {});
        driver_node
            .register(ActorName::DRIVER, Routes::new().tell::<AgentToDriver>(driver.recipient()));
        let (told, end) = oneshot::channel();
        let settings = AgentSettings::new(host(), 1);
        let on_end = move |end| drop(told.send(end));
        let its_node = agent_node.clone();
        let agent =
            spawn_child(|_ctx| AgentActor::new(its_node, settings, processes, on_end), |_exit| {});
        let orders = driver_node.reference(ActorId::new(agent_id, ActorName::AGENT));
        let cluster = Self { agent_node, driver_node, events, closed, agent, orders, heard, end };
        cluster.link(&LinkEvent::Up);
        cluster
    }

    fn link(&self, event: &LinkEvent) {
        for (to, peer) in
            [(&self.agent_node, &self.driver_node), (&self.driver_node, &self.agent_node)]
        {
            let event = TransportEvent::Link { peer: peer.local().clone(), event: event.clone() };
            let _ = self.events.send((to.local().clone(), event));
        }
    }

    fn order(&self, order: DriverToAgent) {
        self.orders.tell(order).expect("the wire takes everything");
    }

    fn welcome(&self, argv: &[&str]) {
        let program = ProgramSpec {
            argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
            environment: vec![],
        };
        self.order(DriverToAgent::Welcome {
            job: JobId(uuid::Uuid::from_u128(1)),
            term: Term(1),
            program,
            deadlines: Deadlines {
                orphan_training: Some(Deadlines::default().orphan),
                ..Deadlines::default()
            },
            output: Box::default(),
        });
        let (environment, credential) = (vec![], "s3cret".to_owned());
        self.order(DriverToAgent::Start { worker: worker(), environment, place: None, credential });
    }

    fn stop(&self, grace_ms: u64) {
        let reason = "test".to_owned();
        self.order(DriverToAgent::Stop { worker: worker(), grace_ms, reason });
    }

    async fn hears(&mut self) -> AgentToDriver {
        let heard = timeout(PATIENCE, self.heard.recv()).await;
        heard.expect("a word in time").expect("the driver lives")
    }

    async fn ends(self) -> AgentExit {
        let end = timeout(PATIENCE, self.end).await;
        end.expect("an end in time").expect("the agent tells its end")
    }
}

fn killed_after_grace() -> AgentToDriver {
    AgentToDriver::Exited {
        worker: worker(),
        status: ExitStatus::Signal(9),
        stopped_by: Some(StoppedBy::Driver(Term(1))),
        killed_after_grace: true,
        library: LibraryTrace::Unseen,
    }
}

fn join() -> AgentToDriver {
    AgentToDriver::Join {
        host: host(),
        slots: 1,
        role: "default".to_owned(),
        meeting: None,
        run_id: None,
        nodes: None,
        live: vec![],
    }
}

#[test]
fn a_worker_from_start_to_end() {
    system::run_paused(async {
        let mut cluster = Cluster::new(Box::new(Stubborn::default()));
        assert_eq!(cluster.hears().await, join());
        cluster.welcome(&["train"]);
        assert_eq!(cluster.hears().await, AgentToDriver::Started { worker: worker(), pid: 100 });
        let before = cluster.agent_node.now();
        cluster.stop(700);
        assert_eq!(cluster.hears().await, killed_after_grace());
        assert_eq!(cluster.agent_node.now().since(before).as_millis(), 700, "X-9");
        cluster.order(DriverToAgent::Leave { code: 3, reason: "over".to_owned() });
        let closed = cluster.closed.clone();
        assert_eq!(cluster.ends().await, AgentExit { code: 3, reason: "over".to_owned() });
        assert_eq!(*closed.borrow(), ["over"]);
    });
}

#[test]
fn an_end_without_a_link_is_told_when_the_driver_is_back() {
    system::run_paused(async {
        let mut cluster = Cluster::new(Box::new(Stubborn::default()));
        assert_eq!(cluster.hears().await, join());
        cluster.welcome(&["train"]);
        cluster.stop(5_000);
        assert!(matches!(cluster.hears().await, AgentToDriver::Started { .. }));
        cluster.link(&LinkEvent::Lost { reason: LossReason::Forgotten, silent_ms: 0 });
        tokio::time::sleep(Duration::from_secs(6)).await;
        cluster.link(&LinkEvent::Up);
        assert_eq!(cluster.hears().await, join());
        cluster.welcome(&["train"]);
        assert_eq!(cluster.hears().await, killed_after_grace());
    });
}

#[test]
fn x_17_the_operator_is_heard_twice() {
    system::run_paused(async {
        let mut cluster = Cluster::new(Box::new(Stubborn::default()));
        assert_eq!(cluster.hears().await, join());
        cluster.welcome(&["train"]);
        assert!(matches!(cluster.hears().await, AgentToDriver::Started { .. }));
        let drain = Drain { reason: "SIGTERM".to_owned(), code: 143 };
        cluster.agent.do_send(drain.clone());
        let asked = AgentToDriver::Drain { reason: "SIGTERM".to_owned() };
        assert_eq!(cluster.hears().await, asked);
        cluster.agent.do_send(drain);
        assert_eq!(cluster.ends().await.code, 143);
    });
}

#[test]
fn an_orphan_ends_in_time() {
    system::run_paused(async {
        let mut cluster = Cluster::new(Box::new(Stubborn::default()));
        assert_eq!(cluster.hears().await, join());
        cluster.welcome(&["train"]);
        assert!(matches!(cluster.hears().await, AgentToDriver::Started { .. }));
        cluster.link(&LinkEvent::Lost { reason: LossReason::Forgotten, silent_ms: 0 });
        let node = cluster.agent_node.clone();
        let wait = Duration::from_secs(40);
        let end = timeout(wait, cluster.end).await.expect("in time").expect("it tells its end");
        assert_eq!(end.reason, "the driver has been gone for 30000 ms");
        assert_eq!((end.code, node.now().0 / 1_000_000_000), (1, 35));
    });
}

#[test]
fn x_9_a_real_worker_that_ignores_sigterm() {
    let run = system::run(async {
        let show =
            StandardStreams::with_writers(Box::new(std::io::sink()), Box::new(std::io::sink()));
        let processes = SystemProcesses::new(Arc::new(show.expect("threads")));
        let mut cluster = Cluster::new(Box::new(processes));
        assert_eq!(cluster.hears().await, join());
        let folder = tempfile::tempdir().expect("a folder");
        let ready = folder.path().join("ready");
        let script = format!("trap '' TERM; echo > {}; while :; do sleep 1; done", ready.display());
        cluster.welcome(&["/bin/sh", "-c", &script]);
        assert!(matches!(cluster.hears().await, AgentToDriver::Started { .. }));
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !ready.exists() {
            assert!(tokio::time::Instant::now() < deadline, "the worker is not ready in time");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        cluster.stop(50);
        assert_eq!(cluster.hears().await, killed_after_grace());
    });
    run.expect("a runtime");
}
