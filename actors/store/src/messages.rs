//! Messages between the relay of an agent and the store in the driver's process.

use elastic_protocol::{Stamp, WireMessage};
use serde::{Deserialize, Serialize};

use crate::wire::Request;

/// Number of a connection to one life of an agent, counted from 1.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ClientId(pub u64);

/// Messages of a relay to the store.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum ToStore {
    /// A client's request.
    Request {
        /// The client.
        client: ClientId,
        /// The generation of its process, whose namespace it uses; the default for one that has none.
        stamp: Stamp,
        /// The request.
        request: Request,
    },
    /// A client has read an answer longer than [`SHORT_ANSWER_BYTES`](crate::limits::SHORT_ANSWER_BYTES).
    Taken {
        /// The client.
        client: ClientId,
        /// The answer's bytes.
        bytes: u64,
    },
    /// A client has gone.
    Gone {
        /// The client.
        client: ClientId,
    },
}

/// Messages of the store to a relay.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum FromStore {
    /// A request was carried out; each is answered once, in order but for waits and barriers.
    Done {
        /// The client.
        client: ClientId,
        /// Bytes for the client; may be empty.
        #[serde(with = "serde_bytes")]
        answer: Vec<u8>,
    },
    /// The client's connection is to be closed.
    Close {
        /// The client.
        client: ClientId,
        /// The reason.
        cause: CloseCause,
    },
}

/// The reason why a client's connection is closed.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, thiserror::Error)]
pub enum CloseCause {
    /// A newer generation has begun, or the client's process is being stopped.
    #[error("its generation is over")]
    GenerationOver,
    /// Requests may have been lost with the session.
    #[error("the session with the driver was interrupted")]
    Interrupted,
    /// The client asked for too much, or did not do its part.
    #[error("{0}")]
    Refused(String),
}

/// First message kind of this crate; `runtime`'s own table ends far below.
const KINDS_FROM: u16 = 512;

impl WireMessage for ToStore {
    const KIND: u16 = KINDS_FROM;
}

impl WireMessage for FromStore {
    const KIND: u16 = KINDS_FROM + 1;
}
