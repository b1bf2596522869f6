//! [`Communicator`], the trait that every backend implements, and [`CommunicatorExt`], its typed methods.
//!
//! The trait takes an [`Operation`] on bytes, so that it is object-safe and a training program can hold a
//! `Box<dyn Communicator>` with any backend. Training code calls the typed methods.

use std::any::Any;
use std::time::Duration;

use crate::element::Element;
use crate::error::CollectiveError;
use crate::operation::{HostOperation, Operation};
use crate::reduce::ReduceOp;
use crate::shards::{self, ShardDeal};
use crate::wire::{OperationKind, OperationSignature};

/// The group of one generation, as one of its ranks uses it. Calls block the training thread until the operation is
/// done, aborted ([`crate::AbortHandle`]), past its deadline, or failed.
///
/// All ranks call the same operations in the same order. After an error other than
/// [`CollectiveError::InvalidArgument`] the content of the buffers is unspecified, and each further call
/// returns the same error.
///
/// A reduction folds the contributions in rank order: the same inputs give the same bits on every
/// rank, with every backend. Byte buffers must hold whole elements and be aligned for them.
pub trait Communicator: Send {
    /// This process's rank, below [`Communicator::world_size`].
    fn rank(&self) -> u32;

    /// The number of ranks.
    fn world_size(&self) -> u32;

    /// The driver's term.
    fn term(&self) -> u64;

    /// The generation of this group.
    fn generation(&self) -> u64;

    /// Whether data is encrypted on its way to another host.
    fn encrypts(&self) -> bool;

    /// Checks an operation, and carries it out.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn run(&mut self, operation: HostOperation<'_>) -> Result<(), CollectiveError>;

    /// Carries out an operation as a part of a larger one, on which the ranks of this group agree by `signature`. A
    /// backend that announces no operations ignores it.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn run_part(
        &mut self,
        signature: OperationSignature,
        part: HostOperation<'_>,
    ) -> Result<(), CollectiveError> {
        let _ = signature;
        self.run(part)
    }

    /// Makes sub-groups, as `MPI_Comm_split` does: one for each `colour`. Its ranks are ordered by `key`, and for
    /// equal keys by the rank in this group. A rank without a colour takes part in the call, and is in no sub-group.
    /// Every rank of this group calls it.
    ///
    /// A sub-group has connections, and memory, of its own, so that it may run beside this group. It ends with
    /// the generation: an abort ends it too. Its errors name the ranks of the group that was split ([`SubGroup`](crate::SubGroup)).
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`]. A backend without sub-groups returns [`CollectiveError::InvalidArgument`].
    fn split(
        &mut self,
        colour: Option<u32>,
        key: i32,
    ) -> Result<Option<Box<dyn Communicator>>, CollectiveError> {
        let _ = (colour, key);
        let reason = "this backend has no sub-groups".to_owned();
        Err(CollectiveError::InvalidArgument { operation: OperationKind::Split, reason })
    }

    /// The backend itself, for callers that use more of it than this trait offers.
    fn as_any_mut(&mut self) -> &mut dyn Any;

    /// The backend itself, by value.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;

    /// Sets the time limit of each further operation. A backend without deadlines of its own ignores it.
    fn set_operation_deadline(&mut self, deadline: Duration) {
        let _ = deadline;
    }

    /// Leaves the group in good order; dropping does the same. Peers that still need data from this rank
    /// get [`CollectiveError::PeerLost`] with [`crate::PeerLoss::Left`]. Further calls return
    /// [`CollectiveError::Closed`].
    fn close(&mut self);
}

/// The operations on typed slices, implemented for every [`Communicator`]. [`Operation`] says what each of them does.
///
/// # Errors
///
/// Each method returns any [`CollectiveError`].
#[expect(clippy::missing_errors_doc, reason = "the errors are the same for all, and stand above")]
pub trait CommunicatorExt: Communicator {
    /// See [`Operation::AllReduce`].
    fn all_reduce<E: Element>(
        &mut self,
        data: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let data = bytemuck::cast_slice_mut(data);
        self.run(Operation::AllReduce { data, data_type: E::DATA_TYPE, op })
    }

    /// See [`Operation::GroupedAllReduce`]. All ranks give the buffers in one order. Ranks compare the lengths, so another order of
    /// buffers of one length is not seen: take them from a `BTreeMap`, whose order is that of its keys, and not from a `HashMap`,
    /// whose order is another one in each process.
    fn all_reduce_many<E: Element>(
        &mut self,
        buffers: &mut [&mut [E]],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let buffers = buffers
            .iter_mut()
            .map(|buffer| (bytemuck::cast_slice_mut(buffer), E::DATA_TYPE))
            .collect();
        self.run(Operation::GroupedAllReduce { buffers, op })
    }

    /// Replaces `output` by the reduction of a job's logical shards over a fixed tree of their numbers, so that the
    /// bits depend neither on the world size nor on the deal of the shards. This rank gives `shards`, its own by
    /// `deal`, in order; each is as long as `output`. All ranks give the same deal, which is compared.
    ///
    /// A rank first combines its own shards to partial results, one for each node of the tree that is whole on it.
    /// The operation moves as much data as [`Self::all_reduce`] if the world divides the shards into nodes of the
    /// tree, as 4 ranks do 8 shards, and up to `2 log2 total` times as much elsewhere.
    fn all_reduce_shards<E: Element>(
        &mut self,
        shards: &[&[E]],
        deal: &ShardDeal,
        output: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        shards::all_reduce(self, deal, shards, output, op)
    }

    /// As [`Self::all_reduce_shards`], of several buffers at once, each with the bits that it has alone: of each shard of this
    /// rank, one contribution to each of `outputs`, in their order. For many small gradients that is faster than one by one. The order
    /// is one on all ranks, as in [`Self::all_reduce_many`].
    fn all_reduce_shards_many<E: Element>(
        &mut self,
        shards: &[&[&[E]]],
        deal: &ShardDeal,
        outputs: &mut [&mut [E]],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        shards::all_reduce_many(self, deal, shards, outputs, op)
    }

    /// See [`Operation::Reduce`].
    fn reduce<E: Element>(
        &mut self,
        data: &mut [E],
        op: ReduceOp,
        root: u32,
    ) -> Result<(), CollectiveError> {
        let data = bytemuck::cast_slice_mut(data);
        self.run(Operation::Reduce { data, data_type: E::DATA_TYPE, op, root })
    }

    /// See [`Operation::Gather`].
    fn gather<E: Element>(
        &mut self,
        input: &[E],
        output: Option<&mut [E]>,
        root: u32,
    ) -> Result<(), CollectiveError> {
        let (input, output) = (bytemuck::cast_slice(input), output.map(bytemuck::cast_slice_mut));
        self.run(Operation::Gather { input, output, data_type: E::DATA_TYPE, root })
    }

    /// See [`Operation::Scatter`].
    fn scatter<E: Element>(
        &mut self,
        input: Option<&[E]>,
        output: &mut [E],
        root: u32,
    ) -> Result<(), CollectiveError> {
        let (input, output) = (input.map(bytemuck::cast_slice), bytemuck::cast_slice_mut(output));
        self.run(Operation::Scatter { input, output, data_type: E::DATA_TYPE, root })
    }

    /// See [`Operation::AllGather`].
    fn all_gather<E: Element>(
        &mut self,
        input: &[E],
        output: &mut [E],
    ) -> Result<(), CollectiveError> {
        let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
        self.run(Operation::AllGather { input, output, counts: None, data_type: E::DATA_TYPE })
    }

    /// See [`Operation::AllGather`]: rank r contributes `counts[r]` elements.
    fn all_gather_v<E: Element>(
        &mut self,
        input: &[E],
        output: &mut [E],
        counts: &[usize],
    ) -> Result<(), CollectiveError> {
        let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
        let (counts, data_type) = (Some(counts), E::DATA_TYPE);
        self.run(Operation::AllGather { input, output, counts, data_type })
    }

    /// See [`Operation::ReduceScatter`].
    fn reduce_scatter<E: Element>(
        &mut self,
        input: &[E],
        output: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
        self.run(Operation::ReduceScatter { input, output, data_type: E::DATA_TYPE, op })
    }

    /// See [`Operation::Broadcast`].
    fn broadcast<E: Element>(&mut self, data: &mut [E], root: u32) -> Result<(), CollectiveError> {
        let data = bytemuck::cast_slice_mut(data);
        self.run(Operation::Broadcast { data, data_type: E::DATA_TYPE, root })
    }

    /// Broadcasts bytes whose length only the root knows: the length first, then the content. The other
    /// ranks' `data` is replaced. All ranks give the same `maximum_bytes`. More than that is
    /// [`CollectiveError::InvalidArgument`] on every rank, before anything is allocated for it; the communicator
    /// still works then.
    fn broadcast_vec(
        &mut self,
        data: &mut Vec<u8>,
        root: u32,
        maximum_bytes: usize,
    ) -> Result<(), CollectiveError> {
        let mut length = [data.len() as u64];
        self.broadcast(&mut length, root)?;
        let length = usize::try_from(length[0]).unwrap_or(usize::MAX);
        if length > maximum_bytes {
            return Err(CollectiveError::InvalidArgument {
                operation: OperationKind::Broadcast,
                reason: format!(
                    "rank {root} announces {length} bytes, at most {maximum_bytes} are allowed here"
                ),
            });
        }
        if self.rank() != root {
            data.clear();
            data.resize(length, 0);
        }
        self.broadcast(data.as_mut_slice(), root)
    }

    /// See [`Operation::AllToAll`].
    fn all_to_all<E: Element>(
        &mut self,
        input: &[E],
        output: &mut [E],
    ) -> Result<(), CollectiveError> {
        let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
        self.run(Operation::AllToAll { input, output, counts: None, data_type: E::DATA_TYPE })
    }

    /// See [`Operation::AllToAll`]: `input_counts[r]` elements go to rank r and `output_counts[r]` come from it.
    fn all_to_all_v<E: Element>(
        &mut self,
        input: &[E],
        input_counts: &[usize],
        output: &mut [E],
        output_counts: &[usize],
    ) -> Result<(), CollectiveError> {
        let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
        let (counts, data_type) = (Some((input_counts, output_counts)), E::DATA_TYPE);
        self.run(Operation::AllToAll { input, output, counts, data_type })
    }

    /// See [`Operation::Barrier`].
    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.run(Operation::Barrier)
    }

    /// See [`Operation::Send`].
    fn send<E: Element>(&mut self, data: &[E], to: u32) -> Result<(), CollectiveError> {
        let data = bytemuck::cast_slice(data);
        self.run(Operation::Send { data, data_type: E::DATA_TYPE, to })
    }

    /// See [`Operation::Recv`].
    fn recv<E: Element>(&mut self, data: &mut [E], from: u32) -> Result<(), CollectiveError> {
        let data = bytemuck::cast_slice_mut(data);
        self.run(Operation::Recv { data, data_type: E::DATA_TYPE, from })
    }
}

impl<C: Communicator + ?Sized> CommunicatorExt for C {}
