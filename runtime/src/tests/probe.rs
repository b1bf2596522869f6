//! An actor for tests: it records the messages that it receives, and does as it is told.

use std::cell::RefCell;
use std::rc::Rc;

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler};
use elastic_protocol::{ActorName, FREE_KINDS_FROM, NodeId, WireMessage, WireRequest};
use serde::{Deserialize, Serialize};

use crate::{
    ChildHandle, Delivery, LinkChanged, NodeHandle, Question, ReplyTo, Returned, Routes, fail,
    spawn_child_with_handle,
};

pub(super) const PROBE: ActorName = ActorName(ActorName::FREE_FROM);

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum Order {
    Note(u64),
    Large(Vec<u8>),
    Panic,
    Fail,
    Stop,
}

impl WireMessage for Order {
    const KIND: u16 = FREE_KINDS_FROM;
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum Ask {
    Double(u64),
    Drop,
    Keep,
    LargeAnswer,
}

impl WireRequest for Ask {
    const KIND: u16 = FREE_KINDS_FROM;
    type Reply = Vec<u64>;
}

#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    Started,
    Note(u64),
    From(NodeId),
    Returned(Returned<Order>),
    Link(LinkChanged),
    Stopping,
    Stopped,
}

/// Log of the messages that probes have received. It outlives them.
pub(super) type Log = Rc<RefCell<Vec<Heard>>>;

pub(super) struct Probe {
    pub(super) log: Log,
    kept: Vec<ReplyTo<Ask>>,
}

impl Probe {
    pub(super) fn new(log: &Log) -> Self {
        Self { log: log.clone(), kept: Vec::new() }
    }

    /// Starts one with a mailbox capacity and publishes it.
    pub(super) fn publish(
        node: &NodeHandle,
        log: &Log,
        capacity: usize,
    ) -> (Addr<Self>, ChildHandle) {
        let make = |ctx: &mut Context<Self>| {
            ctx.set_mailbox_capacity(capacity);
            Self::new(log)
        };
        let (address, handle) = spawn_child_with_handle(make, |_| {});
        node.register(PROBE, Self::routes(&address));
        (address, handle)
    }

    pub(super) fn routes(address: &Addr<Self>) -> Routes {
        let routes = Routes::new().tell::<Order>(address.clone().recipient());
        routes.ask::<Ask>(address.clone().recipient())
    }

    fn note(&self, heard: Heard) {
        self.log.borrow_mut().push(heard);
    }
}

pub(super) fn notes(log: &Log) -> Vec<u64> {
    let heard = log.borrow();
    heard
        .iter()
        .filter_map(|heard| if let Heard::Note(n) = heard { Some(*n) } else { None })
        .collect()
}

impl Actor for Probe {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.note(Heard::Started);
        // Hooks and messages that would run in a drop of a live context.
        ctx.address()
            .do_send(Delivery { from: super::loopback::node_id("self"), message: Order::Note(0) });
    }

    fn stopping(&mut self, _: &mut Context<Self>) -> actix::Running {
        self.note(Heard::Stopping);
        actix::Running::Stop
    }

    fn stopped(&mut self, _: &mut Context<Self>) {
        self.note(Heard::Stopped);
    }
}

impl Handler<Delivery<Order>> for Probe {
    type Result = ();

    fn handle(&mut self, order: Delivery<Order>, ctx: &mut Context<Self>) {
        match order.message {
            Order::Note(0) => {}
            Order::Note(number) => {
                self.note(Heard::From(order.from));
                self.note(Heard::Note(number));
            }
            Order::Large(bytes) => self.note(Heard::Note(bytes.len() as u64)),
            Order::Panic => panic!("ordered to panic"),
            Order::Fail => fail(ctx, "ordered to fail"),
            Order::Stop => ctx.stop(),
        }
    }
}

impl Handler<Question<Ask>> for Probe {
    type Result = ();

    fn handle(&mut self, question: Question<Ask>, _: &mut Context<Self>) {
        match question.request {
            Ask::Double(number) => question.reply.answer(vec![2 * number]),
            Ask::Drop => {}
            Ask::Keep => self.kept.push(question.reply),
            Ask::LargeAnswer => question.reply.answer(vec![u64::MAX; 1 << 20]),
        }
    }
}

impl Handler<Returned<Order>> for Probe {
    type Result = ();

    fn handle(&mut self, returned: Returned<Order>, _: &mut Context<Self>) {
        self.note(Heard::Returned(returned));
    }
}

impl Handler<LinkChanged> for Probe {
    type Result = ();

    fn handle(&mut self, changed: LinkChanged, _: &mut Context<Self>) {
        self.note(Heard::Link(changed));
    }
}
