//! Checks of a caller's arguments, done before anything is sent. [`crate::Operation::check`] calls them.

use crate::element::DataType;
use crate::error::{CollectiveError, CollectiveResult};
use crate::operation::OperationMemory;
use crate::reduce::ReduceOp;
use crate::wire::OperationKind;

/// The error for wrong arguments.
pub(crate) fn invalid(operation: OperationKind, reason: String) -> CollectiveError {
    CollectiveError::InvalidArgument { operation, reason }
}

/// Checks that `memory` holds whole elements, aligned for their type.
///
/// # Errors
///
/// [`CollectiveError::InvalidArgument`].
pub(crate) fn buffer(
    operation: OperationKind,
    memory: &impl OperationMemory,
    data_type: DataType,
) -> CollectiveResult {
    let (size, length) = (data_type.size_bytes(), memory.length_bytes());
    if !length.is_multiple_of(size) {
        return Err(invalid(
            operation,
            format!("{length} bytes are no whole number of {data_type}"),
        ));
    }
    if !memory.start_address().is_multiple_of(size) {
        return Err(invalid(operation, format!("the buffer is not aligned for {data_type}")));
    }
    Ok(())
}

/// Checks that the reduction is defined for the type.
///
/// # Errors
///
/// [`CollectiveError::InvalidArgument`].
pub(crate) fn reduction(
    operation: OperationKind,
    data_type: DataType,
    op: ReduceOp,
) -> CollectiveResult {
    if op == ReduceOp::Mean && data_type.is_integer() {
        let reason =
            format!("the mean of {data_type} is not defined: take the sum, or a float type");
        return Err(invalid(operation, reason));
    }
    Ok(())
}

/// Checks that a buffer has exactly the length `due`.
///
/// # Errors
///
/// [`CollectiveError::InvalidArgument`].
pub(crate) fn length(
    operation: OperationKind,
    name: &str,
    actual: usize,
    due: usize,
) -> CollectiveResult {
    if actual == due {
        return Ok(());
    }
    Err(invalid(operation, format!("the {name} has {actual} bytes, {due} are due")))
}

/// Checks that `rank` is below the world size.
///
/// # Errors
///
/// [`CollectiveError::InvalidArgument`].
pub(crate) fn rank(operation: OperationKind, rank: u32, world: u32) -> CollectiveResult {
    if rank < world {
        return Ok(());
    }
    Err(invalid(operation, format!("there is no rank {rank} in a world of {world}")))
}

/// Checks that `peer` is another rank of this world.
///
/// # Errors
///
/// [`CollectiveError::InvalidArgument`].
pub(crate) fn peer(operation: OperationKind, peer: u32, own: u32, world: u32) -> CollectiveResult {
    rank(operation, peer, world)?;
    if peer == own {
        return Err(invalid(operation, format!("rank {own} cannot exchange messages with itself")));
    }
    Ok(())
}

/// Checks the counts of elements for each rank; their sum in bytes must be the buffer's length.
///
/// # Errors
///
/// [`CollectiveError::InvalidArgument`].
pub(crate) fn counts(
    operation: OperationKind,
    counts: &[usize],
    world: u32,
    data_type: DataType,
    length_bytes: usize,
) -> CollectiveResult {
    if counts.len() != world as usize {
        let given = counts.len();
        return Err(invalid(operation, format!("{given} counts are given for a world of {world}")));
    }
    let sum = counts
        .iter()
        .try_fold(0usize, |sum, count| sum.checked_add(*count))
        .and_then(|sum| sum.checked_mul(data_type.size_bytes()))
        .ok_or_else(|| invalid(operation, "the counts overflow".to_owned()))?;
    length(operation, "buffer of these counts", length_bytes, sum)
}

/// Checks that a buffer of this length in bytes has an equal part for each rank.
///
/// # Errors
///
/// [`CollectiveError::InvalidArgument`].
pub(crate) fn equal_parts(
    operation: OperationKind,
    length: usize,
    world: u32,
    data_type: DataType,
) -> CollectiveResult {
    if length.is_multiple_of(world as usize * data_type.size_bytes()) {
        return Ok(());
    }
    Err(invalid(operation, format!("{length} bytes are not {world} equal parts")))
}

/// Checks a buffer that only the root gives: its length in bytes, if it is given, must be `due` there.
///
/// # Errors
///
/// [`CollectiveError::InvalidArgument`].
pub(crate) fn at_root(
    operation: OperationKind,
    name: &str,
    given: Option<usize>,
    due: usize,
    own: u32,
    root: u32,
) -> CollectiveResult {
    match given {
        Some(given) if own == root => length(operation, name, given, due),
        None if own != root => Ok(()),
        None => Err(invalid(operation, format!("rank {root} is the root, and gives no {name}"))),
        Some(_) => Err(invalid(operation, format!("only rank {root}, the root, gives an {name}"))),
    }
}
