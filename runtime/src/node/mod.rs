//! A node: what all actors of one process (in the simulation: of one simulated node) share. It knows which
//! actors are published here, passes frames between them and the transport, tells them about links, and
//! gives out time and randomness. Made by the process's shell, or by the simulation.

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
use elastic_protocol::{NodeId, Time};
use rand_chacha::ChaCha8Rng;
use tokio::sync::mpsc;

pub use self::asks::ASKS_MAX;
pub(crate) use self::asks::{AskTable, Resolution, Resolve};
pub use self::links::{LinkChanged, LinkState};
pub use self::outbox::QUESTIONS_MAX;
pub(crate) use self::outbox::{Command, Outbox};
pub(crate) use self::returns::ReturnSlot;
use self::returns::Returns;
pub use self::routes::Routes;
pub use self::tally::{Fault, FaultCounts};
use self::{links::Links, routes::RouteTable, tally::Tally};
use crate::actor_ref::ActorRef;
use crate::clock::{Clock, wall_clock};
use crate::delivery::{Question, ReplyTo};
use crate::failure::UndeliveredReason;
use crate::mailbox::MailboxGauge;
use crate::name::{ActorId, ActorName};
use crate::random;
use crate::transport::{Transport, TransportSink};
use crate::wire::{WireMessage, WireRequest};

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
    links: RefCell<Links>,
    pub(crate) asks: RefCell<AskTable>,
    pub(crate) returns: RefCell<Returns>,
    tally: RefCell<Tally>,
    pub(crate) outbox: mpsc::Sender<Command>,
    unread: Cell<Option<mpsc::Receiver<Command>>>,
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
    /// streams come from `seed`: from the operating system in production, from the run's seed in the
    /// simulation.
    pub fn new(local: NodeId, seed: u64) -> Self {
        Self::with_clocks(local, seed, Clock::start(), wall_clock)
    }

    /// The same with clocks of the caller's: the simulation gives some that its own time moves, each at its rate.
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
    /// `LocalSet` (inside a task of it, or under its `enter()` guard), before the transport tells of anything.
    ///
    /// # Panics
    /// If the transport is another node's, or no `LocalSet` is there.
    pub fn attach(&self, transport: Rc<dyn Transport>) {
        assert_eq!(transport.local(), self.inner.local, "the transport of another node");
        self.inner.transport.replace(Some(transport));
        if let Some(unread) = self.inner.unread.take() {
            tokio::task::spawn_local(Outbox::new(Rc::downgrade(&self.inner), unread).run());
        }
    }

    /// What to hand to the transport as its sink. It does not keep the node alive.
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

    /// Publishes an actor under a name. Whoever had the name before (say, the life before a restart) has it
    /// no more: references find actors by name at each send, so they reach the new one.
    ///
    /// ```
    /// # use elastic_runtime::{ActorName, NodeHandle, Routes};
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

    /// Takes a name back: what is sent to it from now on is not delivered.
    pub fn unregister(&self, name: ActorName) {
        self.inner.routes.borrow_mut().remove(name);
    }

    /// A reference to an actor, here or on another node: the same type for both.
    pub fn reference<M>(&self, id: ActorId) -> ActorRef<M> {
        ActorRef::new(id, self.clone())
    }

    /// Tells `subscriber` of each change of a link from now on, and first of the sessions that stand now
    /// ([`LinkEvent::Up`](crate::transport::LinkEvent::Up) for each), so that one that is restarted misses
    /// nothing. Subscribers are told in the order in which they subscribed. The mailbox bound does not hold
    /// for these: a link changes a few times per deadline, and a lost change would never be noticed.
    pub fn subscribe_links(&self, subscriber: Recipient<LinkChanged>) {
        self.inner.links.borrow_mut().subscribe(subscriber);
    }

    /// The sessions that stand now.
    pub fn links(&self) -> Vec<(NodeId, LinkState)> {
        self.inner.links.borrow().states()
    }

    /// Ends the session with a peer; the peer is told the reason. Without a session nothing happens.
    pub fn close(&self, peer: &NodeId, reason: &str) {
        let transport = self.inner.transport.borrow().clone();
        if let Some(transport) = transport {
            transport.close(peer, reason);
        }
    }

    /// What was dropped so far: by peer for sessions that stand, in sum for those that ended.
    pub fn faults(&self) -> FaultCounts {
        self.inner.tally.borrow().counts()
    }

    /// How the mailboxes of the published actors fare.
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
