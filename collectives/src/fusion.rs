//! Tensor fusion, as Horovod calls it: many small buffers are reduced as few large ones. Used by
//! [`crate::Communicator::all_reduce_many_bytes`].

use crate::check;
use crate::element::DataType;
use crate::error::CollectiveError;
use crate::wire::OperationKind;

/// What is reduced together, in bytes.
const FUSED: usize = 1 << 20;
/// A buffer of more bytes than this is reduced where it stands: a copy would cost more than it saves.
const ALONE: usize = 64 * 1024;

/// Reduces `buffers` with `reduce`. What goes together follows from the lengths alone, so it is the same on
/// every rank.
pub(crate) fn all_reduce_many(
    buffers: &mut [&mut [u8]],
    data_type: DataType,
    mut reduce: impl FnMut(&mut [u8]) -> Result<(), CollectiveError>,
) -> Result<(), CollectiveError> {
    for buffer in &*buffers {
        check::buffer(OperationKind::AllReduce, buffer, data_type)?;
    }
    let mut words = Vec::new();
    let mut rest = buffers;
    while !rest.is_empty() {
        let (together, length) = leading(rest);
        let (now, later) = rest.split_at_mut(together);
        rest = later;
        if let [alone] = now {
            reduce(alone)?;
            continue;
        }
        // In words, so that any element is aligned.
        words.resize(length.div_ceil(size_of::<u64>()), 0u64);
        let fused = &mut bytemuck::cast_slice_mut(&mut words)[..length];
        let mut end = 0;
        for buffer in &*now {
            fused[end..end + buffer.len()].copy_from_slice(buffer);
            end += buffer.len();
        }
        reduce(fused)?;
        let mut reduced = &fused[..];
        for buffer in now {
            let (own, others) = reduced.split_at(buffer.len());
            buffer.copy_from_slice(own);
            reduced = others;
        }
    }
    Ok(())
}

/// How many buffers from the first on go together, and their length in bytes; at least one.
fn leading(buffers: &[&mut [u8]]) -> (usize, usize) {
    let mut length = 0;
    for (index, buffer) in buffers.iter().enumerate() {
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

    /// Doubles everything, and notes the lengths.
    fn doubled(lengths: &[usize]) -> (Vec<usize>, Vec<Vec<u8>>) {
        let mut buffers: Vec<Vec<u8>> =
            (0..).zip(lengths).map(|(index, length)| vec![index + 1; *length]).collect();
        let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
        let mut calls = Vec::new();
        let result = all_reduce_many(&mut slices, DataType::U8, |data| {
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
        assert!(doubled(&[]).0.is_empty());
    }

    #[test]
    fn memory_for_fusing_is_bounded() {
        let (calls, _) = doubled(&[ALONE; 40]);
        assert_eq!(calls.iter().sum::<usize>(), 40 * ALONE);
        assert!(calls.iter().all(|length| *length <= FUSED));
    }
}
