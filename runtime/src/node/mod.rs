//! A node: the state that all actors of one process (in the simulation: of one simulated node) share. It knows
//! which actors are published here, passes frames between them and the transport, tells them about links, and
//! provides time and randomness. Made by the process's shell, or by the simulation.

mod asks;
mod inbound;
mod links;
mod many;
mod outbox;
mod returns;
mod routes;
mod tally;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::SystemTime;

use actix::Recipient;
use elastic_protocol::{ActorId, ActorName, NodeId, Time, WireMessage, WireRequest};
use rand_chacha::ChaCha8Rng;
use tokio::sync::mpsc;

pub use self::asks::ASKS_MAX;
pub(crate) use self::asks::{AskTable, Resolution, Resolve};
pub use self::links::{LinkChanged, LinkState};
pub use self::outbox::QUESTIONS_MAX;
pub(crate) use self::outbox::{NodeCommand, NodeOutbox};
pub(crate) use self::returns::ReturnSlot;
use self::returns::Returns;
pub use self::routes::Routes;
pub use self::tally::{FaultCounts, NodeFault};
use self::{links::LinkTable, routes::RouteTable, tally::FaultTally};
use crate::actor_ref::ActorRef;
use crate::clock::{Clock, wall_clock};
use crate::delivery::{Question, ReplyTo};
use crate::failure::UndeliveredReason;
use crate::mailbox::MailboxGauge;
use crate::random;
use crate::transport::{Transport, TransportSink};

/// A handle on the node; clones share it. It stays on the node's thread.
#[derive(Clone)]
pub struct NodeHandle {
    pub(crate) inner: Rc<Node>,
}

pub(crate) struct Node {
    pub(crate) local: NodeId,
    seed: u64,
    clock: Clock,
    wall_clock: Box<dyn Fn() -> SystemTime>,
    pub(crate) transport: RefCell<Option<Rc<dyn Transport>>>,
    routes: RefCell<RouteTable>,
    links: RefCell<LinkTable>,
    pub(crate) asks: RefCell<AskTable>,
    pub(crate) returns: RefCell<Returns>,
    tally: RefCell<FaultTally>,
    pub(crate) outbox: mpsc::Sender<NodeCommand>,
    unread: Cell<Option<mpsc::Receiver<NodeCommand>>>,
}

impl Node {
    pub(crate) fn tell_here<M: WireMessage>(
        &self,
        name: ActorName,
        from: NodeId,
        message: M,
    ) -> Result<(), (M, UndeliveredReason)> {
        self.routes.borrow().tell(name, from, message)
    }

    pub(crate) fn ask_here<R: WireRequest>(
        &self,
        name: ActorName,
        from: NodeId,
        request: R,
        reply: ReplyTo<R>,
    ) -> Result<(), (Question<R>, UndeliveredReason)> {
        self.routes.borrow().ask(name, from, request, reply)
    }
}

impl NodeHandle {
    /// A node without a transport: its actors reach each other only. Its clock starts now. All its random
    /// streams come from `seed`, which is from the operating system in production, and from the run's seed in
    /// the simulation.
    pub fn new(local: NodeId, seed: u64) -> Self {
        Self::with_clocks(local, seed, Clock::start(), wall_clock)
    }

    /// Like `new`, with clocks of the caller's: the simulation's clocks are moved by its own time, each at its
    /// rate.
    pub fn with_clocks(
        local: NodeId,
        seed: u64,
        clock: Clock,
        wall_clock: impl Fn() -> SystemTime + 'static,
    ) -> Self {
        let (outbox, unread) = mpsc::channel(outbox::COMMANDS_MAX);
        let inner = Rc::new(Node {
            local,
            seed,
            clock,
            wall_clock: Box::new(wall_clock),
            transport: RefCell::new(None),
            routes: RefCell::default(),
            links: RefCell::default(),
            asks: RefCell::default(),
            returns: RefCell::default(),
            tally: RefCell::default(),
            outbox,
            unread: Cell::new(Some(unread)),
        });
        Self { inner }
    }

    /// Gives the node its transport, and starts the task that sends answers. Call it once, in the node's own
    /// `LocalSet` (inside a task of it, or under its `enter()` guard), before the transport reports any event.
    ///
    /// # Panics
    /// If the transport is another node's, or there is no `LocalSet`.
    pub fn attach(&self, transport: Rc<dyn Transport>) {
        assert_eq!(transport.local(), self.inner.local, "the transport of another node");
        self.inner.transport.replace(Some(transport));
        if let Some(unread) = self.inner.unread.take() {
            tokio::task::spawn_local(NodeOutbox::new(Rc::downgrade(&self.inner), unread).run());
        }
    }

    /// The sink to give to the transport. It does not keep the node alive.
    pub fn sink(&self) -> TransportSink {
        let node: Weak<Node> = Rc::downgrade(&self.inner);
        Rc::new(move |event| {
            if let Some(inner) = node.upgrade() {
                Self { inner }.handle_event(event);
            }
        })
    }

    /// This node's id.
    pub fn local(&self) -> &NodeId {
        &self.inner.local
    }

    /// The id of an actor of this node.
    pub fn id(&self, name: ActorName) -> ActorId {
        ActorId::new(self.inner.local.clone(), name)
    }

    /// Publishes an actor under a name, in place of the former one (such as the life before a restart).
    /// References find actors by name at each send, so they reach the new one.
    ///
    /// ```
    /// # use elastic_protocol::{ActorName};
    /// # use elastic_runtime::{NodeHandle, Routes};
    /// # use elastic_protocol::messages::AgentToDriver;
    /// # fn publish<A>(node: &NodeHandle, driver: &actix::Addr<A>)
    /// # where A: actix::Actor<Context = actix::Context<A>>
    /// #     + actix::Handler<elastic_runtime::Delivery<AgentToDriver>> {
    /// node.register(ActorName::DRIVER, Routes::new().tell::<AgentToDriver>(driver.clone().recipient()));
    /// # }
    /// ```
    pub fn register(&self, name: ActorName, routes: Routes) {
        self.inner.routes.borrow_mut().insert(name, routes);
    }

    /// Withdraws a name: messages that are sent to it from now on are not delivered.
    pub fn unregister(&self, name: ActorName) {
        self.inner.routes.borrow_mut().remove(name);
    }

    /// A reference to an actor, on this node or another: the same type for both.
    pub fn reference<M>(&self, id: ActorId) -> ActorRef<M> {
        ActorRef::new(id, self.clone())
    }

    /// Reports each change of a link to `subscriber` from now on, and first the current sessions
    /// ([`LinkEvent::Up`](crate::transport::LinkEvent::Up) for each), so that a restarted subscriber misses
    /// nothing. Subscribers are told in the order in which they subscribed. The mailbox bound does not hold for
    /// these reports: a link changes a few times per deadline, and a lost change would never be noticed.
    pub fn subscribe_links(&self, subscriber: Recipient<LinkChanged>) {
        self.inner.links.borrow_mut().subscribe(subscriber);
    }

    /// The current sessions.
    pub fn links(&self) -> Vec<(NodeId, LinkState)> {
        self.inner.links.borrow().states()
    }

    /// Ends the session with a peer, which is told the reason. Without a session this does nothing.
    pub fn close(&self, peer: &NodeId, reason: &str) {
        let transport = self.inner.transport.borrow().clone();
        if let Some(transport) = transport {
            transport.close(peer, reason);
        }
    }

    /// Counts of dropped frames: by peer for open sessions, in sum for closed ones.
    pub fn faults(&self) -> FaultCounts {
        self.inner.tally.borrow().counts()
    }

    /// Delivery counts of the published actors' mailboxes.
    pub fn mailboxes(&self) -> BTreeMap<ActorName, MailboxGauge> {
        self.inner.routes.borrow().gauges()
    }

    /// Time since the node's start.
    pub fn now(&self) -> Time {
        self.inner.clock.now()
    }

    /// The clock behind [`NodeHandle::now`].
    pub fn clock(&self) -> Clock {
        self.inner.clock
    }

    /// The wall clock: for what people read, never for decisions.
    pub fn wall_clock(&self) -> SystemTime {
        (self.inner.wall_clock)()
    }

    /// The random stream `name`, `index` of this node. The same arguments give the same numbers from the
    /// start: take a stream once and keep it.
    pub fn random(&self, name: &str, index: u64) -> ChaCha8Rng {
        random::stream(self.inner.seed, name, index)
    }
}
