//! [`Backend`]: what carries an operation out once its arguments are known to be right. Every backend is a
//! [`Communicator`] by it, so that arguments are checked, and operations announced, in one place.

use std::ops::Range;
use std::time::Duration;

use crate::check;
use crate::communicator::Communicator;
use crate::element::DataType;
use crate::error::CollectiveError;
use crate::reduce::ReduceOp;
use crate::split::{Ancestry, split};
use crate::wire::{Operation, OperationKind};

pub(crate) type Done = Result<(), CollectiveError>;

/// A rank's place in one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) term: u64,
    pub(crate) generation: u64,
    pub(crate) rank: u32,
    pub(crate) world: u32,
}

/// How elements become one; the operation exists for the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reduction {
    pub(crate) data_type: DataType,
    pub(crate) op: ReduceOp,
}

/// Where each rank's part lies in a buffer, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// Parts of this length, by rank.
    Equal(usize),
    /// These, by rank.
    Listed(Vec<Range<usize>>),
}

impl Places {
    /// Parts of `counts` elements, one after the other.
    pub(crate) fn listed(counts: &[usize], data_type: DataType) -> Places {
        let size = data_type.size_bytes();
        let mut end = 0;
        let place = |count: &usize| {
            let start = end;
            end += count * size;
            start..end
        };
        Places::Listed(counts.iter().map(place).collect())
    }

    /// The part of `rank`.
    pub(crate) fn of(&self, rank: u32) -> Range<usize> {
        match self {
            Places::Equal(length) => rank as usize * length..(rank as usize + 1) * length,
            Places::Listed(parts) => parts[rank as usize].clone(),
        }
    }
}

/// The operations of a [`Communicator`], with checked arguments. `operation` is what all ranks must agree on;
/// those with [`Places::Listed`] have a length for each rank, or pair, which `operation` does not say.
pub(crate) trait Backend: Send {
    fn membership(&self) -> Membership;
    fn all_reduce(&mut self, operation: Operation, data: &mut [u8], reduction: Reduction) -> Done;
    fn all_gather(
        &mut self,
        operation: Operation,
        input: &[u8],
        output: &mut [u8],
        places: &Places,
    ) -> Done;
    fn reduce_scatter(
        &mut self,
        operation: Operation,
        input: &[u8],
        output: &mut [u8],
        reduction: Reduction,
    ) -> Done;
    fn broadcast(&mut self, operation: Operation, data: &mut [u8], root: u32) -> Done;
    fn all_to_all(
        &mut self,
        operation: Operation,
        input: &[u8],
        sent: &Places,
        output: &mut [u8],
        received: &Places,
    ) -> Done;
    fn barrier(&mut self, operation: Operation) -> Done;
    fn send(&mut self, operation: Operation, data: &[u8], to: u32) -> Done;
    fn receive(&mut self, operation: Operation, data: &mut [u8], from: u32) -> Done;
    /// Where sub-groups come from.
    fn ancestry(&self) -> Ancestry;
    fn set_operation_deadline(&mut self, _deadline: Duration) {}
    fn close(&mut self);
}

fn operation(kind: OperationKind, data_type: DataType, bytes: usize) -> Operation {
    let data_type = Some(data_type);
    Operation { kind, data_type, reduce_op: None, root: None, bytes: bytes as u64 }
}

impl<B: Backend> Communicator for B {
    fn rank(&self) -> u32 {
        self.membership().rank
    }

    fn world_size(&self) -> u32 {
        self.membership().world
    }

    fn term(&self) -> u64 {
        self.membership().term
    }

    fn generation(&self) -> u64 {
        self.membership().generation
    }

    fn all_reduce_bytes(&mut self, data: &mut [u8], data_type: DataType, op: ReduceOp) -> Done {
        let kind = OperationKind::AllReduce;
        check::buffer(kind, data, data_type)?;
        check::reduction(kind, data_type, op)?;
        let operation = Operation { reduce_op: Some(op), ..operation(kind, data_type, data.len()) };
        self.all_reduce(operation, data, Reduction { data_type, op })
    }

    fn all_gather_bytes(&mut self, input: &[u8], output: &mut [u8], data_type: DataType) -> Done {
        let (kind, length) = (OperationKind::AllGather, input.len());
        check::buffer(kind, input, data_type)?;
        check::length(kind, "output", output.len(), length * self.membership().world as usize)?;
        let operation = operation(kind, data_type, length);
        self.all_gather(operation, input, output, &Places::Equal(length))
    }

    fn all_gather_v_bytes(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        counts: &[usize],
        data_type: DataType,
    ) -> Done {
        let kind = OperationKind::AllGatherV;
        let Membership { rank, world, .. } = self.membership();
        check::buffer(kind, input, data_type)?;
        check::counts(kind, counts, world, data_type, output)?;
        let places = Places::listed(counts, data_type);
        check::length(kind, "input", input.len(), places.of(rank).len())?;
        self.all_gather(operation(kind, data_type, 0), input, output, &places)
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
        let world = self.membership().world as usize;
        check::length(kind, "input", input.len(), output.len() * world)?;
        let operation =
            Operation { reduce_op: Some(op), ..operation(kind, data_type, output.len()) };
        self.reduce_scatter(operation, input, output, Reduction { data_type, op })
    }

    fn broadcast_bytes(&mut self, data: &mut [u8], data_type: DataType, root: u32) -> Done {
        let kind = OperationKind::Broadcast;
        check::buffer(kind, data, data_type)?;
        check::rank(kind, root, self.membership().world)?;
        let operation = Operation { root: Some(root), ..operation(kind, data_type, data.len()) };
        self.broadcast(operation, data, root)
    }

    fn all_to_all_bytes(&mut self, input: &[u8], output: &mut [u8], data_type: DataType) -> Done {
        let (kind, world) = (OperationKind::AllToAll, self.membership().world as usize);
        check::buffer(kind, input, data_type)?;
        check::length(kind, "output", output.len(), input.len())?;
        if !input.len().is_multiple_of(world * data_type.size_bytes()) {
            let reason = format!("{} bytes are not {world} equal parts", input.len());
            return Err(check::invalid(kind, reason));
        }
        let parts = Places::Equal(input.len() / world);
        let operation = operation(kind, data_type, input.len());
        self.all_to_all(operation, input, &parts, output, &parts)
    }

    fn all_to_all_v_bytes(
        &mut self,
        input: &[u8],
        input_counts: &[usize],
        output: &mut [u8],
        output_counts: &[usize],
        data_type: DataType,
    ) -> Done {
        let kind = OperationKind::AllToAllV;
        let Membership { rank, world, .. } = self.membership();
        check::buffer(kind, input, data_type)?;
        check::counts(kind, input_counts, world, data_type, input)?;
        check::counts(kind, output_counts, world, data_type, output)?;
        let sent = Places::listed(input_counts, data_type);
        let received = Places::listed(output_counts, data_type);
        let (own, due) = (received.of(rank).len(), sent.of(rank).len());
        check::length(kind, "own part of the output", own, due)?;
        self.all_to_all(operation(kind, data_type, 0), input, &sent, output, &received)
    }

    fn barrier(&mut self) -> Done {
        let kind = OperationKind::Barrier;
        let none = Operation { kind, data_type: None, reduce_op: None, root: None, bytes: 0 };
        Backend::barrier(self, none)
    }

    fn send_bytes(&mut self, data: &[u8], data_type: DataType, to: u32) -> Done {
        let kind = OperationKind::SendReceive;
        let Membership { rank, world, .. } = self.membership();
        check::buffer(kind, data, data_type)?;
        check::peer(kind, to, rank, world)?;
        self.send(operation(kind, data_type, data.len()), data, to)
    }

    fn receive_bytes(&mut self, data: &mut [u8], data_type: DataType, from: u32) -> Done {
        let kind = OperationKind::SendReceive;
        let Membership { rank, world, .. } = self.membership();
        check::buffer(kind, data, data_type)?;
        check::peer(kind, from, rank, world)?;
        self.receive(operation(kind, data_type, data.len()), data, from)
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i32,
    ) -> Result<Option<Box<dyn Communicator>>, CollectiveError> {
        split(self, colour, key)
    }

    fn set_operation_deadline(&mut self, deadline: Duration) {
        Backend::set_operation_deadline(self, deadline);
    }

    fn close(&mut self) {
        Backend::close(self);
    }
}
