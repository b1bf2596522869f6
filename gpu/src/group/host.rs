//! Collectives on data of the host: it passes through the group's [`Lane`](crate::lane::Lane), in pieces that fit.

use std::any::Any;
use std::ops::Range;
use std::time::Duration;

use elastic_collectives::wire::OperationKind;
use elastic_collectives::{CollectiveError, Communicator, DataType, ReduceOp, check};

use super::{Done, NcclGroup};
use crate::actor::core::Close;
use crate::cuda::DeviceBuffer;
use crate::lane::LANE_BYTES;
use crate::nccl::{NcclError, Operations, Region};

impl NcclGroup {
    /// One operation on data of the host: `fill` puts it into the lane, `queue` works on the first `up` bytes of the
    /// lane's GPU side, and the result is `down` of it.
    fn pass(
        &mut self,
        kind: OperationKind,
        up: usize,
        down: Range<usize>,
        fill: impl FnOnce(&mut [u8]),
        queue: impl FnOnce(&Operations<'_>, &DeviceBuffer) -> Result<(), NcclError>,
        take: impl FnOnce(&[u8]),
    ) -> Done {
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

    /// Each of `ranges`' bytes from the rank of its place to everybody, in turn.
    fn spread(
        &mut self,
        kind: OperationKind,
        of: DataType,
        output: &mut [u8],
        ranges: &[Range<usize>],
    ) -> Done {
        for (root, range) in (0..).zip(ranges) {
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
    ) -> Done {
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

    /// Messages between all pairs, in rounds of what fits into the lane.
    fn exchange(
        &mut self,
        kind: OperationKind,
        input: &[u8],
        sent: &[Range<usize>],
        output: &mut [u8],
        received: &[Range<usize>],
        of: DataType,
    ) -> Done {
        let (world, own) = (self.world_size() as usize, self.rank() as usize);
        output[received[own].clone()].copy_from_slice(&input[sent[own].clone()]);
        let round = share(2 * world);
        let longest = sent.iter().chain(received).map(Range::len).max().unwrap_or_default();
        for start in (0..longest).step_by(round.max(1)) {
            let part = |range: &Range<usize>| {
                let (from, to) = (range.start + start, range.start + start + round);
                from.min(range.end)..to.min(range.end)
            };
            let peers: Vec<u32> = (0..world as u32).map(|rank| self.nccl_rank(rank)).collect();
            let others = || (0..world).filter(|rank| *rank != own);
            let inbound = world * round;
            self.pass(
                kind,
                inbound,
                inbound..2 * inbound,
                |host| {
                    for rank in others() {
                        let part = part(&sent[rank]);
                        host[rank * round..rank * round + part.len()].copy_from_slice(&input[part]);
                    }
                },
                |operations, device| {
                    for rank in others() {
                        let (out, back) = (part(&sent[rank]).len(), part(&received[rank]).len());
                        let at = rank * round;
                        if out > 0 {
                            operations.send(&Region::new(device, at..at + out), of, peers[rank])?;
                        }
                        let at = inbound + at;
                        if back > 0 {
                            let to = Region::new(device, at..at + back);
                            operations.receive(&to, of, peers[rank])?;
                        }
                    }
                    Ok(())
                },
                |host| {
                    for rank in others() {
                        let part = part(&received[rank]);
                        let from = rank * round..rank * round + part.len();
                        output[part].copy_from_slice(&host[from]);
                    }
                },
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

/// Parts of these counts, one after the other, in bytes.
pub(super) fn places(counts: &[usize], data_type: DataType) -> Vec<Range<usize>> {
    let mut end = 0;
    let place = |count: &usize| {
        let start = end;
        end += count * data_type.size_bytes();
        start..end
    };
    counts.iter().map(place).collect()
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

    fn all_reduce_bytes(&mut self, data: &mut [u8], data_type: DataType, op: ReduceOp) -> Done {
        let kind = OperationKind::AllReduce;
        check::buffer(kind, data, data_type)?;
        check::reduction(kind, data_type, op)?;
        for piece in pieces(data.len(), LANE_BYTES) {
            let data = &mut data[piece];
            let length = data.len();
            let mut result = Vec::new();
            self.pass(
                kind,
                length,
                0..length,
                |host| host[..length].copy_from_slice(data),
                |operations, device| {
                    let all = Region::new(device, 0..length);
                    operations.all_reduce(&all, &all, data_type, op)
                },
                |host| result.extend_from_slice(host),
            )?;
            data.copy_from_slice(&result);
        }
        Ok(())
    }

    fn all_gather_bytes(&mut self, input: &[u8], output: &mut [u8], data_type: DataType) -> Done {
        let (kind, part) = (OperationKind::AllGather, input.len());
        let (world, rank) = (self.world_size(), self.rank() as usize);
        check::buffer(kind, input, data_type)?;
        check::length(kind, "output", output.len(), part * world as usize)?;
        if !self.session.is_in_order() {
            output[rank * part..(rank + 1) * part].copy_from_slice(input);
            let ranges: Vec<_> = (0..world as usize).map(|r| r * part..(r + 1) * part).collect();
            return self.spread(kind, data_type, output, &ranges);
        }
        for piece in pieces(part, share(world as usize + 1)) {
            let (length, at) = (piece.len(), piece.start);
            let gathered = length * world as usize;
            // The own part stands behind the gathered ones, so that neither is overwritten too early.
            self.pass(
                kind,
                length,
                length..length + gathered,
                |host| host[..length].copy_from_slice(&input[piece]),
                |operations, device| {
                    let own = Region::new(device, 0..length);
                    let all = Region::new(device, length..length + gathered);
                    operations.all_gather(&own, &all, data_type, world)
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
        let ranges = places(counts, data_type);
        let own = ranges[self.rank() as usize].clone();
        check::length(kind, "input", input.len(), own.len())?;
        output[own].copy_from_slice(input);
        self.spread(kind, data_type, output, &ranges)
    }

    fn reduce_scatter_bytes(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        data_type: DataType,
        op: ReduceOp,
    ) -> Done {
        let (kind, part, world) = (OperationKind::ReduceScatter, output.len(), self.world_size());
        check::buffer(kind, input, data_type)?;
        check::buffer(kind, output, data_type)?;
        check::reduction(kind, data_type, op)?;
        check::length(kind, "input", input.len(), part * world as usize)?;
        // NCCL gives the parts out by its own ranks.
        let mut order: Vec<usize> = (0..world as usize).collect();
        order.sort_by_key(|rank| self.nccl_rank(*rank as u32));
        for piece in pieces(part, share(world as usize + 1)) {
            let (length, at) = (piece.len(), piece.start);
            let all = length * world as usize;
            self.pass(
                kind,
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
                    operations.reduce_scatter(&from, &to, data_type, op, world)
                },
                |host| output[piece].copy_from_slice(host),
            )?;
        }
        Ok(())
    }

    fn broadcast_bytes(&mut self, data: &mut [u8], data_type: DataType, root: u32) -> Done {
        let kind = OperationKind::Broadcast;
        check::buffer(kind, data, data_type)?;
        check::rank(kind, root, self.world_size())?;
        for piece in pieces(data.len(), LANE_BYTES) {
            self.broadcast_piece(kind, data_type, &mut data[piece], root)?;
        }
        Ok(())
    }

    fn all_to_all_bytes(&mut self, input: &[u8], output: &mut [u8], data_type: DataType) -> Done {
        let (kind, world) = (OperationKind::AllToAll, self.world_size() as usize);
        check::buffer(kind, input, data_type)?;
        check::length(kind, "output", output.len(), input.len())?;
        if !input.len().is_multiple_of(world * data_type.size_bytes()) {
            let reason = format!("{} bytes are not {world} equal parts", input.len());
            return Err(check::invalid(kind, reason));
        }
        let counts = vec![input.len() / world / data_type.size_bytes(); world];
        let places = places(&counts, data_type);
        self.exchange(kind, input, &places, output, &places, data_type)
    }

    fn all_to_all_v_bytes(
        &mut self,
        input: &[u8],
        input_counts: &[usize],
        output: &mut [u8],
        output_counts: &[usize],
        data_type: DataType,
    ) -> Done {
        let (kind, world) = (OperationKind::AllToAllV, self.world_size());
        check::buffer(kind, input, data_type)?;
        check::counts(kind, input_counts, world, data_type, input)?;
        check::counts(kind, output_counts, world, data_type, output)?;
        let (sent, received) = (places(input_counts, data_type), places(output_counts, data_type));
        let rank = self.rank() as usize;
        let (own, due) = (received[rank].len(), sent[rank].len());
        check::length(kind, "own part of the output", own, due)?;
        self.exchange(kind, input, &sent, output, &received, data_type)
    }

    fn barrier(&mut self) -> Done {
        let mut nothing = [0_i32];
        let bytes = bytemuck::bytes_of_mut(&mut nothing);
        let length = bytes.len();
        self.pass(
            OperationKind::Barrier,
            length,
            0..length,
            |host| host[..length].fill(0),
            |operations, device| {
                let all = Region::new(device, 0..length);
                operations.all_reduce(&all, &all, DataType::I32, ReduceOp::Sum)
            },
            |host| bytes.copy_from_slice(host),
        )
    }

    fn send_bytes(&mut self, data: &[u8], data_type: DataType, to: u32) -> Done {
        let kind = OperationKind::SendReceive;
        check::buffer(kind, data, data_type)?;
        check::peer(kind, to, self.rank(), self.world_size())?;
        let peer = self.nccl_rank(to);
        for piece in pieces(data.len(), LANE_BYTES) {
            let length = piece.len();
            self.pass(
                kind,
                length,
                0..0,
                |host| host[..length].copy_from_slice(&data[piece]),
                |operations, device| {
                    operations.send(&Region::new(device, 0..length), data_type, peer)
                },
                |_| {},
            )?;
        }
        Ok(())
    }

    fn receive_bytes(&mut self, data: &mut [u8], data_type: DataType, from: u32) -> Done {
        let kind = OperationKind::SendReceive;
        check::buffer(kind, data, data_type)?;
        check::peer(kind, from, self.rank(), self.world_size())?;
        let peer = self.nccl_rank(from);
        for piece in pieces(data.len(), LANE_BYTES) {
            let length = piece.len();
            self.pass(
                kind,
                0,
                0..length,
                |_| {},
                |operations, device| {
                    operations.receive(&Region::new(device, 0..length), data_type, peer)
                },
                |host| data[piece].copy_from_slice(host),
            )?;
        }
        Ok(())
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

    fn as_any_mut(&mut self) -> Option<&mut dyn Any> {
        Some(self)
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
