//! Unit and property tests of the store's core.

use elastic_protocol::{GenerationId, HostName, Incarnation, NodeId, NodeName, Stamp, Term};
use proptest::prelude::*;

use super::StoreCore;
use crate::limits::{ANSWERS_BYTES_MAX, NAMESPACE_BYTES_MAX, REQUEST_BYTES_MAX, VALUE_BYTES_MAX};
use crate::messages::{ClientId, FromStore, ToStore};
use crate::wire::{Request, StoreReply};

fn agent() -> NodeId {
    let host = HostName::new("a").expect("a literal");
    NodeId { name: NodeName::Agent(host), incarnation: Incarnation(1) }
}

fn generation(number: u64) -> Stamp {
    Stamp { term: Term(1), generation: GenerationId(number) }
}

/// Messages to the clients of one agent.
#[derive(Default)]
struct TestStore(StoreCore);

impl TestStore {
    fn ask(&mut self, client: u64, of: u64, request: Request) -> Vec<FromStore> {
        let (client, stamp) = (ClientId(client), generation(of));
        self.0.handle(&agent(), ToStore::Request { client, stamp, request });
        self.told()
    }

    /// A process that belongs to no generation asks.
    fn ask_in_process(&mut self, client: u64, request: Request) -> Vec<FromStore> {
        let (client, stamp) = (ClientId(client), Stamp::default());
        self.0.handle(&agent(), ToStore::Request { client, stamp, request });
        self.told()
    }

    fn told(&mut self) -> Vec<FromStore> {
        std::iter::from_fn(|| self.0.poll_output()).map(|(_, message)| message).collect()
    }

    fn set(&mut self, client: u64, of: u64, key: &str, value: &str) -> Vec<FromStore> {
        self.ask(client, of, Request::Set { key: key.into(), value: value.into() })
    }

    fn get(&mut self, client: u64, of: u64, key: &str) -> Vec<FromStore> {
        self.ask(client, of, Request::Get { key: key.into() })
    }
}

fn done(client: u64, reply: &StoreReply) -> FromStore {
    FromStore::Done { client: ClientId(client), answer: reply.encode() }
}

fn taken(client: u64) -> FromStore {
    FromStore::Done { client: ClientId(client), answer: Vec::new() }
}

fn closed(message: &FromStore) -> Option<(u64, String)> {
    match message {
        FromStore::Close { client, cause } => Some((client.0, cause.to_string())),
        FromStore::Done { .. } => None,
    }
}

#[test]
fn values_and_numbers_are_kept() {
    let mut store = TestStore::default();
    assert_eq!(store.set(1, 1, "k", "v"), [taken(1)]);
    assert_eq!(store.get(2, 1, "k"), [done(2, &StoreReply::Value(b"v".to_vec()))]);
    assert_eq!(store.get(2, 1, "other"), [done(2, &StoreReply::Value(Vec::new()))]);
    let add = |amount| Request::Add { key: b"n".to_vec(), amount };
    assert_eq!(store.ask(1, 1, add(2)), [done(1, &StoreReply::Number(2))]);
    assert_eq!(store.ask(1, 1, add(-5)), [done(1, &StoreReply::Number(-3))]);
    assert_eq!(
        store.get(2, 1, "n"),
        [done(2, &StoreReply::Value(b"-3".to_vec()))],
        "as torch stores it"
    );
    let told = store.ask(1, 1, Request::Add { key: b"k".to_vec(), amount: 1 });
    assert!(closed(&told[0]).is_some_and(|(_, reason)| reason.contains("no number")));
}

#[test]
fn compare_and_set_follows_torch() {
    let mut store = TestStore::default();
    let swap = |expected: &str, desired: &str| Request::CompareSet {
        key: b"k".to_vec(),
        expected: expected.into(),
        desired: desired.into(),
    };
    let value = |text: &str| vec![done(1, &StoreReply::Value(text.into()))];
    assert_eq!(store.ask(1, 1, swap("x", "y")), value("x"), "absent, and not expected to be");
    assert_eq!(store.ask(1, 1, swap("", "a")), value("a"));
    assert_eq!(store.ask(1, 1, swap("b", "c")), value("a"), "it is another");
    assert_eq!(store.ask(1, 1, swap("a", "c")), value("c"));
}

#[test]
fn a_wait_ends_when_all_keys_are_there() {
    let mut store = TestStore::default();
    let wait = Request::Wait { keys: vec![b"a".to_vec(), b"b".to_vec()] };
    assert_eq!(store.ask(1, 1, wait.clone()), []);
    assert_eq!(store.set(2, 1, "a", ""), [taken(2)]);
    assert_eq!(store.set(2, 1, "b", ""), [done(1, &StoreReply::Released), taken(2)]);
    assert_eq!(store.ask(1, 1, wait), [done(1, &StoreReply::Released)], "they are there");
    assert_eq!(store.ask(1, 1, Request::Wait { keys: vec![b"c".to_vec()] }), []);
    assert_eq!(store.ask(1, 1, Request::CancelWait), [taken(1), done(1, &StoreReply::Cancelled)]);
    assert_eq!(store.set(2, 1, "c", ""), [taken(2)], "nobody waits any more");
}

#[test]
fn t_6_a_dead_generation_s_waits_fail_at_once_and_its_keys_are_gone() {
    let mut store = TestStore::default();
    store.set(1, 1, "peer/0", "127.0.0.1:1");
    assert_eq!(store.ask(2, 1, Request::Wait { keys: vec![b"peer/1".to_vec()] }), []);
    let told = store.get(3, 2, "peer/0");
    let over: Vec<_> = told.iter().filter_map(closed).collect();
    assert_eq!(over, [1, 2].map(|client| (client, "its generation is over".to_owned())));
    assert_eq!(told.last(), Some(&done(3, &StoreReply::Value(Vec::new()))), "no stale address");
    let told = store.set(1, 1, "peer/0", "127.0.0.1:2");
    assert_eq!(closed(&told[0]), Some((1, "its generation is over".to_owned())), "G-2");
    assert_eq!(store.0.clients(), 1);
}

#[test]
fn a_barrier_opens_when_all_have_come() {
    let mut store = TestStore::default();
    let barrier = || Request::Barrier { key: b"b".to_vec(), world_size: 2 };
    assert_eq!(store.ask(1, 1, barrier()), []);
    assert_eq!(
        store.ask(2, 1, barrier()),
        [done(1, &StoreReply::Released), done(2, &StoreReply::Released)]
    );
    assert_eq!(store.ask(1, 1, barrier()), [], "it begins anew");
}

#[test]
fn t_8_processes_that_were_kept_and_those_that_are_started_later_see_each_others_keys() {
    let mut store = TestStore::default();
    let wait = || Request::Wait { keys: vec![b"new".to_vec()] };
    assert_eq!(store.set(1, 1, "kept", "a"), [taken(1)]);
    assert_eq!(store.ask(2, 1, wait()), []);
    let get = |key: &str| Request::Get { key: key.into() };
    let value = |value: &str| StoreReply::Value(value.into());
    assert_eq!(store.ask_in_process(3, get("kept")), [done(3, &value("a"))]);
    let set = Request::Set { key: b"new".to_vec(), value: b"b".to_vec() };
    assert_eq!(store.ask_in_process(3, set), [done(2, &StoreReply::Released), taken(3)]);
    assert_eq!(store.get(1, 1, "new"), [done(1, &value("b"))]);
    let told = store.get(4, 0, "new");
    assert!(closed(&told[0]).is_some(), "G-2: one of an older generation does not: {told:?}");
    assert_eq!(store.get(5, 2, "new"), [done(5, &value("b"))], "no other generation begins");
}

#[test]
fn queues_are_first_in_first_out() {
    let mut store = TestStore::default();
    let push = |value: &str| Request::QueuePush { key: b"q".to_vec(), value: value.into() };
    let pop = || Request::QueuePop { key: b"q".to_vec() };
    assert_eq!(store.ask(1, 1, pop()), [done(1, &StoreReply::Popped(None))]);
    assert_eq!(store.ask(2, 1, Request::Wait { keys: vec![b"q".to_vec()] }), []);
    assert_eq!(store.ask(1, 1, push("a")), [done(2, &StoreReply::Released), taken(1)]);
    store.ask(1, 1, push("b"));
    assert_eq!(store.ask(2, 1, pop()), [done(2, &StoreReply::Popped(Some(b"a".to_vec())))]);
    let length = Request::QueueLength { key: b"q".to_vec() };
    assert_eq!(store.ask(2, 1, length), [done(2, &StoreReply::Number(1))]);
}

#[test]
fn a_lost_host_s_clients_are_forgotten() {
    let mut store = TestStore::default();
    store.ask(1, 1, Request::Wait { keys: vec![b"k".to_vec()] });
    store.0.handle_lost(&agent());
    assert_eq!(store.0.clients(), 0);
    assert_eq!(store.set(2, 1, "k", ""), [taken(2)], "nobody is told who is gone");
}

#[test]
fn a_generation_stores_only_so_much() {
    let mut store = TestStore::default();
    let big = || vec![0; VALUE_BYTES_MAX];
    let mut stored = 0;
    for number in 0..=NAMESPACE_BYTES_MAX / VALUE_BYTES_MAX {
        let key = number.to_string().into_bytes();
        let told = store.ask(1, 1, Request::Set { key, value: big() });
        stored += usize::from(told == [taken(1)]);
    }
    assert!(stored < NAMESPACE_BYTES_MAX / VALUE_BYTES_MAX + 1, "{stored} values");
    let key = b"0".to_vec();
    assert_eq!(store.ask(1, 1, Request::Delete { key }), [done(1, &StoreReply::Number(1))]);
    assert_eq!(store.set(1, 1, "small", "v"), [taken(1)], "there is room again");
    let told = store.ask(1, 1, Request::Append { key: b"1".to_vec(), value: vec![1] });
    assert!(closed(&told[0]).is_some(), "no value outgrows the bound");
}

#[test]
fn s_8_an_agent_whose_clients_do_not_read_waits_and_holds_up_no_other() {
    let mut store = TestStore::default();
    let big = Request::Set { key: b"k".to_vec(), value: vec![7; VALUE_BYTES_MAX] };
    assert_eq!(store.ask(1, 1, big), [taken(1)]);
    let get = || Request::Get { key: b"k".to_vec() };
    let answered = (2..20).filter(|client| !store.ask(*client, 1, get()).is_empty()).count();
    let bound = ANSWERS_BYTES_MAX.div_ceil(VALUE_BYTES_MAX);
    assert_eq!(answered, bound);
    assert!(store.0.untaken.bytes(&agent()) < ANSWERS_BYTES_MAX + REQUEST_BYTES_MAX);
    assert_eq!(store.set(19, 1, "x", ""), [], "a client's requests keep their order");
    assert_eq!(store.set(20, 1, "x", ""), [taken(20)], "what needs no room is carried out");
    let other = NodeId { incarnation: Incarnation(2), ..agent() };
    let (client, stamp) = (ClientId(1), generation(1));
    store.0.handle(&other, ToStore::Request { client, stamp, request: get() });
    assert_eq!(store.told().len(), 1, "another agent is not held up");
    let bytes = VALUE_BYTES_MAX as u64 + 8;
    for client in 2..2 + bound as u64 {
        store.0.handle(&agent(), ToStore::Taken { client: ClientId(client), bytes });
        assert_eq!(store.told().len(), 1, "there is room for one more");
    }
    let gone = |client| ToStore::Gone { client: ClientId(client) };
    let told = (6..19).flat_map(|client| {
        store.0.handle(&agent(), gone(client));
        store.told()
    });
    assert!(told.count() > 0, "the answers of clients that have gone make room, too");
    let left: Vec<FromStore> = store.told();
    assert_eq!(left, []);
    for client in 19..40 {
        store.0.handle(&agent(), gone(client));
    }
    store.0.handle(&other, gone(1));
    assert!(store.0.untaken.is_empty(), "an agent without clients that owe something is forgotten");
}

fn request() -> impl Strategy<Value = Request> {
    let key = || prop_oneof![Just(b"a".to_vec()), Just(b"b".to_vec()), Just(b"c".to_vec())];
    let keys = || proptest::collection::vec(key(), 0..3);
    prop_oneof![
        key().prop_map(|key| Request::Set { key, value: b"1".to_vec() }),
        key().prop_map(|key| Request::Get { key }),
        key().prop_map(|key| Request::Delete { key }),
        key().prop_map(|key| Request::Add { key, amount: 1 }),
        keys().prop_map(|keys| Request::Wait { keys }),
        keys().prop_map(|keys| Request::Check { keys }),
        Just(Request::CancelWait),
        key().prop_map(|key| Request::QueuePush { key, value: b"x".to_vec() }),
        key().prop_map(|key| Request::QueuePop { key }),
        key().prop_map(|key| Request::Barrier { key, world_size: 2 }),
    ]
}

proptest! {
    /// Checks any mix of requests of several clients and generations. Each is answered at most once, and in the end
    /// none is left behind: a newer generation ends every wait.
    #[test]
    fn each_request_is_answered_once(
        asked in proptest::collection::vec((0..4_u64, 1..3_u64, request()), 0..60),
    ) {
        let mut store = TestStore::default();
        let mut balance = [0_i64; 4];
        let mut asked: Vec<_> = asked;
        // Clients belong to one generation for all their life.
        for (client, of, _) in &mut asked {
            *of = 1 + *client % 2;
        }
        for (client, of, request) in asked {
            balance[client as usize] += 1;
            for told in store.ask(client, of, request) {
                match told {
                    FromStore::Done { client, .. } => balance[client.0 as usize] -= 1,
                    FromStore::Close { client, .. } => balance[client.0 as usize] = 0,
                }
            }
            prop_assert!(balance.iter().all(|open| *open >= 0), "{balance:?}");
        }
        let told = store.get(9, 3, "a");
        for client in told.iter().filter_map(closed).map(|(client, _)| client) {
            balance[client as usize] = 0;
        }
        prop_assert_eq!(balance, [0; 4]);
    }
}
