//! The encoding of streams: a kind, then frames or acknowledgements. Without I/O; any input is safe.

use bytes::{Buf, Bytes, BytesMut};
use elastic_protocol::codec::FRAME_BYTES_MAX;
use elastic_runtime::session::Ack;
use elastic_runtime::transport::Conversation;

/// Content of a unidirectional stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StreamKind {
    /// The frames of a conversation.
    Frames(Conversation),
    /// Acknowledgements of the conversations of the other direction.
    Acks,
}

/// Reason for which the bytes of a stream are refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StreamDecodeError {
    /// The kind of the stream is unknown.
    #[error("unknown kind of stream or conversation: {0}")]
    UnknownKind(u8),
    /// The frame claims to be too long; nothing was allocated for it.
    #[error("a frame that claims {bytes} bytes; at most {FRAME_BYTES_MAX} are allowed")]
    TooLong {
        /// The length that it claims.
        bytes: u32,
    },
}

/// Bytes of a stream's kind: a tag and a number.
pub const KIND_BYTES: usize = 3;
/// Bytes in front of a frame: its length (u32) and its number (u64), little endian.
pub const FRAME_HEADER_BYTES: usize = 12;
/// Bytes of an acknowledgement: a conversation and a count (u64).
pub const ACK_BYTES: usize = KIND_BYTES + 8;

const CONTROL: u8 = 0;
const BULK: u8 = 1;
const ACKS: u8 = 2;

impl StreamKind {
    /// Encodes the kind.
    pub fn encode(self) -> [u8; KIND_BYTES] {
        let (tag, number) = match self {
            Self::Frames(Conversation::Control) => (CONTROL, 0),
            Self::Frames(Conversation::Bulk(number)) => (BULK, number),
            Self::Acks => (ACKS, 0),
        };
        let [low, high] = number.to_le_bytes();
        [tag, low, high]
    }

    /// Decodes a kind.
    ///
    /// # Errors
    /// [`StreamDecodeError::UnknownKind`].
    pub fn decode([tag, low, high]: [u8; KIND_BYTES]) -> Result<Self, StreamDecodeError> {
        match tag {
            CONTROL => Ok(Self::Frames(Conversation::Control)),
            BULK => Ok(Self::Frames(Conversation::Bulk(u16::from_le_bytes([low, high])))),
            ACKS => Ok(Self::Acks),
            _ => Err(StreamDecodeError::UnknownKind(tag)),
        }
    }
}

/// The bytes in front of a frame.
///
/// # Panics
/// If the frame is longer than 4 GiB, which no queue takes.
pub fn frame_header(sequence: u64, bytes: usize) -> [u8; FRAME_HEADER_BYTES] {
    let length = u32::try_from(bytes).expect("no queue takes such a frame");
    let mut header = [0; FRAME_HEADER_BYTES];
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4..].copy_from_slice(&sequence.to_le_bytes());
    header
}

/// The bytes of an acknowledgement.
pub fn encode_ack(ack: Ack) -> [u8; ACK_BYTES] {
    let mut bytes = [0; ACK_BYTES];
    bytes[..KIND_BYTES].copy_from_slice(&StreamKind::Frames(ack.conversation).encode());
    bytes[KIND_BYTES..].copy_from_slice(&ack.frames.to_le_bytes());
    bytes
}

/// Reads an acknowledgement.
///
/// # Errors
/// [`StreamDecodeError::UnknownKind`].
pub fn decode_ack(bytes: [u8; ACK_BYTES]) -> Result<Ack, StreamDecodeError> {
    let [tag, low, high, frames @ ..] = bytes;
    match StreamKind::decode([tag, low, high])? {
        StreamKind::Frames(conversation) => {
            Ok(Ack { conversation, frames: u64::from_le_bytes(frames) })
        }
        StreamKind::Acks => Err(StreamDecodeError::UnknownKind(tag)),
    }
}

/// Cuts a stream into frames. Holds at most one unfinished frame, and allocates only for bytes that
/// have arrived.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: BytesMut,
    /// A chunk that needs no copy, because no frame is unfinished.
    chunk: Bytes,
}

impl FrameDecoder {
    /// Takes bytes that arrived. All frames of earlier ones must have been taken by [`Self::next_frame`].
    pub fn push(&mut self, chunk: Bytes) {
        if self.buffer.is_empty() && self.chunk.is_empty() {
            self.chunk = chunk;
        } else {
            self.buffer.extend_from_slice(&self.chunk);
            self.chunk.clear();
            self.buffer.extend_from_slice(&chunk);
        }
    }

    /// The next whole frame and its number.
    ///
    /// # Errors
    /// [`StreamDecodeError::TooLong`], before anything is allocated for it.
    pub fn next_frame(&mut self) -> Result<Option<(u64, Bytes)>, StreamDecodeError> {
        if self.buffer.is_empty() {
            let Some((sequence, length)) = parse_header(&self.chunk)? else { return Ok(None) };
            if self.chunk.len() < FRAME_HEADER_BYTES + length {
                return Ok(None);
            }
            self.chunk.advance(FRAME_HEADER_BYTES);
            return Ok(Some((sequence, self.chunk.split_to(length))));
        }
        let Some((sequence, length)) = parse_header(&self.buffer)? else { return Ok(None) };
        if self.buffer.len() < FRAME_HEADER_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(FRAME_HEADER_BYTES);
        let frame = self.buffer.split_to(length).freeze();
        if self.buffer.is_empty() {
            // Frees the buffer that a large frame needed.
            self.buffer = BytesMut::new();
        }
        Ok(Some((sequence, frame)))
    }
}

fn parse_header(bytes: &[u8]) -> Result<Option<(u64, usize)>, StreamDecodeError> {
    let Some(length) = bytes.first_chunk::<4>() else { return Ok(None) };
    let claimed = u32::from_le_bytes(*length);
    let length = usize::try_from(claimed).unwrap_or(usize::MAX);
    if length > FRAME_BYTES_MAX {
        return Err(StreamDecodeError::TooLong { bytes: claimed });
    }
    let Some(sequence) = bytes[4..].first_chunk::<8>() else { return Ok(None) };
    Ok(Some((u64::from_le_bytes(*sequence), length)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_survive_any_cutting(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20),
            cuts in prop::collection::vec(1_usize..40, 1..50),
        ) {
            let mut stream = Vec::new();
            for (sequence, frame) in frames.iter().enumerate() {
                stream.extend_from_slice(&frame_header(sequence as u64, frame.len()));
                stream.extend_from_slice(frame);
            }
            let mut decoder = FrameDecoder::default();
            let mut seen = Vec::new();
            let mut rest = stream.as_slice();
            for cut in cuts.into_iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (chunk, tail) = rest.split_at(cut.min(rest.len()));
                rest = tail;
                decoder.push(Bytes::copy_from_slice(chunk));
                while let Some((sequence, frame)) = decoder.next_frame().expect("well formed") {
                    prop_assert_eq!(sequence, seen.len() as u64);
                    seen.push(frame.to_vec());
                }
            }
            prop_assert_eq!(seen, frames);
        }

        #[test]
        fn any_bytes_are_safe(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20),
            ack: [u8; ACK_BYTES],
            kind: [u8; KIND_BYTES],
        ) {
            let mut decoder = FrameDecoder::default();
            'stream: for chunk in chunks {
                decoder.push(Bytes::from(chunk));
                loop {
                    match decoder.next_frame() {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(_) => break 'stream,
                    }
                }
            }
            if let Ok(read) = decode_ack(ack) {
                prop_assert!(decode_ack(encode_ack(read)) == Ok(read));
            }
            let _ = StreamKind::decode(kind);
        }
    }

    #[test]
    fn a_claim_of_4_gib_is_refused_at_once() {
        let mut decoder = FrameDecoder::default();
        decoder.push(Bytes::from_static(&[0xff; 4]));
        assert_eq!(decoder.next_frame(), Err(StreamDecodeError::TooLong { bytes: u32::MAX }));
    }
}
