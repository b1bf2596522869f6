//! Between the relay of an agent and the store at the driver.

use elastic_protocol::Stamp;
use elastic_runtime::WireMessage;
use serde::{Deserialize, Serialize};

use crate::wire::Request;

/// A connection of one life of an agent, counted from 1.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ClientId(pub u64);

/// What a relay tells the store.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum ToStore {
    /// A client asks.
    Request {
        /// Which client.
        client: ClientId,
        /// The generation of its process, whose namespace it uses; the default for one that has none.
        stamp: Stamp,
        /// What it asks for.
        request: Request,
    },
    /// A client has gone.
    Gone {
        /// Which.
        client: ClientId,
    },
}

/// What the store tells a relay.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum FromStore {
    /// A request was carried out; each is answered once, in order but for waits and barriers.
    Done {
        /// Whose.
        client: ClientId,
        /// What the client is to read; may be empty.
        answer: Vec<u8>,
    },
    /// The client's connection is to be closed: its generation is over, or it asked for too much.
    Close {
        /// Which client.
        client: ClientId,
        /// Why.
        reason: String,
    },
}

/// First of this crate's kinds; `runtime`'s own table ends far below.
const KINDS_FROM: u16 = 512;

impl WireMessage for ToStore {
    const KIND: u16 = KINDS_FROM;
}

impl WireMessage for FromStore {
    const KIND: u16 = KINDS_FROM + 1;
}
