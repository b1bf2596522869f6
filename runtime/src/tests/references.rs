//! Tests of references: local and remote ones are one type, bounds hold, and undelivered messages come back.

use elastic_protocol::codec::FRAME_BYTES_MAX;
use elastic_protocol::{ActorId, ActorName};

use super::loopback::Hub;
use super::probe::{Heard, Log, Order, PROBE, Probe, notes};
use super::settle;
use crate::envelope::Header;
use crate::mailbox::MailboxGauge;
use crate::node::NodeFault;
use crate::system::run_paused;
use crate::{ActorRef, DeliveryRefusal, Returned, UndeliveredReason};

fn reason(sent: Result<(), crate::Undelivered<Order>>) -> Option<UndeliveredReason> {
    sent.err().map(|undelivered| undelivered.reason)
}

#[test]
fn local_and_remote_actors_have_one_type_of_reference() {
    run_paused(async {
        let (hub, a, b) = Hub::pair();
        let (log_a, log_b) = (Log::default(), Log::default());
        Probe::publish(&a, &log_a, 16);
        Probe::publish(&b, &log_b, 16);
        let both: [ActorRef<Order>; 2] = [a.reference(a.id(PROBE)), a.reference(b.id(PROBE))];
        assert_eq!(both.each_ref().map(ActorRef::is_local), [true, false]);
        for number in 1..=9 {
            for reference in &both {
                reference.tell(Order::Note(number)).expect("both are there");
            }
        }
        hub.deliver_all().await;
        for log in [&log_a, &log_b] {
            assert_eq!(notes(log), (1..=9).collect::<Vec<_>>(), "TR-1");
            assert!(log.borrow().contains(&Heard::From(a.local().clone())));
        }
    });
}

#[test]
fn the_mailbox_bound_holds_over_a_thousand_clones() {
    run_paused(async {
        let (hub, a, b) = Hub::pair();
        let log = Log::default();
        Probe::publish(&a, &log, 10);
        Probe::publish(&b, &Log::default(), 10);
        let local = a.reference::<Order>(a.id(PROBE));
        let mut taken = 0;
        for _ in 0..1000 {
            match local.clone().tell(Order::Note(1)) {
                Ok(()) => taken += 1,
                Err(back) => {
                    assert_eq!(back.message, Order::Note(1));
                    assert_eq!(back.reason, UndeliveredReason::MailboxFull);
                }
            }
            let again = a.reference::<Order>(a.id(PROBE)).tell(Order::Note(1));
            taken += u64::from(again.is_ok());
        }
        assert_eq!(taken, 10, "its capacity");
        for _ in 0..1000 {
            a.reference::<Order>(b.id(PROBE)).tell(Order::Note(1)).expect("the hub takes all");
        }
        hub.deliver();
        assert_eq!(b.faults().total(NodeFault::Refused(DeliveryRefusal::MailboxFull)), 1000 - 10);
        let gauge = MailboxGauge { taken: 10, full: 990 };
        assert_eq!(b.mailboxes()[&PROBE], gauge);
        assert_eq!(a.mailboxes()[&PROBE], MailboxGauge { full: 1990, ..gauge });
        settle().await;
        let closed = hub.closed.take();
        let reason = "it says more than can be handled".to_owned();
        assert_eq!(
            closed[0],
            (a.local().clone(), reason),
            "what was dropped is not dropped silently"
        );
        assert_eq!(notes(&log).len(), 10);
        local.tell(Order::Note(2)).expect("there is room again");
    });
}

#[test]
fn what_cannot_be_sent_comes_back_at_once() {
    run_paused(async {
        let (hub, a, b) = Hub::pair();
        let nobody = a.reference::<Order>(a.id(ActorName(9999)));
        assert_eq!(reason(nobody.tell(Order::Stop)), Some(UndeliveredReason::NoSuchActor));

        let (_, handle) = Probe::publish(&a, &Log::default(), 10);
        let here = a.reference::<Order>(a.id(PROBE));
        settle().await;
        handle.terminate();
        settle().await;
        assert_eq!(reason(here.tell(Order::Stop)), Some(UndeliveredReason::Closed));
        a.register(PROBE, crate::Routes::new());
        assert_eq!(reason(here.tell(Order::Stop)), Some(UndeliveredReason::NotTaken));
        Probe::publish(&a, &Log::default(), 10);
        assert_eq!(reason(here.tell(Order::Stop)), None, "the same reference finds the new actor");

        let there = a.reference::<Order>(b.id(PROBE));
        for bytes in [Header::BODY_BYTES_MAX, FRAME_BYTES_MAX + 1] {
            let large = there.tell(Order::Large(vec![1; bytes]));
            assert_eq!(reason(large), Some(UndeliveredReason::TooLarge));
        }
        hub.full.set(true);
        assert_eq!(reason(there.tell(Order::Stop)), Some(UndeliveredReason::TransportFull));
        hub.disconnect();
        assert_eq!(reason(there.tell(Order::Stop)), Some(UndeliveredReason::NoSession));
        let alone = crate::NodeHandle::new(super::loopback::node_id("c"), 0);
        let there = alone.reference::<Order>(b.id(PROBE));
        assert_eq!(reason(there.tell(Order::Stop)), Some(UndeliveredReason::NoSession));
    });
}

#[test]
fn what_the_transport_could_not_deliver_returns_to_the_sender() {
    run_paused(async {
        let (hub, a, b) = Hub::pair();
        let log = Log::default();
        let (address, _) = Probe::publish(&a, &log, 16);
        let wanted = a.reference::<Order>(b.id(PROBE)).returning(address.recipient());
        let unwanted = a.reference::<Order>(b.id(PROBE));
        wanted.tell(Order::Note(1)).expect("there is a session");
        unwanted.tell(Order::Note(2)).expect("there is a session");
        wanted.clone().tell(Order::Note(3)).expect("there is a session");
        hub.disconnect();
        settle().await;
        let to: ActorId = b.id(PROBE);
        let returned =
            |number| Heard::Returned(Returned { to: to.clone(), message: Order::Note(number) });
        let heard: Vec<_> = log.take();
        assert_eq!(heard, [Heard::Started, returned(1), returned(3)]);
        assert_eq!(a.faults().total(NodeFault::StrayReturn), 1, "the other is counted");
    });
}
