//! Collectives on the memory of a GPU, such as that of torch's CUDA tensors: by NCCL, through the communicator that the
//! worker's GPU actor owns. An operation waits, on NCCL's stream, for what its producer has queued (DLPack's stream
//! exchange), and is over when the GPU is done with it, so whatever uses the memory next comes after it.

use std::time::Duration;

use elastic_collectives::wire::OperationKind;
use elastic_collectives::{CollectiveError, Communicator, DataType};
use elastic_node::gpu::{NcclGroup, Region};

use crate::array::Array;
use crate::operation::{Operation, Outcome};

/// How long, after a failure, the GPU may take to let go of an operation's memory before that is given up for lost.
const LETS_GO_MAX: Duration = Duration::from_secs(5);

/// The GPU that a group's collectives can work on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct GroupGpu {
    /// Its number in this process, as CUDA counts.
    pub(crate) ordinal: i32,
    /// The handle of the stream that operations are queued on.
    pub(crate) stream: u64,
}

/// That of a group; none where its collectives are the CPU's, at least between hosts.
pub(crate) fn of_group(group: &mut dyn Communicator) -> Option<GroupGpu> {
    let stream = nccl_of(group)?.stream()?;
    let ordinal = i32::try_from(stream.device().facts().ordinal).ok()?;
    Some(GroupGpu { ordinal, stream: stream.handle() })
}

fn nccl_of(group: &mut dyn Communicator) -> Option<&mut NcclGroup> {
    group.as_any_mut()?.downcast_mut::<NcclGroup>()
}

/// Carries an operation out whose arrays are on the GPU.
pub(crate) fn run(operation: &mut Operation, group: &mut dyn Communicator) -> Outcome {
    let Some(nccl) = nccl_of(group) else {
        return Err(CollectiveError::InvalidArgument {
            operation: kind_of(operation),
            reason: "data on the GPU needs NCCL in all of the world".to_owned(),
        });
    };
    let done = queue(operation, nccl).and_then(|number| nccl.wait(kind_of(operation), number));
    if done.is_err() && !nccl.lets_go_within(LETS_GO_MAX) {
        // Given back, it would be used for something else, which the GPU might still write over.
        std::mem::forget(std::mem::replace(operation, Operation::Barrier));
    }
    done
}

const fn kind_of(operation: &Operation) -> OperationKind {
    match operation {
        Operation::AllReduce { .. } => OperationKind::AllReduce,
        Operation::Broadcast { .. } => OperationKind::Broadcast,
        Operation::AllGather { .. } => OperationKind::AllGather,
        Operation::ReduceScatter { .. } => OperationKind::ReduceScatter,
        Operation::AllToAll { .. } => OperationKind::AllToAll,
        Operation::Barrier => OperationKind::Barrier,
        Operation::Send { .. } | Operation::Receive { .. } => OperationKind::SendReceive,
    }
}

/// Queues it; the number of what was queued last.
fn queue(operation: &Operation, nccl: &mut NcclGroup) -> Result<u64, CollectiveError> {
    match operation {
        Operation::AllReduce { arrays, op } => {
            let mut types: Vec<DataType> = arrays.iter().map(|(_, of)| *of).collect();
            types.sort_unstable();
            types.dedup();
            let mut last = 0;
            for data_type in types {
                let of_type = arrays.iter().filter(|(_, of)| *of == data_type);
                let regions: Vec<Region<'_>> = of_type.map(|(array, _)| array.region()).collect();
                last = nccl.all_reduce_device(&regions, data_type, *op)?;
            }
            Ok(last)
        }
        Operation::Broadcast { array, root } => {
            nccl.broadcast_device(&array.region(), moved(array), *root)
        }
        Operation::AllGather { arrays, counts } => {
            let (input, output) = arrays.both();
            let counts = counts.as_deref();
            nccl.all_gather_device(&input.region(), &output.region(), counts, moved(output))
        }
        Operation::ReduceScatter { arrays, data_type, op } => {
            let (input, output) = arrays.both();
            nccl.reduce_scatter_device(&input.region(), &output.region(), *data_type, *op)
        }
        Operation::AllToAll { arrays, counts } => {
            let (input, output) = arrays.both();
            let (input, output) = (input.region(), output.region());
            let data_type = arrays.moved_as().0;
            let world = nccl.world_size() as usize;
            let equal = || vec![input.len() / data_type.size_bytes() / world; world];
            let (sent, received) = counts.clone().unwrap_or_else(|| (equal(), equal()));
            nccl.all_to_all_device((&input, &sent), (&output, &received), data_type)
        }
        Operation::Barrier => Err(CollectiveError::Closed),
        Operation::Send { array, to } => nccl.send_device(&array.region(), moved(array), *to),
        Operation::Receive { array, from } => {
            nccl.receive_device(&array.region(), moved(array), *from)
        }
    }
}

const fn moved(array: &Array) -> DataType {
    array.moved_as().0
}
