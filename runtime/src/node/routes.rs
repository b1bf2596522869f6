//! Routes from frames to actors: the actors that are published on this node, and the messages that each of them takes.
//! Made by shells, used by the node.

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use actix::Recipient;
use actix::dev::SendError;
use elastic_protocol::codec::decode;
use elastic_protocol::{ActorName, NodeId, WireMessage, WireRequest};

use crate::delivery::{Delivery, Question, RemoteReply, ReplyTo};
use crate::envelope::AnswerOutcome;
use crate::failure::{DeliveryRefusal, UndeliveredReason};
use crate::mailbox::MailboxGauge;

/// The messages that an actor takes, each with one long-lived recipient, so that its mailbox's bound holds.
#[derive(Default)]
pub struct Routes {
    tells: BTreeMap<u16, Rc<dyn InboundTell>>,
    asks: BTreeMap<u16, Rc<dyn InboundAsk>>,
    gauge: Cell<MailboxGauge>,
}

impl Routes {
    /// An empty table of routes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes messages `M`: `Routes::new().tell::<M>(address.recipient())`.
    ///
    /// # Panics
    /// If another message of the same actor has the same kind.
    #[must_use]
    pub fn tell<M: WireMessage>(mut self, recipient: Recipient<Delivery<M>>) -> Self {
        let before = self.tells.insert(M::KIND, Rc::new(TellRoute { recipient }));
        assert!(before.is_none(), "two messages of one actor have kind {}", M::KIND);
        self
    }

    /// Takes questions `R`: `Routes::new().ask::<R>(address.recipient())`.
    ///
    /// # Panics
    /// If another question of the same actor has the same kind.
    #[must_use]
    pub fn ask<R: WireRequest>(mut self, recipient: Recipient<Question<R>>) -> Self {
        let before = self.asks.insert(R::KIND, Rc::new(AskRoute { recipient }));
        assert!(before.is_none(), "two questions of one actor have kind {}", R::KIND);
        self
    }

    /// Counts a message as delivered, or as refused by a full mailbox. Other failures are not counted.
    fn count<E>(&self, sent: &Result<(), E>, full: impl FnOnce(&E) -> bool) {
        let full = match sent {
            Ok(()) => false,
            Err(error) if full(error) => true,
            Err(_other) => return,
        };
        let mut gauge = self.gauge.get();
        gauge.count(full);
        self.gauge.set(gauge);
    }
}

pub(crate) struct TellRoute<M: WireMessage> {
    recipient: Recipient<Delivery<M>>,
}

impl<M: WireMessage> TellRoute<M> {
    pub(crate) fn deliver(&self, from: NodeId, message: M) -> Result<(), (M, UndeliveredReason)> {
        self.recipient.try_send(Delivery { from, message }).map_err(|error| match error {
            SendError::Full(back) => (back.message, UndeliveredReason::MailboxFull),
            SendError::Closed(back) => (back.message, UndeliveredReason::Closed),
        })
    }
}

pub(crate) struct AskRoute<R: WireRequest> {
    recipient: Recipient<Question<R>>,
}

impl<R: WireRequest> AskRoute<R> {
    pub(crate) fn deliver(
        &self,
        from: NodeId,
        request: R,
        reply: ReplyTo<R>,
    ) -> Result<(), (Question<R>, UndeliveredReason)> {
        self.recipient.try_send(Question { from, request, reply }).map_err(|error| match error {
            SendError::Full(back) => (back, UndeliveredReason::MailboxFull),
            SendError::Closed(back) => (back, UndeliveredReason::Closed),
        })
    }
}

fn refusal(reason: UndeliveredReason) -> DeliveryRefusal {
    match reason {
        UndeliveredReason::MailboxFull => DeliveryRefusal::MailboxFull,
        _ => DeliveryRefusal::Closed,
    }
}

/// Takes encoded messages of one kind.
trait InboundTell {
    fn deliver_bytes(&self, from: &NodeId, body: &[u8]) -> Result<(), DeliveryRefusal>;
    fn as_any(&self) -> &dyn Any;
}

impl<M: WireMessage> InboundTell for TellRoute<M> {
    fn deliver_bytes(&self, from: &NodeId, body: &[u8]) -> Result<(), DeliveryRefusal> {
        let message: M = decode(body).map_err(|_malformed| DeliveryRefusal::Malformed)?;
        self.deliver(from.clone(), message).map_err(|(_message, reason)| refusal(reason))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Takes encoded questions of one kind; refuses through the way back.
trait InboundAsk {
    fn deliver_bytes(&self, body: &[u8], reply: RemoteReply) -> Result<(), DeliveryRefusal>;
    fn as_any(&self) -> &dyn Any;
}

impl<R: WireRequest> InboundAsk for AskRoute<R> {
    fn deliver_bytes(&self, body: &[u8], reply: RemoteReply) -> Result<(), DeliveryRefusal> {
        let Ok(request) = decode::<R>(body) else {
            reply.send(AnswerOutcome::Refused(DeliveryRefusal::Malformed), &[]);
            return Err(DeliveryRefusal::Malformed);
        };
        let from = reply.peer.clone();
        self.deliver(from, request, ReplyTo::remote(reply)).map_err(|(question, reason)| {
            let refusal = refusal(reason);
            question.reply.refuse(refusal);
            refusal
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The published actors of a node.
#[derive(Default)]
pub(super) struct RouteTable {
    actors: BTreeMap<ActorName, Routes>,
    /// Actors that were published and have ended: peers may still have sent them something.
    ended: BTreeSet<ActorName>,
}

impl RouteTable {
    pub(super) fn insert(&mut self, name: ActorName, routes: Routes) {
        if let Some(before) = self.actors.get(&name) {
            routes.gauge.set(before.gauge.get());
        }
        self.ended.remove(&name);
        self.actors.insert(name, routes);
    }

    pub(super) fn gauges(&self) -> BTreeMap<ActorName, MailboxGauge> {
        self.actors.iter().map(|(name, routes)| (*name, routes.gauge.get())).collect()
    }

    pub(super) fn remove(&mut self, name: ActorName) {
        if self.actors.remove(&name).is_some() {
            self.ended.insert(name);
        }
    }

    /// Hands a local message over, without encoding it.
    pub(super) fn tell<M: WireMessage>(
        &self,
        name: ActorName,
        from: NodeId,
        message: M,
    ) -> Result<(), (M, UndeliveredReason)> {
        let Some(routes) = self.actors.get(&name) else {
            return Err((message, UndeliveredReason::NoSuchActor));
        };
        let route = routes.tells.get(&M::KIND).and_then(|route| route.as_any().downcast_ref());
        match route {
            Some(route) => {
                let sent = TellRoute::<M>::deliver(route, from, message);
                routes.count(&sent, |(_, reason)| *reason == UndeliveredReason::MailboxFull);
                sent
            }
            None => Err((message, UndeliveredReason::NotTaken)),
        }
    }

    /// Hands a local question over, without encoding it.
    pub(super) fn ask<R: WireRequest>(
        &self,
        name: ActorName,
        from: NodeId,
        request: R,
        reply: ReplyTo<R>,
    ) -> Result<(), (Question<R>, UndeliveredReason)> {
        let Some(routes) = self.actors.get(&name) else {
            return Err((Question { from, request, reply }, UndeliveredReason::NoSuchActor));
        };
        let route = routes.asks.get(&R::KIND).and_then(|route| route.as_any().downcast_ref());
        match route {
            Some(route) => {
                let sent = AskRoute::<R>::deliver(route, from, request, reply);
                routes.count(&sent, |(_, reason)| *reason == UndeliveredReason::MailboxFull);
                sent
            }
            None => Err((Question { from, request, reply }, UndeliveredReason::NotTaken)),
        }
    }

    /// Decodes a message from another node and hands it over.
    pub(super) fn tell_bytes(
        &self,
        name: ActorName,
        kind: u16,
        from: &NodeId,
        body: &[u8],
    ) -> Result<(), DeliveryRefusal> {
        let routes = self.actors.get(&name).ok_or_else(|| match self.ended.contains(&name) {
            true => DeliveryRefusal::Closed,
            false => DeliveryRefusal::NoSuchActor,
        })?;
        let route = routes.tells.get(&kind).ok_or(DeliveryRefusal::NotTaken)?;
        let sent = route.deliver_bytes(from, body);
        routes.count(&sent, |refusal| *refusal == DeliveryRefusal::MailboxFull);
        sent
    }

    /// Decodes a question from another node and hands it over; a refusal has been sent when it returns.
    pub(super) fn ask_bytes(
        &self,
        name: ActorName,
        kind: u16,
        body: &[u8],
        reply: RemoteReply,
    ) -> Result<(), DeliveryRefusal> {
        let refusal = match self.actors.get(&name) {
            None => DeliveryRefusal::NoSuchActor,
            Some(routes) => match routes.asks.get(&kind) {
                None => DeliveryRefusal::NotTaken,
                Some(route) => {
                    let sent = route.deliver_bytes(body, reply);
                    routes.count(&sent, |refusal| *refusal == DeliveryRefusal::MailboxFull);
                    return sent;
                }
            },
        };
        reply.send(AnswerOutcome::Refused(refusal), &[]);
        Err(refusal)
    }
}
