//! Collectives on data that is on the GPU: a program's arrays, tensors of torch. Each is queued behind what is on the
//! group's stream, and returns its number; [`NcclGroup::wait`] waits for it. Ranks and parts are those of the
//! generation, however NCCL counts.

use std::ops::Range;
use std::time::{Duration, Instant};

use elastic_collectives::wire::OperationKind;
use elastic_collectives::{CollectiveError, Communicator, DataType, ReduceOp, check};

use super::NcclGroup;
use super::host::places;
use crate::nccl::{Patience, Region};

type Queued = Result<u64, CollectiveError>;

impl NcclGroup {
    /// Reduces each region over all ranks, in place.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    pub fn all_reduce_device(
        &mut self,
        data: &[Region<'_>],
        data_type: DataType,
        op: ReduceOp,
    ) -> Queued {
        let kind = OperationKind::AllReduce;
        check::reduction(kind, data_type, op)?;
        self.launch(kind, |operations| {
            data.iter().try_for_each(|region| operations.all_reduce(region, region, data_type, op))
        })
    }

    /// Replaces a region by that of `root`.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    pub fn broadcast_device(
        &mut self,
        data: &Region<'_>,
        data_type: DataType,
        root: u32,
    ) -> Queued {
        let kind = OperationKind::Broadcast;
        check::rank(kind, root, self.world_size())?;
        let root = self.nccl_rank(root);
        self.launch(kind, |operations| operations.broadcast(data, data, data_type, root))
    }

    /// Puts every rank's `input` into everybody's `output`, by rank; rank r contributes `counts[r]` elements, or all
    /// as many. The two do not overlap.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    pub fn all_gather_device(
        &mut self,
        input: &Region<'_>,
        output: &Region<'_>,
        counts: Option<&[usize]>,
        data_type: DataType,
    ) -> Queued {
        let (own, world) = (self.rank() as usize, self.world_size());
        if counts.is_none() && self.session.is_in_order() {
            let kind = OperationKind::AllGather;
            check::length(kind, "output", output.len(), input.len() * world as usize)?;
            return self
                .launch(kind, |operations| operations.all_gather(input, output, data_type, world));
        }
        let kind = OperationKind::AllGatherV;
        let equal = vec![input.len() / data_type.size_bytes(); world as usize];
        let parts = parts(kind, counts.unwrap_or(&equal), world, data_type, "output", output)?;
        check::length(kind, "input", input.len(), parts[own].len())?;
        let roots: Vec<u32> = (0..world).map(|rank| self.nccl_rank(rank)).collect();
        self.launch(kind, |operations| {
            for (rank, part) in parts.into_iter().enumerate().filter(|(_, part)| !part.is_empty()) {
                let to = output.part(part);
                let from = if rank == own { *input } else { to };
                operations.broadcast(&from, &to, data_type, roots[rank])?;
            }
            Ok(())
        })
    }

    /// Reduces all ranks' `input`; this rank's part of it, of equal parts, goes to `output`. The two do not overlap.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    pub fn reduce_scatter_device(
        &mut self,
        input: &Region<'_>,
        output: &Region<'_>,
        data_type: DataType,
        op: ReduceOp,
    ) -> Queued {
        let (kind, world) = (OperationKind::ReduceScatter, self.world_size());
        check::reduction(kind, data_type, op)?;
        check::length(kind, "input", input.len(), output.len() * world as usize)?;
        let roots: Vec<u32> = (0..world).map(|rank| self.nccl_rank(rank)).collect();
        let in_order = self.session.is_in_order();
        self.launch(kind, |operations| {
            if in_order {
                return operations.reduce_scatter(input, output, data_type, op, world);
            }
            // NCCL gives the parts out by its own ranks.
            for (rank, root) in roots.into_iter().enumerate().filter(|_| !output.is_empty()) {
                let from = input.part(rank * output.len()..(rank + 1) * output.len());
                operations.reduce(&from, output, data_type, op, root)?;
            }
            Ok(())
        })
    }

    /// Sends `sent[r]` elements of `input` to rank r, and puts what comes into `output`, `received[r]` from rank r. The
    /// two do not overlap.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    pub fn all_to_all_device(
        &mut self,
        (input, sent): (&Region<'_>, &[usize]),
        (output, received): (&Region<'_>, &[usize]),
        data_type: DataType,
    ) -> Queued {
        let (kind, world) = (OperationKind::AllToAllV, self.world_size());
        let out = parts(kind, sent, world, data_type, "input", input)?;
        let back = parts(kind, received, world, data_type, "output", output)?;
        let own = self.rank() as usize;
        check::length(kind, "own part of the output", back[own].len(), out[own].len())?;
        let peers: Vec<u32> = (0..world).map(|rank| self.nccl_rank(rank)).collect();
        self.launch(kind, |operations| {
            for ((out, back), peer) in out.into_iter().zip(back).zip(peers) {
                if !out.is_empty() {
                    operations.send(&input.part(out), data_type, peer)?;
                }
                if !back.is_empty() {
                    operations.receive(&output.part(back), data_type, peer)?;
                }
            }
            Ok(())
        })
    }

    /// Sends to one rank.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    pub fn send_device(&mut self, data: &Region<'_>, data_type: DataType, to: u32) -> Queued {
        let kind = OperationKind::SendReceive;
        check::peer(kind, to, self.rank(), self.world_size())?;
        let peer = self.nccl_rank(to);
        self.launch(kind, |operations| operations.send(data, data_type, peer))
    }

    /// Receives from one rank.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    pub fn receive_device(&mut self, data: &Region<'_>, data_type: DataType, from: u32) -> Queued {
        let kind = OperationKind::SendReceive;
        check::peer(kind, from, self.rank(), self.world_size())?;
        let peer = self.nccl_rank(from);
        self.launch(kind, |operations| operations.receive(data, data_type, peer))
    }

    /// Whether, within this time, the GPU lets go of all that was queued, done or ended. After a failure, memory that
    /// operations were on is not to be used before.
    #[expect(
        clippy::disallowed_methods,
        reason = "the training thread is outside of the deterministic world"
    )]
    pub fn lets_go_within(&self, most: Duration) -> bool {
        let Some(lane) = &self.lane else { return false };
        let patience = Patience { due: Instant::now() + most, stop: &|| None };
        lane.mark().is_ok() && patience.wait("the GPU", || Ok(lane.is_idle()?)).is_ok()
    }
}

/// Parts of these counts, which together are all of `whole`.
fn parts(
    kind: OperationKind,
    counts: &[usize],
    world: u32,
    data_type: DataType,
    name: &str,
    whole: &Region<'_>,
) -> Result<Vec<Range<usize>>, CollectiveError> {
    if counts.len() != world as usize {
        return Err(check::invalid(kind, format!("{} counts for {world} ranks", counts.len())));
    }
    let elements = counts.iter().fold(0_usize, |sum, count| sum.saturating_add(*count));
    check::length(kind, name, whole.len(), elements.saturating_mul(data_type.size_bytes()))?;
    Ok(places(counts, data_type))
}
