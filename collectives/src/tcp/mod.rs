//! The backend over connections, of TCP or of [`crate::quic`]: a full mesh, formed anew for each generation over one
//! listener that lives as long as the worker process.

mod communicator;
mod connection;
mod doubling;
mod engine;
mod fabric;
mod farewell;
mod flow;
mod form;
mod handshake;
mod link;
mod seal;
mod sliced;
mod standing;
mod stripes;
#[cfg(test)]
mod tests;

pub use communicator::TcpCommunicator;
pub(crate) use communicator::{DOUBLING_RANKS, SMALL};
pub(crate) use doubling::Doubling;
pub(crate) use engine::{Engine, cause, grace};
pub use fabric::{
    DEFAULT_FORM_DEADLINE, DEFAULT_OPERATION_DEADLINE, DataPlane, GroupSpec, TcpFabric,
};
pub(crate) use flow::{Chain, Exchange, Flow, Incoming, Lane, Outgoing};
#[cfg(test)]
pub(crate) use sliced::PIECE;
pub(crate) use standing::Standing;
pub use stripes::DEFAULT_STREAMS;
pub(crate) use stripes::{stream_count, stripe};
