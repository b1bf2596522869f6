//! Unit tests of the relay's core.

use elastic_protocol::{HostName, Incarnation, NodeName};

use super::*;
use crate::limits::GRANTS_MAX;

const NOW: Time = Time::ZERO;

const HELLO: [u8; 5] = [0, 0xCE, 0xF7, 0x85, 0x3C];
/// The request for the number of keys.
const COUNT: [u8; 1] = [7];

fn owner(slot: u32) -> ConnectionOwner {
    let host = HostName::new("a").expect("a literal");
    ConnectionOwner {
        worker: WorkerId { host, slot, incarnation: Incarnation(1) },
        stamp: Stamp::default(),
    }
}

fn driver(life: u64) -> NodeId {
    NodeId { name: NodeName::Driver, incarnation: Incarnation(life) }
}

fn outputs(relay: &mut RelayCore) -> Vec<RelayOutput> {
    std::iter::from_fn(|| relay.poll_output()).collect()
}

fn messages(relay: &mut RelayCore) -> Vec<ToStore> {
    std::iter::from_fn(|| relay.poll_message()).collect()
}

fn asks(client: ClientId) -> ToStore {
    ToStore::Request { client, stamp: Stamp::default(), request: Request::CountKeys }
}

fn connected(relay: &mut RelayCore) -> ClientId {
    relay.handle_up(NOW, driver(1));
    let client = relay.handle_connected(owner(0)).expect("the first");
    assert!(relay.handle_bytes(NOW, client, &HELLO));
    client
}

fn answered(relay: &mut RelayCore, client: ClientId, answer: &[u8]) {
    let message = FromStore::Done { client, answer: answer.to_vec() };
    relay.handle_store(NOW, &driver(1), message);
}

/// A request to store a value of this length.
fn set(bytes: usize) -> Vec<u8> {
    let length = (bytes as u64).to_le_bytes();
    [&[1][..], &1_u64.to_le_bytes(), b"k", &length, &vec![0; bytes]].concat()
}

#[test]
fn requests_go_and_answers_come() {
    let mut relay = RelayCore::new();
    let client = connected(&mut relay);
    assert!(relay.handle_bytes(NOW, client, &COUNT));
    assert_eq!(messages(&mut relay), [asks(client)]);
    answered(&mut relay, client, &[1, 2]);
    assert_eq!(outputs(&mut relay), [RelayOutput::Write { client, bytes: vec![1, 2] }]);
    relay.handle_written(NOW, client);
    assert_eq!(messages(&mut relay), [], "a short answer is not counted");
    relay.handle_closed(NOW, client);
    assert_eq!(messages(&mut relay), [ToStore::Gone { client }]);
}

#[test]
fn a_client_that_asks_without_reading_is_held_back() {
    let mut relay = RelayCore::new();
    let client = connected(&mut relay);
    assert!(!relay.handle_bytes(NOW, client, &[COUNT[0]; PENDING_MAX + 3]));
    assert_eq!(messages(&mut relay).len(), PENDING_MAX);
    answered(&mut relay, client, &[1]);
    assert_eq!(messages(&mut relay), [], "the client has not taken the answer");
    for _ in 0..3 {
        relay.handle_written(NOW, client);
        assert_eq!(messages(&mut relay), [asks(client)]);
        answered(&mut relay, client, &[1]);
    }
    let told = outputs(&mut relay);
    assert!(told.iter().all(|it| matches!(it, RelayOutput::Write { .. })), "{told:?}");
    relay.handle_written(NOW, client);
    assert_eq!(outputs(&mut relay), [RelayOutput::ReadOn { client }]);
}

#[test]
fn s_8_long_requests_have_their_turn_one_after_the_other() {
    let mut relay = RelayCore::new();
    let first = connected(&mut relay);
    let mut clients = vec![first];
    for slot in 1..=GRANTS_MAX as u32 {
        let client = relay.handle_connected(owner(slot)).expect("room");
        assert!(relay.handle_bytes(NOW, client, &HELLO));
        clients.push(client);
    }
    let request = set(2 * UNGRANTED_BYTES);
    let (begin, rest) = request.split_at(UNGRANTED_BYTES + 1);
    let waits = clients.pop().expect("one more than there are turns");
    for client in &clients {
        assert!(relay.handle_bytes(NOW, *client, begin), "it has its turn");
    }
    assert!(!relay.handle_bytes(NOW, waits, begin), "it waits for its turn");
    assert_eq!(relay.poll_timeout(), Some(NOW + STALLED_AFTER));
    let _ = relay.handle_bytes(NOW, clients[1], rest);
    assert_eq!(messages(&mut relay).len(), 1);
    answered(&mut relay, clients[1], &[]);
    let told = outputs(&mut relay);
    assert!(told.contains(&RelayOutput::ReadOn { client: waits }), "{told:?}");
}

#[test]
fn s_8_a_client_that_stands_still_in_a_request_loses_its_turn_once_others_wait() {
    let mut relay = RelayCore::new();
    connected(&mut relay);
    let begin = &set(4 * UNGRANTED_BYTES)[..2 * UNGRANTED_BYTES];
    for slot in 0..GRANTS_MAX as u32 {
        let client = relay.handle_connected(owner(slot)).expect("room");
        assert!(relay.handle_bytes(NOW, client, &[&HELLO, begin].concat()));
    }
    let late = NOW + 2 * STALLED_AFTER;
    assert_eq!(relay.poll_timeout(), None, "nobody waits");
    relay.handle_timeout(late);
    assert_eq!(outputs(&mut relay), []);
    let waits = relay.handle_connected(owner(9)).expect("room");
    assert!(!relay.handle_bytes(NOW, waits, &[&HELLO, begin].concat()));
    assert_eq!(relay.poll_timeout(), Some(NOW + STALLED_AFTER));
    relay.handle_timeout(NOW + STALLED_AFTER);
    let told = outputs(&mut relay);
    let closed = |it: &&RelayOutput| {
        matches!(it, RelayOutput::Close { cause: CloseCause::Refused(reason), .. }
            if reason.contains("nothing more for 30 s"))
    };
    assert_eq!(told.iter().filter(closed).count(), GRANTS_MAX, "{told:?}");
    assert!(told.contains(&RelayOutput::ReadOn { client: waits }), "{told:?}");
}

#[test]
fn t_6_the_end_of_a_generation_closes_its_connections_at_once() {
    let mut relay = RelayCore::new();
    let client = connected(&mut relay);
    relay.handle_generation_ended(NOW, &owner(1).worker);
    assert_eq!(outputs(&mut relay), [], "another worker's");
    relay.handle_generation_ended(NOW, &owner(0).worker);
    let (worker, cause) = (owner(0).worker, CloseCause::GenerationOver);
    assert_eq!(outputs(&mut relay), [RelayOutput::Close { client, worker, cause }]);
    assert_eq!(messages(&mut relay), [ToStore::Gone { client }]);
}

#[test]
fn a_new_life_of_the_driver_is_asked_again() {
    let mut relay = RelayCore::new();
    let client = connected(&mut relay);
    relay.handle_bytes(NOW, client, &COUNT);
    messages(&mut relay);
    relay.handle_lost();
    relay.handle_bytes(NOW, client, &COUNT);
    assert_eq!(messages(&mut relay), []);
    relay.handle_up(NOW, driver(2));
    assert_eq!(messages(&mut relay), [asks(client), asks(client)]);
    relay.handle_lost();
    relay.handle_up(NOW, driver(2));
    let told = outputs(&mut relay);
    assert!(matches!(told[0], RelayOutput::Close { .. }), "it has forgotten: {told:?}");
}

#[test]
fn who_speaks_another_protocol_is_turned_away() {
    let mut relay = RelayCore::new();
    relay.handle_up(NOW, driver(1));
    let client = relay.handle_connected(owner(0)).expect("the first");
    assert!(!relay.handle_bytes(NOW, client, b"GET / HTTP/1.1\r\n"));
    assert!(matches!(outputs(&mut relay)[0], RelayOutput::Close { .. }));
}
