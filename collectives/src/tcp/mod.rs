//! The backend over connections of TCP or of [`crate::quic`]: a full mesh, formed anew for each generation over one
//! listener that lives as long as the worker process.

mod admission;
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
mod path;
mod seal;
mod sliced;
mod standing;
mod stripes;
#[cfg(test)]
mod tests;
mod transfer;

pub use communicator::TcpCommunicator;
pub(crate) use communicator::{DOUBLING_RANKS, SMALL};
pub(crate) use doubling::Doubling;
pub(crate) use engine::{Engine, cause, grace};
pub use fabric::{
    DEFAULT_FORM_DEADLINE, DEFAULT_OPERATION_DEADLINE, DEFAULT_PATH_DEADLINE, GroupSpec, TcpFabric,
};
pub(crate) use flow::{Chain, Exchange, Flow, IncomingBytes, OutgoingBytes, StreamLane};
#[cfg(test)]
pub(crate) use sliced::PIECE;
pub(crate) use standing::StandingConnections;
pub use stripes::DEFAULT_STREAMS;
pub(crate) use stripes::{stream_count, stripe};
