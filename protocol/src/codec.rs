//! The encoding of messages: postcard with a bound, so that no message is larger than a frame, and no bytes are
//! left over. Used by nodes and transports.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Largest control message, in bytes. An assignment of the largest world size (65,536 members) fits; training
/// state never travels in a control message.
pub const FRAME_BYTES_MAX: usize = 8 << 20;

/// Why a message cannot be encoded or decoded.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The message is larger than [`FRAME_BYTES_MAX`].
    #[error("a message of {bytes} bytes; at most {FRAME_BYTES_MAX} are allowed")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// Bytes behind the end of the message.
    #[error("{bytes} bytes are left over behind the message")]
    LeftOver {
        /// Number of bytes left over.
        bytes: usize,
    },
    /// The bytes are not a message of the expected type.
    #[error("not a message of the expected type")]
    Malformed(#[source] postcard::Error),
}

/// Encodes a message.
///
/// # Errors
/// [`CodecError::TooLarge`], or the error of serde for the type.
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, CodecError> {
    let bytes = postcard::to_stdvec(message).map_err(CodecError::Malformed)?;
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(CodecError::TooLarge { bytes: bytes.len() });
    }
    Ok(bytes)
}

/// Decodes a message that fills `bytes` exactly.
///
/// Allocation is bounded by the length of `bytes`: postcard grows collections as elements arrive.
///
/// # Errors
/// [`CodecError`] names the fault; any input is safe.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, CodecError> {
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(CodecError::TooLarge { bytes: bytes.len() });
    }
    let (message, rest) = postcard::take_from_bytes(bytes).map_err(CodecError::Malformed)?;
    if !rest.is_empty() {
        return Err(CodecError::LeftOver { bytes: rest.len() });
    }
    Ok(message)
}
