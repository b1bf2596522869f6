//! Collectives on data that is on the GPU: a program's arrays, tensors of torch. Each is queued behind the work on
//! the group's stream, and returns its number. [`NcclGroup::wait`] waits for it. Ranks and parts are those of the
//! generation, even where NCCL numbers its ranks differently.

use std::time::{Duration, Instant};

use elastic_collectives::{
    CollectiveError, Communicator, DataType, Operation, OperationMemory, PartRanges, ReduceOp,
};

use super::NcclGroup;
use crate::nccl::{GpuPatience, Operations, Region};

/// A collective on memory of the GPU. Inputs and outputs do not overlap.
pub type DeviceOperation<'a> = Operation<Region<'a>, Region<'a>, &'a [usize]>;

impl OperationMemory for Region<'_> {
    fn length_bytes(&self) -> usize {
        self.len()
    }

    fn start_address(&self) -> usize {
        Region::start_address(self)
    }
}

impl NcclGroup {
    /// Queues an operation, and returns its number.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    pub fn launch_operation(
        &mut self,
        operation: &DeviceOperation<'_>,
    ) -> Result<u64, CollectiveError> {
        let (own, world) = (self.rank(), self.world_size());
        operation.check(own, world)?;
        let in_order = self.session.is_in_order();
        // NCCL counts the ranks in an order of its own.
        let peers: Vec<u32> = (0..world).map(|rank| self.nccl_rank(rank)).collect();
        let peer = |rank: u32| peers[rank as usize];
        let kind = operation.kind();
        self.with_lane(|group, lane| {
            let queue = |nccl: &Operations<'_>| match *operation {
                Operation::AllReduce { data, data_type, op } => {
                    nccl.all_reduce(&data, &data, data_type, op)
                }
                Operation::GroupedAllReduce { ref buffers, op } => buffers
                    .iter()
                    .try_for_each(|(data, data_type)| nccl.all_reduce(data, data, *data_type, op)),
                Operation::Reduce { data, data_type, op, root } => {
                    nccl.reduce(&data, &data, data_type, op, peer(root))
                }
                Operation::Broadcast { data, data_type, root } => {
                    nccl.broadcast(&data, &data, data_type, peer(root))
                }
                Operation::Gather { input, output, data_type, root } => {
                    if input.is_empty() {
                        return Ok(());
                    }
                    nccl.send(&input, data_type, peer(root))?;
                    let Some(output) = output else { return Ok(()) };
                    let parts = PartRanges::Equal(input.len());
                    (0..world).try_for_each(|rank| {
                        nccl.recv(&output.part(parts.of(rank)), data_type, peer(rank))
                    })
                }
                Operation::Scatter { input, output, data_type, root } => {
                    if output.is_empty() {
                        return Ok(());
                    }
                    if let Some(input) = input {
                        let parts = PartRanges::Equal(output.len());
                        for rank in 0..world {
                            nccl.send(&input.part(parts.of(rank)), data_type, peer(rank))?;
                        }
                    }
                    nccl.recv(&output, data_type, peer(root))
                }
                Operation::AllGather { input, output, counts: None, data_type } if in_order => {
                    nccl.all_gather(&input, &output, data_type, world)
                }
                Operation::AllGather { input, output, counts, data_type } => {
                    let parts = PartRanges::new(counts, input.len(), data_type);
                    for rank in (0..world).filter(|rank| !parts.of(*rank).is_empty()) {
                        let to = output.part(parts.of(rank));
                        let from = if rank == own { input } else { to };
                        nccl.broadcast(&from, &to, data_type, peer(rank))?;
                    }
                    Ok(())
                }
                Operation::ReduceScatter { input, output, data_type, op } if in_order => {
                    nccl.reduce_scatter(&input, &output, data_type, op, world)
                }
                Operation::ReduceScatter { input, output, data_type, op } => {
                    // NCCL gives the parts out by its own ranks.
                    let parts = PartRanges::Equal(output.len());
                    (0..world).filter(|_| !output.is_empty()).try_for_each(|rank| {
                        nccl.reduce(&input.part(parts.of(rank)), &output, data_type, op, peer(rank))
                    })
                }
                Operation::AllToAll { input, output, counts, data_type } => {
                    let (sent, received) =
                        PartRanges::of_all_to_all(counts, input.len(), world, data_type);
                    for rank in 0..world {
                        let (out, back) = (sent.of(rank), received.of(rank));
                        if !out.is_empty() {
                            nccl.send(&input.part(out), data_type, peer(rank))?;
                        }
                        if !back.is_empty() {
                            nccl.recv(&output.part(back), data_type, peer(rank))?;
                        }
                    }
                    Ok(())
                }
                Operation::Barrier => {
                    let word = Region::new(lane.device(), 0..size_of::<i32>());
                    nccl.all_reduce(&word, &word, DataType::I32, ReduceOp::Sum)
                }
                Operation::Send { data, data_type, to } => nccl.send(&data, data_type, peer(to)),
                Operation::Recv { data, data_type, from } => {
                    nccl.recv(&data, data_type, peer(from))
                }
            };
            group.launch_on(lane, kind, queue)
        })
    }

    /// Whether, within this time, the GPU lets go of all that was queued, done or ended. After a failure, memory that
    /// operations were on is not to be used before.
    #[expect(
        clippy::disallowed_methods,
        reason = "the training thread is outside of the deterministic world"
    )]
    pub fn lets_go_within(&self, most: Duration) -> bool {
        let Some(lane) = &self.lane else { return false };
        let patience = GpuPatience { due: Instant::now() + most, stop: &|| None };
        lane.mark().is_ok() && patience.wait("the GPU", || Ok(lane.is_idle()?)).is_ok()
    }
}
