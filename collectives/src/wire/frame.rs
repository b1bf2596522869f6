//! The header before each payload. It names generation, number and arguments of the operation, so that ranks that
//! disagree detect it instead of mixing their data (X-15, G-4).

use std::fmt;

use super::composition::{COMPOSITION_LENGTH, Composition};
use super::{FrameError, VERSION, u32_at, u64_at};
use crate::element::DataType;
use crate::reduce::ReduceOp;

/// The length of a frame header, in bytes.
pub const FRAME_LENGTH: usize = COMPOSITION_AT + COMPOSITION_LENGTH;

/// The length of the magic number with which every message starts, in bytes.
pub const MAGIC_LENGTH: usize = 4;

const MAGIC: [u8; MAGIC_LENGTH] = *b"ELFR";
const KIND_BYE: u8 = 255;
const NO_RANK: u32 = u32::MAX;
/// Place of the byte that says whether the header has a composition, and of the composition.
const COMPOSED_AT: usize = 13;
const COMPOSITION_AT: usize = 40;

/// The kind of operation to which a frame belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum OperationKind {
    /// Every rank gets the reduction of all contributions.
    AllReduce = 1,
    /// Every rank gets all contributions.
    AllGather = 2,
    /// Every rank gets its part of the reduction.
    ReduceScatter = 3,
    /// Every rank gets the root's data.
    Broadcast = 4,
    /// Every rank gets its part of each rank's data.
    AllToAll = 5,
    /// No rank returns before all have entered.
    Barrier = 6,
    /// One rank sends to another one.
    SendReceive = 7,
    /// All-gather with a length for each rank.
    AllGatherV = 8,
    /// All-to-all with a length for each pair.
    AllToAllV = 9,
    /// The ranks make sub-groups.
    Split = 10,
    /// The root gets the reduction of all contributions.
    Reduce = 11,
    /// The root gets all contributions.
    Gather = 12,
    /// Every rank gets its part of the root's data.
    Scatter = 13,
}

impl OperationKind {
    /// Every kind, in the order of the codes.
    pub const ALL: [OperationKind; 13] = [
        OperationKind::AllReduce,
        OperationKind::AllGather,
        OperationKind::ReduceScatter,
        OperationKind::Broadcast,
        OperationKind::AllToAll,
        OperationKind::Barrier,
        OperationKind::SendReceive,
        OperationKind::AllGatherV,
        OperationKind::AllToAllV,
        OperationKind::Split,
        OperationKind::Reduce,
        OperationKind::Gather,
        OperationKind::Scatter,
    ];

    /// Whether lengths differ by rank, or by pair of ranks.
    pub const fn lengths_differ(self) -> bool {
        matches!(self, OperationKind::AllGatherV | OperationKind::AllToAllV)
    }

    const fn name(self) -> &'static str {
        match self {
            OperationKind::AllReduce => "all_reduce",
            OperationKind::AllGather => "all_gather",
            OperationKind::ReduceScatter => "reduce_scatter",
            OperationKind::Broadcast => "broadcast",
            OperationKind::AllToAll => "all_to_all",
            OperationKind::Barrier => "barrier",
            OperationKind::SendReceive => "send/recv",
            OperationKind::AllGatherV => "all_gather_v",
            OperationKind::AllToAllV => "all_to_all_v",
            OperationKind::Split => "split",
            OperationKind::Reduce => "reduce",
            OperationKind::Gather => "gather",
            OperationKind::Scatter => "scatter",
        }
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The kind of an operation, with the arguments on which all ranks must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationSignature {
    /// The kind of operation.
    pub kind: OperationKind,
    /// The type of the elements; none for a barrier.
    pub data_type: Option<DataType>,
    /// The reduction; none where nothing is reduced.
    pub reduce_op: Option<ReduceOp>,
    /// The root; none for an operation without a root.
    pub root: Option<u32>,
    /// The length of the caller's buffer, in bytes (gather, scatter, all_gather, reduce_scatter: of one rank's part;
    /// all_to_all: of the whole; all_to_all_v: of what goes from the sender to the receiver).
    pub bytes: u64,
    /// The parts of the data; none where it is one buffer of this rank. An operation with a root has none.
    pub composition: Option<Composition>,
}

impl OperationSignature {
    /// The signature of an operation on so many bytes, without a type, a reduction, a root or parts.
    pub const fn plain(kind: OperationKind, bytes: u64) -> Self {
        Self { kind, data_type: None, reduce_op: None, root: None, bytes, composition: None }
    }

    /// The name of the call, for people: a reduction by shard is made of other operations.
    pub(crate) fn name(&self) -> &'static str {
        match self.composition {
            Some(Composition { shards: 1.., .. }) => "all_reduce_shards",
            _ => self.kind.name(),
        }
    }

    /// The way in which the parts of two operations differ, for people; empty where it is not the parts that differ.
    pub(crate) fn difference(&self, other: &Self) -> &'static str {
        match self.composition.zip(other.composition) {
            Some((ours, theirs)) => ours.difference(theirs),
            None => "",
        }
    }
}

impl fmt::Display for OperationSignature {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}({} bytes", self.name(), self.bytes)?;
        if let Some(data_type) = self.data_type {
            write!(formatter, ", {data_type}")?;
        }
        if let Some(reduce_op) = self.reduce_op {
            write!(formatter, ", {reduce_op}")?;
        }
        if let Some(root) = self.root {
            write!(formatter, ", root {root}")?;
        }
        if let Some(composition) = self.composition {
            write!(formatter, ", {composition}")?;
        }
        formatter.write_str(")")
    }
}

/// The header of an operation's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The generation of the sender.
    pub generation: u64,
    /// The number of the operation: of all collectives of the generation, or of the messages from this
    /// sender to this receiver.
    pub sequence: u64,
    /// The operation.
    pub operation: OperationSignature,
}

impl fmt::Display for FrameHeader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} #{} of generation {}", self.operation, self.sequence, self.generation)
    }
}

/// The reason of a farewell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByeCause {
    /// The rank closed its communicator.
    Left,
    /// The rank's generation was aborted.
    Aborted,
    /// The rank lost this peer.
    PeerLost(u32),
    /// The rank's deadline passed while it waited for this peer, perhaps among others.
    DeadlinePassed(u32),
    /// This peer's operation does not match the rank's own.
    Mismatch(u32),
    /// The rank failed in another way.
    Failed,
}

/// The farewell of a rank, after which it sends nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bye {
    /// The generation of the sender.
    pub generation: u64,
    /// The first collective that the sender has not completed.
    pub sequence: u64,
    /// The reason of the farewell.
    pub cause: ByeCause,
}

/// The content of a header: an operation whose payload follows, or a farewell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// An operation; its payload follows.
    Operation(FrameHeader),
    /// A farewell: the end of the stream.
    Bye(Bye),
}

impl Frame {
    /// The bytes of the header. The sender sets the byte at offset 12: it says that the header only announces the
    /// operation, since the payload waits for another rank, and that a second header follows.
    pub fn encode(&self) -> [u8; FRAME_LENGTH] {
        let mut bytes = [0; FRAME_LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        let (generation, sequence, rank) = match self {
            Frame::Operation(FrameHeader { generation, sequence, operation }) => {
                bytes[5] = operation.kind as u8;
                bytes[6] = operation.data_type.map_or(0, DataType::code);
                bytes[7] = operation.reduce_op.map_or(0, ReduceOp::code);
                bytes[32..40].copy_from_slice(&operation.bytes.to_le_bytes());
                if let Some(composition) = operation.composition {
                    bytes[COMPOSED_AT] = 1;
                    bytes[COMPOSITION_AT..].copy_from_slice(&composition.encode());
                }
                (generation, sequence, operation.root.unwrap_or(NO_RANK))
            }
            Frame::Bye(Bye { generation, sequence, cause }) => {
                bytes[5] = KIND_BYE;
                let (code, rank) = match cause {
                    ByeCause::Left => (0, NO_RANK),
                    ByeCause::Aborted => (1, NO_RANK),
                    ByeCause::PeerLost(rank) => (2, *rank),
                    ByeCause::Failed => (3, NO_RANK),
                    ByeCause::DeadlinePassed(rank) => (4, *rank),
                    ByeCause::Mismatch(rank) => (5, *rank),
                };
                bytes[6] = code;
                (generation, sequence, rank)
            }
        };
        bytes[8..12].copy_from_slice(&rank.to_le_bytes());
        bytes[16..24].copy_from_slice(&generation.to_le_bytes());
        bytes[24..32].copy_from_slice(&sequence.to_le_bytes());
        bytes
    }

    /// Whether `bytes`, of which the first [`MAGIC_LENGTH`] are there, start a frame.
    pub fn starts(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// Decodes a header.
    ///
    /// # Errors
    ///
    /// Another magic number or version, or an invalid field.
    pub fn decode(bytes: &[u8; FRAME_LENGTH]) -> Result<Frame, FrameError> {
        if bytes[..4] != MAGIC {
            return Err(FrameError::Magic);
        }
        if bytes[4] != VERSION {
            return Err(FrameError::Version { found: bytes[4] });
        }
        let rank = Some(u32_at(bytes, 8)).filter(|rank| *rank != NO_RANK);
        let (generation, sequence) = (u64_at(bytes, 16), u64_at(bytes, 24));
        if bytes[5] == KIND_BYE {
            let cause = match (bytes[6], rank) {
                (0, _) => ByeCause::Left,
                (1, _) => ByeCause::Aborted,
                (2, Some(rank)) => ByeCause::PeerLost(rank),
                (3, _) => ByeCause::Failed,
                (4, Some(rank)) => ByeCause::DeadlinePassed(rank),
                (5, Some(rank)) => ByeCause::Mismatch(rank),
                (code, _) => return Err(FrameError::Field { field: "cause", value: code.into() }),
            };
            return Ok(Frame::Bye(Bye { generation, sequence, cause }));
        }
        let kind = OperationKind::ALL
            .into_iter()
            .find(|kind| *kind as u8 == bytes[5])
            .ok_or(FrameError::Kind { found: bytes[5] })?;
        let data_type = optional("data type", bytes[6], DataType::from_code)?;
        let reduce_op = optional("reduce operation", bytes[7], ReduceOp::from_code)?;
        let composition = match bytes[COMPOSED_AT] {
            0 => None,
            1 => Some(Composition::decode(&bytes[COMPOSITION_AT..])),
            code => return Err(FrameError::Field { field: "composition", value: code.into() }),
        };
        let operation = OperationSignature {
            kind,
            data_type,
            reduce_op,
            root: rank,
            bytes: u64_at(bytes, 32),
            composition,
        };
        Ok(Frame::Operation(FrameHeader { generation, sequence, operation }))
    }
}

fn optional<T>(
    field: &'static str,
    code: u8,
    from_code: impl Fn(u8) -> Option<T>,
) -> Result<Option<T>, FrameError> {
    match code {
        0 => Ok(None),
        code => from_code(code).map(Some).ok_or(FrameError::Field { field, value: code.into() }),
    }
}
