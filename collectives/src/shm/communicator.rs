//! [`ShmCommunicator`]: the collectives of one generation whose ranks share a host's memory. Messages from
//! one rank to another go over the mesh of connections, which also tells when a peer is gone.

use std::fmt;
use std::ops::Range;

use super::exchange;
use super::memory::Segment;
use super::session::{Announced, Lane, Session};
use crate::check;
use crate::communicator::Communicator;
use crate::element::DataType;
use crate::error::CollectiveError;
use crate::reduce::ReduceOp;
use crate::tcp::{TcpCommunicator, cause};
use crate::wire::{Operation, OperationKind};

type Done = Result<(), CollectiveError>;

/// The group of one generation over shared memory. [`crate::HostFabric::form`] makes it; dropping it says
/// farewell to the peers, and unmaps the memory.
pub struct ShmCommunicator {
    tcp: TcpCommunicator,
    lane: Lane,
}

impl fmt::Debug for ShmCommunicator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ShmCommunicator").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

impl ShmCommunicator {
    pub(super) fn new(tcp: TcpCommunicator, segment: Segment) -> ShmCommunicator {
        ShmCommunicator { tcp, lane: Lane::new(segment) }
    }

    fn run(
        &mut self,
        operation: Operation,
        announced: Announced<'_>,
        body: impl FnOnce(&mut Session<'_>) -> Done,
    ) -> Done {
        let engine = &mut self.tcp.engine;
        if let Some(failure) = &engine.failure {
            return Err(failure.clone());
        }
        let result = body(&mut Session::new(engine, &mut self.lane, operation, announced));
        match &result {
            Ok(()) => self.tcp.engine.sequence += 1,
            Err(error) => {
                // The poison first: who shares the memory learns the reason before it sees an end.
                self.lane.poison(self.tcp.engine.rank, cause(error));
                self.tcp.engine.fail(error.clone());
            }
        }
        result
    }

    /// An operation in which all ranks announce the same length.
    fn uniform(
        &mut self,
        operation: Operation,
        body: impl FnOnce(&mut Session<'_>) -> Done,
    ) -> Done {
        self.run(operation, &|_| operation.bytes, body)
    }

    /// A message over the connections; the others learn of its failure as of any other.
    fn message(&mut self, body: impl FnOnce(&mut TcpCommunicator) -> Done) -> Done {
        let had_failed = self.tcp.engine.failure.is_some();
        let result = body(&mut self.tcp);
        if let (false, Some(error)) = (had_failed, &self.tcp.engine.failure) {
            self.lane.poison(self.tcp.engine.rank, cause(error));
        }
        result
    }

    fn world(&self) -> usize {
        self.tcp.world_size() as usize
    }
}

fn operation(kind: OperationKind, data_type: DataType, bytes: usize) -> Operation {
    let data_type = Some(data_type);
    Operation { kind, data_type, reduce_op: None, root: None, bytes: bytes as u64 }
}

impl Communicator for ShmCommunicator {
    fn rank(&self) -> u32 {
        self.tcp.rank()
    }

    fn world_size(&self) -> u32 {
        self.tcp.world_size()
    }

    fn term(&self) -> u64 {
        self.tcp.term()
    }

    fn generation(&self) -> u64 {
        self.tcp.generation()
    }

    fn all_reduce_bytes(&mut self, data: &mut [u8], data_type: DataType, op: ReduceOp) -> Done {
        let kind = OperationKind::AllReduce;
        check::buffer(kind, data, data_type)?;
        check::reduction(kind, data_type, op)?;
        let operation = Operation { reduce_op: Some(op), ..operation(kind, data_type, data.len()) };
        self.uniform(operation, |session| {
            if data.len() <= exchange::WHOLE {
                exchange::all_reduce_whole(session, data, data_type, op)
            } else {
                exchange::all_reduce_sliced(session, data, data_type, op)
            }
        })
    }

    fn all_gather_bytes(&mut self, input: &[u8], output: &mut [u8], data_type: DataType) -> Done {
        let (kind, length) = (OperationKind::AllGather, input.len());
        check::buffer(kind, input, data_type)?;
        check::length(kind, "output", output.len(), length * self.world())?;
        self.uniform(operation(kind, data_type, length), |session| {
            let place = |rank: u32| rank as usize * length..(rank as usize + 1) * length;
            exchange::all_gather(session, input, output, place)
        })
    }

    fn all_gather_v_bytes(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        counts: &[usize],
        data_type: DataType,
    ) -> Done {
        let kind = OperationKind::AllGatherV;
        check::buffer(kind, input, data_type)?;
        check::counts(kind, counts, self.world_size(), data_type, output)?;
        let places = places(counts, data_type);
        let place = |rank: u32| places[rank as usize].clone();
        check::length(kind, "input", input.len(), place(self.rank()).len())?;
        self.run(operation(kind, data_type, 0), &|rank| place(rank).len() as u64, |session| {
            exchange::all_gather(session, input, output, place)
        })
    }

    fn reduce_scatter_bytes(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        data_type: DataType,
        op: ReduceOp,
    ) -> Done {
        let kind = OperationKind::ReduceScatter;
        check::buffer(kind, input, data_type)?;
        check::buffer(kind, output, data_type)?;
        check::reduction(kind, data_type, op)?;
        check::length(kind, "input", input.len(), output.len() * self.world())?;
        let operation =
            Operation { reduce_op: Some(op), ..operation(kind, data_type, output.len()) };
        self.uniform(operation, |session| {
            exchange::reduce_scatter(session, input, output, data_type, op)
        })
    }

    fn broadcast_bytes(&mut self, data: &mut [u8], data_type: DataType, root: u32) -> Done {
        let kind = OperationKind::Broadcast;
        check::buffer(kind, data, data_type)?;
        check::rank(kind, root, self.world_size())?;
        let operation = Operation { root: Some(root), ..operation(kind, data_type, data.len()) };
        self.uniform(operation, |session| exchange::broadcast(session, data, root))
    }

    fn all_to_all_bytes(&mut self, input: &[u8], output: &mut [u8], data_type: DataType) -> Done {
        let (kind, world) = (OperationKind::AllToAll, self.world());
        check::buffer(kind, input, data_type)?;
        check::length(kind, "output", output.len(), input.len())?;
        if !input.len().is_multiple_of(world * data_type.size_bytes()) {
            let reason = format!("{} bytes are not {world} equal parts", input.len());
            return Err(check::invalid(kind, reason));
        }
        let length = input.len() / world;
        let part = |rank: u32| rank as usize * length..(rank as usize + 1) * length;
        self.uniform(operation(kind, data_type, input.len()), |session| {
            exchange::all_to_all(session, input, part, output, part, length)
        })
    }

    fn all_to_all_v_bytes(
        &mut self,
        input: &[u8],
        input_counts: &[usize],
        output: &mut [u8],
        output_counts: &[usize],
        data_type: DataType,
    ) -> Done {
        let (kind, own) = (OperationKind::AllToAllV, self.rank());
        check::buffer(kind, input, data_type)?;
        check::counts(kind, input_counts, self.world_size(), data_type, input)?;
        check::counts(kind, output_counts, self.world_size(), data_type, output)?;
        let (sent, received) = (places(input_counts, data_type), places(output_counts, data_type));
        let to = |rank: u32| sent[rank as usize].clone();
        let from = |rank: u32| received[rank as usize].clone();
        check::length(kind, "own part of the output", from(own).len(), to(own).len())?;
        self.uniform(operation(kind, data_type, 0), |session| {
            let (sent, due) = (|rank| to(rank).len(), |rank| from(rank).len());
            let longest = exchange::agree_on_lengths(session, sent, due)?;
            exchange::all_to_all(session, input, to, output, from, longest)
        })
    }

    fn barrier(&mut self) -> Done {
        let kind = OperationKind::Barrier;
        let operation = Operation { kind, data_type: None, reduce_op: None, root: None, bytes: 0 };
        self.uniform(operation, |session| session.enter())
    }

    fn send_bytes(&mut self, data: &[u8], data_type: DataType, to: u32) -> Done {
        self.message(|tcp| tcp.send_bytes(data, data_type, to))
    }

    fn receive_bytes(&mut self, data: &mut [u8], data_type: DataType, from: u32) -> Done {
        self.message(|tcp| tcp.receive_bytes(data, data_type, from))
    }

    fn close(&mut self) {
        self.tcp.close();
        // Who waits for this rank sees the farewell at once and not after a nap.
        self.lane.ring();
    }
}

impl Drop for ShmCommunicator {
    fn drop(&mut self) {
        self.close();
    }
}

/// The bytes of each rank in a buffer of regions of `counts` elements.
fn places(counts: &[usize], data_type: DataType) -> Vec<Range<usize>> {
    let size = data_type.size_bytes();
    let mut end = 0;
    let place = |count: &usize| {
        let start = end;
        end += count * size;
        start..end
    };
    counts.iter().map(place).collect()
}
