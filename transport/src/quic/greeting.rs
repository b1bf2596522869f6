//! [`Greeting`]: the first message over a connection, from the end that made it. Sent by the dialer, read by the listener.

use elastic_protocol::codec::{self, CodecError};
use elastic_runtime::session::{HELLO_BYTES_MAX, SessionHello};
use serde::{Deserialize, Serialize};

use crate::quic::process_identity::ProcessIdentity;

/// Largest greeting, in bytes: a hello, and at most 43 about the process.
pub(crate) const GREETING_BYTES_MAX: usize = HELLO_BYTES_MAX + 43;

/// First message over a connection.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Greeting {
    /// The session that is to be begun or resumed.
    pub session: SessionHello,
    /// The process that sends it, where its kernel tells.
    pub process: Option<ProcessIdentity>,
}

impl Greeting {
    /// Encodes the greeting.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn encode(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode(self)
    }

    /// Decodes a greeting; any input is safe. The listener reads no more bytes than the longest has.
    ///
    /// # Errors
    /// [`CodecError`]: these bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        codec::decode(bytes)
    }
}
