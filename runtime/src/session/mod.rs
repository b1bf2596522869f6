//! The life of a session between two nodes, without I/O: what makes TR-1 and TR-2 true over connections
//! that break. The QUIC transport and the simulated network both drive it, one [`SessionCore`] a peer.
//!
//! A session outlives connections. Each frame has a number within its conversation; the sender keeps it
//! until the other end has acknowledged it. When a connection has been made again, both ends say how far
//! they have come ([`Hello`], [`Welcome`]), and what is missing is sent once more.

mod core;
mod hello;
mod incoming;
mod limits;
mod outgoing;
#[cfg(test)]
mod tests;

pub use core::{Ack, Arrival, Refused, SessionCore, SessionError, SessionEvent, Transmit};
pub use hello::{Delivered, HELLO_BYTES_MAX, Hello, HelloError, Resume, SessionId, Welcome};
pub use limits::Limits;
