//! Encoded frames of actors, and their decoding for the trace and the oracle. Used by the network where nodes are
//! actors.

use bytes::Bytes;
use elastic_protocol::codec::decode;
use elastic_protocol::messages::{
    AgentToDriver, DriverToAgent, DriverToWorker, Vote, WorkerToDriver,
};
use elastic_protocol::{Stamp, WireMessage};
use elastic_runtime::envelope::{Header, decode_header};
use elastic_runtime::transport::Conversation;

use super::network::LinkFrame;

/// An encoded frame.
#[derive(Clone)]
pub(super) struct Packet {
    pub(super) bytes: Bytes,
    pub(super) conversation: Conversation,
    /// The value for the trace's hash, the same as for the message in a world of cores.
    pub(super) code: u64,
    /// Whether the frame tells a worker to leave.
    pub(super) is_goodbye: bool,
    /// Whether the frame is a driver's `Welcome`.
    pub(super) welcomes: bool,
    /// The vote in the frame, if it is one.
    pub(super) vote: Option<Box<Vote>>,
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match Wiretap::default().read(&self.bytes) {
            Some(frame) => frame.fmt(formatter),
            None => write!(formatter, "{} bytes", self.bytes.len()),
        }
    }
}

/// Decodes sent frames. One frame for many receivers is decoded once.
#[derive(Debug, Default)]
pub(super) struct Wiretap {
    /// The newest generation whose members were sent `Go`.
    pub(super) gone: Stamp,
    last: Option<(Bytes, DriverToWorker)>,
}

impl Wiretap {
    /// The message in a frame, if the frame is a tell.
    pub(super) fn read(&mut self, bytes: &Bytes) -> Option<LinkFrame> {
        let Ok((Header::Tell { kind, .. }, body)) = decode_header(bytes) else { return None };
        match kind {
            AgentToDriver::KIND => decode(body).ok().map(LinkFrame::FromAgent),
            WorkerToDriver::KIND => decode(body).ok().map(LinkFrame::FromWorker),
            Vote::KIND => decode(body).ok().map(LinkFrame::Vote),
            DriverToAgent::KIND => decode(body).ok().map(LinkFrame::ToAgent),
            DriverToWorker::KIND => self.read_to_worker(bytes, body).map(LinkFrame::ToWorker),
            _ => None,
        }
    }

    fn read_to_worker(&mut self, bytes: &Bytes, body: &[u8]) -> Option<DriverToWorker> {
        // The kept frame holds its memory, so that no other frame can have the same address.
        if let Some((frame, message)) = &self.last
            && (frame.as_ptr(), frame.len()) == (bytes.as_ptr(), bytes.len())
        {
            return Some(message.clone());
        }
        let message: DriverToWorker = decode(body).ok()?;
        self.last = Some((bytes.clone(), message.clone()));
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::ActorName;
    use elastic_protocol::codec::encode;
    use elastic_protocol::{GenerationId, Term};
    use elastic_runtime::envelope::frame;

    use super::*;

    #[test]
    fn a_frame_for_many_is_read_the_same_each_time_and_another_anew() {
        let of = |generation: u64| {
            let stamp = Stamp { term: Term(1), generation: GenerationId(generation) };
            let message = DriverToWorker::Go { stamp, source: None };
            let header =
                Header::Tell { actor: ActorName::STATE, kind: DriverToWorker::KIND, returns: 0 };
            (frame(&header, &encode(&message).expect("small")), message)
        };
        let mut reader = Wiretap::default();
        for generation in [1, 1, 2, 1] {
            let (bytes, message) = of(generation);
            for bytes in [bytes.clone(), bytes] {
                let Some(LinkFrame::ToWorker(read)) = reader.read(&bytes) else {
                    panic!("it is one")
                };
                assert_eq!(read, message);
            }
        }
    }
}
