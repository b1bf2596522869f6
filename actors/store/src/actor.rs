//! The store's actor, at the driver: a thin shell over [`StoreCore`].

use std::collections::VecDeque;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};
use elastic_protocol::{NodeId, NodeName, Time};
use elastic_runtime::transport::{Conversation, LinkEvent};
use elastic_runtime::{
    ActorId, ActorName, Delivery, LinkChanged, NodeHandle, Routes, TimedActor, TimerSlot,
    UndeliveredReason,
};

use crate::core::StoreCore;
use crate::messages::{FromStore, ToStore};

/// What goes between relays and the store waits for nothing else, and nothing else for it.
pub(crate) const CONVERSATION: Conversation = Conversation::Bulk(1);

/// When an answer that the transport had no room for is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(5);

/// The store.
pub struct Store {
    core: StoreCore,
    node: NodeHandle,
    timer: TimerSlot,
    /// Answers that there was no room for: one for each request at most, and those are bounded.
    waiting: VecDeque<(NodeId, FromStore)>,
}

impl Store {
    /// An empty store for the driver's node.
    pub fn new(node: NodeHandle) -> Self {
        let timer = TimerSlot::new(node.clock());
        Self { core: StoreCore::new(), node, timer, waiting: VecDeque::new() }
    }

    fn drain(&mut self, ctx: &mut Context<Self>) {
        while let Some(output) = self.core.poll_output() {
            self.waiting.push_back(output);
        }
        while let Some((agent, message)) = self.waiting.pop_front() {
            let relay = ActorId::new(agent.clone(), ActorName::STORE_RELAY);
            let relay = self.node.reference::<FromStore>(relay).in_conversation(CONVERSATION);
            let Err(undelivered) = relay.tell(message) else { continue };
            if undelivered.reason == UndeliveredReason::TransportFull {
                self.waiting.push_front((agent, undelivered.message));
                self.timer.arm(ctx, Some(self.node.now() + RETRY_AFTER));
                return;
            }
            // Its agent is out of reach: the clients are told so by their relay.
            tracing::debug!(%agent, reason = %undelivered.reason, "no answer was delivered");
        }
    }
}

impl Actor for Store {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let routes = Routes::new().tell::<ToStore>(ctx.address().recipient());
        self.node.register(ActorName::STORE, routes);
        self.node.subscribe_links(ctx.address().recipient());
    }
}

impl TimedActor for Store {
    fn timer(&mut self) -> &mut TimerSlot {
        &mut self.timer
    }

    fn timer_fired(&mut self, _now: Time, ctx: &mut Context<Self>) {
        self.drain(ctx);
    }
}

impl Handler<Delivery<ToStore>> for Store {
    type Result = ();

    fn handle(&mut self, delivery: Delivery<ToStore>, ctx: &mut Context<Self>) {
        // Agents answer for their workers; nobody else asks.
        if matches!(delivery.from.name, NodeName::Agent(_)) {
            self.core.handle(&delivery.from, delivery.message);
            self.drain(ctx);
        }
    }
}

impl Handler<LinkChanged> for Store {
    type Result = ();

    fn handle(&mut self, changed: LinkChanged, ctx: &mut Context<Self>) {
        if let LinkEvent::Lost { .. } = changed.event {
            self.core.handle_lost(&changed.peer);
            self.waiting.retain(|(agent, _)| *agent != changed.peer);
            self.drain(ctx);
        }
    }
}
