//! The farewell: the last frame of a rank on a connection, and how the other end finds it. Used by the links.
//!
//! Between two frames a farewell is a frame like others. A rank that gives up in the middle of a payload sends it
//! there, as the last bytes before the end of the stream. The payload is never completed then, so these bytes
//! cannot be taken for data. Without a farewell, a survivor that gives up would look like the rank whose death made
//! it give up.

use crate::wire::{Bye, FRAME_LENGTH, Frame, FrameHeader};

/// Length of a farewell's evidence, in bytes.
pub(super) const EVIDENCE_LENGTH: usize = 2 * FRAME_LENGTH;
/// The longest farewell, in bytes.
const LONGEST: usize = FRAME_LENGTH + EVIDENCE_LENGTH;

/// A farewell. For a mismatch it has the header that the peer was in and the one that it saw instead, so that
/// neighbours that did not see the mismatch themselves can name it too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Farewell {
    pub(crate) bye: Bye,
    pub(crate) evidence: Option<[FrameHeader; 2]>,
}

impl Farewell {
    pub(super) fn encode(&self) -> Vec<u8> {
        let headers = self.evidence.iter().flatten().map(|header| Frame::Operation(*header));
        let frames = std::iter::once(Frame::Bye(self.bye)).chain(headers);
        frames.flat_map(|frame| frame.encode()).collect()
    }
}

/// The two headers that follow a farewell, if both are there.
pub(super) fn evidence(bytes: &[u8]) -> Option<[FrameHeader; 2]> {
    let header = |at: usize| match frame(bytes.get(at..at + FRAME_LENGTH)?)? {
        Frame::Operation(header) => Some(header),
        Frame::Bye(_) => None,
    };
    Some([header(0)?, header(FRAME_LENGTH)?])
}

fn frame(bytes: &[u8]) -> Option<Frame> {
    Frame::decode(bytes.first_chunk()?).ok()
}

/// The last bytes of an unfinished payload.
#[derive(Debug)]
pub(super) struct FarewellTail {
    bytes: [u8; LONGEST],
    length: usize,
}

impl FarewellTail {
    pub(super) fn new() -> FarewellTail {
        FarewellTail { bytes: [0; LONGEST], length: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.length = 0;
    }

    /// Takes bytes that came in, and keeps the last of them.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let last = &bytes[bytes.len().saturating_sub(LONGEST)..];
        let kept = self.length.min(LONGEST - last.len());
        self.bytes.copy_within(self.length - kept..self.length, 0);
        self.bytes[kept..kept + last.len()].copy_from_slice(last);
        self.length = kept + last.len();
    }

    /// The farewell of `generation` at the end of these bytes, if there is one.
    pub(super) fn farewell(&self, generation: u64) -> Option<Farewell> {
        let bytes = &self.bytes[..self.length];
        let bye = |length: usize| {
            let told = bytes.get(self.length.checked_sub(length)?..)?;
            match frame(told)? {
                Frame::Bye(bye) if bye.generation == generation => {
                    Some((bye, evidence(&told[FRAME_LENGTH..])))
                }
                _ => None,
            }
        };
        if let Some((bye, Some(evidence))) = bye(LONGEST) {
            return Some(Farewell { bye, evidence: Some(evidence) });
        }
        bye(FRAME_LENGTH).map(|(bye, evidence)| Farewell { bye, evidence })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{ByeCause, OperationKind, OperationSignature};

    fn farewell(evidence: bool) -> Farewell {
        let operation = OperationSignature::plain(OperationKind::AllReduce, 4);
        let header = FrameHeader { generation: 3, sequence: 9, operation };
        let bye = Bye { generation: 3, sequence: 9, cause: ByeCause::PeerLost(2) };
        Farewell { bye, evidence: evidence.then_some([header; 2]) }
    }

    /// A farewell is found for every way in which the stream is cut into reads.
    #[test]
    fn a_farewell_is_found_at_the_end_of_a_payload() {
        for with_evidence in [false, true] {
            let told = farewell(with_evidence);
            let stream = [vec![7; 300], told.encode()].concat();
            let around = |length: usize| [length - 1, length, length + 1];
            let reads = [around(FRAME_LENGTH), around(LONGEST), [1, 7, 1000]].concat();
            for read in reads {
                let mut tail = FarewellTail::new();
                stream.chunks(read).for_each(|bytes| tail.push(bytes));
                let found = tail.farewell(3).unwrap();
                assert_eq!((found.bye, found.evidence), (told.bye, told.evidence), "{read}");
                assert!(tail.farewell(4).is_none(), "of another generation");
                tail.push(&[7]);
                assert!(tail.farewell(3).is_none(), "data follows");
            }
        }
    }

    #[test]
    fn a_payload_that_just_ends_tells_nothing() {
        let mut tail = FarewellTail::new();
        assert!(tail.farewell(3).is_none());
        tail.push(&farewell(false).encode()[..FRAME_LENGTH - 1]);
        assert!(tail.farewell(3).is_none());
        tail.clear();
        tail.push(&[0; 200]);
        assert!(tail.farewell(3).is_none());
    }
}
