//! Tests of children: their ends are seen, with the reason, and a node that is dropped runs none of their code.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use actix::{Addr, AsyncContext, Context};
use tokio::task::LocalSet;

use super::loopback::node_id;
use super::probe::{Heard, Log, Order, Probe};
use super::settle;
use crate::system::run_paused;
use crate::{ChildExit, ChildHandle, Delivery, fail, spawn_child_with_handle, take_panic};

type Exits = Rc<RefCell<Vec<ChildExit>>>;

fn spawn(log: &Log) -> (Addr<Probe>, ChildHandle, Exits) {
    let exits = Exits::default();
    let seen = exits.clone();
    let make = |_: &mut Context<Probe>| Probe::new(log);
    let (address, handle) = spawn_child_with_handle(make, move |exit| seen.borrow_mut().push(exit));
    (address, handle, exits)
}

fn order(address: &Addr<Probe>, message: Order) {
    address.do_send(Delivery { from: node_id("a"), message });
}

#[test]
fn each_end_is_told_with_its_reason() {
    run_paused(async {
        for (message, wanted) in [
            (Order::Stop, ChildExit::Stopped),
            (Order::Fail, ChildExit::Failed("ordered to fail".to_owned())),
        ] {
            let log = Log::default();
            let (address, handle, exits) = spawn(&log);
            order(&address, message);
            assert_eq!(handle.exited().await, wanted);
            assert_eq!(*exits.borrow(), [wanted]);
            assert!(!address.connected());
            assert_eq!(log.take(), [Heard::Started, Heard::Stopping, Heard::Stopped]);
        }
        assert_eq!(take_panic(), None);
    });
}

#[test]
fn a_panic_is_seen_and_runs_no_hook() {
    run_paused(async {
        let log = Log::default();
        let (address, handle, exits) = spawn(&log);
        order(&address, Order::Panic);
        order(&address, Order::Note(1));
        let exit = handle.exited().await;
        let ChildExit::Panicked(message) = &exit else { panic!("not {exit}") };
        assert!(message.starts_with("ordered to panic (at "), "{message}");
        assert!(message.contains("probe.rs"), "{message}");
        assert_eq!(*exits.borrow(), [exit]);
        assert_eq!(log.take(), [Heard::Started]);
        let seen = take_panic().expect("the hook has seen it");
        assert_eq!(seen.message, "ordered to panic");
        assert_eq!(take_panic(), None);
    });
}

#[test]
fn handles_stop_and_end() {
    run_paused(async {
        let (log, ended) = (Log::default(), Log::default());
        let (_, stop, _) = spawn(&log);
        let (_, terminate, exits) = spawn(&ended);
        settle().await;
        assert_eq!((stop.exit(), terminate.exit()), (None, None), "unaddressed, it lives");
        stop.stop();
        terminate.terminate();
        settle().await;
        assert_eq!(stop.exit(), Some(ChildExit::Stopped));
        assert_eq!(*exits.borrow(), [ChildExit::Terminated]);
        assert_eq!(log.take(), [Heard::Started, Heard::Stopping, Heard::Stopped]);
        assert_eq!(ended.take(), [Heard::Started], "no hook");
    });
}

#[test]
fn dropping_the_nodes_local_set_runs_no_code_of_its_actors() {
    run_paused(async {
        let node = LocalSet::new();
        let log = Log::default();
        let (address, handle, exits) = {
            let _entered = node.enter();
            spawn(&log)
        };
        node.run_until(settle()).await;
        order(&address, Order::Note(1));
        drop(node);
        settle().await;
        assert_eq!(log.take(), [Heard::Started], "no hook, no message that waited");
        assert!(exits.borrow().is_empty() && handle.exit().is_none());
        assert!(!address.connected());
    });
}

/// Fails in the same turn in which it cancels a timer, while another is armed.
struct FailsWithTimers;

impl actix::Actor for FailsWithTimers {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.run_later(Duration::from_secs(1), |_, _| {});
        let cancelled = ctx.run_later(Duration::from_secs(1), |_, _| {});
        ctx.run_later(Duration::from_millis(1), move |_, ctx| {
            ctx.cancel_future(cancelled);
            fail(ctx, "first");
            fail(ctx, "second");
        });
    }

    fn stopping(&mut self, _: &mut Context<Self>) -> actix::Running {
        actix::Running::Continue
    }
}

#[test]
fn a_failed_actor_is_gone_whatever_its_hooks_say() {
    run_paused(async {
        let (_, handle) = spawn_child_with_handle(|_| FailsWithTimers, |_| {});
        assert_eq!(handle.exited().await, ChildExit::Failed("first".to_owned()));
    });
}
