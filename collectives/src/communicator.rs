//! The trait that every backend implements, [`Communicator`], and its typed face, [`CommunicatorExt`].
//!
//! The core speaks bytes, so that it is object-safe and a training program can hold a
//! `Box<dyn Communicator>` whatever carries the data. Training code calls the typed methods.

use std::any::Any;
use std::time::Duration;

use crate::element::{DataType, Element};
use crate::error::CollectiveError;
use crate::fusion;
use crate::reduce::ReduceOp;
use crate::shards;
use crate::wire::OperationKind;

/// The members of one generation, as one of them sees the others. Calls block the training thread
/// until the operation is done, aborted ([`crate::AbortHandle`]), past its deadline, or failed.
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

    /// The generation that this group is.
    fn generation(&self) -> u64;

    /// Replaces `data` by the reduction of all ranks' `data`. [`ReduceOp::Mean`] of integers is refused.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn all_reduce_bytes(
        &mut self,
        data: &mut [u8],
        data_type: DataType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError>;

    /// Puts the `input` of every rank into `output`, by rank; `output` is `world_size` times as long.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn all_gather_bytes(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        data_type: DataType,
    ) -> Result<(), CollectiveError>;

    /// As [`Communicator::all_gather_bytes`], where rank r contributes `counts[r]` elements. All ranks give
    /// the same `counts`.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn all_gather_v_bytes(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        counts: &[usize],
        data_type: DataType,
    ) -> Result<(), CollectiveError>;

    /// Reduces all ranks' `input` and puts this rank's part of the result, the part number `rank` of
    /// `world_size` equal ones, into `output`.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn reduce_scatter_bytes(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        data_type: DataType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError>;

    /// Replaces `data` by that of `root`. All ranks give buffers of one length.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn broadcast_bytes(
        &mut self,
        data: &mut [u8],
        data_type: DataType,
        root: u32,
    ) -> Result<(), CollectiveError>;

    /// Sends part r of `input` to rank r, and puts what rank r sends into part r of `output`. Both have
    /// `world_size` equal parts.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn all_to_all_bytes(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        data_type: DataType,
    ) -> Result<(), CollectiveError>;

    /// As [`Communicator::all_to_all_bytes`], where `input_counts[r]` elements go to rank r and
    /// `output_counts[r]` come from it.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn all_to_all_v_bytes(
        &mut self,
        input: &[u8],
        input_counts: &[usize],
        output: &mut [u8],
        output_counts: &[usize],
        data_type: DataType,
    ) -> Result<(), CollectiveError>;

    /// Returns once every rank has called it.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn barrier(&mut self) -> Result<(), CollectiveError>;

    /// Sends `data` to rank `to`, which receives it by [`Communicator::receive_bytes`]. Returns once the
    /// buffer may be used again, which may be before the other side has it.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn send_bytes(
        &mut self,
        data: &[u8],
        data_type: DataType,
        to: u32,
    ) -> Result<(), CollectiveError>;

    /// Receives what rank `from` sends by [`Communicator::send_bytes`], in the order of sending. The
    /// lengths must agree.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn receive_bytes(
        &mut self,
        data: &mut [u8],
        data_type: DataType,
        from: u32,
    ) -> Result<(), CollectiveError>;

    /// Replaces each of `buffers` by its reduction over all ranks, as [`Communicator::all_reduce_bytes`] does,
    /// with the same bits. Small ones go together, so that many cost little more than one; large ones go
    /// alone, without a copy. All ranks give as many buffers, of the same lengths.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn all_reduce_many_bytes(
        &mut self,
        buffers: &mut [&mut [u8]],
        data_type: DataType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        fusion::all_reduce_many(buffers, data_type, |data| {
            self.all_reduce_bytes(data, data_type, op)
        })
    }

    /// Makes sub-groups, as `MPI_Comm_split` does: one for each `colour`, whose ranks go by `key`, and where
    /// keys are equal by the rank here. A rank without a colour takes part in the call, and is in no
    /// sub-group. Every rank of this group calls it.
    ///
    /// A sub-group has connections, and memory, of its own, so that it may run beside this group. It ends with
    /// the generation: an abort ends it too.
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

    /// The backend itself, for callers who know more of it than this trait says; none by default.
    fn as_any_mut(&mut self) -> Option<&mut dyn Any> {
        None
    }

    /// How long each further operation may take. A backend without deadlines of its own ignores it.
    fn set_operation_deadline(&mut self, deadline: Duration) {
        let _ = deadline;
    }

    /// Leaves the group in good order; dropping does the same. Peers that still need data from this rank
    /// get [`CollectiveError::PeerLost`] with [`crate::PeerLoss::Left`]. Further calls return
    /// [`CollectiveError::Closed`].
    fn close(&mut self);
}

/// The operations on typed slices, for every [`Communicator`].
pub trait CommunicatorExt: Communicator {
    /// See [`Communicator::all_reduce_bytes`].
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn all_reduce<E: Element>(
        &mut self,
        data: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        self.all_reduce_bytes(bytemuck::cast_slice_mut(data), E::DATA_TYPE, op)
    }

    /// See [`Communicator::all_reduce_many_bytes`].
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn all_reduce_many<E: Element>(
        &mut self,
        buffers: &mut [&mut [E]],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let mut bytes: Vec<&mut [u8]> =
            buffers.iter_mut().map(|buffer| bytemuck::cast_slice_mut(buffer)).collect();
        self.all_reduce_many_bytes(&mut bytes, E::DATA_TYPE, op)
    }

    /// Replaces `output` by the reduction of `total` logical shards in the order of their numbers, so that the
    /// bits do not depend on the size of the world. This rank gives `shards`, those that [`crate::shards_of`] says, in
    /// order; each is as long as `output`.
    ///
    /// It moves every shard instead of one sum a rank: the price of the same bits in every world.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn all_reduce_shards<E: Element>(
        &mut self,
        shards: &[&[E]],
        total: u32,
        output: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let shards: Vec<&[u8]> = shards.iter().map(|shard| bytemuck::cast_slice(shard)).collect();
        let output = bytemuck::cast_slice_mut(output);
        self.all_reduce_shards_bytes(&shards, total, output, E::DATA_TYPE, op)
    }

    /// See [`CommunicatorExt::all_reduce_shards`].
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn all_reduce_shards_bytes(
        &mut self,
        shards: &[&[u8]],
        total: u32,
        output: &mut [u8],
        data_type: DataType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        shards::all_reduce(self, shards, total, output, data_type, op)
    }

    /// See [`Communicator::all_gather_bytes`].
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn all_gather<E: Element>(
        &mut self,
        input: &[E],
        output: &mut [E],
    ) -> Result<(), CollectiveError> {
        let output = bytemuck::cast_slice_mut(output);
        self.all_gather_bytes(bytemuck::cast_slice(input), output, E::DATA_TYPE)
    }

    /// See [`Communicator::all_gather_v_bytes`].
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn all_gather_v<E: Element>(
        &mut self,
        input: &[E],
        output: &mut [E],
        counts: &[usize],
    ) -> Result<(), CollectiveError> {
        let output = bytemuck::cast_slice_mut(output);
        self.all_gather_v_bytes(bytemuck::cast_slice(input), output, counts, E::DATA_TYPE)
    }

    /// See [`Communicator::reduce_scatter_bytes`].
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn reduce_scatter<E: Element>(
        &mut self,
        input: &[E],
        output: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let output = bytemuck::cast_slice_mut(output);
        self.reduce_scatter_bytes(bytemuck::cast_slice(input), output, E::DATA_TYPE, op)
    }

    /// See [`Communicator::broadcast_bytes`].
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn broadcast<E: Element>(&mut self, data: &mut [E], root: u32) -> Result<(), CollectiveError> {
        self.broadcast_bytes(bytemuck::cast_slice_mut(data), E::DATA_TYPE, root)
    }

    /// Broadcasts bytes whose length only the root knows: the length first, then the content. The other
    /// ranks' `data` is replaced. All ranks give the same `maximum_bytes`.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`]. More than `maximum_bytes` is [`CollectiveError::InvalidArgument`] on every
    /// rank, before anything is allocated for it; the communicator still works then.
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

    /// See [`Communicator::all_to_all_bytes`].
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn all_to_all<E: Element>(
        &mut self,
        input: &[E],
        output: &mut [E],
    ) -> Result<(), CollectiveError> {
        let output = bytemuck::cast_slice_mut(output);
        self.all_to_all_bytes(bytemuck::cast_slice(input), output, E::DATA_TYPE)
    }

    /// See [`Communicator::all_to_all_v_bytes`].
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn all_to_all_v<E: Element>(
        &mut self,
        input: &[E],
        input_counts: &[usize],
        output: &mut [E],
        output_counts: &[usize],
    ) -> Result<(), CollectiveError> {
        let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
        self.all_to_all_v_bytes(input, input_counts, output, output_counts, E::DATA_TYPE)
    }

    /// See [`Communicator::send_bytes`].
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn send<E: Element>(&mut self, data: &[E], to: u32) -> Result<(), CollectiveError> {
        self.send_bytes(bytemuck::cast_slice(data), E::DATA_TYPE, to)
    }

    /// See [`Communicator::receive_bytes`].
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    fn receive<E: Element>(&mut self, data: &mut [E], from: u32) -> Result<(), CollectiveError> {
        self.receive_bytes(bytemuck::cast_slice_mut(data), E::DATA_TYPE, from)
    }
}

impl<C: Communicator + ?Sized> CommunicatorExt for C {}
