//! The greeting of two ends on a new connection, and its encoding. `SessionCore` makes and reads them.

use elastic_protocol::codec::{self, CodecError};
use serde::{Deserialize, Serialize};

use crate::transport::Conversation;

/// Number of one session of two nodes; drawn at random by the end that makes the connection.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct SessionId(pub u64);

/// Number of frames of a conversation that have been delivered, in order and without a gap.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Delivered {
    /// The conversation.
    pub conversation: Conversation,
    /// Frames delivered since the session began; also the number of the next frame, as they count from 0.
    pub frames: u64,
}

/// A session that continues, and how far its receiver has come.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Resume {
    /// The session.
    pub session: SessionId,
    /// Deliveries of each conversation in which any frame was delivered.
    pub delivered: Vec<Delivered>,
}

/// First message of the end that made the connection.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SessionHello {
    /// The session to resume, if there is one.
    pub resume: Option<Resume>,
    /// Number of a new session, in case the other end does not know the old one. It is proposed again until an
    /// answer arrives, so that a lost answer begins no second session.
    pub fresh: SessionId,
}

/// The answer: the session of both ends from now on, and how far the answering end has come in it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SessionWelcome(pub Resume);

/// Largest hello or welcome, in bytes: 256 conversations of at most 14 bytes each (tag 1, number 3,
/// count 10), and 34 bytes around them, are 3,618.
pub const HELLO_BYTES_MAX: usize = 4096;

/// Reason for which bytes are neither a hello nor a welcome.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// More bytes than [`HELLO_BYTES_MAX`].
    #[error("a greeting of {bytes} bytes; at most {HELLO_BYTES_MAX} are allowed")]
    TooLarge {
        /// Number of bytes.
        bytes: usize,
    },
    /// Bytes that are not of the expected form.
    #[error("not a greeting")]
    Malformed(#[source] CodecError),
}

macro_rules! bytes_of {
    ($name:ident) => {
        impl $name {
            /// Encodes the message.
            ///
            /// # Errors
            /// [`HelloError::TooLarge`] if the message has more conversations than a session may have.
            pub fn encode(&self) -> Result<Vec<u8>, HelloError> {
                let bytes = codec::encode(self).map_err(HelloError::Malformed)?;
                if bytes.len() > HELLO_BYTES_MAX {
                    return Err(HelloError::TooLarge { bytes: bytes.len() });
                }
                Ok(bytes)
            }

            /// Decodes the message; any input is safe.
            ///
            /// # Errors
            /// [`HelloError`] says what is wrong.
            pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
                if bytes.len() > HELLO_BYTES_MAX {
                    return Err(HelloError::TooLarge { bytes: bytes.len() });
                }
                codec::decode(bytes).map_err(HelloError::Malformed)
            }
        }
    };
}

bytes_of!(SessionHello);
bytes_of!(SessionWelcome);
