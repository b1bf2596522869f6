//! Reduction by logical shard: the fold goes in the order of the shards and not of the ranks, so that a world of
//! three gives the bits of a world of four. Called by `CommunicatorExt::all_reduce_shards`.
//!
//! A program cuts each batch into a fixed number of shards, and each rank computes the gradients of its own. Ranks
//! hold neighbouring shards, so the contributions in rank order are in the order of the shards.

use std::ops::Range;

use crate::check;
use crate::communicator::Communicator;
use crate::element::DataType;
use crate::error::CollectiveError;
use crate::operation::HostOperation;
use crate::reduce::{ReduceOp, fold_ranks};
use crate::wire::OperationKind;

const KIND: OperationKind = OperationKind::AllReduce;
/// Approximate memory of one piece of all shards together, in bytes.
const PIECE: usize = 4 << 20;

/// The shards of `rank` when `total` shards are dealt to `world` ranks. They are neighbours; a lower rank has at
/// most one more than a higher one.
pub fn shards_of(total: u32, rank: u32, world: u32) -> Range<u32> {
    let (each, rest) = (total / world, total % world);
    let start = rank * each + rank.min(rest);
    start..start + each + u32::from(rank < rest)
}

/// See [`crate::CommunicatorExt::all_reduce_shards`].
pub(crate) fn all_reduce<C: Communicator + ?Sized>(
    group: &mut C,
    shards: &[&[u8]],
    total: u32,
    output: &mut [u8],
    data_type: DataType,
    op: ReduceOp,
) -> Result<(), CollectiveError> {
    check::buffer(KIND, &&*output, data_type)?;
    check::reduction(KIND, data_type, op)?;
    if total == 0 {
        return Err(check::invalid(KIND, "there are no shards to reduce".to_owned()));
    }
    let own = shards_of(total, group.rank(), group.world_size());
    if shards.len() != own.len() {
        let reason = format!("{} shards are given, {} are due: {own:?}", shards.len(), own.len());
        return Err(check::invalid(KIND, reason));
    }
    for shard in shards {
        check::buffer(KIND, shard, data_type)?;
        check::length(KIND, "shard", shard.len(), output.len())?;
    }
    let size = data_type.size_bytes();
    let piece = (PIECE / total as usize / size).max(1) * size;
    let mut scratch = Scratch::default();
    let mut start = 0;
    // The loop runs at least once, so that all ranks meet.
    loop {
        let end = (start + piece).min(output.len());
        let within: Vec<&[u8]> = shards.iter().map(|shard| &shard[start..end]).collect();
        let into = &mut output[start..end];
        scratch.reduce(group, &within, total, into, data_type, op)?;
        start = end;
        if start == output.len() {
            return Ok(());
        }
    }
}

/// Scratch memory, reused for each piece; in words, so that any element is aligned.
#[derive(Default)]
struct Scratch {
    sent: Vec<u64>,
    received: Vec<u64>,
    folded: Vec<u64>,
}

fn bytes(words: &mut Vec<u64>, length: usize) -> &mut [u8] {
    words.resize(length.div_ceil(size_of::<u64>()), 0);
    &mut bytemuck::cast_slice_mut(words)[..length]
}

impl Scratch {
    /// Reduces one piece: each rank receives one slice of every shard, folds it, and gives the result to all.
    fn reduce<C: Communicator + ?Sized>(
        &mut self,
        group: &mut C,
        shards: &[&[u8]],
        total: u32,
        output: &mut [u8],
        data_type: DataType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let (rank, world) = (group.rank(), group.world_size());
        let size = data_type.size_bytes();
        let elements = (output.len() / size) as u32;
        let slice = |of: u32| {
            let slice = shards_of(elements, of, world);
            slice.start as usize * size..slice.end as usize * size
        };
        let slices: Vec<usize> = (0..world).map(|of| slice(of).len() / size).collect();
        let sent = bytes(&mut self.sent, shards.len() * output.len());
        let mut end = 0;
        for other in 0..world {
            for shard in shards {
                let part = &shard[slice(other)];
                sent[end..end + part.len()].copy_from_slice(part);
                end += part.len();
            }
        }
        let own = slice(rank).len();
        let received = bytes(&mut self.received, total as usize * own);
        let to: Vec<usize> = slices.iter().map(|length| length * shards.len()).collect();
        let held = |other: u32| shards_of(total, other, world).len();
        let from: Vec<usize> = (0..world).map(|other| held(other) * own / size).collect();
        group.run(HostOperation::AllToAll {
            input: sent,
            output: received,
            counts: Some((&to, &from)),
            data_type,
        })?;
        let folded = bytes(&mut self.folded, own);
        folded.copy_from_slice(&received[..own]);
        fold_ranks(data_type, op, folded, 0, total, |shard| {
            &received[shard as usize * own..(shard as usize + 1) * own]
        });
        group.run(HostOperation::AllGather {
            input: folded,
            output,
            counts: Some(&slices),
            data_type,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_dealt_once_and_in_order() {
        for (total, world) in [(4, 3), (4, 4), (3, 8), (64, 7), (1, 1)] {
            let mut next = 0;
            for rank in 0..world {
                let own = shards_of(total, rank, world);
                assert_eq!(own.start, next);
                next = own.end;
            }
            assert_eq!(next, total);
        }
    }
}
