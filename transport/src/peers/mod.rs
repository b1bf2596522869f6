//! The transport's decisions about its peers, without I/O and without a clock: sessions and the connections
//! that carry them, silence, closing, shutting down, and the search for a driver. `quic` calls it and carries
//! out its outputs; the simulated network does so in its place.

pub(crate) mod addresses;
pub(crate) mod backoff;
mod core;
mod limits;
mod link;
pub(crate) mod liveness;
mod peer;
pub(crate) mod search;
#[cfg(test)]
mod tests;

pub use self::core::{LinkOutput, PeersCore, TransportStage};
pub use self::limits::{CLOSE_GRACE, PEERS_MAX, RESUME_WITHIN, STARVED_MAX};
pub use self::link::{CloseCode, Detached, HelloRefusal, LinkEnd, LinkId};
