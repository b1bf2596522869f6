//! Sessions between two nodes, without I/O: they keep TR-1 and TR-2 true over connections that break. The QUIC
//! transport and the simulated network drive one [`SessionCore`] for each peer.
//!
//! A session outlives connections. Each frame has a number within its conversation, and the sender keeps it
//! until the other end has acknowledged it. On each new connection both ends say how far they have come
//! ([`SessionHello`], [`SessionWelcome`]), and the missing frames are sent again.

mod core;
mod hello;
mod incoming;
mod limits;
mod outgoing;
#[cfg(test)]
mod tests;

pub use core::{
    Ack, Arrival, Payload, RefusedFrame, SessionCore, SessionError, SessionEvent, Transmit,
};
pub use hello::{
    Delivered, HELLO_BYTES_MAX, HelloError, Resume, SessionHello, SessionId, SessionWelcome,
};
pub use limits::SessionLimits;
