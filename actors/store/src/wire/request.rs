//! Requests of the store's clients. Decoded by the relay, carried out by the store's core.

use serde::{Deserialize, Serialize};

use crate::limits::ENTRY_BYTES;

/// One request. Keys and values are opaque bytes.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Request {
    /// Stores a value. No answer.
    Set {
        /// The key.
        key: Vec<u8>,
        /// The value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Stores `desired` if the value is `expected`; an absent key has the empty value. The answer is the value that
    /// is there afterwards; if the key is absent and stays so, `expected`.
    CompareSet {
        /// The key.
        key: Vec<u8>,
        /// The value that must be there.
        #[serde(with = "serde_bytes")]
        expected: Vec<u8>,
        /// The value to store.
        #[serde(with = "serde_bytes")]
        desired: Vec<u8>,
    },
    /// Asks for a value. The answer is empty if the key is absent.
    Get {
        /// The key.
        key: Vec<u8>,
    },
    /// Adds to a number that is kept as decimal text, from 0. The answer is the sum.
    Add {
        /// The key.
        key: Vec<u8>,
        /// The number to add.
        amount: i64,
    },
    /// Asks whether all keys are there.
    Check {
        /// The keys.
        keys: Vec<Vec<u8>>,
    },
    /// Waits for keys. The answer comes as soon as all are there.
    Wait {
        /// The keys.
        keys: Vec<Vec<u8>>,
    },
    /// Asks for the number of keys.
    CountKeys,
    /// Removes a key. The answer is the number of removed keys.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// Adds bytes to the end of a value. No answer.
    Append {
        /// The key.
        key: Vec<u8>,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Asks for the values of several keys.
    MultiGet {
        /// The keys.
        keys: Vec<Vec<u8>>,
    },
    /// Stores several values. No answer.
    MultiSet {
        /// Keys and values.
        entries: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Cancels the connection's wait.
    CancelWait,
    /// Asks for the same number back.
    Ping {
        /// The number.
        nonce: u32,
    },
    /// Adds a value to the end of a queue. No answer.
    QueuePush {
        /// The queue's key.
        key: Vec<u8>,
        /// The value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Takes the first value of a queue, if it has one.
    QueuePop {
        /// The queue's key.
        key: Vec<u8>,
    },
    /// Asks for the number of values in a queue.
    QueueLength {
        /// The queue's key.
        key: Vec<u8>,
    },
    /// Asks for all keys.
    ListKeys,
    /// Waits at a barrier. The answer comes when `world_size` requests with this key have come.
    Barrier {
        /// The barrier's key.
        key: Vec<u8>,
        /// Number of requests for which the barrier waits.
        world_size: i64,
    },
}

impl Request {
    /// The request's size: its keys and values, and a map's entry for each.
    pub fn bytes(&self) -> usize {
        let one = |bytes: &[u8]| bytes.len() + ENTRY_BYTES;
        match self {
            Self::Set { key, value }
            | Self::Append { key, value }
            | Self::QueuePush { key, value } => one(key) + value.len(),
            Self::CompareSet { key, expected, desired } => {
                one(key) + expected.len() + desired.len()
            }
            Self::Get { key }
            | Self::Add { key, .. }
            | Self::Delete { key }
            | Self::QueuePop { key }
            | Self::QueueLength { key }
            | Self::Barrier { key, .. } => one(key),
            Self::Check { keys } | Self::Wait { keys } | Self::MultiGet { keys } => {
                keys.iter().map(|key| one(key)).sum()
            }
            Self::MultiSet { entries } => {
                entries.iter().map(|(key, value)| one(key) + value.len()).sum()
            }
            Self::CountKeys | Self::CancelWait | Self::Ping { .. } | Self::ListKeys => ENTRY_BYTES,
        }
    }

    /// Whether the answer waits for other clients.
    pub const fn is_wait(&self) -> bool {
        matches!(self, Self::Wait { .. } | Self::Barrier { .. })
    }

    /// Whether the answer may be long.
    pub const fn asks_for_values(&self) -> bool {
        matches!(
            self,
            Self::Get { .. }
                | Self::MultiGet { .. }
                | Self::ListKeys
                | Self::QueuePop { .. }
                | Self::CompareSet { .. }
        )
    }
}
