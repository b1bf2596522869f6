//! Connections in the terms of the core of peers: ids, close codes, ends and refusals. `quic` carries them out.

/// Number of one connection among all that a node ever had.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct LinkId(pub u64);

/// Reason for which a connection is closed. The codes are part of the protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CloseCode {
    /// The session is over (TR-2).
    Closed = 1,
    /// A newer connection of the same node replaced this one.
    Replaced = 2,
    /// This connection is broken; the session continues over another.
    Broken = 3,
    /// The two ends speak different versions. The reason is the version of the end that closes.
    Version = 4,
    /// The other end lacks the right to do what it tries.
    Refused = 5,
    /// The purpose of this connection was refused, and the answer was read.
    Done = 6,
}

/// End of a connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LinkEnd {
    /// The other end has closed the session, for this reason.
    Closed(String),
    /// The connection broke; another one may resume the session.
    Broken,
}

/// This connection carries no session any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Detached;

/// Reason for which a hello is not answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum HelloRefusal {
    /// There is no room for another peer.
    #[error("{limit} peers are connected already")]
    TooManyPeers {
        /// The bound.
        limit: usize,
    },
    /// This node is shutting down.
    #[error("this node is shutting down")]
    Draining,
}
