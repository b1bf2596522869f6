//! The bounds of the store: of what a client may say, and of what the driver keeps.

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

/// What a key costs beside its bytes: an entry of an ordered map.
pub const ENTRY_BYTES: usize = 64;

/// Connections of one host's workers.
pub const CLIENTS_MAX: usize = 4096;

/// Requests of one connection that are not answered yet; no more is read until one is. A client of torch has
/// one, and a few that need no answer before it.
pub const PENDING_MAX: usize = 16;
