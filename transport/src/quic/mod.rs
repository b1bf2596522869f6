//! QUIC's side of the transport: sockets, connections, the listener and the dialer.

pub(crate) mod closing;
pub(crate) mod connect_error;
pub(crate) mod dialer;
pub(crate) mod greeting;
pub(crate) mod join;
pub(crate) mod known_drivers;
pub(crate) mod link;
pub(crate) mod links;
pub(crate) mod listener;
pub(crate) mod log_limit;
pub(crate) mod lookups;
pub(crate) mod process_identity;
pub(crate) mod refusals;
pub(crate) mod reserved;
pub(crate) mod settings;
pub(crate) mod sockets;
pub(crate) mod tls;
pub(crate) mod transport;
pub mod wire;
