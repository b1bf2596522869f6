//! [`TcpCommunicator`]: the collectives of one generation over its mesh of connections.
//!
//! Messages up to [`SMALL`] bytes go from everyone to everyone in one hop, or among many ranks in ⌈log₂ n⌉ hops by
//! [`super::doubling`]; larger reductions go by [`super::sliced`], larger broadcasts down a pipelined chain. Large
//! messages are divided among the connections of a pair ([`super::stripes`]).

use std::sync::Arc;
use std::time::Duration;

use super::doubling::Doubling;
use super::engine::Engine;
use super::flow::{Chain, Exchange};
use super::sliced::{Buffers, Sliced, Striped, scratch_length};
use super::stripes::stream_count;
use crate::backend::{Backend, Done, Membership, Places, Reduction};
use crate::error::CollectiveError;
use crate::reduce::fold_ranks;
use crate::split::Ancestry;
use crate::wire::Operation;

/// The largest message, in bytes, that is sent whole to every rank.
pub(crate) const SMALL: usize = 16 * 1024;
/// From how many ranks on small messages go by doubling: with fewer, one hop with a message for each peer is sooner
/// done than several hops one after the other.
pub(crate) const DOUBLING_RANKS: usize = 16;

/// The group of one generation over TCP. [`crate::TcpFabric::form`] makes it; dropping it says farewell
/// to the peers and closes the connections.
#[derive(Debug)]
pub struct TcpCommunicator {
    pub(crate) engine: Engine,
    world: u32,
    /// Memory for others' contributions, in words so that any element is aligned; allocated once.
    scratch: Vec<u64>,
    /// What each rank has delivered on each stream; allocated once.
    contributed: Vec<usize>,
}

impl TcpCommunicator {
    pub(crate) fn new(engine: Engine, world: u32) -> TcpCommunicator {
        TcpCommunicator { engine, world, scratch: Vec::new(), contributed: Vec::new() }
    }

    /// Runs what the ranks agree on before the caller's first operation, which is number 0 all the same.
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

    /// How many connections each pair has.
    pub(crate) fn streams(&self) -> u32 {
        self.engine.streams
    }

    fn own(&self) -> u32 {
        self.engine.rank
    }

    fn reduce_small(
        &mut self,
        data: &mut [u8],
        operation: Operation,
        Reduction { data_type, op }: Reduction,
    ) -> Done {
        if self.is_doubled(data.len()) {
            let (own, world, length) = (self.engine.rank, self.world, data.len());
            let (blocks, at) = self.gather_by_doubling(operation, data)?;
            fold_ranks(data_type, op, data, own, world, |rank| {
                &blocks[at(rank)..at(rank) + length]
            });
            return Ok(());
        }
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
            streams: 1,
        };
        self.engine.run(operation, &mut flow)?;
        fold_ranks(data_type, op, data, self.engine.rank, self.world, |rank| &scratch[place(rank)]);
        Ok(())
    }

    /// Small messages of all ranks to all, by doubling. Returns them, and where that of each rank begins.
    fn gather_by_doubling(
        &mut self,
        operation: Operation,
        input: &[u8],
    ) -> Result<(&[u8], impl Fn(u32) -> usize + use<>), CollectiveError> {
        let (own, world) = (self.engine.rank as usize, self.world as usize);
        // Whole words keep every contribution aligned, and one at least is waited for.
        let stride = input.len().next_multiple_of(8).max(8);
        self.reserve_scratch(stride * world);
        let blocks: &mut [u8] = bytemuck::cast_slice_mut(&mut self.scratch);
        let blocks = &mut blocks[..stride * world];
        blocks[..input.len()].copy_from_slice(input);
        let starts: Vec<usize> = (0..=world).map(|block| block * stride).collect();
        let members: Vec<u32> = (0..self.world).collect();
        self.engine.run(operation, &mut Doubling::new(blocks, &starts, &members, own))?;
        Ok((blocks, move |rank: u32| (rank as usize + world - own) % world * stride))
    }

    fn is_doubled(&self, bytes: usize) -> bool {
        bytes <= SMALL && self.world as usize >= DOUBLING_RANKS
    }

    fn reduce_large(
        &mut self,
        buffers: Buffers<'_>,
        operation: Operation,
        Reduction { data_type, op }: Reduction,
    ) -> Done {
        let streams = stream_count(buffers.length(), self.streams());
        let parts = buffers.striped(streams, data_type.size_bytes());
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
        self.engine.run(operation, &mut flow)
    }
}

impl Backend for TcpCommunicator {
    fn membership(&self) -> Membership {
        let Engine { term, generation, rank, .. } = self.engine;
        Membership { term, generation, rank, world: self.world }
    }

    fn all_reduce(&mut self, operation: Operation, data: &mut [u8], reduction: Reduction) -> Done {
        if data.len() <= SMALL {
            self.reduce_small(data, operation, reduction)
        } else {
            self.reduce_large(Buffers::InPlace(data), operation, reduction)
        }
    }

    fn all_gather(
        &mut self,
        operation: Operation,
        input: &[u8],
        output: &mut [u8],
        places: &Places,
    ) -> Done {
        if self.is_doubled(input.len()) && !operation.kind.lengths_differ() {
            let (ranks, length) = (0..self.world, input.len());
            let (blocks, at) = self.gather_by_doubling(operation, input)?;
            for rank in ranks {
                output[places.of(rank)].copy_from_slice(&blocks[at(rank)..at(rank) + length]);
            }
            return Ok(());
        }
        output[places.of(self.own())].copy_from_slice(input);
        let to = |_| Some(0..input.len());
        let from = |rank: u32| Some(places.of(rank));
        let streams = self.streams();
        self.engine.run(operation, &mut Exchange { input, output, to, from, streams })
    }

    fn reduce_scatter(
        &mut self,
        operation: Operation,
        input: &[u8],
        output: &mut [u8],
        reduction: Reduction,
    ) -> Done {
        let part = output.len();
        let buffers = Buffers::Scatter { input, part, within: 0..part, output };
        self.reduce_large(buffers, operation, reduction)
    }

    fn broadcast(&mut self, operation: Operation, data: &mut [u8], root: u32) -> Done {
        let (own, length, streams) = (self.own(), data.len(), self.streams());
        if length > SMALL && self.world > 2 {
            return self
                .engine
                .run(operation, &mut Chain::new(data, own, self.world, root, streams));
        }
        if own == root {
            let (to, from) = (|_| Some(0..length), |_| None);
            let (input, output) = (data, &mut []);
            self.engine.run(operation, &mut Exchange { input, output, to, from, streams })
        } else {
            let from = |rank: u32| (rank == root).then_some(0..length);
            let to = |_| None;
            let (input, output) = (&[], data);
            self.engine.run(operation, &mut Exchange { input, output, to, from, streams })
        }
    }

    fn all_to_all(
        &mut self,
        operation: Operation,
        input: &[u8],
        sent: &Places,
        output: &mut [u8],
        received: &Places,
    ) -> Done {
        let own = self.own();
        output[received.of(own)].copy_from_slice(&input[sent.of(own)]);
        let (to, from) = (|rank| Some(sent.of(rank)), |rank| Some(received.of(rank)));
        let streams = self.streams();
        self.engine.run(operation, &mut Exchange { input, output, to, from, streams })
    }

    fn barrier(&mut self, operation: Operation) -> Done {
        if self.is_doubled(0) {
            return self.gather_by_doubling(operation, &[]).map(|_| ());
        }
        let (to, from) = (|_| Some(0..0), |_| Some(0..0));
        let (input, output, streams) = (&[], &mut [], 1);
        self.engine.run(operation, &mut Exchange { input, output, to, from, streams })
    }

    fn send(&mut self, operation: Operation, data: &[u8], to: u32) -> Done {
        let streams = self.streams();
        let to = |rank: u32| (rank == to).then_some(0..data.len());
        let from = |_| None;
        let (input, output) = (data, &mut []);
        self.engine.run(operation, &mut Exchange { input, output, to, from, streams })
    }

    fn receive(&mut self, operation: Operation, data: &mut [u8], from: u32) -> Done {
        let (length, streams) = (data.len(), self.streams());
        let from = |rank: u32| (rank == from).then_some(0..length);
        let to = |_| None;
        let (input, output) = (&[], data);
        self.engine.run(operation, &mut Exchange { input, output, to, from, streams })
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
        Backend::close(self);
    }
}
