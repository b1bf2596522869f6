//! Tests of nodes: malformed frames, messages that nobody takes, links, time and randomness.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use elastic_protocol::{NodeId, WireMessage};
use rand::RngCore;

use super::loopback::{Hub, node_id};
use super::probe::{Heard, Log, Order, PROBE, Probe};
use super::settle;
use crate::envelope::{Header, frame};
use crate::node::NodeFault;
use crate::system::run_paused;
use crate::transport::{Conversation, LinkEvent, TransportEvent};
use crate::{Clock, DeliveryRefusal, LinkChanged, NodeHandle};

fn frame_from(from: &NodeId, frame: Bytes) -> TransportEvent {
    TransportEvent::Frame { from: from.clone(), conversation: Conversation::Control, frame }
}

#[test]
fn malformed_frames_are_counted_and_close_the_session_with_a_reason() {
    run_paused(async {
        let (hub, a, b) = Hub::pair();
        Probe::publish(&b, &Log::default(), 16);
        let header = Header::Tell { actor: PROBE, kind: Order::KIND, returns: 0 };
        for bytes in [frame(&header, &[200]), frame(&header, b"\x02left over"), Bytes::new()] {
            hub.tell(b.local(), frame_from(a.local(), bytes));
        }
        assert_eq!(b.faults().total(NodeFault::Refused(DeliveryRefusal::Malformed)), 3);
        settle().await;
        let closed = hub.closed.take();
        assert_eq!(closed[0], (a.local().clone(), "it sent a malformed frame".to_owned()));
    });
}

#[test]
fn what_nobody_takes_is_counted_and_the_session_stands() {
    run_paused(async {
        let (hub, a, b) = Hub::pair();
        Probe::publish(&b, &Log::default(), 16);
        for (actor, kind) in [(PROBE, 60_000), (elastic_protocol::ActorName(60_000), Order::KIND)] {
            let frame = frame(&Header::Tell { actor, kind, returns: 0 }, &[]);
            hub.tell(b.local(), frame_from(a.local(), frame));
        }
        settle().await;
        let faults = b.faults();
        assert_eq!(faults.total(NodeFault::Refused(DeliveryRefusal::NotTaken)), 1);
        assert_eq!(faults.total(NodeFault::Refused(DeliveryRefusal::NoSuchActor)), 1);
        assert!(faults.by_peer.contains_key(a.local()));
        assert!(hub.closed.take().is_empty());
        hub.disconnect();
        let faults = b.faults();
        assert!(faults.by_peer.is_empty(), "peers that are gone are counted in sum");
        assert_eq!(faults.total(NodeFault::Refused(DeliveryRefusal::NotTaken)), 1);
    });
}

#[test]
fn subscribers_hear_of_links_and_first_of_those_that_stand() {
    run_paused(async {
        let (hub, a, b) = Hub::pair();
        let log = Log::default();
        let (address, _) = Probe::publish(&a, &log, 16);
        a.subscribe_links(address.recipient());
        hub.disconnect();
        assert!(a.links().is_empty());
        hub.connect();
        settle().await;
        let heard = log.take();
        let events = heard.iter().filter_map(|heard| match heard {
            Heard::Link(LinkChanged { peer, event }) => Some((peer, event)),
            _ => None,
        });
        let events: Vec<_> = events.collect();
        assert!(events.iter().all(|(peer, _)| *peer == b.local()));
        assert!(matches!(
            events.as_slice(),
            [(_, LinkEvent::Up), (_, LinkEvent::Lost { .. }), (_, LinkEvent::Up)]
        ));
    });
}

#[test]
fn time_and_randomness_are_the_nodes_own() {
    run_paused(async {
        let of_seed = |seed| {
            NodeHandle::with_clocks(node_id("a"), seed, Clock::start(), || SystemTime::UNIX_EPOCH)
        };
        let node = of_seed(1);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(node.now().0, 3_600_000_000_000, "the paused clock moved by itself");
        assert_eq!(node.wall_clock(), SystemTime::UNIX_EPOCH);
        let draw = |node: &NodeHandle, index| node.random("net", index).next_u64();
        assert_eq!(draw(&node, 0), draw(&of_seed(1), 0));
        assert_ne!(draw(&node, 0), draw(&node, 1));
        assert_ne!(draw(&node, 0), draw(&of_seed(2), 0));
    });
}

#[test]
fn the_sink_does_not_keep_the_node() {
    run_paused(async {
        let node = NodeHandle::new(node_id("a"), 1);
        let sink = node.sink();
        drop(node);
        sink(frame_from(&node_id("b"), Bytes::new()));
    });
}
