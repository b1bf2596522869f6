//! Collectives on the memory of a GPU, such as that of torch's CUDA tensors: by NCCL, through the communicator
//! that the worker's GPU actor owns. An operation waits, on NCCL's stream, for the work that its producer has
//! queued (DLPack's stream exchange). It is done when the GPU is done with it, so that later uses of the memory
//! come after it.

use std::time::Duration;

use elastic_collectives::{CollectiveError, CollectiveResult, Communicator};
use elastic_node::gpu::NcclGroup;

use crate::operation::ArrayOperation;

/// Time, after a failure, for the GPU to release an operation's memory, before the memory is given up for lost.
const LETS_GO_MAX: Duration = Duration::from_secs(5);

/// The GPU that a group's collectives can work on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct GroupGpu {
    /// Its number in this process, as CUDA counts.
    pub(crate) ordinal: i32,
    /// The handle of the stream that operations are queued on.
    pub(crate) stream: u64,
}

/// The GPU of a group; `None` if its collectives are the CPU's, at least between hosts.
pub(crate) fn of_group(group: &mut dyn Communicator) -> Option<GroupGpu> {
    let stream = nccl_of(group)?.stream()?;
    let ordinal = i32::try_from(stream.device().facts().ordinal).ok()?;
    Some(GroupGpu { ordinal, stream: stream.handle() })
}

fn nccl_of(group: &mut dyn Communicator) -> Option<&mut NcclGroup> {
    group.as_any_mut().downcast_mut::<NcclGroup>()
}

/// Carries out an operation whose arrays are on the GPU. `queued` is called once it is on the group's stream.
pub(crate) fn run(
    operation: &mut ArrayOperation,
    group: &mut dyn Communicator,
    queued: impl FnOnce(),
) -> CollectiveResult {
    let kind = operation.kind();
    let Some(nccl) = nccl_of(group) else {
        return Err(CollectiveError::InvalidArgument {
            operation: kind,
            reason: "data on the GPU needs NCCL in all of the world".to_owned(),
        });
    };
    let on_gpu = operation.on(|input| input.array().region(), |output| output.region());
    let done = nccl.launch_operation(&on_gpu).and_then(|number| {
        queued();
        nccl.wait(kind, number)
    });
    if done.is_err() && !nccl.lets_go_within(LETS_GO_MAX) {
        // If the memory were given back, it would be reused while the GPU might still write to it.
        std::mem::forget(std::mem::replace(operation, ArrayOperation::Barrier));
    }
    done
}
