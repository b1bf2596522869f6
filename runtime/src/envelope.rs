//! The header in front of every frame: the receiving actor, the kind of the message, the number of the question. It is
//! encoded with postcard, and the rest of the frame is the message. [`decode_header`] takes any bytes. Used by the
//! node.

use bytes::Bytes;
use elastic_protocol::ActorName;
use elastic_protocol::codec::FRAME_BYTES_MAX;
use serde::{Deserialize, Serialize};

use crate::failure::DeliveryRefusal;

/// The kinds of frames.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Header {
    /// A message.
    Tell {
        /// The receiving actor.
        actor: ActorName,
        /// Number of the kind of message.
        kind: u16,
        /// The sender's own note on where to return an undeliverable frame; 0 means nowhere. It has
        /// no meaning for the receiver.
        returns: u32,
    },
    /// A question.
    Ask {
        /// The receiving actor.
        actor: ActorName,
        /// Number of the kind of question.
        kind: u16,
        /// The asker's number for it.
        request: u64,
    },
    /// The answer to a question.
    Answer {
        /// The asker's number for it.
        request: u64,
        /// Its result.
        outcome: AnswerOutcome,
    },
}

/// Results of a question.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum AnswerOutcome {
    /// The answer follows.
    Answered,
    /// Not handled, or not answerable.
    Refused(DeliveryRefusal),
    /// Taken, and dropped without an answer.
    Unanswered,
}

impl Header {
    /// Longest header, in bytes: the variant's number, and at most 3 + 3 + 10 for its fields.
    pub const BYTES_MAX: usize = 17;
    /// Largest message behind a header, so that the whole frame stays within
    /// [`FRAME_BYTES_MAX`].
    pub const BODY_BYTES_MAX: usize = FRAME_BYTES_MAX - Self::BYTES_MAX;
}

/// A header that is none.
#[derive(Debug, thiserror::Error)]
#[error("the frame of {bytes} bytes does not begin with an envelope header")]
pub struct BadHeader {
    /// The frame's length.
    pub bytes: usize,
    /// The decoding error.
    #[source]
    pub source: postcard::Error,
}

/// Splits a frame into its header and the message. Allocates nothing; any input is safe.
///
/// # Errors
/// [`BadHeader`] if it does not begin with a header.
pub fn decode_header(frame: &[u8]) -> Result<(Header, &[u8]), BadHeader> {
    postcard::take_from_bytes(frame).map_err(|source| BadHeader { bytes: frame.len(), source })
}

/// Puts a header in front of a message.
pub fn frame(header: &Header, body: &[u8]) -> Bytes {
    let mut space = [0; Header::BYTES_MAX];
    let head = postcard::to_slice(header, &mut space).expect("BYTES_MAX is the longest header");
    let mut frame = Vec::with_capacity(head.len() + body.len());
    frame.extend_from_slice(head);
    frame.extend_from_slice(body);
    Bytes::from(frame)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_headers_fit() {
        let actor = ActorName(u16::MAX);
        for header in [
            Header::Tell { actor, kind: u16::MAX, returns: u32::MAX },
            Header::Ask { actor, kind: u16::MAX, request: u64::MAX },
            Header::Answer {
                request: u64::MAX,
                outcome: AnswerOutcome::Refused(DeliveryRefusal::Malformed),
            },
        ] {
            let bytes = frame(&header, b"body");
            assert!(bytes.len() <= Header::BYTES_MAX + 4);
            let (decoded, body) = decode_header(&bytes).expect("it was just made");
            assert_eq!((decoded, body), (header, &b"body"[..]));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_safe(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok((header, body)) = decode_header(&bytes) {
                prop_assert!(body.len() < bytes.len());
                let again = frame(&header, body);
                prop_assert_eq!(decode_header(&again).expect("it was just made").0, header);
            }
        }
    }
}
