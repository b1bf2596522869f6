//! Checks of a caller's arguments, the same for every backend, done before anything is sent. Backends of other
//! crates call them too.

use crate::element::DataType;
use crate::error::CollectiveError;
use crate::reduce::ReduceOp;
use crate::wire::OperationKind;

/// Nothing, or what is wrong with the arguments.
pub type Checked = Result<(), CollectiveError>;

/// The error of wrong arguments.
pub fn invalid(operation: OperationKind, reason: String) -> CollectiveError {
    CollectiveError::InvalidArgument { operation, reason }
}

/// Whole elements, aligned for their type.
///
/// # Errors
///
/// [`CollectiveError::InvalidArgument`].
pub fn buffer(operation: OperationKind, bytes: &[u8], data_type: DataType) -> Checked {
    let size = data_type.size_bytes();
    if !bytes.len().is_multiple_of(size) {
        let length = bytes.len();
        return Err(invalid(
            operation,
            format!("{length} bytes are no whole number of {data_type}"),
        ));
    }
    if !bytes.as_ptr().addr().is_multiple_of(size) {
        return Err(invalid(operation, format!("the buffer is not aligned for {data_type}")));
    }
    Ok(())
}

/// A reduction that exists for the type.
///
/// # Errors
///
/// [`CollectiveError::InvalidArgument`].
pub fn reduction(operation: OperationKind, data_type: DataType, op: ReduceOp) -> Checked {
    if op == ReduceOp::Mean && data_type.is_integer() {
        let reason =
            format!("the mean of {data_type} is not defined: take the sum, or a float type");
        return Err(invalid(operation, reason));
    }
    Ok(())
}

/// A buffer of exactly this length.
///
/// # Errors
///
/// [`CollectiveError::InvalidArgument`].
pub fn length(operation: OperationKind, name: &str, actual: usize, due: usize) -> Checked {
    if actual == due {
        return Ok(());
    }
    Err(invalid(operation, format!("the {name} has {actual} bytes, {due} are due")))
}

/// A rank of this world.
///
/// # Errors
///
/// [`CollectiveError::InvalidArgument`].
pub fn rank(operation: OperationKind, rank: u32, world: u32) -> Checked {
    if rank < world {
        return Ok(());
    }
    Err(invalid(operation, format!("there is no rank {rank} in a world of {world}")))
}

/// Another rank of this world.
///
/// # Errors
///
/// [`CollectiveError::InvalidArgument`].
pub fn peer(operation: OperationKind, peer: u32, own: u32, world: u32) -> Checked {
    rank(operation, peer, world)?;
    if peer == own {
        return Err(invalid(operation, format!("rank {own} cannot exchange messages with itself")));
    }
    Ok(())
}

/// Counts of elements for each rank; the sum in bytes must be the buffer's length.
///
/// # Errors
///
/// [`CollectiveError::InvalidArgument`].
pub fn counts(
    operation: OperationKind,
    counts: &[usize],
    world: u32,
    data_type: DataType,
    buffer: &[u8],
) -> Checked {
    if counts.len() != world as usize {
        let given = counts.len();
        return Err(invalid(operation, format!("{given} counts are given for a world of {world}")));
    }
    let sum = counts
        .iter()
        .try_fold(0usize, |sum, count| sum.checked_add(*count))
        .and_then(|sum| sum.checked_mul(data_type.size_bytes()))
        .ok_or_else(|| invalid(operation, "the counts overflow".to_owned()))?;
    length(operation, "buffer of these counts", buffer.len(), sum)
}
