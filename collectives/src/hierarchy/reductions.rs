//! The all-reduce over hosts: small data by an exchange of contributions between leaders, large data down the chain of
//! hosts. Called by the hierarchical communicator.

use std::ops::Range;

use super::chain::{ChainRound, ChainSchedule, Messages, piece_length};
use super::communicator::{HierarchicalCommunicator, PartResult, WaitPhase, bytes};
use super::regions::Regions;
use crate::backend::{CpuBackend, GroupMembership};
use crate::element::DataType;
use crate::operation::HostOperation;
use crate::reduce::{ReduceOp, accumulates_wide, divide, fold_ranks, narrow, widen};
use crate::tcp::{DOUBLING_RANKS, Doubling};
use crate::wire::OperationSignature;

impl HierarchicalCommunicator {
    /// Reduces small data: all leaders receive all contributions, and fold them.
    pub(super) fn reduce_gathered(
        &mut self,
        signature: OperationSignature,
        data: &mut [u8],
        data_type: DataType,
        op: ReduceOp,
    ) -> PartResult {
        let GroupMembership { world, .. } = self.membership();
        let length = data.len();
        let mut scratch = std::mem::take(&mut self.scratch);
        let gathered = bytes(&mut scratch, length * world as usize);
        // This host's contributions come first, then those of the hosts behind it, around the world.
        let first = self.hosts.leader(self.hosts.own());
        let place = |rank: u32| {
            let at = (rank + world - first) % world;
            at as usize * length..(at as usize + 1) * length
        };
        let own = 0..self.hosts.ranks(self.hosts.own()).len() * length;
        let result = (|| {
            if self.local.is_some() {
                let (input, output, counts) = (&*data, &mut gathered[own], None);
                let gather = HostOperation::AllGather { input, output, counts, data_type };
                self.within(WaitPhase::Within, signature, gather)?;
            } else {
                gathered[own].copy_from_slice(data);
            }
            if self.leads() {
                self.gather_between(signature, gathered, length)?;
                data.copy_from_slice(&gathered[place(0)]);
                fold_ranks(data_type, op, data, 0, world, &|rank| &gathered[place(rank)]);
            }
            self.broadcast_within(signature, data, data_type)
        })();
        self.scratch = scratch;
        result
    }

    /// All-gathers between the leaders: the contributions of all hosts, `length` bytes a rank, in the order of hosts
    /// from the own one on.
    fn gather_between(
        &mut self,
        signature: OperationSignature,
        gathered: &mut [u8],
        length: usize,
    ) -> PartResult {
        let hosts = self.hosts.clone();
        let (own, count) = (hosts.own(), hosts.count());
        let mut starts = vec![0];
        for behind in 0..count {
            let ranks = hosts.ranks((own + behind) % count).len();
            starts.push(starts[behind] + ranks * length);
        }
        if count >= DOUBLING_RANKS && length > 0 {
            let leaders: Vec<u32> = (0..count).map(|host| hosts.leader(host)).collect();
            let mut flow = Doubling::new(gathered, &starts, &leaders, own);
            return self.between(signature, &mut flow);
        }
        let places = |host: usize| {
            let behind = (host + count - own) % count;
            starts[behind]..starts[behind + 1]
        };
        let (hosts, places) = (&hosts, &places);
        let streams = self.world.streams();
        self.between(signature, &mut Regions { data: gathered, hosts, places, streams })
    }

    /// Reduces large data: partial sums go down the chain of hosts, see [`super::chain`].
    pub(super) fn reduce_chained(
        &mut self,
        signature: OperationSignature,
        data: &mut [u8],
        data_type: DataType,
        op: ReduceOp,
    ) -> PartResult {
        let piece = piece_length(data.len());
        let schedule = ChainSchedule {
            host: self.hosts.own(),
            hosts: self.hosts.count(),
            pieces: data.len().div_ceil(piece),
        };
        let (mut scratch, mut wide) =
            (std::mem::take(&mut self.scratch), std::mem::take(&mut self.wide));
        let mut chain = Chained { signature, data_type, op, piece, length: data.len(), data };
        let result = (0..schedule.rounds())
            .try_for_each(|round| chain.round(self, schedule, round, &mut scratch, &mut wide));
        (self.scratch, self.wide) = (scratch, wide);
        result
    }

    fn neighbour(&self, host: Option<usize>) -> Option<u32> {
        host.filter(|host| *host < self.hosts.count()).map(|host| self.hosts.leader(host))
    }
}

/// A reduction down the chain.
struct Chained<'a> {
    signature: OperationSignature,
    data_type: DataType,
    op: ReduceOp,
    piece: usize,
    length: usize,
    data: &'a mut [u8],
}

impl Chained<'_> {
    fn within(&self, piece: usize) -> Range<usize> {
        piece * self.piece..((piece + 1) * self.piece).min(self.length)
    }

    /// The length of the partial sum of a piece, in bytes.
    fn partial(&self, piece: usize) -> usize {
        let length = self.within(piece).len();
        if accumulates_wide(self.data_type) { 2 * length } else { length }
    }

    fn round(
        &mut self,
        group: &mut HierarchicalCommunicator,
        schedule: ChainSchedule,
        round: usize,
        carry: &mut Vec<u64>,
        wide: &mut Vec<f32>,
    ) -> PartResult {
        let ChainRound { fold, carry: carried, result, back } = schedule.round(round);
        let (host, last) = (schedule.host, schedule.host == schedule.hosts - 1);
        if let Some(piece) = fold {
            let carry = bytes(carry, self.partial(piece));
            self.fold(group, piece, carry, wide, last)?;
        }
        if group.leads() {
            let forward = fold.filter(|_| !last);
            let widened = accumulates_wide(self.data_type);
            let partial = forward
                .filter(|_| widened)
                .map(|piece| &bytemuck::cast_slice::<f32, u8>(wide)[..self.partial(piece)]);
            let carried = carried.map(|piece| self.partial(piece));
            let mut messages = Messages {
                partial,
                carry: bytes(carry, carried.unwrap_or(0)),
                previous: group.neighbour(host.checked_sub(1)),
                next: group.neighbour(Some(host + 1)),
                forward: forward.map(|piece| self.within(piece)),
                back: back.map(|piece| self.within(piece)),
                carried,
                result: result.map(|piece| self.within(piece)),
                data: self.data,
                streams: group.world.streams(),
            };
            group.between(self.signature, &mut messages)?;
        }
        if let Some(piece) = result {
            let within = self.within(piece);
            group.broadcast_within(self.signature, &mut self.data[within], self.data_type)?;
        }
        Ok(())
    }

    /// Folds the partial sum of the earlier hosts with the contributions of this one, in the order of ranks.
    fn fold(
        &mut self,
        group: &mut HierarchicalCommunicator,
        piece: usize,
        carry: &[u8],
        wide: &mut Vec<f32>,
        last: bool,
    ) -> PartResult {
        let (signature, data_type, op) = (self.signature, self.data_type, self.op);
        let within = self.within(piece);
        let carry = (group.leads() && group.hosts.own() > 0).then_some(carry);
        let data = &mut self.data[within];
        if !accumulates_wide(data_type) {
            return fold(group, signature, data, data_type, op, carry, last);
        }
        let elements = data.len() / data_type.size_bytes();
        wide.resize(wide.len().max(elements), 0.0);
        let wide = &mut wide[..elements];
        widen(data_type, data, wide);
        let sums = bytemuck::cast_slice_mut(wide);
        fold(group, signature, sums, DataType::F32, op, carry, last)?;
        if last {
            narrow(data_type, wide, data);
        }
        Ok(())
    }
}

fn fold(
    group: &mut HierarchicalCommunicator,
    signature: OperationSignature,
    data: &mut [u8],
    data_type: DataType,
    op: ReduceOp,
    carry: Option<&[u8]>,
    last: bool,
) -> PartResult {
    let world = group.membership().world;
    // The mean divides the sum of all hosts, and so only the last host divides.
    let partial = if op == ReduceOp::Mean { ReduceOp::Sum } else { op };
    if let Some(carry) = carry {
        fold_ranks(data_type, partial, data, 1, 2, &|_| carry);
    }
    // The leader waits only for its host's ranks. They wait for the leader, which may wait for other hosts.
    let phase = if group.leads() { WaitPhase::Within } else { WaitPhase::Back };
    let reduction = HostOperation::AllReduce { data: &mut *data, data_type, op: partial };
    group.within(phase, signature, reduction)?;
    if last && op == ReduceOp::Mean {
        divide(data_type, data, world);
    }
    Ok(())
}
