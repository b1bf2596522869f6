//! Tests of supervisors: restart of children as new actors, escalation, order.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use actix::Addr;

use super::loopback::node_id;
use super::probe::{Heard, Log, Order, PROBE, Probe, notes};
use super::settle;
use crate::restart::{Lifetime, RestartBackoff, RestartPolicy, RestartStrategy};
use crate::supervisor::SIBLING_GRACE;
use crate::system::run_paused;
use crate::{
    ChildExit, ChildSpec, Delivery, NodeHandle, Shutdown, SupervisorEvent, SupervisorSpec,
    take_panic,
};

type Events = Rc<RefCell<Vec<String>>>;
type Addresses = Rc<RefCell<Vec<Addr<Probe>>>>;

fn policy(strategy: RestartStrategy) -> RestartPolicy {
    let backoff = RestartBackoff { base: Duration::from_millis(50), cap: Duration::from_secs(1) };
    RestartPolicy { strategy, restarts_max: 2, window: Duration::from_secs(10), backoff }
}

fn probe(name: &str, lifetime: Lifetime, log: &Log, addresses: &Addresses) -> ChildSpec {
    let (log, addresses) = (log.clone(), addresses.clone());
    let announce = move |address| addresses.borrow_mut().push(address);
    ChildSpec::new(name, lifetime, move |_| Probe::new(&log), announce)
}

fn recorder(events: &Events) -> impl FnMut(&SupervisorEvent) + 'static {
    let events = events.clone();
    move |event| {
        events.borrow_mut().push(match event {
            SupervisorEvent::Started { child } => format!("{child} started"),
            SupervisorEvent::Ended { child, exit, .. } if exit.is_normal() => {
                format!("{child} stopped")
            }
            SupervisorEvent::Ended { child, .. } => format!("{child} ended"),
        });
    }
}

fn order(addresses: &Addresses, number: usize, message: Order) {
    addresses.borrow()[number].do_send(Delivery { from: node_id("a"), message });
}

async fn a_second() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[test]
fn a_child_that_panicked_comes_back_as_a_new_actor_under_its_name() {
    run_paused(async {
        let node = NodeHandle::new(node_id("a"), 1);
        let (log, publisher) = (Log::default(), node.clone());
        let kept = log.clone();
        let child = ChildSpec::new(
            "probe",
            Lifetime::Permanent,
            move |_| Probe::new(&kept),
            move |address| publisher.register(PROBE, Probe::routes(&address)),
        );
        let spec = SupervisorSpec::new("top", policy(RestartStrategy::OneForOne)).child(child);
        let (_, supervisor) = spec.start(&node, |_| {});
        settle().await;
        let reference = node.reference::<Order>(node.id(PROBE));
        reference.tell(Order::Note(1)).expect("it is there");
        reference.tell(Order::Panic).expect("it is there");
        reference.tell(Order::Note(2)).expect("it does not know yet");
        settle().await;
        assert!(reference.tell(Order::Note(3)).is_err(), "nobody until the back-off is over");
        a_second().await;
        reference.tell(Order::Note(4)).expect("the new one is there");
        settle().await;
        assert_eq!(notes(&log), [1, 4]);
        assert_eq!(log.take().iter().filter(|heard| **heard == Heard::Started).count(), 2);
        assert!(take_panic().is_some(), "seen, though it was mended");
        assert_eq!(supervisor.exit(), None);
    });
}

#[test]
fn a_spent_budget_escalates_to_the_parent() {
    run_paused(async {
        let node = NodeHandle::new(node_id("a"), 1);
        let (log, addresses, events) = <(Log, Addresses, Events)>::default();
        let (kept_log, kept, inner) = (log.clone(), addresses.clone(), node.clone());
        let child = move |_: &mut actix::Context<crate::Supervisor>| {
            let child = probe("probe", Lifetime::Permanent, &kept_log, &kept);
            let sibling =
                probe("sibling", Lifetime::Permanent, &Log::default(), &Addresses::default());
            let spec = SupervisorSpec::new("inner", policy(RestartStrategy::OneForOne));
            spec.child(child).child(sibling).make(&inner)
        };
        let inner = ChildSpec::with_shutdown("inner", Lifetime::Transient, child, |_| {});
        let outer = SupervisorSpec::new("outer", policy(RestartStrategy::OneForOne)).child(inner);
        let (_, outer) = outer.observed_by(recorder(&events)).start(&node, |_| {});
        for life in 0..9 {
            a_second().await;
            order(&addresses, life, Order::Fail);
            settle().await;
        }
        let Some(ChildExit::Failed(reason)) = outer.exit() else { panic!("not {outer:?}") };
        assert_eq!(
            reason,
            "outer: child inner failed: inner: child probe failed: ordered to fail; 2 restarts within \
             10000 ms are spent; 2 restarts within 10000 ms are spent"
        );
        let (started, ended) = ("inner started", "inner ended");
        assert_eq!(*events.borrow(), [started, ended, started, ended, started, ended]);
    });
}

#[test]
fn one_for_all_stops_the_siblings_and_starts_all_in_order() {
    run_paused(async {
        let node = NodeHandle::new(node_id("a"), 1);
        for (strategy, again) in [
            (RestartStrategy::OneForOne, &["b started"][..]),
            (RestartStrategy::RestForOne, &["b started", "c started"][..]),
            (RestartStrategy::OneForAll, &["a started", "b started", "c started"][..]),
        ] {
            let (addresses, events) = <(Addresses, Events)>::default();
            let child = |name| probe(name, Lifetime::Permanent, &Log::default(), &addresses);
            let spec = SupervisorSpec::new("top", policy(strategy));
            let spec = spec.child(child("a")).child(child("b")).child(child("c"));
            let (_, _supervisor) = spec.observed_by(recorder(&events)).start(&node, |_| {});
            settle().await;
            assert_eq!(events.take(), ["a started", "b started", "c started"]);
            order(&addresses, 1, Order::Fail);
            a_second().await;
            let events = events.take();
            assert_eq!(events[0], "b ended");
            assert_eq!(&events[1..], again, "{strategy:?}");
            let alive = addresses.borrow().iter().filter(|address| address.connected()).count();
            assert_eq!(alive, 3);
        }
    });
}

/// An actor that does not stop when it is asked to.
struct Stubborn;

impl actix::Actor for Stubborn {
    type Context = actix::Context<Self>;
}

impl actix::Handler<Shutdown> for Stubborn {
    type Result = ();

    fn handle(&mut self, _: Shutdown, _: &mut actix::Context<Self>) {}
}

#[test]
fn g_9_a_sibling_that_does_not_stop_is_ended_after_its_grace() {
    run_paused(async {
        let node = NodeHandle::new(node_id("a"), 1);
        let (addresses, events) = <(Addresses, Events)>::default();
        let stubborn =
            ChildSpec::with_shutdown("stubborn", Lifetime::Permanent, |_| Stubborn, |_| {});
        let spec = SupervisorSpec::new("top", policy(RestartStrategy::OneForAll))
            .child(stubborn)
            .child(probe("b", Lifetime::Permanent, &Log::default(), &addresses));
        let (_, _supervisor) = spec.observed_by(recorder(&events)).start(&node, |_| {});
        settle().await;
        assert_eq!(events.take(), ["stubborn started", "b started"]);
        order(&addresses, 0, Order::Fail);
        tokio::time::sleep(SIBLING_GRACE - Duration::from_millis(100)).await;
        assert_eq!(events.take(), ["b ended"], "all wait for it");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(events.take(), ["stubborn started", "b started"]);
    });
}

#[test]
fn what_stops_in_order_stays_stopped() {
    run_paused(async {
        let node = NodeHandle::new(node_id("a"), 1);
        let (addresses, events) = <(Addresses, Events)>::default();
        let child = |name, lifetime| probe(name, lifetime, &Log::default(), &addresses);
        let spec = SupervisorSpec::new("top", policy(RestartStrategy::OneForAll))
            .child(child("transient", Lifetime::Transient))
            .child(child("temporary", Lifetime::Temporary));
        let (address, supervisor) = spec.observed_by(recorder(&events)).start(&node, |_| {});
        settle().await;
        order(&addresses, 0, Order::Stop);
        order(&addresses, 1, Order::Fail);
        a_second().await;
        let wanted =
            ["transient started", "temporary started", "transient stopped", "temporary ended"];
        assert_eq!(*events.borrow(), wanted);
        address.do_send(Shutdown { reason: "done".to_owned(), within: Duration::from_secs(1) });
        assert_eq!(supervisor.exited().await, ChildExit::Stopped);
    });
}

#[test]
fn no_child_outlives_its_supervisor() {
    run_paused(async {
        let node = NodeHandle::new(node_id("a"), 1);
        let addresses = Addresses::default();
        let child = probe("probe", Lifetime::Permanent, &Log::default(), &addresses);
        let spec = SupervisorSpec::new("top", policy(RestartStrategy::OneForAll)).child(child);
        let (_, supervisor) = spec.start(&node, |_| {});
        settle().await;
        supervisor.terminate();
        settle().await;
        assert!(!addresses.borrow()[0].connected());
    });
}
