//! Frames as actors send them, and what the world reads of them: the code for the trace, and what the oracle
//! wants to know.

use bytes::Bytes;
use elastic_protocol::Stamp;
use elastic_protocol::messages::{
    AgentToDriver, DriverToAgent, DriverToWorker, Vote, WorkerToDriver, decode,
};
use elastic_runtime::WireMessage;
use elastic_runtime::envelope::{Header, decode_header};
use elastic_runtime::transport::Conversation;

use super::network::Frame;

/// A frame as it is on the wire.
pub(super) struct Packet {
    pub(super) bytes: Bytes,
    pub(super) conversation: Conversation,
    /// What goes into the trace's hash: the same as for the message in a core's world.
    pub(super) code: u64,
    /// Whether it tells a worker to go.
    pub(super) is_goodbye: bool,
    /// Whether a driver welcomes with it.
    pub(super) welcomes: bool,
    /// The vote that it is.
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

/// Reads what is sent. What is told to many is one and the same frame, and decoded once.
#[derive(Debug, Default)]
pub(super) struct Wiretap {
    /// The newest generation whose members are told to go.
    pub(super) gone: Stamp,
    last: Option<(Bytes, DriverToWorker)>,
}

impl Wiretap {
    /// The message of a frame, if it is one that is told.
    pub(super) fn read(&mut self, bytes: &Bytes) -> Option<Frame> {
        let Ok((Header::Tell { kind, .. }, body)) = decode_header(bytes) else { return None };
        match kind {
            AgentToDriver::KIND => decode(body).ok().map(Frame::FromAgent),
            WorkerToDriver::KIND => decode(body).ok().map(Frame::FromWorker),
            Vote::KIND => decode(body).ok().map(Frame::Vote),
            DriverToAgent::KIND => decode(body).ok().map(Frame::ToAgent),
            DriverToWorker::KIND => self.read_to_worker(bytes, body).map(Frame::ToWorker),
            _ => None,
        }
    }

    fn read_to_worker(&mut self, bytes: &Bytes, body: &[u8]) -> Option<DriverToWorker> {
        // The frame is kept, so that no other can have its place in memory.
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
    use elastic_protocol::messages::encode;
    use elastic_protocol::{GenerationId, Term};
    use elastic_runtime::ActorName;
    use elastic_runtime::envelope::frame;

    use super::*;

    #[test]
    fn a_frame_for_many_is_read_the_same_each_time_and_another_anew() {
        let of = |generation: u64| {
            let stamp = Stamp { term: Term(1), generation: GenerationId(generation) };
            let message = DriverToWorker::Go { stamp };
            let header =
                Header::Tell { actor: ActorName::STATE, kind: DriverToWorker::KIND, returns: 0 };
            (frame(&header, &encode(&message).expect("small")), message)
        };
        let mut reader = Wiretap::default();
        for generation in [1, 1, 2, 1] {
            let (bytes, message) = of(generation);
            for bytes in [bytes.clone(), bytes] {
                let Some(Frame::ToWorker(read)) = reader.read(&bytes) else { panic!("it is one") };
                assert_eq!(read, message);
            }
        }
    }
}
