//! Collectives on data of the host: it passes through the group's [`StagingLane`](crate::lane::StagingLane), in
//! pieces that fit. Called by the group's [`Communicator`].

use std::any::Any;
use std::ops::Range;
use std::time::Duration;

use elastic_collectives::wire::OperationKind;
use elastic_collectives::{
    CollectiveError, CollectiveResult, Communicator, DataType, HostOperation, Operation,
    PartRanges, ReduceOp, all_reduce_grouped,
};

use super::NcclGroup;
use crate::actor::core::Close;
use crate::cuda::DeviceBuffer;
use crate::lane::LANE_BYTES;
use crate::nccl::{NcclError, Operations, Region};

impl NcclGroup {
    /// Runs an operation on data of the host: `fill` puts it into the lane, `queue` works on the first `up` bytes of
    /// the lane's GPU side, and the result is `down` of it.
    fn pass(
        &mut self,
        kind: OperationKind,
        up: usize,
        down: Range<usize>,
        fill: impl FnOnce(&mut [u8]),
        queue: impl FnOnce(&Operations<'_>, &DeviceBuffer) -> Result<(), NcclError>,
        take: impl FnOnce(&[u8]),
    ) -> CollectiveResult {
        self.with_lane(|group, lane| {
            group.enter()?;
            fill(lane.host());
            if up > 0 {
                lane.up(up).map_err(|error| group.fail(kind, error.into()))?;
            }
            let sequence =
                group.launch_on(lane, kind, |operations| queue(operations, lane.device()))?;
            lane.down(down.start, down.len()).map_err(|error| group.fail(kind, error.into()))?;
            group.wait(kind, sequence)?;
            let waited =
                group.patiently(|patience| patience.wait("the GPU", || Ok(lane.is_idle()?)));
            waited.map_err(|error| group.fail(kind, error))?;
            take(&lane.host()[..down.len()]);
            Ok(())
        })
    }

    /// Each of the parts' bytes from the rank of its place to everybody, in turn.
    fn spread(
        &mut self,
        kind: OperationKind,
        of: DataType,
        output: &mut [u8],
        parts: &PartRanges,
    ) -> CollectiveResult {
        for root in 0..self.world_size() {
            let range = parts.of(root);
            for piece in pieces(range.len(), LANE_BYTES) {
                let at = range.start + piece.start..range.start + piece.end;
                self.broadcast_piece(kind, of, &mut output[at], root)?;
            }
        }
        Ok(())
    }

    fn broadcast_piece(
        &mut self,
        kind: OperationKind,
        of: DataType,
        data: &mut [u8],
        root: u32,
    ) -> CollectiveResult {
        let (length, nccl) = (data.len(), self.nccl_rank(root));
        let up = if root == self.control.rank() { length } else { 0 };
        let mut result = Vec::new();
        self.pass(
            kind,
            up,
            0..length,
            |host| host[..up].copy_from_slice(&data[..up]),
            |operations, device| {
                let all = Region::new(device, 0..length);
                operations.broadcast(&all, &all, of, nccl)
            },
            |host| result.extend_from_slice(host),
        )?;
        data.copy_from_slice(&result);
        Ok(())
    }

    /// Messages between all pairs, in rounds of the lane's size. Every rank has as many rounds.
    fn exchange(
        &mut self,
        kind: OperationKind,
        (input, sent): (&[u8], &PartRanges),
        (output, received): (&mut [u8], &PartRanges),
        of: DataType,
    ) -> CollectiveResult {
        let (world, own) = (self.world_size(), self.rank());
        output[received.of(own)].copy_from_slice(&input[sent.of(own)]);
        let round = share(2 * world as usize);
        let lengths = (0..world).flat_map(|rank| [sent.of(rank).len(), received.of(rank).len()]);
        let longest = lengths.max().unwrap_or_default();
        for start in (0..longest).step_by(round.max(1)) {
            let part = |range: Range<usize>| {
                let (from, to) = (range.start + start, range.start + start + round);
                from.min(range.end)..to.min(range.end)
            };
            let peers: Vec<u32> = (0..world).map(|rank| self.nccl_rank(rank)).collect();
            let others = || (0..world).filter(|rank| *rank != own);
            let at = |rank: u32| rank as usize * round;
            let inbound = at(world);
            self.pass(
                kind,
                inbound,
                inbound..2 * inbound,
                |host| {
                    for rank in others() {
                        let part = part(sent.of(rank));
                        host[at(rank)..at(rank) + part.len()].copy_from_slice(&input[part]);
                    }
                },
                |operations, device| {
                    for rank in others() {
                        let (out, back) =
                            (part(sent.of(rank)).len(), part(received.of(rank)).len());
                        let (at, peer) = (at(rank), peers[rank as usize]);
                        if out > 0 {
                            operations.send(&Region::new(device, at..at + out), of, peer)?;
                        }
                        let at = inbound + at;
                        if back > 0 {
                            operations.recv(&Region::new(device, at..at + back), of, peer)?;
                        }
                    }
                    Ok(())
                },
                |host| {
                    for rank in others() {
                        let part = part(received.of(rank));
                        let from = at(rank)..at(rank) + part.len();
                        output[part].copy_from_slice(&host[from]);
                    }
                },
            )?;
        }
        Ok(())
    }

    fn pass_all_reduce(&mut self, data: &mut [u8], of: DataType, op: ReduceOp) -> CollectiveResult {
        for piece in pieces(data.len(), LANE_BYTES) {
            let data = &mut data[piece];
            let length = data.len();
            let mut result = Vec::new();
            self.pass(
                OperationKind::AllReduce,
                length,
                0..length,
                |host| host[..length].copy_from_slice(data),
                |operations, device| {
                    let all = Region::new(device, 0..length);
                    operations.all_reduce(&all, &all, of, op)
                },
                |host| result.extend_from_slice(host),
            )?;
            data.copy_from_slice(&result);
        }
        Ok(())
    }

    fn pass_reduce(
        &mut self,
        data: &mut [u8],
        of: DataType,
        op: ReduceOp,
        root: u32,
    ) -> CollectiveResult {
        let (nccl, is_root) = (self.nccl_rank(root), self.rank() == root);
        for piece in pieces(data.len(), LANE_BYTES) {
            let data = &mut data[piece];
            let length = data.len();
            let mut result = Vec::new();
            self.pass(
                OperationKind::Reduce,
                length,
                0..if is_root { length } else { 0 },
                |host| host[..length].copy_from_slice(data),
                |operations, device| {
                    let all = Region::new(device, 0..length);
                    operations.reduce(&all, &all, of, op, nccl)
                },
                |host| result.extend_from_slice(host),
            )?;
            if is_root {
                data.copy_from_slice(&result);
            }
        }
        Ok(())
    }

    /// All-gather of equal parts, where NCCL counts as the generation does.
    fn pass_all_gather(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        of: DataType,
    ) -> CollectiveResult {
        let (part, world) = (input.len(), self.world_size());
        for piece in pieces(part, share(world as usize + 1)) {
            let (length, at) = (piece.len(), piece.start);
            let gathered = length * world as usize;
            // The own part stands behind the gathered ones, so that neither is overwritten too early.
            self.pass(
                OperationKind::AllGather,
                length,
                length..length + gathered,
                |host| host[..length].copy_from_slice(&input[piece]),
                |operations, device| {
                    let own = Region::new(device, 0..length);
                    let all = Region::new(device, length..length + gathered);
                    operations.all_gather(&own, &all, of, world)
                },
                |host| {
                    for (rank, received) in host.chunks(length).enumerate() {
                        let start = rank * part + at;
                        output[start..start + length].copy_from_slice(received);
                    }
                },
            )?;
        }
        Ok(())
    }

    fn pass_reduce_scatter(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        of: DataType,
        op: ReduceOp,
    ) -> CollectiveResult {
        let (part, world) = (output.len(), self.world_size());
        // NCCL gives the parts out by its own ranks.
        let mut order: Vec<usize> = (0..world as usize).collect();
        order.sort_by_key(|rank| self.nccl_rank(*rank as u32));
        for piece in pieces(part, share(world as usize + 1)) {
            let (length, at) = (piece.len(), piece.start);
            let all = length * world as usize;
            self.pass(
                OperationKind::ReduceScatter,
                all,
                all..all + length,
                |host| {
                    for (slot, rank) in host.chunks_mut(length).zip(&order) {
                        slot.copy_from_slice(&input[rank * part + at..rank * part + at + length]);
                    }
                },
                |operations, device| {
                    let (from, to) =
                        (Region::new(device, 0..all), Region::new(device, all..all + length));
                    operations.reduce_scatter(&from, &to, of, op, world)
                },
                |host| output[piece].copy_from_slice(host),
            )?;
        }
        Ok(())
    }

    fn pass_barrier(&mut self) -> CollectiveResult {
        let length = size_of::<i32>();
        self.pass(
            OperationKind::Barrier,
            length,
            0..length,
            |host| host[..length].fill(0),
            |operations, device| {
                let all = Region::new(device, 0..length);
                operations.all_reduce(&all, &all, DataType::I32, ReduceOp::Sum)
            },
            |_| {},
        )
    }

    fn pass_send(&mut self, data: &[u8], of: DataType, to: u32) -> CollectiveResult {
        let peer = self.nccl_rank(to);
        for piece in pieces(data.len(), LANE_BYTES) {
            let length = piece.len();
            self.pass(
                OperationKind::SendReceive,
                length,
                0..0,
                |host| host[..length].copy_from_slice(&data[piece]),
                |operations, device| operations.send(&Region::new(device, 0..length), of, peer),
                |_| {},
            )?;
        }
        Ok(())
    }

    fn pass_recv(&mut self, data: &mut [u8], of: DataType, from: u32) -> CollectiveResult {
        let peer = self.nccl_rank(from);
        for piece in pieces(data.len(), LANE_BYTES) {
            let length = piece.len();
            self.pass(
                OperationKind::SendReceive,
                0,
                0..length,
                |_| {},
                |operations, device| operations.recv(&Region::new(device, 0..length), of, peer),
                |host| data[piece].copy_from_slice(host),
            )?;
        }
        Ok(())
    }
}

/// `length` bytes in pieces of at most `piece`.
fn pieces(length: usize, piece: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length).step_by(piece.max(1)).map(move |start| start..length.min(start + piece))
}

/// As many bytes of a part as fit into the lane `times` times, in whole elements of any type.
fn share(times: usize) -> usize {
    (LANE_BYTES / times.max(1)) & !63
}

/// Only the part of `root` is not empty.
fn only(root: u32, world: u32, part: usize) -> PartRanges {
    let range = |rank: u32| if rank == root { 0..part } else { 0..0 };
    PartRanges::Listed((0..world).map(range).collect())
}

impl Communicator for NcclGroup {
    fn rank(&self) -> u32 {
        self.control.rank()
    }

    fn world_size(&self) -> u32 {
        self.control.world_size()
    }

    fn term(&self) -> u64 {
        self.session.stamp().term.0
    }

    fn generation(&self) -> u64 {
        self.session.stamp().generation.0
    }

    fn encrypts(&self) -> bool {
        self.control.encrypts()
    }

    fn run(&mut self, operation: HostOperation<'_>) -> CollectiveResult {
        let (kind, rank, world) = (operation.kind(), self.rank(), self.world_size());
        operation.check(rank, world)?;
        match operation {
            Operation::AllReduce { data, data_type, op } => {
                self.pass_all_reduce(data, data_type, op)
            }
            Operation::GroupedAllReduce { buffers, op } => all_reduce_grouped(self, buffers, op),
            Operation::Reduce { data, data_type, op, root } => {
                self.pass_reduce(data, data_type, op, root)
            }
            Operation::Broadcast { data, data_type, root } => pieces(data.len(), LANE_BYTES)
                .try_for_each(|piece| {
                    self.broadcast_piece(kind, data_type, &mut data[piece], root)
                }),
            Operation::Gather { input, output, data_type, root } => {
                let part = input.len();
                let sent = only(root, world, part);
                let received = match &output {
                    Some(_) => PartRanges::Equal(part),
                    None => PartRanges::Equal(0),
                };
                let output = output.unwrap_or_default();
                self.exchange(kind, (input, &sent), (output, &received), data_type)
            }
            Operation::Scatter { input, output, data_type, root } => {
                let part = output.len();
                let received = only(root, world, part);
                let sent = match input {
                    Some(_) => PartRanges::Equal(part),
                    None => PartRanges::Equal(0),
                };
                let input = input.unwrap_or_default();
                self.exchange(kind, (input, &sent), (output, &received), data_type)
            }
            Operation::AllGather { input, output, counts: None, data_type }
                if self.session.is_in_order() =>
            {
                self.pass_all_gather(input, output, data_type)
            }
            Operation::AllGather { input, output, counts, data_type } => {
                let parts = PartRanges::new(counts, input.len(), data_type);
                output[parts.of(rank)].copy_from_slice(input);
                self.spread(kind, data_type, output, &parts)
            }
            Operation::ReduceScatter { input, output, data_type, op } => {
                self.pass_reduce_scatter(input, output, data_type, op)
            }
            Operation::AllToAll { input, output, counts, data_type } => {
                let (sent, received) =
                    PartRanges::of_all_to_all(counts, input.len(), world, data_type);
                self.exchange(kind, (input, &sent), (output, &received), data_type)
            }
            Operation::Barrier => self.pass_barrier(),
            Operation::Send { data, data_type, to } => self.pass_send(data, data_type, to),
            Operation::Recv { data, data_type, from } => self.pass_recv(data, data_type, from),
        }
    }

    /// Sub-groups are the CPU's: NCCL's would need the same care as the generation's communicator.
    fn split(
        &mut self,
        colour: Option<u32>,
        key: i32,
    ) -> Result<Option<Box<dyn Communicator>>, CollectiveError> {
        self.enter()?;
        self.control.split(colour, key)
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn set_operation_deadline(&mut self, deadline: Duration) {
        self.operation_deadline = deadline;
    }

    fn close(&mut self) {
        self.leave(Close::InOrder);
        self.is_closed = true;
        self.control.close();
    }
}
