//! Tensor fusion, as Horovod calls it: many small buffers are reduced as few large ones. Backends call it for
//! [`crate::Operation::GroupedAllReduce`].

use crate::communicator::Communicator;
use crate::element::DataType;
use crate::error::CollectiveError;
use crate::operation::HostOperation;
use crate::reduce::ReduceOp;
use crate::wire::{Composition, OperationSignature};

/// Most bytes that are fused into one reduction.
const FUSED: usize = 1 << 20;
/// Largest buffer that is fused, in bytes. A larger one is reduced in place: a copy would cost more than it saves.
const ALONE: usize = 64 * 1024;

/// Memory in which buffers are fused; in words, not bytes, so that any element is aligned.
type FusionBuffer = Vec<u64>;

/// Carries out [`crate::Operation::GroupedAllReduce`], for a backend that has no way of its own.
///
/// # Errors
///
/// Any [`CollectiveError`].
pub fn all_reduce_grouped<C: Communicator>(
    group: &mut C,
    buffers: Vec<(&mut [u8], DataType)>,
    op: ReduceOp,
) -> Result<(), CollectiveError> {
    let parts = buffers.iter().map(|(data, of)| (*of, data.len()));
    let composition = Composition::of_buffers(parts);
    let (rank, world) = (group.rank(), group.world_size());
    all_reduce_fused(buffers, |data, data_type| {
        let reduction = HostOperation::AllReduce { data, data_type, op };
        let signature = reduction.check(rank, world)?;
        group.run_part(OperationSignature { composition, ..signature }, reduction)
    })
}

/// Reduces `buffers` with `reduce`: those of each type together, in the order of the types' codes. The grouping follows
/// from types and lengths alone, so it is the same on every rank with the same composition, which ranks compare. Empty
/// buffers are no part of it, and are left out. Without any other, nothing is reduced once, so that all ranks meet.
fn all_reduce_fused(
    mut buffers: Vec<(&mut [u8], DataType)>,
    mut reduce: impl FnMut(&mut [u8], DataType) -> Result<(), CollectiveError>,
) -> Result<(), CollectiveError> {
    buffers.retain(|(data, _)| !data.is_empty());
    if buffers.is_empty() {
        // Of a type that has every reduction, and aligned for it.
        return reduce(bytemuck::cast_slice_mut(&mut [0.0_f32; 0]), DataType::F32);
    }
    buffers.sort_by_key(|(_, data_type)| *data_type);
    let mut fused = FusionBuffer::new();
    for of_type in buffers.chunk_by_mut(|(_, left), (_, right)| left == right) {
        let Some((_, data_type)) = of_type.first() else { continue };
        let data_type = *data_type;
        all_reduce_of_type(of_type, &mut fused, |data| reduce(data, data_type))?;
    }
    Ok(())
}

fn all_reduce_of_type(
    buffers: &mut [(&mut [u8], DataType)],
    words: &mut FusionBuffer,
    mut reduce: impl FnMut(&mut [u8]) -> Result<(), CollectiveError>,
) -> Result<(), CollectiveError> {
    let mut rest = buffers;
    while !rest.is_empty() {
        let (together, length) = leading(rest);
        let (now, later) = rest.split_at_mut(together);
        rest = later;
        if let [(alone, _)] = now {
            reduce(alone)?;
            continue;
        }
        words.resize(length.div_ceil(size_of::<u64>()), 0u64);
        let fused = &mut bytemuck::cast_slice_mut(words)[..length];
        let mut end = 0;
        for (buffer, _) in &*now {
            fused[end..end + buffer.len()].copy_from_slice(buffer);
            end += buffer.len();
        }
        reduce(fused)?;
        let mut reduced = &fused[..];
        for (buffer, _) in now {
            let (own, others) = reduced.split_at(buffer.len());
            buffer.copy_from_slice(own);
            reduced = others;
        }
    }
    Ok(())
}

/// The number of leading buffers to fuse, at least one, and their total length in bytes.
fn leading(buffers: &[(&mut [u8], DataType)]) -> (usize, usize) {
    let mut length = 0;
    for (index, (buffer, _)) in buffers.iter().enumerate() {
        let full = index > 0 && length + buffer.len() > FUSED;
        if full || buffer.len() > ALONE {
            return if index == 0 { (1, buffer.len()) } else { (index, length) };
        }
        length += buffer.len();
    }
    (buffers.len(), length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Doubles every element, and records the lengths of the reductions.
    fn doubled(lengths: &[usize]) -> (Vec<usize>, Vec<Vec<u8>>) {
        let mut buffers: Vec<Vec<u8>> =
            (0..).zip(lengths).map(|(index, length)| vec![index + 1; *length]).collect();
        let slices = buffers.iter_mut().map(|buffer| (buffer.as_mut_slice(), DataType::U8));
        let mut calls = Vec::new();
        let result = all_reduce_fused(slices.collect(), |data, _| {
            calls.push(data.len());
            data.iter_mut().for_each(|value| *value *= 2);
            Ok(())
        });
        assert!(result.is_ok());
        (calls, buffers)
    }

    #[test]
    fn small_ones_go_together_and_large_ones_alone() {
        let (calls, buffers) = doubled(&[10, 0, 30, ALONE + 1, 5, ALONE, 7]);
        assert_eq!(calls, [40, ALONE + 1, 5 + ALONE + 7]);
        for (value, buffer) in (1..).zip(buffers) {
            assert!(buffer.iter().all(|byte| *byte == 2 * value));
        }
        assert_eq!(doubled(&[0, ALONE + 1, 0]).0, [ALONE + 1], "as without the empty ones");
    }

    #[test]
    fn x_15_no_buffer_and_empty_ones_are_one_call() {
        for lengths in [&[][..], &[0], &[0, 0]] {
            assert_eq!(doubled(lengths).0, [0], "{lengths:?}");
        }
    }

    #[test]
    fn memory_for_fusing_is_bounded() {
        let (calls, _) = doubled(&[ALONE; 40]);
        assert_eq!(calls.iter().sum::<usize>(), 40 * ALONE);
        assert!(calls.iter().all(|length| *length <= FUSED));
    }
}
