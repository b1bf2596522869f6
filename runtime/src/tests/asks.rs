//! Tests of questions: answered, refused, lost and late ones. "Not handled" is told from "unknown".

use std::rc::Rc;
use std::time::Duration;

use tokio::task::LocalSet;

use super::loopback::Hub;
use super::probe::{Ask, Log, Order, PROBE, Probe};
use super::settle;
use crate::node::{ASKS_MAX, NodeFault, QUESTIONS_MAX};
use crate::system::run_paused;
use crate::{AskError, DeliveryRefusal, UndeliveredReason};
use elastic_protocol::ActorName;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn questions_are_answered_here_and_there() {
    run_paused(async {
        let (hub, a, b) = Hub::pair();
        for node in [&a, &b] {
            Probe::publish(node, &Log::default(), 16);
            let asked = a.reference::<Ask>(node.id(PROBE)).ask(Ask::Double(21), SECOND);
            hub.deliver_all().await;
            settle().await;
            hub.deliver_all().await;
            assert_eq!(asked.await.expect("it is answered"), [42]);
        }
    });
}

#[test]
fn a_deadline_that_passes_names_who_was_asked() {
    run_paused(async {
        let (hub, a, b) = Hub::pair();
        for node in [&a, &b] {
            let (_, handle) = Probe::publish(node, &Log::default(), 16);
            let began = a.now();
            let asked = a.reference::<Ask>(node.id(PROBE)).ask(Ask::Keep, SECOND);
            hub.deliver_all().await;
            let error = asked.await.expect_err("it is never answered");
            assert!(!error.is_unhandled());
            assert_eq!(
                error.to_string(),
                format!("no answer from {} within 1000 ms", node.id(PROBE))
            );
            assert!(a.now().since(began) >= SECOND);
            // The late answer finds no asker.
            handle.terminate();
            settle().await;
            hub.deliver_all().await;
        }
        assert_eq!(a.faults().total(NodeFault::StrayAnswer), 1);
    });
}

#[test]
fn a_question_that_was_not_handled_is_told_from_one_that_may_have_been() {
    run_paused(async {
        let (hub, a, b) = Hub::pair();
        let there = |name| a.reference::<Ask>(b.id(name));

        let nobody = there(ActorName(9999)).ask(Ask::Drop, SECOND);
        hub.deliver_all().await;
        settle().await;
        hub.deliver_all().await;
        let error = nobody.await.expect_err("there is no such actor");
        assert!(matches!(error, AskError::Refused { refusal: DeliveryRefusal::NoSuchActor, .. }));
        assert!(error.is_unhandled());

        Probe::publish(&b, &Log::default(), 16);
        for (ask, handled) in [(Ask::Drop, "did not answer"), (Ask::LargeAnswer, "does not fit")] {
            let asked = there(PROBE).ask(ask, SECOND);
            for _ in 0..3 {
                hub.deliver_all().await;
                settle().await;
            }
            let error = asked.await.expect_err("there is no answer");
            assert!(error.to_string().contains(handled), "{error}");
            assert!(!error.is_unhandled());
        }

        let delivered = there(PROBE).ask(Ask::Keep, SECOND);
        hub.deliver_all().await;
        let queued = there(PROBE).ask(Ask::Double(1), SECOND);
        hub.disconnect();
        let error = delivered.await.expect_err("the session is lost");
        assert!(matches!(error, AskError::Lost { .. }) && !error.is_unhandled());
        let error = queued.await.expect_err("the session is lost");
        assert!(error.is_unhandled());
        let AskError::Undelivered(back) = error else { panic!("not {error}") };
        assert_eq!(back.message, Ask::Double(1));
        assert_eq!(back.reason, UndeliveredReason::SessionLost);
    });
}

#[test]
fn questions_that_wait_are_bounded_on_both_sides() {
    run_paused(async {
        let (hub, a, b) = Hub::pair();
        Probe::publish(&b, &Log::default(), 4 * QUESTIONS_MAX);
        let there = a.reference::<Ask>(b.id(PROBE));
        let asked: Vec<_> = (0..ASKS_MAX).map(|_| there.ask(Ask::Keep, SECOND)).collect();
        let error = there.ask(Ask::Keep, SECOND).await.expect_err("too many wait");
        assert!(error.to_string().contains("too many questions"), "{error}");
        hub.deliver_all().await;
        drop(asked);
        // The other side still has them all, so it takes no more.
        let one_more = there.ask(Ask::Keep, SECOND);
        hub.deliver_all().await;
        let error = one_more.await.expect_err("it is refused");
        assert!(matches!(
            error,
            AskError::Refused { refusal: DeliveryRefusal::TooManyQuestions, .. }
        ));
        a.reference::<Order>(b.id(PROBE)).tell(Order::Stop).expect("there is a session");
        for _ in 0..3 {
            hub.deliver_all().await;
            settle().await;
        }
        assert_eq!(
            a.faults().total(NodeFault::StrayAnswer),
            ASKS_MAX as u64,
            "nobody waits for them"
        );
    });
}

#[test]
fn a_node_that_crashes_says_nothing_any_more() {
    run_paused(async {
        let hub = Rc::new(Hub::default());
        let a = hub.node("a");
        let crashing = LocalSet::new();
        let b = {
            let _entered = crashing.enter();
            let b = hub.node("b");
            Probe::publish(&b, &Log::default(), 16);
            b
        };
        hub.connect();
        let there = a.reference::<Ask>(b.id(PROBE));
        let answered = there.ask(Ask::Double(1), SECOND);
        let kept = there.ask(Ask::Keep, SECOND);
        hub.deliver();
        crashing.run_until(settle()).await;
        hub.deliver();
        assert_eq!(answered.await.expect("b answers from its own tasks"), [2]);
        drop(crashing);
        settle().await;
        assert!(hub.queue.borrow().is_empty(), "the question that it kept is not even declined");
        assert!(matches!(kept.await, Err(AskError::DeadlinePassed { .. })));
    });
}
