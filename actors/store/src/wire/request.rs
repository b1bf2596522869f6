//! What a client of the store asks for.

use serde::{Deserialize, Serialize};

/// One request. Keys and values are bytes; nothing is read into them.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Request {
    /// Stores a value. No answer.
    Set {
        /// Under which key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// Stores `desired` if the value is `expected`; an absent key has the empty value. Answered by the value
    /// that is there afterwards; if the key is absent and stays so, by `expected`.
    CompareSet {
        /// Which key.
        key: Vec<u8>,
        /// What it must be.
        expected: Vec<u8>,
        /// What it becomes.
        desired: Vec<u8>,
    },
    /// The value, empty if the key is absent.
    Get {
        /// Which key.
        key: Vec<u8>,
    },
    /// Adds to a number that is kept as decimal text, from 0. Answered by the sum.
    Add {
        /// Which key.
        key: Vec<u8>,
        /// How much.
        amount: i64,
    },
    /// Whether all keys are there.
    Check {
        /// Which keys.
        keys: Vec<Vec<u8>>,
    },
    /// Answered as soon as all keys are there.
    Wait {
        /// Which keys.
        keys: Vec<Vec<u8>>,
    },
    /// How many keys there are.
    CountKeys,
    /// Removes a key. Answered by how many were removed.
    Delete {
        /// Which key.
        key: Vec<u8>,
    },
    /// Adds bytes to the end of a value. No answer.
    Append {
        /// Which key.
        key: Vec<u8>,
        /// The bytes.
        value: Vec<u8>,
    },
    /// The values of several keys.
    MultiGet {
        /// Which keys.
        keys: Vec<Vec<u8>>,
    },
    /// Stores several values. No answer.
    MultiSet {
        /// Keys and values.
        entries: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Gives the connection's wait up.
    CancelWait,
    /// Answered by the same number.
    Ping {
        /// The number.
        nonce: u32,
    },
    /// Adds a value to the end of a queue. No answer.
    QueuePush {
        /// Which queue.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// Takes the first value of a queue, if it has one.
    QueuePop {
        /// Which queue.
        key: Vec<u8>,
    },
    /// How many values a queue has.
    QueueLength {
        /// Which queue.
        key: Vec<u8>,
    },
    /// All keys.
    ListKeys,
    /// Answered when it was asked for `world_size` times with this key.
    Barrier {
        /// Which barrier.
        key: Vec<u8>,
        /// How many take part.
        world_size: i64,
    },
}
