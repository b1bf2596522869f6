//! [`Operation`]: one collective, or one message, as data. Every backend carries it out from
//! [`crate::Communicator::run`]; typed helpers, launched operations, NCCL and Python build it.
//!
//! It is generic over its memory: bytes of the host that are borrowed for a call ([`HostOperation`]), memory that a
//! launched operation owns, or memory of a GPU. The checks of the arguments are the same for all of them.

use std::ops::Range;

use crate::check;
use crate::element::DataType;
use crate::error::CollectiveError;
use crate::reduce::ReduceOp;
use crate::wire::{Composition, OperationKind, OperationSignature};

/// A collective, or a message, with its memory: `I` is read, `O` is written, `C` has a number of elements for each
/// rank. [`crate::Communicator`] says what holds for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation<I, O, C> {
    /// Replaces `data` by the reduction of all ranks' `data`.
    AllReduce {
        /// The contribution, and then the result.
        data: O,
        /// The type of its elements.
        data_type: DataType,
        /// The reduction; [`ReduceOp::Mean`] of integers is refused.
        op: ReduceOp,
    },
    /// Replaces each buffer by its reduction over all ranks, with the bits of [`Operation::AllReduce`]. Small buffers
    /// of one type are fused, so that many cost little more than one; large ones are reduced alone, without a copy.
    /// All ranks give as many buffers, of the same types and lengths, in the same order. Ranks compare the lengths; buffers of
    /// one type and length that have changed places cannot be told from each other.
    GroupedAllReduce {
        /// The contributions, and then the results, with the types of their elements.
        buffers: Vec<(O, DataType)>,
        /// The reduction.
        op: ReduceOp,
    },
    /// Replaces `root`'s `data` by the reduction of all ranks' `data`. The other ranks' stays as it is.
    Reduce {
        /// The contribution; at the root then the result.
        data: O,
        /// The type of its elements.
        data_type: DataType,
        /// The reduction.
        op: ReduceOp,
        /// The rank that gets the result.
        root: u32,
    },
    /// Replaces `data` by that of `root`. All ranks give buffers of one length.
    Broadcast {
        /// The root's is read, the others' is written.
        data: O,
        /// The type of its elements.
        data_type: DataType,
        /// The rank that has the data.
        root: u32,
    },
    /// Puts the `input` of every rank into `root`'s `output`, by rank.
    Gather {
        /// This rank's part; all are as long.
        input: I,
        /// All parts; none at the other ranks.
        output: Option<O>,
        /// The type of the elements.
        data_type: DataType,
        /// The rank that gets all parts.
        root: u32,
    },
    /// Puts part r of `root`'s `input` into rank r's `output`.
    Scatter {
        /// All parts; none at the other ranks.
        input: Option<I>,
        /// This rank's part; all are as long.
        output: O,
        /// The type of the elements.
        data_type: DataType,
        /// The rank that has all parts.
        root: u32,
    },
    /// Puts the `input` of every rank into every `output`, by rank.
    AllGather {
        /// This rank's part.
        input: I,
        /// All parts.
        output: O,
        /// The number of elements of each rank's part, the same on all ranks; none where all are as long.
        counts: Option<C>,
        /// The type of the elements.
        data_type: DataType,
    },
    /// Reduces all ranks' `input` and puts this rank's part of the result, the part number `rank` of equal ones, into
    /// `output`.
    ReduceScatter {
        /// The contribution.
        input: I,
        /// This rank's part of the result.
        output: O,
        /// The type of the elements.
        data_type: DataType,
        /// The reduction.
        op: ReduceOp,
    },
    /// Sends part r of `input` to rank r, and puts the part from rank r into part r of `output`.
    AllToAll {
        /// The parts that are sent.
        input: I,
        /// The parts that are received.
        output: O,
        /// The numbers of elements of the parts that are sent, and of those that are received; none where all are as
        /// long.
        counts: Option<(C, C)>,
        /// The type of the elements.
        data_type: DataType,
    },
    /// Returns once every rank has called it.
    Barrier,
    /// Sends `data` to rank `to`, which receives it by [`Operation::Recv`]. Returns once the buffer may be used again,
    /// which may be before the other side has it.
    Send {
        /// The message.
        data: I,
        /// The type of its elements.
        data_type: DataType,
        /// The receiver.
        to: u32,
    },
    /// Receives what rank `from` sends by [`Operation::Send`], in the order of sending. The lengths must agree.
    Recv {
        /// The place of the message.
        data: O,
        /// The type of its elements.
        data_type: DataType,
        /// The sender.
        from: u32,
    },
}

/// An operation on memory of the host that is borrowed for the call.
pub type HostOperation<'a> = Operation<&'a [u8], &'a mut [u8], &'a [usize]>;

/// An operation on memory that it owns, to be launched.
pub type OwnedOperation<B> = Operation<B, B, Vec<usize>>;

/// Memory of an operation, as its check looks at it.
pub trait OperationMemory {
    /// The length in bytes.
    fn length_bytes(&self) -> usize;
    /// The address of the first byte.
    fn start_address(&self) -> usize;
}

impl OperationMemory for &[u8] {
    fn length_bytes(&self) -> usize {
        self.len()
    }

    fn start_address(&self) -> usize {
        self.as_ptr().addr()
    }
}

impl OperationMemory for &mut [u8] {
    fn length_bytes(&self) -> usize {
        self.len()
    }

    fn start_address(&self) -> usize {
        self.as_ptr().addr()
    }
}

impl<I, O, C> Operation<I, O, C> {
    /// The kind, as errors and headers name it.
    pub const fn kind(&self) -> OperationKind {
        match self {
            Operation::AllReduce { .. } | Operation::GroupedAllReduce { .. } => {
                OperationKind::AllReduce
            }
            Operation::Reduce { .. } => OperationKind::Reduce,
            Operation::Broadcast { .. } => OperationKind::Broadcast,
            Operation::Gather { .. } => OperationKind::Gather,
            Operation::Scatter { .. } => OperationKind::Scatter,
            Operation::AllGather { counts: None, .. } => OperationKind::AllGather,
            Operation::AllGather { counts: Some(_), .. } => OperationKind::AllGatherV,
            Operation::ReduceScatter { .. } => OperationKind::ReduceScatter,
            Operation::AllToAll { counts: None, .. } => OperationKind::AllToAll,
            Operation::AllToAll { counts: Some(_), .. } => OperationKind::AllToAllV,
            Operation::Barrier => OperationKind::Barrier,
            Operation::Send { .. } | Operation::Recv { .. } => OperationKind::SendReceive,
        }
    }

    /// The same operation on other memory: `input` maps memory that is read, and `output` memory that is written.
    pub fn on<'a, I2, O2>(
        &'a mut self,
        input: impl Fn(&'a I) -> I2,
        output: impl Fn(&'a mut O) -> O2,
    ) -> Operation<I2, O2, &'a [usize]>
    where
        C: AsRef<[usize]>,
    {
        match self {
            Operation::AllReduce { data, data_type, op } => {
                Operation::AllReduce { data: output(data), data_type: *data_type, op: *op }
            }
            Operation::GroupedAllReduce { buffers, op } => {
                let buffers = buffers.iter_mut().map(|(data, of)| (output(data), *of)).collect();
                Operation::GroupedAllReduce { buffers, op: *op }
            }
            Operation::Reduce { data, data_type, op, root } => Operation::Reduce {
                data: output(data),
                data_type: *data_type,
                op: *op,
                root: *root,
            },
            Operation::Broadcast { data, data_type, root } => {
                Operation::Broadcast { data: output(data), data_type: *data_type, root: *root }
            }
            Operation::Gather { input: source, output: target, data_type, root } => {
                Operation::Gather {
                    input: input(source),
                    output: target.as_mut().map(output),
                    data_type: *data_type,
                    root: *root,
                }
            }
            Operation::Scatter { input: source, output: target, data_type, root } => {
                Operation::Scatter {
                    input: source.as_ref().map(input),
                    output: output(target),
                    data_type: *data_type,
                    root: *root,
                }
            }
            Operation::AllGather { input: source, output: target, counts, data_type } => {
                Operation::AllGather {
                    input: input(source),
                    output: output(target),
                    counts: counts.as_ref().map(C::as_ref),
                    data_type: *data_type,
                }
            }
            Operation::ReduceScatter { input: source, output: target, data_type, op } => {
                Operation::ReduceScatter {
                    input: input(source),
                    output: output(target),
                    data_type: *data_type,
                    op: *op,
                }
            }
            Operation::AllToAll { input: source, output: target, counts, data_type } => {
                Operation::AllToAll {
                    input: input(source),
                    output: output(target),
                    counts: counts
                        .as_ref()
                        .map(|(sent, received)| (sent.as_ref(), received.as_ref())),
                    data_type: *data_type,
                }
            }
            Operation::Barrier => Operation::Barrier,
            Operation::Send { data, data_type, to } => {
                Operation::Send { data: input(data), data_type: *data_type, to: *to }
            }
            Operation::Recv { data, data_type, from } => {
                Operation::Recv { data: output(data), data_type: *data_type, from: *from }
            }
        }
    }

    /// The operation on its memory as bytes of the host.
    pub fn borrowed(&mut self) -> HostOperation<'_>
    where
        I: AsRef<[u8]>,
        O: AsMut<[u8]>,
        C: AsRef<[usize]>,
    {
        self.on(I::as_ref, O::as_mut)
    }
}

impl<I: OperationMemory, O: OperationMemory, C: AsRef<[usize]>> Operation<I, O, C> {
    /// Checks the arguments, for rank `rank` of `world`, before anything is sent. Returns the part of them on which all
    /// ranks must agree.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::InvalidArgument`].
    pub fn check(&self, rank: u32, world: u32) -> Result<OperationSignature, CollectiveError> {
        let kind = self.kind();
        let ranks = world as usize;
        let signed = |data_type: DataType, bytes: usize| OperationSignature {
            data_type: Some(data_type),
            ..OperationSignature::plain(kind, bytes as u64)
        };
        match self {
            Operation::AllReduce { data, data_type, op } => {
                check::buffer(kind, data, *data_type)?;
                check::reduction(kind, *data_type, *op)?;
                let signature = signed(*data_type, data.length_bytes());
                Ok(OperationSignature { reduce_op: Some(*op), ..signature })
            }
            Operation::GroupedAllReduce { buffers, op } => {
                for (data, data_type) in buffers {
                    check::buffer(kind, data, *data_type)?;
                    check::reduction(kind, *data_type, *op)?;
                }
                let bytes: usize = buffers.iter().map(|(data, _)| data.length_bytes()).sum();
                let parts = buffers.iter().map(|(data, of)| (*of, data.length_bytes()));
                Ok(OperationSignature {
                    reduce_op: Some(*op),
                    composition: Composition::of_buffers(parts),
                    ..OperationSignature::plain(kind, bytes as u64)
                })
            }
            Operation::Reduce { data, data_type, op, root } => {
                check::buffer(kind, data, *data_type)?;
                check::reduction(kind, *data_type, *op)?;
                check::rank(kind, *root, world)?;
                let signature = signed(*data_type, data.length_bytes());
                Ok(OperationSignature { reduce_op: Some(*op), root: Some(*root), ..signature })
            }
            Operation::Broadcast { data, data_type, root } => {
                check::buffer(kind, data, *data_type)?;
                check::rank(kind, *root, world)?;
                let signature = signed(*data_type, data.length_bytes());
                Ok(OperationSignature { root: Some(*root), ..signature })
            }
            Operation::Gather { input, output, data_type, root } => {
                check::buffer(kind, input, *data_type)?;
                check::rank(kind, *root, world)?;
                let output = output.as_ref().map(O::length_bytes);
                let part = input.length_bytes();
                check::at_root(kind, "output", output, part * ranks, rank, *root)?;
                Ok(OperationSignature { root: Some(*root), ..signed(*data_type, part) })
            }
            Operation::Scatter { input, output, data_type, root } => {
                check::buffer(kind, output, *data_type)?;
                check::rank(kind, *root, world)?;
                let input = input.as_ref().map(I::length_bytes);
                let part = output.length_bytes();
                check::at_root(kind, "input", input, part * ranks, rank, *root)?;
                Ok(OperationSignature { root: Some(*root), ..signed(*data_type, part) })
            }
            Operation::AllGather { input, output, counts, data_type } => {
                check::buffer(kind, input, *data_type)?;
                let Some(counts) = counts else {
                    let part = input.length_bytes();
                    check::length(kind, "output", output.length_bytes(), part * ranks)?;
                    return Ok(signed(*data_type, part));
                };
                let counts = counts.as_ref();
                check::counts(kind, counts, world, *data_type, output.length_bytes())?;
                let due = counts[rank as usize] * data_type.size_bytes();
                check::length(kind, "input", input.length_bytes(), due)?;
                Ok(signed(*data_type, 0))
            }
            Operation::ReduceScatter { input, output, data_type, op } => {
                check::buffer(kind, input, *data_type)?;
                check::buffer(kind, output, *data_type)?;
                check::reduction(kind, *data_type, *op)?;
                let part = output.length_bytes();
                check::length(kind, "input", input.length_bytes(), part * ranks)?;
                Ok(OperationSignature { reduce_op: Some(*op), ..signed(*data_type, part) })
            }
            Operation::AllToAll { input, output, counts, data_type } => {
                check::buffer(kind, input, *data_type)?;
                let (given, place) = (input.length_bytes(), output.length_bytes());
                let Some((sent, received)) = counts else {
                    check::length(kind, "output", place, given)?;
                    check::equal_parts(kind, given, world, *data_type)?;
                    return Ok(signed(*data_type, given));
                };
                let (sent, received) = (sent.as_ref(), received.as_ref());
                check::counts(kind, sent, world, *data_type, given)?;
                check::counts(kind, received, world, *data_type, place)?;
                let own = |counts: &[usize]| counts[rank as usize] * data_type.size_bytes();
                check::length(kind, "own part of the output", own(received), own(sent))?;
                Ok(signed(*data_type, 0))
            }
            Operation::Barrier => Ok(OperationSignature::plain(kind, 0)),
            Operation::Send { data, data_type, to } => {
                check::buffer(kind, data, *data_type)?;
                check::peer(kind, *to, rank, world)?;
                Ok(signed(*data_type, data.length_bytes()))
            }
            Operation::Recv { data, data_type, from } => {
                check::buffer(kind, data, *data_type)?;
                check::peer(kind, *from, rank, world)?;
                Ok(signed(*data_type, data.length_bytes()))
            }
        }
    }
}

/// The place of each rank's part in a buffer, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartRanges {
    /// Parts of this length in bytes, by rank.
    Equal(usize),
    /// Parts at these ranges, by rank.
    Listed(Vec<Range<usize>>),
}

impl PartRanges {
    /// Consecutive parts of `counts` elements; parts of `equal` bytes where no counts are given.
    pub fn new(counts: Option<&[usize]>, equal: usize, data_type: DataType) -> PartRanges {
        let Some(counts) = counts else { return PartRanges::Equal(equal) };
        let mut end = 0;
        let part = |count: &usize| {
            let start = end;
            end += count * data_type.size_bytes();
            start..end
        };
        PartRanges::Listed(counts.iter().map(part).collect())
    }

    /// The parts that are sent and received in an all-to-all of `bytes` in all.
    pub fn of_all_to_all(
        counts: Option<(&[usize], &[usize])>,
        bytes: usize,
        world: u32,
        data_type: DataType,
    ) -> (PartRanges, PartRanges) {
        let equal = bytes / world as usize;
        let (sent, received) = counts.unzip();
        (PartRanges::new(sent, equal, data_type), PartRanges::new(received, equal, data_type))
    }

    /// The part of `rank`.
    pub fn of(&self, rank: u32) -> Range<usize> {
        match self {
            PartRanges::Equal(length) => rank as usize * length..(rank as usize + 1) * length,
            PartRanges::Listed(parts) => parts[rank as usize].clone(),
        }
    }
}
