//! The store's actor, in the driver's process: a thin shell over [`StoreCore`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};
use elastic_protocol::{ActorId, ActorName, NodeId, NodeName, Time};
use elastic_runtime::transport::{Conversation, LinkEvent};
use elastic_runtime::{
    Delivery, LinkChanged, NodeHandle, Routes, TimedActor, TimerSlot, UndeliveredReason,
};

use crate::core::StoreCore;
use crate::messages::{FromStore, ToStore};

/// Conversation of relays and the store: its messages and all others do not wait for each other.
pub(crate) const CONVERSATION: Conversation = Conversation::Bulk(1);

/// Delay before a message is sent again for which the transport had no room.
pub(crate) const RETRY_AFTER: Duration = Duration::from_millis(5);

/// The store.
pub struct StoreActor {
    core: StoreCore,
    node: NodeHandle,
    timer: TimerSlot,
    /// Answers for each agent for which the transport had no room: at most one for each request, and of bounded bytes.
    waiting: BTreeMap<NodeId, VecDeque<FromStore>>,
}

impl StoreActor {
    /// An empty store for the driver's node.
    pub fn new(node: NodeHandle) -> Self {
        let timer = TimerSlot::new(node.clock());
        Self { core: StoreCore::new(), node, timer, waiting: BTreeMap::new() }
    }

    fn drain(&mut self, ctx: &mut Context<Self>) {
        while let Some((agent, message)) = self.core.poll_output() {
            self.waiting.entry(agent).or_default().push_back(message);
        }
        let node = &self.node;
        // An agent with a full session keeps its answers; the others get theirs.
        self.waiting.retain(|agent, messages| !send(node, agent, messages));
        let retry_at = self.node.now() + RETRY_AFTER;
        self.timer.arm(ctx, (!self.waiting.is_empty()).then_some(retry_at));
    }
}

/// Sends an agent its answers, as far as the transport has room; true if none is left.
fn send(node: &NodeHandle, agent: &NodeId, messages: &mut VecDeque<FromStore>) -> bool {
    let relay = ActorId::new(agent.clone(), ActorName::STORE_RELAY);
    let relay = node.reference::<FromStore>(relay).in_conversation(CONVERSATION);
    while let Some(message) = messages.pop_front() {
        let Err(undelivered) = relay.tell(message) else { continue };
        if undelivered.reason == UndeliveredReason::TransportFull {
            messages.push_front(undelivered.message);
            return false;
        }
        // The agent is out of reach: its relay tells the clients.
        tracing::debug!(%agent, reason = %undelivered.reason, "no answer was delivered");
    }
    true
}

impl Actor for StoreActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let routes = Routes::new().tell::<ToStore>(ctx.address().recipient());
        self.node.register(ActorName::STORE, routes);
        self.node.subscribe_links(ctx.address().recipient());
    }
}

impl TimedActor for StoreActor {
    fn timer(&mut self) -> &mut TimerSlot {
        &mut self.timer
    }

    fn timer_fired(&mut self, _now: Time, ctx: &mut Context<Self>) {
        self.drain(ctx);
    }
}

impl Handler<Delivery<ToStore>> for StoreActor {
    type Result = ();

    fn handle(&mut self, delivery: Delivery<ToStore>, ctx: &mut Context<Self>) {
        // Only agents ask, for their workers.
        if matches!(delivery.from.name, NodeName::Agent(_)) {
            self.core.handle(&delivery.from, delivery.message);
            self.drain(ctx);
        }
    }
}

impl Handler<LinkChanged> for StoreActor {
    type Result = ();

    fn handle(&mut self, changed: LinkChanged, ctx: &mut Context<Self>) {
        if let LinkEvent::Lost { .. } = changed.event {
            self.core.handle_lost(&changed.peer);
            self.waiting.remove(&changed.peer);
            self.drain(ctx);
        }
    }
}
