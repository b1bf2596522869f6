//! Frames as actors send them, and what the world reads of them: the code for the trace, and what the oracle
//! wants to know.

use std::sync::Arc;

use bytes::Bytes;
use elastic_protocol::messages::{
    AgentToDriver, DriverToAgent, DriverToWorker, GroupKey, Placement, SyncPlan, Vote,
    WorkerToDriver, decode,
};
use elastic_protocol::{Assignment, Stamp, Step};
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

/// Reads what is sent. A generation's table is sent once to each of its members; it is decoded once.
#[derive(Debug, Default)]
pub(super) struct Wiretap {
    /// The newest generation whose members are told to go.
    pub(super) gone: Stamp,
    table: Option<Table>,
}

#[derive(Debug)]
struct Table {
    /// The message up to the end of the table.
    prefix: Vec<u8>,
    stamp: Stamp,
    assignment: Arc<Assignment>,
}

/// What comes before the end of the table in an encoded [`DriverToWorker::Assign`], and what comes after it.
type Head = (u32, Stamp, Assignment);
type Tail = (u32, SyncPlan, Step, GroupKey);

impl Wiretap {
    /// The message of a frame, if it is one that is told.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Option<Frame> {
        let Ok((Header::Tell { kind, .. }, body)) = decode_header(bytes) else { return None };
        match kind {
            AgentToDriver::KIND => decode(body).ok().map(Frame::FromAgent),
            WorkerToDriver::KIND => decode(body).ok().map(Frame::FromWorker),
            Vote::KIND => decode(body).ok().map(Frame::Vote),
            DriverToAgent::KIND => decode(body).ok().map(Frame::ToAgent),
            DriverToWorker::KIND => self.read_to_worker(body).map(Frame::ToWorker),
            _ => None,
        }
    }

    fn read_to_worker(&mut self, body: &[u8]) -> Option<DriverToWorker> {
        if let Some(Table { prefix, stamp, assignment }) = &self.table
            && let Some(rest) = body.strip_prefix(prefix.as_slice())
        {
            let (rank, sync, step, key) = decode::<Tail>(rest).ok()?;
            let (stamp, assignment) = (*stamp, Arc::clone(assignment));
            return Some(DriverToWorker::Assign(Placement {
                stamp,
                assignment,
                rank,
                sync,
                step,
                key,
            }));
        }
        let message: DriverToWorker = decode(body).ok()?;
        if let DriverToWorker::Assign(placement) = &message
            && let Ok((_, rest)) = postcard::take_from_bytes::<Head>(body)
        {
            self.table = Some(Table {
                prefix: body[..body.len() - rest.len()].to_vec(),
                stamp: placement.stamp,
                assignment: Arc::clone(&placement.assignment),
            });
        }
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use elastic_protocol::messages::encode;
    use elastic_protocol::{GenerationId, HostName, Incarnation, Member, Term, WorkerId};
    use elastic_runtime::ActorName;
    use elastic_runtime::envelope::frame;

    use super::*;

    #[test]
    fn a_table_is_read_the_same_the_first_time_and_after() {
        let member = |number: u32| Member {
            worker: WorkerId {
                host: HostName::new(&format!("h{number}")).expect("a literal"),
                slot: 0,
                incarnation: Incarnation(u64::from(number)),
            },
            data_address: SocketAddr::from(([10, 0, 0, 1], 7)),
            local_rank: 0,
            cross_rank: number,
        };
        let assignment = Arc::new(Assignment { members: (0..5).map(member).collect() });
        let mut reader = Wiretap::default();
        for rank in 0..5 {
            let message = DriverToWorker::Assign(Placement {
                stamp: Stamp { term: Term(1), generation: GenerationId(300) },
                assignment: Arc::clone(&assignment),
                rank,
                sync: SyncPlan::FromRoot { root: 3 },
                step: Step(1_000),
                key: GroupKey([7; 32]),
            });
            let header =
                Header::Tell { actor: ActorName::STATE, kind: DriverToWorker::KIND, returns: 0 };
            let bytes = frame(&header, &encode(&message).expect("small"));
            let Some(Frame::ToWorker(read)) = reader.read(&bytes) else { panic!("rank {rank}") };
            assert_eq!(read, message);
        }
        assert!(reader.table.is_some());
    }
}
