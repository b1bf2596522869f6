//! Outputs of the key-value store, its relays and their clients in mode `store`, in words, for the recorded decisions. Keys and
//! values are those of the script: only their length and a short hash are told. Called by `store`.

use elastic_store::messages::{FromStore, ToStore};
use elastic_store::relay::core::RelayOutput;
use elastic_store::wire::Request;

use super::words::stamp;
use crate::dataset::mix;

/// Bytes of a script.
fn bytes(of: &[u8]) -> String {
    let hash = of.iter().fold(of.len() as u64, |hash, byte| mix(hash, u64::from(*byte)));
    format!("{} bytes {:04x}", of.len(), hash & 0xffff)
}

fn each(of: &[Vec<u8>]) -> String {
    of.iter().map(|it| bytes(it)).collect::<Vec<_>>().join(", ")
}

fn request(of: &Request) -> String {
    match of {
        Request::Set { key, value } => format!("set {} to {}", bytes(key), bytes(value)),
        Request::CompareSet { key, expected, desired } => {
            format!("set {} to {} if {}", bytes(key), bytes(desired), bytes(expected))
        }
        Request::Get { key } => format!("get {}", bytes(key)),
        Request::Add { key, amount } => format!("add {amount} to {}", bytes(key)),
        Request::Check { keys } => format!("check {}", each(keys)),
        Request::Wait { keys } => format!("wait for {}", each(keys)),
        Request::CountKeys => "count".to_owned(),
        Request::Delete { key } => format!("delete {}", bytes(key)),
        Request::Append { key, value } => format!("append {} to {}", bytes(value), bytes(key)),
        Request::MultiGet { keys } => format!("get {}", each(keys)),
        Request::MultiSet { entries } => {
            let one =
                |(key, value): &(Vec<u8>, Vec<u8>)| format!("{} to {}", bytes(key), bytes(value));
            format!("set {}", entries.iter().map(one).collect::<Vec<_>>().join(", "))
        }
        Request::CancelWait => "cancel the wait".to_owned(),
        Request::Ping { nonce } => format!("ping {nonce}"),
        Request::QueuePush { key, value } => format!("push {} to {}", bytes(value), bytes(key)),
        Request::QueuePop { key } => format!("pop of {}", bytes(key)),
        Request::QueueLength { key } => format!("length of {}", bytes(key)),
        Request::ListKeys => "list".to_owned(),
        Request::Barrier { key, world_size } => format!("barrier {} of {world_size}", bytes(key)),
    }
}

/// A relay's message to the store.
pub(crate) fn to_store(message: &ToStore) -> String {
    match message {
        ToStore::Request { client, stamp: of, request: asked } => {
            format!("asks for client {} of {}: {}", client.0, stamp(*of), request(asked))
        }
        ToStore::Taken { client, bytes } => format!("client {} has taken {bytes} bytes", client.0),
        ToStore::Gone { client } => format!("client {} has gone", client.0),
    }
}

/// The store's message to a relay.
pub(crate) fn from_store(message: &FromStore) -> String {
    match message {
        FromStore::Done { client, answer } => {
            format!("the store answers client {} with {}", client.0, bytes(answer))
        }
        FromStore::Close { client, cause } => {
            format!("the store has client {} closed: {cause}", client.0)
        }
    }
}

/// A relay's action on its clients' connections.
pub(crate) fn relay(output: &RelayOutput) -> String {
    match output {
        RelayOutput::Write { client, bytes: of } => {
            format!("writes {} to client {}", bytes(of), client.0)
        }
        RelayOutput::ReadOn { client } => format!("reads on from client {}", client.0),
        RelayOutput::Close { client, cause, .. } => format!("closes client {}: {cause}", client.0),
    }
}
