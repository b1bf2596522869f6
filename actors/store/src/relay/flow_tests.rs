//! Property test of the flow control from clients over an agent's relay to the store and back. For any requests and any
//! speed of the readers, every request is answered in the end, and memory stays within its bounds.

use std::collections::{BTreeMap, VecDeque};

use elastic_protocol::{HostName, Incarnation, NodeId, NodeName, Stamp, Time, WorkerId};
use proptest::prelude::*;

use super::core::{ConnectionOwner, RelayCore, RelayOutput};
use crate::core::StoreCore;
use crate::limits::{
    ANSWERS_BYTES_MAX, CONNECTION_BYTES_MAX, GRANTS_MAX, PENDING_MAX, READ_BYTES,
    REQUEST_BYTES_MAX, SHORT_ANSWER_BYTES, UNGRANTED_BYTES,
};
use crate::messages::{ClientId, FromStore, ToStore};

const NOW: Time = Time::ZERO;
const HELLO: [u8; 5] = [0, 0xCE, 0xF7, 0x85, 0x3C];
const KEY: [u8; 9] = [1, 0, 0, 0, 0, 0, 0, 0, b'k'];

/// One thing that a client asks.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Set(usize),
    Get,
    Ping,
}

fn encoded(asked: Asked) -> Vec<u8> {
    match asked {
        Asked::Set(bytes) => {
            [&[1][..], &KEY, &(bytes as u64).to_le_bytes(), &vec![0; bytes]].concat()
        }
        Asked::Get => [&[3][..], &KEY].concat(),
        Asked::Ping => vec![13, 1, 2, 3, 4],
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    prop_oneof![
        1 => (0..600_000_usize).prop_map(Asked::Set),
        1 => (0..100_usize).prop_map(Asked::Set),
        2 => Just(Asked::Get),
        1 => Just(Asked::Ping),
    ]
}

struct Socket {
    /// Bytes that the client has sent and the relay has not read.
    unread: VecDeque<u8>,
    reads: bool,
    /// Answers on the way to the client.
    unwritten: usize,
    answered: usize,
}

/// An agent and the store, with a session between them that has little room.
struct World {
    relay: RelayCore,
    store: StoreCore,
    up: VecDeque<ToStore>,
    down: VecDeque<FromStore>,
    sockets: BTreeMap<ClientId, Socket>,
}

fn node(name: NodeName) -> NodeId {
    NodeId { name, incarnation: Incarnation(1) }
}

fn agent() -> NodeId {
    node(NodeName::Agent(HostName::new("a").expect("a literal")))
}

impl World {
    fn new(scripts: &[Vec<Asked>]) -> Self {
        let mut relay = RelayCore::new();
        relay.handle_up(NOW, node(NodeName::Driver));
        let mut sockets = BTreeMap::new();
        for (slot, script) in scripts.iter().enumerate() {
            let host = HostName::new("a").expect("a literal");
            let worker = WorkerId { host, slot: slot as u32, incarnation: Incarnation(1) };
            let stamp = Stamp::default();
            let client = relay.handle_connected(ConnectionOwner { worker, stamp }).expect("room");
            let sent = script.iter().flat_map(|asked| encoded(*asked));
            let unread = HELLO.into_iter().chain(sent).collect();
            sockets.insert(client, Socket { unread, reads: true, unwritten: 0, answered: 0 });
        }
        let (store, up, down) = Default::default();
        Self { relay, store, up, down, sockets }
    }

    /// Takes one step of a kind; false if there is none to take.
    fn step(&mut self, kind: usize, which: usize) -> bool {
        let acted = match kind {
            0 => self.read(which),
            1 => self.relay.poll_message().map(|it| self.up.push_back(it)).is_some(),
            2 => self.up.pop_front().map(|it| self.store.handle(&agent(), it)).is_some(),
            3 => self.store.poll_output().map(|(_, it)| self.down.push_back(it)).is_some(),
            4 => {
                let told = self.down.pop_front();
                let from = node(NodeName::Driver);
                told.map(|it| self.relay.handle_store(NOW, &from, it)).is_some()
            }
            _ => self.write(which),
        };
        while let Some(output) = self.relay.poll_output() {
            match output {
                RelayOutput::Write { client, .. } => {
                    self.sockets.get_mut(&client).expect("known").unwritten += 1;
                }
                RelayOutput::ReadOn { client } => {
                    self.sockets.get_mut(&client).expect("known").reads = true;
                }
                RelayOutput::Close { cause, .. } => panic!("closed: {cause}"),
            }
        }
        acted
    }

    fn read(&mut self, which: usize) -> bool {
        let ready = self.sockets.iter_mut().filter(|(_, it)| it.reads && !it.unread.is_empty());
        let mut ready: Vec<_> = ready.collect();
        if ready.is_empty() {
            return false;
        }
        let at = which % ready.len();
        let (client, socket) = &mut ready[at];
        let length = socket.unread.len().min(READ_BYTES);
        let bytes: Vec<u8> = socket.unread.drain(..length).collect();
        socket.reads = self.relay.handle_bytes(NOW, **client, &bytes);
        true
    }

    fn write(&mut self, which: usize) -> bool {
        let mut ready: Vec<_> =
            self.sockets.iter_mut().filter(|(_, it)| it.unwritten > 0).collect();
        if ready.is_empty() {
            return false;
        }
        let at = which % ready.len();
        let (client, socket) = &mut ready[at];
        socket.unwritten -= 1;
        socket.answered += 1;
        self.relay.handle_written(NOW, **client);
        true
    }

    fn bound(&self) -> usize {
        let each = UNGRANTED_BYTES + READ_BYTES + PENDING_MAX * SHORT_ANSWER_BYTES;
        GRANTS_MAX * CONNECTION_BYTES_MAX
            + self.sockets.len() * each
            + ANSWERS_BYTES_MAX
            + REQUEST_BYTES_MAX
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn s_8_every_request_is_answered_within_the_bounds(
        scripts in proptest::collection::vec(proptest::collection::vec(asked(), 1..8), 1..14),
        order in proptest::collection::vec((0..6_usize, any::<prop::sample::Index>()), 200),
    ) {
        let mut world = World::new(&scripts);
        let steps = order.iter().cycle().map(|(kind, which)| (*kind, which.index(64)));
        let mut idle = 0;
        for (kind, which) in steps {
            idle = if world.step(kind, which) { 0 } else { idle + 1 };
            prop_assert!(world.relay.bytes() <= world.bound(), "{} bytes", world.relay.bytes());
            if idle > order.len() {
                break;
            }
        }
        // The steps that the random order has left are taken in order.
        while (0..6).any(|kind| world.step(kind, 0)) {}
        for (socket, script) in world.sockets.values().zip(&scripts) {
            let expected = script.iter().filter(|it| !matches!(it, Asked::Set(_))).count();
            prop_assert_eq!((socket.unread.len(), socket.answered), (0, expected));
        }
    }
}
