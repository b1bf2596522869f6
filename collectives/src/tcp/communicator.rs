//! [`TcpCommunicator`]: the collectives of one generation over its mesh of connections.
//!
//! Messages up to [`SMALL`] bytes go from everyone to everyone in one hop; larger reductions go by
//! [`super::sliced`], larger broadcasts down a pipelined chain.

use super::engine::Engine;
use super::flow::{Chain, Exchange};
use super::sliced::{Buffers, Sliced, scratch_length};
use crate::check;
use crate::communicator::Communicator;
use crate::element::DataType;
use crate::error::CollectiveError;
use crate::reduce::{ReduceOp, fold_ranks};
use crate::wire::{Operation, OperationKind};

/// The largest message, in bytes, that is sent whole to every rank.
pub(crate) const SMALL: usize = 16 * 1024;

type Done = Result<(), CollectiveError>;

/// The group of one generation over TCP. [`crate::TcpFabric::form`] makes it; dropping it says farewell
/// to the peers and closes the connections.
#[derive(Debug)]
pub struct TcpCommunicator {
    pub(crate) engine: Engine,
    world: u32,
    /// Memory for others' contributions, in words so that any element is aligned; allocated once.
    scratch: Vec<u64>,
    contributed: Vec<usize>,
}

impl TcpCommunicator {
    pub(crate) fn new(engine: Engine, world: u32) -> TcpCommunicator {
        TcpCommunicator { engine, world, scratch: Vec::new(), contributed: vec![0; world as usize] }
    }

    fn reserve_scratch(&mut self, bytes: usize) {
        let words = bytes.div_ceil(size_of::<u64>());
        if self.scratch.len() < words {
            self.scratch.resize(words, 0);
        }
    }

    fn own(&self) -> u32 {
        self.engine.rank
    }

    fn reduce_small(
        &mut self,
        data: &mut [u8],
        operation: Operation,
        op: ReduceOp,
        data_type: DataType,
    ) -> Done {
        // Whole words a rank keep every contribution aligned.
        let (length, stride) = (data.len(), data.len().next_multiple_of(8));
        self.reserve_scratch(stride * self.world as usize);
        let scratch: &mut [u8] = bytemuck::cast_slice_mut(&mut self.scratch);
        let place = |rank: u32| rank as usize * stride..rank as usize * stride + length;
        let mut flow = Exchange {
            input: &*data,
            output: &mut *scratch,
            to: |_| Some(0..length),
            from: |rank| Some(place(rank)),
            lengths_by_pair: false,
        };
        self.engine.run(operation, &mut flow)?;
        fold_ranks(data_type, op, data, self.engine.rank, self.world, |rank| &scratch[place(rank)]);
        Ok(())
    }

    fn reduce_large(
        &mut self,
        buffers: Buffers<'_>,
        operation: Operation,
        op: ReduceOp,
        data_type: DataType,
    ) -> Done {
        self.reserve_scratch(scratch_length(self.world));
        let scratch = bytemuck::cast_slice_mut(&mut self.scratch);
        let (own, world) = (self.engine.rank, self.world);
        let contributed = &mut self.contributed;
        let mut flow = Sliced::new(buffers, scratch, contributed, data_type, op, own, world);
        self.engine.run(operation, &mut flow)
    }
}

fn operation(kind: OperationKind, data_type: DataType, bytes: usize) -> Operation {
    let data_type = Some(data_type);
    Operation { kind, data_type, reduce_op: None, root: None, bytes: bytes as u64 }
}

/// The bytes of rank `rank` in a buffer of regions of `counts` elements.
fn region(counts: &[usize], rank: u32, data_type: DataType) -> std::ops::Range<usize> {
    let size = data_type.size_bytes();
    let start = counts[..rank as usize].iter().sum::<usize>() * size;
    start..start + counts[rank as usize] * size
}

impl Communicator for TcpCommunicator {
    fn rank(&self) -> u32 {
        self.engine.rank
    }

    fn world_size(&self) -> u32 {
        self.world
    }

    fn term(&self) -> u64 {
        self.engine.term
    }

    fn generation(&self) -> u64 {
        self.engine.generation
    }

    fn all_reduce_bytes(&mut self, data: &mut [u8], data_type: DataType, op: ReduceOp) -> Done {
        let kind = OperationKind::AllReduce;
        check::buffer(kind, data, data_type)?;
        check::reduction(kind, data_type, op)?;
        let operation = Operation { reduce_op: Some(op), ..operation(kind, data_type, data.len()) };
        if data.len() <= SMALL {
            self.reduce_small(data, operation, op, data_type)
        } else {
            self.reduce_large(Buffers::InPlace(data), operation, op, data_type)
        }
    }

    fn all_gather_bytes(&mut self, input: &[u8], output: &mut [u8], data_type: DataType) -> Done {
        let (kind, length) = (OperationKind::AllGather, input.len());
        check::buffer(kind, input, data_type)?;
        check::length(kind, "output", output.len(), length * self.world as usize)?;
        let part = |rank: u32| rank as usize * length..(rank as usize + 1) * length;
        output[part(self.own())].copy_from_slice(input);
        let mut flow = Exchange {
            input,
            output,
            to: |_| Some(0..length),
            from: |rank| Some(part(rank)),
            lengths_by_pair: false,
        };
        self.engine.run(operation(kind, data_type, length), &mut flow)
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
        check::counts(kind, counts, self.world, data_type, output)?;
        let part = |rank: u32| region(counts, rank, data_type);
        check::length(kind, "input", input.len(), part(self.own()).len())?;
        output[part(self.own())].copy_from_slice(input);
        let mut flow = Exchange {
            input,
            output,
            to: |_| Some(0..input.len()),
            from: |rank| Some(part(rank)),
            lengths_by_pair: true,
        };
        self.engine.run(operation(kind, data_type, 0), &mut flow)
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
        check::length(kind, "input", input.len(), output.len() * self.world as usize)?;
        let operation =
            Operation { reduce_op: Some(op), ..operation(kind, data_type, output.len()) };
        self.reduce_large(Buffers::Scatter { input, output }, operation, op, data_type)
    }

    fn broadcast_bytes(&mut self, data: &mut [u8], data_type: DataType, root: u32) -> Done {
        let kind = OperationKind::Broadcast;
        check::buffer(kind, data, data_type)?;
        check::rank(kind, root, self.world)?;
        let operation = Operation { root: Some(root), ..operation(kind, data_type, data.len()) };
        let (own, length) = (self.own(), data.len());
        if length > SMALL && self.world > 2 {
            return self.engine.run(operation, &mut Chain::new(data, own, self.world, root));
        }
        if own == root {
            let from = |_| None;
            let to = |_| Some(0..length);
            let mut flow =
                Exchange { input: data, output: &mut [], to, from, lengths_by_pair: false };
            self.engine.run(operation, &mut flow)
        } else {
            let from = |rank: u32| (rank == root).then_some(0..length);
            let to = |_| None;
            let mut flow = Exchange { input: &[], output: data, to, from, lengths_by_pair: false };
            self.engine.run(operation, &mut flow)
        }
    }

    fn all_to_all_bytes(&mut self, input: &[u8], output: &mut [u8], data_type: DataType) -> Done {
        let kind = OperationKind::AllToAll;
        let world = self.world as usize;
        check::buffer(kind, input, data_type)?;
        check::length(kind, "output", output.len(), input.len())?;
        if !input.len().is_multiple_of(world * data_type.size_bytes()) {
            let reason = format!("{} bytes are not {world} equal parts", input.len());
            return Err(check::invalid(kind, reason));
        }
        let length = input.len() / world;
        let part = |rank: u32| rank as usize * length..(rank as usize + 1) * length;
        output[part(self.own())].copy_from_slice(&input[part(self.own())]);
        let (to, from) = (|rank| Some(part(rank)), |rank| Some(part(rank)));
        let mut flow = Exchange { input, output, to, from, lengths_by_pair: false };
        self.engine.run(operation(kind, data_type, input.len()), &mut flow)
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
        check::buffer(kind, input, data_type)?;
        check::counts(kind, input_counts, self.world, data_type, input)?;
        check::counts(kind, output_counts, self.world, data_type, output)?;
        let own = self.own();
        let own_input = &input[region(input_counts, own, data_type)];
        let own_output = &mut output[region(output_counts, own, data_type)];
        check::length(kind, "own part of the output", own_output.len(), own_input.len())?;
        own_output.copy_from_slice(own_input);
        let to = |rank| Some(region(input_counts, rank, data_type));
        let from = |rank| Some(region(output_counts, rank, data_type));
        let mut flow = Exchange { input, output, to, from, lengths_by_pair: true };
        self.engine.run(operation(kind, data_type, 0), &mut flow)
    }

    fn barrier(&mut self) -> Done {
        let kind = OperationKind::Barrier;
        let (to, from) = (|_| Some(0..0), |_| Some(0..0));
        let mut flow = Exchange { input: &[], output: &mut [], to, from, lengths_by_pair: false };
        let operation = Operation { kind, data_type: None, reduce_op: None, root: None, bytes: 0 };
        self.engine.run(operation, &mut flow)
    }

    fn send_bytes(&mut self, data: &[u8], data_type: DataType, to: u32) -> Done {
        let kind = OperationKind::SendReceive;
        check::buffer(kind, data, data_type)?;
        check::peer(kind, to, self.own(), self.world)?;
        let region = |rank: u32| (rank == to).then_some(0..data.len());
        let from = |_| None;
        let mut flow =
            Exchange { input: data, output: &mut [], to: region, from, lengths_by_pair: false };
        self.engine.run(operation(kind, data_type, data.len()), &mut flow)
    }

    fn receive_bytes(&mut self, data: &mut [u8], data_type: DataType, from: u32) -> Done {
        let kind = OperationKind::SendReceive;
        check::buffer(kind, data, data_type)?;
        check::peer(kind, from, self.own(), self.world)?;
        let length = data.len();
        let region = |rank: u32| (rank == from).then_some(0..length);
        let to = |_| None;
        let mut flow =
            Exchange { input: &[], output: data, to, from: region, lengths_by_pair: false };
        self.engine.run(operation(kind, data_type, length), &mut flow)
    }

    fn close(&mut self) {
        self.engine.fail(CollectiveError::Closed);
    }
}

impl Drop for TcpCommunicator {
    fn drop(&mut self) {
        self.close();
    }
}
