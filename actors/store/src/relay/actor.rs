//! The relay's actor, in the agent's process: a thin shell over [`RelayCore`].

use std::collections::BTreeMap;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler, Message};
use elastic_protocol::{ActorId, ActorName, NodeId, NodeName, Time, WorkerId};
use elastic_runtime::transport::LinkEvent;
use elastic_runtime::{
    Delivery, LinkChanged, NodeHandle, Routes, TimedActor, TimerSlot, UndeliveredReason,
};
use tokio::sync::mpsc;

use super::core::{ConnectionOwner, RelayCore, RelayOutput};
use crate::actor::{CONVERSATION, RETRY_AFTER};
use crate::limits::PENDING_MAX;
use crate::messages::{ClientId, CloseCause, FromStore, ToStore};

/// Bound of the orders that wait at a connection: its answers that are not written, and one order to read on.
pub(super) const ORDERS_MAX: usize = PENDING_MAX + 1;

/// Interval between log messages about closed connections.
const FAULTS_TOLD_EVERY: Duration = Duration::from_secs(10);

/// Orders to a connection's task. The end of the channel closes the connection.
#[derive(Debug)]
pub(super) enum Order {
    Write(Vec<u8>),
    ReadOn,
}

/// The relay of an agent.
pub struct Relay {
    core: RelayCore,
    node: NodeHandle,
    timer: TimerSlot,
    driver: Option<NodeId>,
    connections: BTreeMap<ClientId, mpsc::Sender<Order>>,
    /// A message for which the transport had no room; no further one is fetched from the core.
    refused: Option<ToStore>,
    /// Time of the last log message about a closed connection, and their number since.
    told_at: Option<Time>,
    untold: u64,
}

impl Relay {
    /// A relay for an agent's node. `driver` is the driver whose session stands already, if one does.
    pub fn new(node: NodeHandle, driver: Option<NodeId>) -> Self {
        let mut core = RelayCore::new();
        if let Some(driver) = &driver {
            core.handle_up(node.now(), driver.clone());
        }
        let timer = TimerSlot::new(node.clock());
        let (connections, refused) = Default::default();
        Self { core, node, timer, driver, connections, refused, told_at: None, untold: 0 }
    }

    fn drain(&mut self, ctx: &mut Context<Self>) {
        while let Some(output) = self.core.poll_output() {
            match output {
                RelayOutput::Write { client, bytes } => self.order(client, Order::Write(bytes)),
                RelayOutput::ReadOn { client } => self.order(client, Order::ReadOn),
                RelayOutput::Close { client, worker, cause } => {
                    self.connections.remove(&client);
                    self.tell_closed(&worker, &cause);
                }
            }
        }
        let is_full = self.send_messages();
        let retry_at = is_full.then(|| self.node.now() + RETRY_AFTER);
        let at = self.core.poll_timeout().into_iter().chain(retry_at).min();
        self.timer.arm(ctx, at);
    }

    /// Sends as many messages as the transport has room for. Returns whether there are more.
    fn send_messages(&mut self) -> bool {
        let Some(driver) = &self.driver else {
            self.refused = None;
            return false;
        };
        let store = ActorId::new(driver.clone(), ActorName::STORE);
        let store = self.node.reference::<ToStore>(store).in_conversation(CONVERSATION);
        while let Some(message) = self.refused.take().or_else(|| self.core.poll_message()) {
            let Err(undelivered) = store.tell(message) else { continue };
            if undelivered.reason == UndeliveredReason::TransportFull {
                self.refused = Some(undelivered.message);
                return true;
            }
            // The session is over. In the next one, unanswered requests are sent again, or their connections are
            // closed.
            tracing::debug!(reason = %undelivered.reason, "no request was delivered to the store");
            return false;
        }
        false
    }

    fn order(&mut self, client: ClientId, order: Order) {
        let Some(connection) = self.connections.get(&client) else { return };
        if connection.try_send(order).is_err() {
            // The task has ended, and its report is on the way.
            self.connections.remove(&client);
            self.core.handle_closed(self.node.now(), client);
        }
    }

    fn tell_closed(&mut self, worker: &WorkerId, cause: &CloseCause) {
        let CloseCause::Refused(reason) = cause else {
            return tracing::debug!(%worker, %cause, "a connection to the store is closed");
        };
        let now = self.node.now();
        if self.told_at.is_some_and(|at| now.since(at) < FAULTS_TOLD_EVERY) {
            self.untold += 1;
            return;
        }
        let untold = std::mem::take(&mut self.untold);
        tracing::warn!(%worker, reason, untold, "a connection to the store is closed");
        self.told_at = Some(now);
    }
}

impl Actor for Relay {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let routes = Routes::new().tell::<FromStore>(ctx.address().recipient());
        self.node.register(ActorName::STORE_RELAY, routes);
        self.node.subscribe_links(ctx.address().recipient());
    }
}

impl TimedActor for Relay {
    fn timer(&mut self) -> &mut TimerSlot {
        &mut self.timer
    }

    fn timer_fired(&mut self, now: Time, ctx: &mut Context<Self>) {
        self.core.handle_timeout(now);
        self.drain(ctx);
    }
}

/// Report of the listener: a worker's process has connected. Its orders go to `orders`.
pub(super) struct Connected {
    pub(super) owner: ConnectionOwner,
    pub(super) orders: mpsc::Sender<Order>,
}

impl Message for Connected {
    type Result = Option<ClientId>;
}

impl Handler<Connected> for Relay {
    type Result = Option<ClientId>;

    fn handle(&mut self, connected: Connected, _: &mut Context<Self>) -> Option<ClientId> {
        let client = self.core.handle_connected(connected.owner)?;
        self.connections.insert(client, connected.orders);
        Some(client)
    }
}

/// Report of a connection's task: bytes were read. The answer says whether to read on at once.
pub(super) struct BytesRead {
    pub(super) client: ClientId,
    pub(super) bytes: Vec<u8>,
}

impl Message for BytesRead {
    type Result = bool;
}

impl Handler<BytesRead> for Relay {
    type Result = bool;

    fn handle(&mut self, read: BytesRead, ctx: &mut Context<Self>) -> bool {
        let read_on = self.core.handle_bytes(self.node.now(), read.client, &read.bytes);
        self.drain(ctx);
        read_on
    }
}

/// Report of a connection's task: the client has taken its oldest answer.
pub(super) struct Written(pub(super) ClientId);

impl Message for Written {
    type Result = ();
}

impl Handler<Written> for Relay {
    type Result = ();

    fn handle(&mut self, written: Written, ctx: &mut Context<Self>) {
        self.core.handle_written(self.node.now(), written.0);
        self.drain(ctx);
    }
}

/// Report of a connection's task: the client did not do its part, for this reason.
pub(super) struct Faulty(pub(super) ClientId, pub(super) String);

impl Message for Faulty {
    type Result = ();
}

impl Handler<Faulty> for Relay {
    type Result = ();

    fn handle(&mut self, faulty: Faulty, ctx: &mut Context<Self>) {
        self.core.handle_fault(self.node.now(), faulty.0, faulty.1);
        self.drain(ctx);
    }
}

/// Report of a connection's task: the connection is over.
pub(super) struct Closed(pub(super) ClientId);

impl Message for Closed {
    type Result = ();
}

impl Handler<Closed> for Relay {
    type Result = ();

    fn handle(&mut self, closed: Closed, ctx: &mut Context<Self>) {
        self.connections.remove(&closed.0);
        self.core.handle_closed(self.node.now(), closed.0);
        self.drain(ctx);
    }
}

/// Report of the agent: a worker's process is being stopped, or has ended. Its generation is over.
#[derive(Clone, Debug)]
pub struct GenerationEnded(pub WorkerId);

impl Message for GenerationEnded {
    type Result = ();
}

impl Handler<GenerationEnded> for Relay {
    type Result = ();

    fn handle(&mut self, ended: GenerationEnded, ctx: &mut Context<Self>) {
        self.core.handle_generation_ended(self.node.now(), &ended.0);
        self.drain(ctx);
    }
}

impl Handler<Delivery<FromStore>> for Relay {
    type Result = ();

    fn handle(&mut self, delivery: Delivery<FromStore>, ctx: &mut Context<Self>) {
        self.core.handle_store(self.node.now(), &delivery.from, delivery.message);
        self.drain(ctx);
    }
}

impl Handler<LinkChanged> for Relay {
    type Result = ();

    fn handle(&mut self, changed: LinkChanged, ctx: &mut Context<Self>) {
        if changed.peer.name != NodeName::Driver {
            return;
        }
        match changed.event {
            LinkEvent::Up => {
                self.driver = Some(changed.peer.clone());
                self.refused = None;
                self.core.handle_up(self.node.now(), changed.peer);
            }
            LinkEvent::Lost { .. } if self.driver.as_ref() == Some(&changed.peer) => {
                self.driver = None;
                self.core.handle_lost();
            }
            LinkEvent::Lost { .. } | LinkEvent::Silent { .. } | LinkEvent::Heard => {}
        }
        self.drain(ctx);
    }
}
