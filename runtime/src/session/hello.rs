//! What two ends say to each other first on a new connection, and how it stands in bytes.

use elastic_protocol::messages::{self, CodecError};
use serde::{Deserialize, Serialize};

use crate::transport::Conversation;

/// Names one session of two nodes; drawn at random by the end that makes the connection.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct SessionId(pub u64);

/// How many frames of a conversation have been delivered, in order and without a gap.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Delivered {
    /// The conversation.
    pub conversation: Conversation,
    /// Frames delivered since the session began; also the number of the next one, as they count from 0.
    pub frames: u64,
}

/// A session that goes on, and how far its receiver has come.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Resume {
    /// Which session.
    pub session: SessionId,
    /// How far, for each conversation in which anything was delivered.
    pub delivered: Vec<Delivered>,
}

/// First word of the end that made the connection.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Hello {
    /// The session that it would go on with, if it has one.
    pub resume: Option<Resume>,
    /// The name of a new session, for when the other end has no such session. The same one is proposed
    /// again until an answer arrives, so that an answer that was lost begins no second session.
    pub fresh: SessionId,
}

/// The answer: the session that both are now in, and how far the answering end has come in it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Welcome(pub Resume);

/// Largest hello or welcome, in bytes: 256 conversations of at most 14 bytes each (tag 1, number 3,
/// count 10), and 34 bytes around them, are 3,618.
pub const HELLO_BYTES_MAX: usize = 4096;

/// Why bytes are neither a hello nor a welcome.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// More than [`HELLO_BYTES_MAX`].
    #[error("a greeting of {bytes} bytes; at most {HELLO_BYTES_MAX} are allowed")]
    TooLarge {
        /// How many.
        bytes: usize,
    },
    /// Not of the expected form.
    #[error("not a greeting")]
    Malformed(#[source] CodecError),
}

macro_rules! bytes_of {
    ($name:ident) => {
        impl $name {
            /// Its bytes.
            ///
            /// # Errors
            /// [`HelloError::TooLarge`] if it has more conversations than a session may have.
            pub fn encode(&self) -> Result<Vec<u8>, HelloError> {
                let bytes = messages::encode(self).map_err(HelloError::Malformed)?;
                if bytes.len() > HELLO_BYTES_MAX {
                    return Err(HelloError::TooLarge { bytes: bytes.len() });
                }
                Ok(bytes)
            }

            /// Reads it; any input is safe.
            ///
            /// # Errors
            /// [`HelloError`] says what is wrong.
            pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
                if bytes.len() > HELLO_BYTES_MAX {
                    return Err(HelloError::TooLarge { bytes: bytes.len() });
                }
                messages::decode(bytes).map_err(HelloError::Malformed)
            }
        }
    };
}

bytes_of!(Hello);
bytes_of!(Welcome);
