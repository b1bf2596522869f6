//! [`ShmCommunicator`]: the collectives of one generation whose ranks share a host's memory. Messages from
//! one rank to another go over the mesh of connections, which also tells when a peer is gone.

use std::fmt;
use std::time::Duration;

use ring::rand::SystemRandom;

use super::exchange;
use super::layout::Layout;
use super::memory::Segment;
use super::rendezvous;
use super::session::{Announced, Lane, Session};
use crate::backend::{Backend, Done, Membership, Places, Reduction};
use crate::error::CollectiveError;
use crate::split::Ancestry;
use crate::tcp::{TcpCommunicator, cause};
use crate::wire::Operation;

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
    pub(crate) fn new(tcp: TcpCommunicator, segment: Segment) -> ShmCommunicator {
        ShmCommunicator { tcp, lane: Lane::new(segment) }
    }

    /// A segment that every rank of the group has mapped, or nothing where one of them could not.
    ///
    /// # Errors
    ///
    /// What the connections' collectives return; they are of no use after that.
    pub(crate) fn share(
        tcp: &mut TcpCommunicator,
        random: &SystemRandom,
    ) -> Result<Option<Segment>, CollectiveError> {
        let Membership { rank, world, .. } = tcp.membership();
        rendezvous::share(tcp, Layout::new(world), rank, random)
    }

    fn run(
        &mut self,
        operation: Operation,
        announced: Announced<'_>,
        body: impl FnOnce(&mut Session<'_>) -> Done,
    ) -> Done {
        let engine = &mut self.tcp.engine;
        engine.usable()?;
        let result = body(&mut Session::new(engine, &mut self.lane, operation, announced));
        if let Err(error) = &result {
            // The poison first: who shares the memory learns the reason before it sees an end.
            self.lane.poison(engine.rank, cause(error));
        }
        engine.conclude(operation.kind, result)
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
}

impl Backend for ShmCommunicator {
    fn membership(&self) -> Membership {
        self.tcp.membership()
    }

    fn all_reduce(
        &mut self,
        operation: Operation,
        data: &mut [u8],
        Reduction { data_type, op }: Reduction,
    ) -> Done {
        self.uniform(operation, |session| {
            if data.len() <= exchange::WHOLE {
                exchange::all_reduce_whole(session, data, data_type, op)
            } else {
                exchange::all_reduce_sliced(session, data, data_type, op)
            }
        })
    }

    fn all_gather(
        &mut self,
        operation: Operation,
        input: &[u8],
        output: &mut [u8],
        places: &Places,
    ) -> Done {
        let differ = operation.kind.lengths_differ();
        let announced = |rank| if differ { places.of(rank).len() as u64 } else { operation.bytes };
        self.run(operation, &announced, |session| {
            exchange::all_gather(session, input, output, |rank| places.of(rank))
        })
    }

    fn reduce_scatter(
        &mut self,
        operation: Operation,
        input: &[u8],
        output: &mut [u8],
        Reduction { data_type, op }: Reduction,
    ) -> Done {
        self.uniform(operation, |session| {
            exchange::reduce_scatter(session, input, output, data_type, op)
        })
    }

    fn broadcast(&mut self, operation: Operation, data: &mut [u8], root: u32) -> Done {
        self.uniform(operation, |session| exchange::broadcast(session, data, root))
    }

    fn all_to_all(
        &mut self,
        operation: Operation,
        input: &[u8],
        sent: &Places,
        output: &mut [u8],
        received: &Places,
    ) -> Done {
        let (to, from) = (|rank| sent.of(rank), |rank| received.of(rank));
        self.uniform(operation, |session| {
            let longest = if operation.kind.lengths_differ() {
                exchange::agree_on_lengths(session, |rank| to(rank).len(), |rank| from(rank).len())?
            } else {
                to(0).len()
            };
            exchange::all_to_all(session, input, to, output, from, longest)
        })
    }

    fn barrier(&mut self, operation: Operation) -> Done {
        self.uniform(operation, |session| session.enter())
    }

    fn send(&mut self, operation: Operation, data: &[u8], to: u32) -> Done {
        self.message(|tcp| tcp.send(operation, data, to))
    }

    fn receive(&mut self, operation: Operation, data: &mut [u8], from: u32) -> Done {
        self.message(|tcp| tcp.receive(operation, data, from))
    }

    fn ancestry(&self) -> Ancestry {
        self.tcp.ancestry()
    }

    fn set_operation_deadline(&mut self, deadline: Duration) {
        self.tcp.engine.operation_deadline = deadline;
    }

    fn close(&mut self) {
        Backend::close(&mut self.tcp);
        // Who waits for this rank sees the farewell at once and not after a nap.
        self.lane.ring();
    }
}

impl Drop for ShmCommunicator {
    fn drop(&mut self) {
        Backend::close(self);
    }
}
