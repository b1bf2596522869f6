//! [`TcpCommunicator`]: the collectives of one generation over its mesh of connections.
//!
//! Messages up to [`SMALL`] bytes go from every rank to every rank in one hop, or among many ranks in ⌈log₂ n⌉ hops
//! by [`super::doubling`]. Larger reductions use [`super::sliced`], larger broadcasts a pipelined chain. Large
//! messages are divided among the connections of a pair ([`super::stripes`]).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::doubling::Doubling;
use super::engine::Engine;
use super::flow::{Chain, Exchange};
use super::sliced::{Buffers, Sliced, Striped, scratch_length, to_root_length};
use super::stripes::stream_count;
use crate::backend::{CpuBackend, GroupMembership};
use crate::element::DataType;
use crate::error::{CollectiveError, CollectiveResult};
use crate::fusion::all_reduce_grouped;
use crate::operation::{HostOperation, Operation, PartRanges};
use crate::reduce::{ReduceOp, fold_ranks};
use crate::split::Ancestry;
use crate::wire::OperationSignature;

/// The largest message, in bytes, that is sent whole to every rank.
pub(crate) const SMALL: usize = 16 * 1024;
/// The least world size for which small messages go by doubling. In smaller worlds, one hop with a message for each
/// peer is faster than several hops one after the other.
pub(crate) const DOUBLING_RANKS: usize = 16;

/// The group of one generation over TCP. [`crate::TcpFabric::form`] makes it; dropping it says farewell
/// to the peers and closes the connections.
#[derive(Debug)]
pub struct TcpCommunicator {
    pub(crate) engine: Engine,
    world: u32,
    /// Memory for the other ranks' contributions, in words so that any element is aligned; allocated once.
    scratch: Vec<u64>,
    /// The number of bytes delivered by each rank on each stream; allocated once.
    contributed: Vec<usize>,
    /// Memory for the part of a reduction to another rank that this rank folds, in words.
    folded: Vec<u64>,
}

impl TcpCommunicator {
    pub(crate) fn new(engine: Engine, world: u32) -> TcpCommunicator {
        let (scratch, contributed, folded) = (Vec::new(), Vec::new(), Vec::new());
        TcpCommunicator { engine, world, scratch, contributed, folded }
    }

    /// Runs a step of forming before the caller's first operation; that operation still has number 0.
    pub(crate) fn agree<T>(
        &mut self,
        deadline: Duration,
        body: impl FnOnce(&mut TcpCommunicator) -> T,
    ) -> T {
        let operation_deadline = self.engine.operation_deadline;
        (self.engine.operation_deadline, self.engine.agreeing) = (deadline, true);
        let result = body(self);
        (self.engine.operation_deadline, self.engine.agreeing) = (operation_deadline, false);
        self.engine.sequence = 0;
        result
    }

    fn reserve_scratch(&mut self, bytes: usize) {
        let words = bytes.div_ceil(size_of::<u64>());
        if self.scratch.len() < words {
            self.scratch.resize(words, 0);
        }
    }

    /// The number of connections of each pair.
    pub(crate) fn streams(&self) -> u32 {
        self.engine.streams
    }

    fn own(&self) -> u32 {
        self.engine.rank
    }

    fn reduce_small(
        &mut self,
        data: &mut [u8],
        signature: OperationSignature,
        data_type: DataType,
        op: ReduceOp,
    ) -> CollectiveResult {
        if self.is_doubled(data.len()) {
            let (own, world, length) = (self.engine.rank, self.world, data.len());
            let (blocks, at) = self.gather_by_doubling(signature, data)?;
            fold_ranks(data_type, op, data, own, world, &|rank| {
                &blocks[at(rank)..at(rank) + length]
            });
            return Ok(());
        }
        // A stride of whole words keeps every contribution aligned.
        let (length, stride) = (data.len(), data.len().next_multiple_of(8));
        self.reserve_scratch(stride * self.world as usize);
        let scratch: &mut [u8] = bytemuck::cast_slice_mut(&mut self.scratch);
        let place = |rank: u32| rank as usize * stride..rank as usize * stride + length;
        let mut flow = Exchange {
            input: &*data,
            output: &mut *scratch,
            to: |_| Some(0..length),
            from: |rank| Some(place(rank)),
            streams: 1,
        };
        self.engine.run(signature, &mut flow)?;
        fold_ranks(data_type, op, data, self.engine.rank, self.world, &|rank| {
            &scratch[place(rank)]
        });
        Ok(())
    }

    /// All-gathers small messages by doubling. Returns them, and the start of each rank's message.
    fn gather_by_doubling(
        &mut self,
        signature: OperationSignature,
        input: &[u8],
    ) -> Result<(&[u8], impl Fn(u32) -> usize + use<>), CollectiveError> {
        let (own, world) = (self.engine.rank as usize, self.world as usize);
        // A stride of whole words keeps every contribution aligned. A block needs at least one word, so that its
        // arrival is waited for.
        let stride = input.len().next_multiple_of(8).max(8);
        self.reserve_scratch(stride * world);
        let blocks: &mut [u8] = bytemuck::cast_slice_mut(&mut self.scratch);
        let blocks = &mut blocks[..stride * world];
        blocks[..input.len()].copy_from_slice(input);
        let starts: Vec<usize> = (0..=world).map(|block| block * stride).collect();
        let members: Vec<u32> = (0..self.world).collect();
        self.engine.run(signature, &mut Doubling::new(blocks, &starts, &members, own))?;
        Ok((blocks, move |rank: u32| (rank as usize + world - own) % world * stride))
    }

    fn is_doubled(&self, bytes: usize) -> bool {
        bytes <= SMALL && self.world as usize >= DOUBLING_RANKS
    }

    fn reduce_large(
        &mut self,
        buffers: Buffers<'_>,
        signature: OperationSignature,
        data_type: DataType,
        op: ReduceOp,
    ) -> CollectiveResult {
        let streams = stream_count(buffers.length(), self.streams());
        let parts = buffers.striped(streams, data_type.size_bytes(), self.world);
        let (own, world) = (self.engine.rank, self.world);
        let needs: Vec<usize> =
            parts.iter().map(|part| scratch_length(part.length(), world)).collect();
        self.reserve_scratch(needs.iter().sum());
        self.contributed.resize((world * streams) as usize, 0);
        let mut scratch: &mut [u8] = bytemuck::cast_slice_mut(&mut self.scratch);
        let contributed = self.contributed.chunks_exact_mut(world as usize);
        let parts = parts.into_iter().zip(needs).zip(contributed);
        let parts = parts.map(|((buffers, need), contributed)| {
            let (own_scratch, rest) = std::mem::take(&mut scratch).split_at_mut(need);
            scratch = rest;
            Sliced::new(buffers, own_scratch, contributed, data_type, op, own, world)
        });
        let mut flow = Striped(parts.collect());
        self.engine.run(signature, &mut flow)
    }

    /// Reduces small data: every rank sends its contribution to the root, which folds them.
    fn reduce_small_to_root(
        &mut self,
        data: &mut [u8],
        signature: OperationSignature,
        data_type: DataType,
        op: ReduceOp,
        root: u32,
    ) -> CollectiveResult {
        let (length, stride) = (data.len(), data.len().next_multiple_of(8));
        if self.own() != root {
            let to = |rank: u32| (rank == root).then_some(0..length);
            return self.exchange(signature, data, &mut [], to, |_| None);
        }
        self.reserve_scratch(stride * self.world as usize);
        let scratch: &mut [u8] = bytemuck::cast_slice_mut(&mut self.scratch);
        let place = |rank: u32| rank as usize * stride..rank as usize * stride + length;
        let (to, from) = (|_| None, |rank| Some(place(rank)));
        let (input, streams) = (&[], 1);
        let mut flow = Exchange { input, output: &mut *scratch, to, from, streams };
        self.engine.run(signature, &mut flow)?;
        fold_ranks(data_type, op, data, root, self.world, &|rank| &scratch[place(rank)]);
        Ok(())
    }

    /// Reduces large data: each rank folds its region, and sends the result to the root.
    fn reduce_large_to_root(
        &mut self,
        data: &mut [u8],
        signature: OperationSignature,
        data_type: DataType,
        op: ReduceOp,
        root: u32,
    ) -> CollectiveResult {
        if self.own() == root {
            return self.reduce_large(Buffers::AtRoot(data), signature, data_type, op);
        }
        let (length, size) = (data.len(), data_type.size_bytes());
        let streams = stream_count(length, self.streams());
        let folded = to_root_length(length, streams, size, self.world);
        let mut words = std::mem::take(&mut self.folded);
        words.resize(words.len().max(folded.div_ceil(size_of::<u64>())), 0);
        let output = &mut bytemuck::cast_slice_mut(&mut words)[..folded];
        let buffers = Buffers::ToRoot { input: data, root, output };
        let result = self.reduce_large(buffers, signature, data_type, op);
        self.folded = words;
        result
    }

    fn broadcast_from(
        &mut self,
        data: &mut [u8],
        signature: OperationSignature,
        root: u32,
    ) -> CollectiveResult {
        let (own, length, streams) = (self.own(), data.len(), self.streams());
        if length > SMALL && self.world > 2 {
            let mut flow = Chain::new(data, own, self.world, root, streams);
            return self.engine.run(signature, &mut flow);
        }
        if own == root {
            self.exchange(signature, data, &mut [], |_| Some(0..length), |_| None)
        } else {
            let from = |rank: u32| (rank == root).then_some(0..length);
            self.exchange(signature, &[], data, |_| None, from)
        }
    }

    /// Exchanges regions between pairs of ranks, over all streams of a pair.
    fn exchange(
        &mut self,
        signature: OperationSignature,
        input: &[u8],
        output: &mut [u8],
        to: impl Fn(u32) -> Option<Range<usize>>,
        from: impl Fn(u32) -> Option<Range<usize>>,
    ) -> CollectiveResult {
        let streams = self.streams();
        self.engine.run(signature, &mut Exchange { input, output, to, from, streams })
    }
}

impl CpuBackend for TcpCommunicator {
    fn membership(&self) -> GroupMembership {
        let Engine { term, generation, rank, .. } = self.engine;
        GroupMembership { term, generation, rank, world: self.world }
    }

    fn carry_out(
        &mut self,
        signature: OperationSignature,
        operation: HostOperation<'_>,
    ) -> CollectiveResult {
        let own = self.own();
        match operation {
            Operation::AllReduce { data, data_type, op } if data.len() <= SMALL => {
                self.reduce_small(data, signature, data_type, op)
            }
            Operation::AllReduce { data, data_type, op } => {
                self.reduce_large(Buffers::InPlace(data), signature, data_type, op)
            }
            Operation::GroupedAllReduce { buffers, op } => all_reduce_grouped(self, buffers, op),
            Operation::Reduce { data, data_type, op, root } if data.len() <= SMALL => {
                self.reduce_small_to_root(data, signature, data_type, op, root)
            }
            Operation::Reduce { data, data_type, op, root } => {
                self.reduce_large_to_root(data, signature, data_type, op, root)
            }
            Operation::ReduceScatter { input, output, data_type, op } => {
                let part = output.len();
                let buffers = Buffers::Scatter { input, part, within: 0..part, output };
                self.reduce_large(buffers, signature, data_type, op)
            }
            Operation::Broadcast { data, root, .. } => self.broadcast_from(data, signature, root),
            Operation::Gather { input, output: Some(output), .. } => {
                let part = input.len();
                let place = |rank: u32| rank as usize * part..(rank as usize + 1) * part;
                output[place(own)].copy_from_slice(input);
                self.exchange(signature, &[], output, |_| None, |rank| Some(place(rank)))
            }
            Operation::Gather { input, output: None, root, .. } => {
                let to = |rank: u32| (rank == root).then_some(0..input.len());
                self.exchange(signature, input, &mut [], to, |_| None)
            }
            Operation::Scatter { input: Some(input), output, .. } => {
                let part = output.len();
                let place = |rank: u32| rank as usize * part..(rank as usize + 1) * part;
                output.copy_from_slice(&input[place(own)]);
                self.exchange(signature, input, &mut [], |rank| Some(place(rank)), |_| None)
            }
            Operation::Scatter { input: None, output, root, .. } => {
                let part = output.len();
                let from = |rank: u32| (rank == root).then_some(0..part);
                self.exchange(signature, &[], output, |_| None, from)
            }
            Operation::AllGather { input, output, counts, data_type } => {
                let parts = PartRanges::new(counts, input.len(), data_type);
                if self.is_doubled(input.len()) && counts.is_none() {
                    let (ranks, length) = (0..self.world, input.len());
                    let (blocks, at) = self.gather_by_doubling(signature, input)?;
                    for rank in ranks {
                        let block = &blocks[at(rank)..at(rank) + length];
                        output[parts.of(rank)].copy_from_slice(block);
                    }
                    return Ok(());
                }
                output[parts.of(own)].copy_from_slice(input);
                let (to, from) = (|_| Some(0..input.len()), |rank| Some(parts.of(rank)));
                self.exchange(signature, input, output, to, from)
            }
            Operation::AllToAll { input, output, counts, data_type } => {
                let length = input.len();
                let (sent, received) =
                    PartRanges::of_all_to_all(counts, length, self.world, data_type);
                output[received.of(own)].copy_from_slice(&input[sent.of(own)]);
                let (to, from) = (|rank| Some(sent.of(rank)), |rank| Some(received.of(rank)));
                self.exchange(signature, input, output, to, from)
            }
            Operation::Barrier if self.is_doubled(0) => {
                self.gather_by_doubling(signature, &[]).map(|_| ())
            }
            Operation::Barrier => {
                let (to, from) = (|_| Some(0..0), |_| Some(0..0));
                let (input, output, streams) = (&[], &mut [], 1);
                self.engine.run(signature, &mut Exchange { input, output, to, from, streams })
            }
            Operation::Send { data, to, .. } => {
                let to = |rank: u32| (rank == to).then_some(0..data.len());
                self.exchange(signature, data, &mut [], to, |_| None)
            }
            Operation::Recv { data, from, .. } => {
                let length = data.len();
                let from = |rank: u32| (rank == from).then_some(0..length);
                self.exchange(signature, &[], data, |_| None, from)
            }
        }
    }

    fn ancestry(&self) -> Ancestry {
        Ancestry::Group(Arc::clone(&self.engine.origin), self.engine.sequence)
    }

    fn set_operation_deadline(&mut self, deadline: Duration) {
        self.engine.operation_deadline = deadline;
    }

    fn close(&mut self) {
        self.engine.fail(CollectiveError::Closed);
    }
}

impl Drop for TcpCommunicator {
    fn drop(&mut self) {
        CpuBackend::close(self);
    }
}
