//! The bounds of the store: of a client's requests, and of the data that the driver keeps. Used by the relay, the
//! wire protocol and the core.

use std::time::Duration;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 16 << 10;

/// Largest value, in bytes: with its key it fits into a frame of a session.
pub const VALUE_BYTES_MAX: usize = 4 << 20;

/// Largest request, and largest answer, in bytes: a frame of a session is 8 MiB.
pub const REQUEST_BYTES_MAX: usize = 6 << 20;

/// Most keys in one request: one for each rank of the largest world.
pub const KEYS_MAX: usize = 65_536;

/// Bytes of keys and values that one generation may store.
pub const NAMESPACE_BYTES_MAX: usize = 256 << 20;

/// Bytes counted for each key beside its own: an entry of an ordered map.
pub const ENTRY_BYTES: usize = 64;

/// Most connections of one host's workers.
pub const CLIENTS_MAX: usize = 4096;

/// Most requests of one connection whose answers are not written yet; no more is read until one is. A client of torch
/// has one, and a few before it that need no answer.
pub const PENDING_MAX: usize = 16;

/// Bytes read from a connection at a time.
pub const READ_BYTES: usize = 16 << 10;

/// Bytes of requests that a connection may hold at its agent without a grant.
pub const UNGRANTED_BYTES: usize = 16 << 10;

/// Most connections of one agent with a grant: each may hold [`CONNECTION_BYTES_MAX`] bytes of requests. The others wait
/// for their turn, and their sockets are not read meanwhile.
pub const GRANTS_MAX: usize = 4;

/// Bytes of requests of one connection that the agent holds: the largest request, and the bytes read with its end.
pub const CONNECTION_BYTES_MAX: usize = REQUEST_BYTES_MAX + READ_BYTES;

/// Bytes of keys for which the clients of one agent may wait at a time. A wait cannot be held back: the keys that end
/// it may come from a client that would have to wait for its turn.
pub const WAITS_BYTES_MAX: usize = 32 << 20;

/// Largest answer that is not counted: a number, a short value.
pub const SHORT_ANSWER_BYTES: usize = 1 << 10;

/// Bytes of counted answers that one agent's clients have not taken, give or take one answer; further requests for
/// values wait at the store.
pub const ANSWERS_BYTES_MAX: usize = 16 << 20;

/// Longest pause of a client in the middle of a request, while others wait for its grant.
pub const STALLED_AFTER: Duration = Duration::from_secs(30);

/// Longest time for which a client does not take one byte of its answer.
pub const NOT_TAKEN_AFTER: Duration = Duration::from_secs(60);
