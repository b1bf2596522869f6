//! The relay's actor, at an agent: a thin shell over [`RelayCore`].

use std::collections::BTreeMap;

use actix::{Actor, AsyncContext, Context, Handler, Message};
use elastic_protocol::{NodeId, NodeName, WorkerId};
use elastic_runtime::transport::LinkEvent;
use elastic_runtime::{ActorId, ActorName, Delivery, LinkChanged, NodeHandle, Routes};
use tokio::sync::mpsc;

use super::core::{Owner, RelayCore, RelayOutput};
use crate::actor::CONVERSATION;
use crate::limits::PENDING_MAX;
use crate::messages::{ClientId, FromStore, ToStore};

/// Answers that wait to be written to a connection: one for each of its requests, and the words that it may
/// be read on.
pub(super) const ORDERS_MAX: usize = 2 * PENDING_MAX;

/// What a connection's task is told; the end of the channel closes the connection.
#[derive(Debug)]
pub(super) enum Order {
    Write(Vec<u8>),
    ReadOn,
}

/// The relay of an agent.
pub struct Relay {
    core: RelayCore,
    node: NodeHandle,
    driver: Option<NodeId>,
    connections: BTreeMap<ClientId, mpsc::Sender<Order>>,
}

impl Relay {
    /// A relay for an agent's node. `driver` is the driver whose session stands already, if one does.
    pub fn new(node: NodeHandle, driver: Option<NodeId>) -> Self {
        let mut core = RelayCore::new();
        if let Some(driver) = &driver {
            core.handle_up(driver.clone());
        }
        Self { core, node, driver, connections: BTreeMap::new() }
    }

    fn drain(&mut self) {
        while let Some(output) = self.core.poll_output() {
            match output {
                RelayOutput::ToStore(message) => self.tell(message),
                RelayOutput::Write { client, bytes } => self.order(client, Order::Write(bytes)),
                RelayOutput::ReadOn { client } => self.order(client, Order::ReadOn),
                RelayOutput::Close { client, reason } => {
                    tracing::debug!(
                        client = client.0,
                        reason,
                        "a connection to the store is closed"
                    );
                    self.connections.remove(&client);
                }
            }
        }
    }

    fn tell(&mut self, message: ToStore) {
        let Some(driver) = &self.driver else { return };
        let store = ActorId::new(driver.clone(), ActorName::STORE);
        let store = self.node.reference::<ToStore>(store).in_conversation(CONVERSATION);
        if let Err(undelivered) = store.tell(message) {
            self.core.handle_undelivered(&undelivered.message);
        }
    }

    fn order(&mut self, client: ClientId, order: Order) {
        let Some(connection) = self.connections.get(&client) else { return };
        if connection.try_send(order).is_err() {
            // It does not read its answers, or is gone.
            self.connections.remove(&client);
            self.core.handle_closed(client);
        }
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

/// A worker's process has connected; what it is to be told goes to `orders`.
pub(super) struct Connected {
    pub(super) owner: Owner,
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

/// A connection was read. The answer says whether to read on at once.
pub(super) struct Bytes {
    pub(super) client: ClientId,
    pub(super) bytes: Vec<u8>,
}

impl Message for Bytes {
    type Result = bool;
}

impl Handler<Bytes> for Relay {
    type Result = bool;

    fn handle(&mut self, read: Bytes, _: &mut Context<Self>) -> bool {
        let read_on = self.core.handle_bytes(read.client, &read.bytes);
        self.drain();
        read_on
    }
}

/// A connection is over.
pub(super) struct Closed(pub(super) ClientId);

impl Message for Closed {
    type Result = ();
}

impl Handler<Closed> for Relay {
    type Result = ();

    fn handle(&mut self, closed: Closed, _: &mut Context<Self>) {
        self.connections.remove(&closed.0);
        self.core.handle_closed(closed.0);
        self.drain();
    }
}

/// A worker's process is being stopped, or has ended: its generation is over.
#[derive(Clone, Debug)]
pub struct GenerationEnded(pub WorkerId);

impl Message for GenerationEnded {
    type Result = ();
}

impl Handler<GenerationEnded> for Relay {
    type Result = ();

    fn handle(&mut self, ended: GenerationEnded, _: &mut Context<Self>) {
        self.core.handle_generation_ended(&ended.0);
        self.drain();
    }
}

impl Handler<Delivery<FromStore>> for Relay {
    type Result = ();

    fn handle(&mut self, delivery: Delivery<FromStore>, _: &mut Context<Self>) {
        self.core.handle_store(&delivery.from, delivery.message);
        self.drain();
    }
}

impl Handler<LinkChanged> for Relay {
    type Result = ();

    fn handle(&mut self, changed: LinkChanged, _: &mut Context<Self>) {
        if changed.peer.name != NodeName::Driver {
            return;
        }
        match changed.event {
            LinkEvent::Up => {
                self.driver = Some(changed.peer.clone());
                self.core.handle_up(changed.peer);
            }
            LinkEvent::Lost { .. } if self.driver.as_ref() == Some(&changed.peer) => {
                self.driver = None;
                self.core.handle_lost();
            }
            LinkEvent::Lost { .. } | LinkEvent::Silent { .. } | LinkEvent::Heard => {}
        }
        self.drain();
    }
}
