//! Reductions in which some ranks have joined: these learn the layout of the reduction from a rank that has data,
//! and take part with zeros. Called by the negotiation when it carries out a verdict.

use crate::communicator::{Communicator, CommunicatorExt};
use crate::element::DataType;
use crate::error::CollectiveError;
use crate::operation::HostOperation;
use crate::reduce::ReduceOp;
use crate::wire::OperationKind;

/// The operation of a reduction, and the types and element counts of its arrays.
type ReductionLayout = (ReduceOp, Vec<(DataType, usize)>);

/// Longest description of a reduction, in bytes: 9 for each array.
const DESCRIPTION_BYTES_MAX: usize = 9 << 20;

/// Whether zeros from a rank change only the divisor of the reduction.
pub(super) fn is_neutral(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::Sum | ReduceOp::Mean)
}

/// Broadcasts the reduction's description from `lead` to the others.
pub(super) fn tell(
    own: Option<&ReductionLayout>,
    lead: u32,
    group: &mut dyn Communicator,
) -> Result<ReductionLayout, CollectiveError> {
    let mut described = own.map(encode).unwrap_or_default();
    group.broadcast_vec(&mut described, lead, DESCRIPTION_BYTES_MAX)?;
    decode(&described).ok_or_else(|| CollectiveError::InvalidArgument {
        operation: OperationKind::AllReduce,
        reason: format!("rank {lead} describes no reduction"),
    })
}

/// Takes part in a reduction with zeros.
pub(super) fn reduce_zeros(
    (op, layout): &ReductionLayout,
    group: &mut dyn Communicator,
) -> Result<(), CollectiveError> {
    let mut zeros: Vec<(DataType, Vec<u8>)> =
        layout.iter().map(|(of, count)| (*of, vec![0; count * of.size_bytes()])).collect();
    let buffers = zeros.iter_mut().map(|(of, bytes)| (bytes.as_mut_slice(), *of)).collect();
    group.run(HostOperation::GroupedAllReduce { buffers, op: *op })
}

fn encode((op, layout): &ReductionLayout) -> Vec<u8> {
    let arrays = layout
        .iter()
        .flat_map(|(of, count)| std::iter::once(of.code()).chain((*count as u64).to_le_bytes()));
    std::iter::once(op.code()).chain(arrays).collect()
}

fn decode(described: &[u8]) -> Option<ReductionLayout> {
    let (op, arrays) = described.split_first()?;
    let (arrays, rest) = arrays.as_chunks::<9>();
    let layout = arrays.iter().map(|[of, count @ ..]| {
        Some((DataType::from_code(*of)?, usize::try_from(u64::from_le_bytes(*count)).ok()?))
    });
    Some((ReduceOp::from_code(*op)?, layout.collect::<Option<_>>()?)).filter(|_| rest.is_empty())
}
