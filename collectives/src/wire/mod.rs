//! The wire format, as pure functions of bytes: no socket, no clock, no allocation. Used by the TCP backend.
//!
//! Every message has a fixed size and starts with magic, version and kind. All integers are
//! little-endian. The payload of an operation follows its frame header as the elements lie in memory.

mod composition;
mod frame;
mod handshake;
#[cfg(test)]
mod tests;

pub use composition::Composition;
pub use frame::{
    Bye, ByeCause, FRAME_LENGTH, Frame, FrameHeader, MAGIC_LENGTH, OperationKind,
    OperationSignature,
};
pub use handshake::{
    HELLO_LENGTH, HandshakeRefusal, HandshakeReply, PROOF_LENGTH, Proof, REPLY_LENGTH, RankHello,
    SIGNED_LENGTH,
};

use thiserror::Error;

/// The version of handshake and frames. Peers of another version are refused.
pub const VERSION: u8 = 6;

/// The reason why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The bytes do not start with the magic number of this protocol.
    #[error("the magic number is wrong")]
    Magic,
    /// The message has another version.
    #[error("it is of version {found}, this side speaks version {VERSION}")]
    Version {
        /// The version found.
        found: u8,
    },
    /// The message has another kind than the one due.
    #[error("its kind {found} is not due here")]
    Kind {
        /// The kind found.
        found: u8,
    },
    /// A field has an invalid value.
    #[error("its field `{field}` has the value {value}, which means nothing")]
    Field {
        /// The name of the field.
        field: &'static str,
        /// The value found.
        value: u64,
    },
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(value)
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(value)
}

fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[offset..offset + N]);
    value
}
