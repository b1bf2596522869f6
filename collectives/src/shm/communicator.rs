//! [`ShmCommunicator`]: the collectives of one generation whose ranks share a host's memory. Messages from one rank
//! to another use the mesh of connections, which also detects a lost peer.

use std::fmt;
use std::time::Duration;

use ring::rand::SystemRandom;

use super::exchange;
use super::layout::SegmentLayout;
use super::memory::SharedSegment;
use super::rendezvous;
use super::session::{Announced, SegmentOperation, SegmentSeat};
use crate::backend::{CpuBackend, GroupMembership};
use crate::error::{CollectiveError, CollectiveResult};
use crate::fusion::all_reduce_grouped;
use crate::operation::{HostOperation, Operation, PartRanges};
use crate::split::Ancestry;
use crate::tcp::{TcpCommunicator, cause};
use crate::wire::OperationSignature;

/// The group of one generation over shared memory. [`crate::HostFabric::form`] makes it. Dropping it says farewell
/// to the peers, and unmaps the memory.
pub struct ShmCommunicator {
    tcp: TcpCommunicator,
    lane: SegmentSeat,
}

impl fmt::Debug for ShmCommunicator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ShmCommunicator").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

impl ShmCommunicator {
    pub(crate) fn new(tcp: TcpCommunicator, segment: SharedSegment) -> ShmCommunicator {
        let mut lane = SegmentSeat::new(segment);
        lane.woken_by(&tcp.engine.abort, tcp.engine.rank);
        ShmCommunicator { tcp, lane }
    }

    /// Makes a segment that every rank of the group has mapped; `None` where one of them could not.
    ///
    /// # Errors
    ///
    /// Any error of the connections' collectives; the connections are of no use after that.
    pub(crate) fn share(
        tcp: &mut TcpCommunicator,
        random: &SystemRandom,
    ) -> Result<Option<SharedSegment>, CollectiveError> {
        let GroupMembership { rank, world, .. } = tcp.membership();
        rendezvous::share(tcp, SegmentLayout::new(world), rank, random)
    }

    fn run_session(
        &mut self,
        operation: OperationSignature,
        announced: Announced<'_>,
        body: impl FnOnce(&mut SegmentOperation<'_>) -> CollectiveResult,
    ) -> CollectiveResult {
        let engine = &mut self.tcp.engine;
        engine.usable()?;
        let result = body(&mut SegmentOperation::new(engine, &mut self.lane, operation, announced));
        if let Err(error) = &result {
            // The poison is set first: ranks that share the memory learn the reason before they see the end.
            self.lane.poison(engine.rank, cause(error));
        }
        engine.conclude(operation.kind, result)
    }

    /// Runs an operation in which all ranks announce the same length.
    fn uniform(
        &mut self,
        operation: OperationSignature,
        body: impl FnOnce(&mut SegmentOperation<'_>) -> CollectiveResult,
    ) -> CollectiveResult {
        self.run_session(operation, &|_| operation.bytes, body)
    }

    /// Runs a message over the connections; the other ranks learn of its failure as of any other.
    fn message(
        &mut self,
        signature: OperationSignature,
        message: HostOperation<'_>,
    ) -> CollectiveResult {
        let had_failed = self.tcp.engine.failure.is_some();
        let result = self.tcp.carry_out(signature, message);
        if let (false, Some(error)) = (had_failed, &self.tcp.engine.failure) {
            self.lane.poison(self.tcp.engine.rank, cause(error));
        }
        result
    }
}

impl CpuBackend for ShmCommunicator {
    fn membership(&self) -> GroupMembership {
        self.tcp.membership()
    }

    fn carry_out(
        &mut self,
        signature: OperationSignature,
        operation: HostOperation<'_>,
    ) -> CollectiveResult {
        match operation {
            Operation::AllReduce { data, data_type, op } => self
                .uniform(signature, |session| exchange::reduce(session, data, data_type, op, None)),
            Operation::GroupedAllReduce { buffers, op } => all_reduce_grouped(self, buffers, op),
            Operation::Reduce { data, data_type, op, root } => self.uniform(signature, |session| {
                exchange::reduce(session, data, data_type, op, Some(root))
            }),
            Operation::Broadcast { data, root, .. } => {
                self.uniform(signature, |session| exchange::broadcast(session, data, root))
            }
            Operation::Gather { input, output, .. } => {
                let parts = PartRanges::Equal(input.len());
                self.uniform(signature, |session| {
                    exchange::gather(session, input, output, |rank| parts.of(rank))
                })
            }
            Operation::Scatter { input, output, root, .. } => {
                self.uniform(signature, |session| exchange::scatter(session, input, output, root))
            }
            Operation::AllGather { input, output, counts, data_type } => {
                let parts = PartRanges::new(counts, input.len(), data_type);
                let differ = signature.kind.lengths_differ();
                let announced =
                    |rank| if differ { parts.of(rank).len() as u64 } else { signature.bytes };
                self.run_session(signature, &announced, |session| {
                    exchange::gather(session, input, Some(output), |rank| parts.of(rank))
                })
            }
            Operation::ReduceScatter { input, output, data_type, op } => self
                .uniform(signature, |session| {
                    exchange::reduce_scatter(session, input, output, data_type, op)
                }),
            Operation::AllToAll { input, output, counts, data_type } => {
                let GroupMembership { world, .. } = self.membership();
                let (sent, received) =
                    PartRanges::of_all_to_all(counts, input.len(), world, data_type);
                let (to, from) = (|rank| sent.of(rank), |rank| received.of(rank));
                self.uniform(signature, |session| {
                    let longest = if signature.kind.lengths_differ() {
                        let (to, from) = (|rank| to(rank).len(), |rank| from(rank).len());
                        exchange::agree_on_lengths(session, to, from)?
                    } else {
                        to(0).len()
                    };
                    exchange::all_to_all(session, input, to, output, from, longest)
                })
            }
            Operation::Barrier => self.uniform(signature, |session| session.enter()),
            Operation::Send { .. } | Operation::Recv { .. } => self.message(signature, operation),
        }
    }

    fn ancestry(&self) -> Ancestry {
        self.tcp.ancestry()
    }

    fn set_operation_deadline(&mut self, deadline: Duration) {
        self.tcp.engine.operation_deadline = deadline;
    }

    fn close(&mut self) {
        CpuBackend::close(&mut self.tcp);
        // The ring lets waiting ranks see the farewell at once, and not after a nap.
        self.lane.ring();
    }
}

impl Drop for ShmCommunicator {
    fn drop(&mut self) {
        CpuBackend::close(self);
    }
}
