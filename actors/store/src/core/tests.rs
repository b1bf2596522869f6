//! Unit and property tests of the store's core.

use elastic_protocol::{GenerationId, HostName, Incarnation, NodeId, NodeName, Stamp, Term};
use proptest::prelude::*;

use super::StoreCore;
use crate::limits::{NAMESPACE_BYTES_MAX, VALUE_BYTES_MAX};
use crate::messages::{ClientId, FromStore, ToStore};
use crate::wire::{Reply, Request};

fn agent() -> NodeId {
    let host = HostName::new("a").expect("a literal");
    NodeId { name: NodeName::Agent(host), incarnation: Incarnation(1) }
}

fn generation(number: u64) -> Stamp {
    Stamp { term: Term(1), generation: GenerationId(number) }
}

/// What clients of one agent are told.
#[derive(Default)]
struct Store(StoreCore);

impl Store {
    fn ask(&mut self, client: u64, of: u64, request: Request) -> Vec<FromStore> {
        let (client, stamp) = (ClientId(client), generation(of));
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

fn done(client: u64, reply: &Reply) -> FromStore {
    FromStore::Done { client: ClientId(client), answer: reply.encode() }
}

fn taken(client: u64) -> FromStore {
    FromStore::Done { client: ClientId(client), answer: Vec::new() }
}

fn closed(message: &FromStore) -> Option<(u64, &str)> {
    match message {
        FromStore::Close { client, reason } => Some((client.0, reason)),
        FromStore::Done { .. } => None,
    }
}

#[test]
fn values_and_numbers_are_kept() {
    let mut store = Store::default();
    assert_eq!(store.set(1, 1, "k", "v"), [taken(1)]);
    assert_eq!(store.get(2, 1, "k"), [done(2, &Reply::Value(b"v".to_vec()))]);
    assert_eq!(store.get(2, 1, "other"), [done(2, &Reply::Value(Vec::new()))]);
    let add = |amount| Request::Add { key: b"n".to_vec(), amount };
    assert_eq!(store.ask(1, 1, add(2)), [done(1, &Reply::Number(2))]);
    assert_eq!(store.ask(1, 1, add(-5)), [done(1, &Reply::Number(-3))]);
    assert_eq!(
        store.get(2, 1, "n"),
        [done(2, &Reply::Value(b"-3".to_vec()))],
        "as torch stores it"
    );
    let told = store.ask(1, 1, Request::Add { key: b"k".to_vec(), amount: 1 });
    assert!(closed(&told[0]).is_some_and(|(_, reason)| reason.contains("no number")));
}

#[test]
fn compare_and_set_follows_torch() {
    let mut store = Store::default();
    let swap = |expected: &str, desired: &str| Request::CompareSet {
        key: b"k".to_vec(),
        expected: expected.into(),
        desired: desired.into(),
    };
    let value = |text: &str| vec![done(1, &Reply::Value(text.into()))];
    assert_eq!(store.ask(1, 1, swap("x", "y")), value("x"), "absent, and not expected to be");
    assert_eq!(store.ask(1, 1, swap("", "a")), value("a"));
    assert_eq!(store.ask(1, 1, swap("b", "c")), value("a"), "it is another");
    assert_eq!(store.ask(1, 1, swap("a", "c")), value("c"));
}

#[test]
fn a_wait_ends_when_all_keys_are_there() {
    let mut store = Store::default();
    let wait = Request::Wait { keys: vec![b"a".to_vec(), b"b".to_vec()] };
    assert_eq!(store.ask(1, 1, wait.clone()), []);
    assert_eq!(store.set(2, 1, "a", ""), [taken(2)]);
    assert_eq!(store.set(2, 1, "b", ""), [done(1, &Reply::Released), taken(2)]);
    assert_eq!(store.ask(1, 1, wait), [done(1, &Reply::Released)], "they are there");
    assert_eq!(store.ask(1, 1, Request::Wait { keys: vec![b"c".to_vec()] }), []);
    assert_eq!(store.ask(1, 1, Request::CancelWait), [taken(1), done(1, &Reply::Cancelled)]);
    assert_eq!(store.set(2, 1, "c", ""), [taken(2)], "nobody waits any more");
}

#[test]
fn t_6_a_dead_generation_s_waits_fail_at_once_and_its_keys_are_gone() {
    let mut store = Store::default();
    store.set(1, 1, "peer/0", "127.0.0.1:1");
    assert_eq!(store.ask(2, 1, Request::Wait { keys: vec![b"peer/1".to_vec()] }), []);
    let told = store.get(3, 2, "peer/0");
    let over: Vec<_> = told.iter().filter_map(closed).collect();
    assert_eq!(over, [(1, "its generation is over"), (2, "its generation is over")]);
    assert_eq!(told.last(), Some(&done(3, &Reply::Value(Vec::new()))), "no stale address");
    let told = store.set(1, 1, "peer/0", "127.0.0.1:2");
    assert_eq!(closed(&told[0]), Some((1, "its generation is over")), "G-2");
    assert_eq!(store.0.clients(), 1);
}

#[test]
fn a_barrier_opens_when_all_have_come() {
    let mut store = Store::default();
    let barrier = || Request::Barrier { key: b"b".to_vec(), world_size: 2 };
    assert_eq!(store.ask(1, 1, barrier()), []);
    assert_eq!(store.ask(2, 1, barrier()), [done(1, &Reply::Released), done(2, &Reply::Released)]);
    assert_eq!(store.ask(1, 1, barrier()), [], "it begins anew");
}

#[test]
fn queues_are_first_in_first_out() {
    let mut store = Store::default();
    let push = |value: &str| Request::QueuePush { key: b"q".to_vec(), value: value.into() };
    let pop = || Request::QueuePop { key: b"q".to_vec() };
    assert_eq!(store.ask(1, 1, pop()), [done(1, &Reply::Popped(None))]);
    assert_eq!(store.ask(2, 1, Request::Wait { keys: vec![b"q".to_vec()] }), []);
    assert_eq!(store.ask(1, 1, push("a")), [done(2, &Reply::Released), taken(1)]);
    store.ask(1, 1, push("b"));
    assert_eq!(store.ask(2, 1, pop()), [done(2, &Reply::Popped(Some(b"a".to_vec())))]);
    let length = Request::QueueLength { key: b"q".to_vec() };
    assert_eq!(store.ask(2, 1, length), [done(2, &Reply::Number(1))]);
}

#[test]
fn a_lost_host_s_clients_are_forgotten() {
    let mut store = Store::default();
    store.ask(1, 1, Request::Wait { keys: vec![b"k".to_vec()] });
    store.0.handle_lost(&agent());
    assert_eq!(store.0.clients(), 0);
    assert_eq!(store.set(2, 1, "k", ""), [taken(2)], "nobody is told who is gone");
}

#[test]
fn a_generation_stores_only_so_much() {
    let mut store = Store::default();
    let big = || vec![0; VALUE_BYTES_MAX];
    let mut stored = 0;
    for number in 0..=NAMESPACE_BYTES_MAX / VALUE_BYTES_MAX {
        let key = number.to_string().into_bytes();
        let told = store.ask(1, 1, Request::Set { key, value: big() });
        stored += usize::from(told == [taken(1)]);
    }
    assert!(stored < NAMESPACE_BYTES_MAX / VALUE_BYTES_MAX + 1, "{stored} values");
    let key = b"0".to_vec();
    assert_eq!(store.ask(1, 1, Request::Delete { key }), [done(1, &Reply::Number(1))]);
    assert_eq!(store.set(1, 1, "small", "v"), [taken(1)], "there is room again");
    let told = store.ask(1, 1, Request::Append { key: b"1".to_vec(), value: vec![1] });
    assert!(closed(&told[0]).is_some(), "no value outgrows the bound");
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
    /// However requests of several clients and generations mix, each is answered at most once, and in the end
    /// none is left behind: a newer generation ends every wait.
    #[test]
    fn each_request_is_answered_once(
        asked in proptest::collection::vec((0..4_u64, 1..3_u64, request()), 0..60),
    ) {
        let mut store = Store::default();
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
