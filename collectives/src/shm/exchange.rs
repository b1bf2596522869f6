//! The operations as steps of a [`SegmentOperation`]. Each goes in pieces: while piece k is read, piece k + 1 is
//! offered, so that one step a piece is enough. Called by the communicator.

use std::ops::Range;

use super::layout::{Area, INLINE};
use super::session::SegmentOperation;
use super::stores::Stores;
use crate::element::DataType;
use crate::error::{CollectiveError, CollectiveResult};
use crate::reduce::{ReduceOp, fold_ranks};

/// The largest all-reduce, in bytes, that every rank folds as a whole. This saves the second step; for larger ones
/// the work repeated on each rank costs more.
pub(crate) const WHOLE: usize = 16 * 1024;

/// The bytes of one piece of each rank's part, in a buffer that all ranks' parts share.
fn share(session: &SegmentOperation<'_>) -> usize {
    (session.piece() / session.world() as usize / 64).max(1) * 64
}

/// The byte range of piece `index`, where pieces have `piece` bytes.
fn piece(index: usize, piece: usize, length: usize) -> Range<usize> {
    (index * piece).min(length)..((index + 1) * piece).min(length)
}

/// The slice of rank `rank` in a piece.
pub(super) fn slice(
    rank: u32,
    world: u32,
    within: &Range<usize>,
    data_type: DataType,
) -> Range<usize> {
    let size = data_type.size_bytes();
    let (elements, rank, world) = (within.len() / size, rank as usize, world as usize);
    let (each, rest) = (elements / world, elements % world);
    let start = within.start + (rank * each + rank.min(rest)) * size;
    start..start + (each + usize::from(rank < rest)) * size
}

/// Reduction to all ranks, or to the root, if there is one.
pub(super) fn reduce(
    session: &mut SegmentOperation<'_>,
    data: &mut [u8],
    data_type: DataType,
    op: ReduceOp,
    root: Option<u32>,
) -> CollectiveResult {
    if data.len() <= WHOLE || is_folded_by_both(session) {
        reduce_whole(session, data, data_type, op, root)
    } else {
        reduce_sliced(session, data, data_type, op, root)
    }
}

/// Whether each of two ranks folds the whole, at any length. Both ways move as many bytes between them. What is written past the
/// caches takes a way through memory, which the slices' results would take once more.
fn is_folded_by_both(session: &SegmentOperation<'_>) -> bool {
    session.world() == 2 && session.stores() == Stores::NonTemporal
}

/// Reduction in one step a piece: every rank folds the whole, or only the root, if there is one.
fn reduce_whole(
    session: &mut SegmentOperation<'_>,
    data: &mut [u8],
    data_type: DataType,
    op: ReduceOp,
    root: Option<u32>,
) -> CollectiveResult {
    let (own, world, length) = (session.own(), session.world(), data.len());
    let area = if length <= INLINE { Area::Inline } else { Area::Contribution };
    let piece_bytes = session.piece();
    let pieces = length.div_ceil(piece_bytes).max(1);
    session.offer(area, 0, &data[piece(0, piece_bytes, length)]);
    session.enter()?;
    for index in 0..pieces {
        if index + 1 < pieces {
            session.offer(area, 0, &data[piece(index + 1, piece_bytes, length)]);
        }
        if root.is_none_or(|root| root == own) {
            let within = piece(index, piece_bytes, length);
            let folded = &mut data[within.clone()];
            fold_ranks(data_type, op, folded, own, world, &|rank| {
                session.published(rank, area, 0..within.len())
            });
        }
        if index + 1 < pieces {
            session.arrive()?;
        }
    }
    Ok(())
}

/// Reduction of larger data: each rank folds its slice of each piece, and publishes the result with the next step. All
/// ranks collect the results, or only the root, if there is one. The other ranks fold into memory of their own then, so
/// that their data stays as it is.
fn reduce_sliced(
    session: &mut SegmentOperation<'_>,
    data: &mut [u8],
    data_type: DataType,
    op: ReduceOp,
    root: Option<u32>,
) -> CollectiveResult {
    let (own, world, length) = (session.own(), session.world(), data.len());
    let piece_bytes = session.piece();
    let pieces = length.div_ceil(piece_bytes);
    let collects = root.is_none_or(|root| root == own);
    // Words, so that any element is aligned.
    let words =
        if collects { 0 } else { (piece_bytes / world as usize).div_ceil(size_of::<u64>()) + 1 };
    let mut words = vec![0u64; words];
    offer_others(session, data, data_type, 0);
    session.enter()?;
    for index in 0..pieces {
        let within = piece(index, piece_bytes, length);
        let mine = slice(own, world, &within, data_type);
        let place = mine.start - within.start..mine.end - within.start;
        let folded = if collects {
            &mut data[mine]
        } else {
            let folded = &mut bytemuck::cast_slice_mut(&mut words)[..mine.len()];
            folded.copy_from_slice(&data[mine]);
            folded
        };
        fold_ranks(data_type, op, folded, own, world, &|rank| {
            session.published(rank, Area::Contribution, place.clone())
        });
        if root != Some(own) {
            session.offer(Area::Result, 0, folded);
        }
        if collects && index > 0 {
            collect(session, data, data_type, index - 1);
        }
        if index + 1 < pieces {
            offer_others(session, data, data_type, index + 1);
        }
        session.arrive()?;
    }
    if collects && pieces > 0 {
        collect(session, data, data_type, pieces - 1);
    }
    Ok(())
}

/// Offers piece `index` of a reduction, without this rank's slice, which only this rank reads.
fn offer_others(
    session: &mut SegmentOperation<'_>,
    data: &[u8],
    data_type: DataType,
    index: usize,
) {
    let within = piece(index, session.piece(), data.len());
    let mine = slice(session.own(), session.world(), &within, data_type);
    session.offer(Area::Contribution, 0, &data[within.start..mine.start]);
    let after = mine.end - within.start;
    session.offer(Area::Contribution, after, &data[mine.end..within.end]);
}

/// Takes the other ranks' results of piece `index`.
fn collect(session: &SegmentOperation<'_>, data: &mut [u8], data_type: DataType, index: usize) {
    let within = piece(index, session.piece(), data.len());
    for rank in session.others() {
        let theirs = slice(rank, session.world(), &within, data_type);
        let result = session.published(rank, Area::Result, 0..theirs.len());
        data[theirs].copy_from_slice(result);
    }
}

/// Reduce-scatter: each rank folds its part of the input.
pub(super) fn reduce_scatter(
    session: &mut SegmentOperation<'_>,
    input: &[u8],
    output: &mut [u8],
    data_type: DataType,
    op: ReduceOp,
) -> CollectiveResult {
    let (own, world, length) = (session.own(), session.world(), output.len());
    let part = |rank: u32| rank as usize * length..(rank as usize + 1) * length;
    let share = share(session);
    let place = share * own as usize;
    output.copy_from_slice(&input[part(own)]);
    let pieces = length.div_ceil(share).max(1);
    offer_parts(session, input, part, share, 0);
    session.enter()?;
    for index in 0..pieces {
        let within = piece(index, share, length);
        let taken = place..place + within.len();
        fold_ranks(data_type, op, &mut output[within], own, world, &|rank| {
            session.published(rank, Area::Contribution, taken.clone())
        });
        if index + 1 < pieces {
            offer_parts(session, input, part, share, index + 1);
            session.arrive()?;
        }
    }
    Ok(())
}

/// Offers piece `index` of each other rank's part of the input.
fn offer_parts(
    session: &mut SegmentOperation<'_>,
    input: &[u8],
    part: impl Fn(u32) -> Range<usize>,
    share: usize,
    index: usize,
) {
    for rank in session.others() {
        let part = &input[part(rank)];
        let within = piece(index, share, part.len());
        session.offer(Area::Contribution, rank as usize * share, &part[within]);
    }
}

/// Gather: every rank's input goes to `place(rank)` of the outputs that there are.
pub(super) fn gather(
    session: &mut SegmentOperation<'_>,
    input: &[u8],
    mut output: Option<&mut [u8]>,
    place: impl Fn(u32) -> Range<usize>,
) -> CollectiveResult {
    let (own, world) = (session.own(), session.world());
    if let Some(output) = &mut output {
        output[place(own)].copy_from_slice(input);
    }
    let longest = (0..world).map(|rank| place(rank).len()).max().unwrap_or(0);
    let piece_bytes = session.piece();
    let pieces = longest.div_ceil(piece_bytes).max(1);
    session.offer(Area::Contribution, 0, &input[piece(0, piece_bytes, input.len())]);
    session.enter()?;
    for index in 0..pieces {
        if let Some(output) = &mut output {
            for rank in session.others() {
                let theirs = &mut output[place(rank)];
                let within = piece(index, piece_bytes, theirs.len());
                let taken = session.published(rank, Area::Contribution, 0..within.len());
                theirs[within].copy_from_slice(taken);
            }
        }
        if index + 1 < pieces {
            let within = piece(index + 1, piece_bytes, input.len());
            session.offer(Area::Contribution, 0, &input[within]);
            session.arrive()?;
        }
    }
    Ok(())
}

/// Broadcast: the root's data goes to all.
pub(super) fn broadcast(
    session: &mut SegmentOperation<'_>,
    data: &mut [u8],
    root: u32,
) -> CollectiveResult {
    let (is_root, length, piece_bytes) = (session.own() == root, data.len(), session.piece());
    let pieces = length.div_ceil(piece_bytes).max(1);
    if is_root {
        session.offer(Area::Contribution, 0, &data[piece(0, piece_bytes, length)]);
    }
    session.enter()?;
    for index in 0..pieces {
        let more = index + 1 < pieces;
        if !is_root {
            let within = piece(index, piece_bytes, length);
            let taken = session.published(root, Area::Contribution, 0..within.len());
            data[within].copy_from_slice(taken);
        } else if more {
            session.offer(Area::Contribution, 0, &data[piece(index + 1, piece_bytes, length)]);
        }
        if more {
            session.arrive()?;
        }
    }
    Ok(())
}

/// Scatter: part r of the root's input goes to rank r.
pub(super) fn scatter(
    session: &mut SegmentOperation<'_>,
    input: Option<&[u8]>,
    output: &mut [u8],
    root: u32,
) -> CollectiveResult {
    let (own, length) = (session.own() as usize, output.len());
    let part = |rank: u32| rank as usize * length..(rank as usize + 1) * length;
    let share = share(session);
    let pieces = length.div_ceil(share).max(1);
    if let Some(input) = input {
        output.copy_from_slice(&input[part(root)]);
        offer_parts(session, input, part, share, 0);
    }
    session.enter()?;
    for index in 0..pieces {
        if input.is_none() {
            let within = piece(index, share, length);
            let taken = own * share..own * share + within.len();
            output[within].copy_from_slice(session.published(root, Area::Contribution, taken));
        }
        if index + 1 < pieces {
            if let Some(input) = input {
                offer_parts(session, input, part, share, index + 1);
            }
            session.arrive()?;
        }
    }
    Ok(())
}

/// All-to-all: part r of the input goes to rank r; `to` and `from` give the parts. They have at most `longest`
/// bytes, on any rank.
pub(super) fn all_to_all(
    session: &mut SegmentOperation<'_>,
    input: &[u8],
    to: impl Fn(u32) -> Range<usize>,
    output: &mut [u8],
    from: impl Fn(u32) -> Range<usize>,
    longest: usize,
) -> CollectiveResult {
    let own = session.own();
    output[from(own)].copy_from_slice(&input[to(own)]);
    let share = share(session);
    let place = share * own as usize;
    let pieces = longest.div_ceil(share).max(1);
    offer_parts(session, input, &to, share, 0);
    session.enter_or_arrive()?;
    for index in 0..pieces {
        for rank in session.others() {
            let theirs = &mut output[from(rank)];
            let within = piece(index, share, theirs.len());
            let taken = place..place + within.len();
            theirs[within].copy_from_slice(session.published(rank, Area::Contribution, taken));
        }
        if index + 1 < pieces {
            offer_parts(session, input, &to, share, index + 1);
            session.arrive()?;
        }
    }
    Ok(())
}

/// Exchanges the lengths, in bytes, of every rank's parts for each rank; refuses those that are not due here.
/// Returns the longest of all.
pub(super) fn agree_on_lengths(
    session: &mut SegmentOperation<'_>,
    to: impl Fn(u32) -> usize,
    from: impl Fn(u32) -> usize,
) -> Result<usize, CollectiveError> {
    let (own, world) = (session.own(), session.world());
    let sent: Vec<u64> = (0..world).map(|rank| to(rank) as u64).collect();
    let mut longest = sent.iter().copied().max().unwrap_or(0);
    session.offer(Area::Contribution, 0, bytemuck::cast_slice(&sent));
    session.enter()?;
    for rank in session.others() {
        let lengths = session.published(rank, Area::Contribution, 0..size_of_val(&*sent));
        let lengths: &[u64] = bytemuck::cast_slice(lengths);
        session.expect_length(rank, from(rank) as u64, lengths[own as usize])?;
        longest = lengths.iter().copied().fold(longest, u64::max);
    }
    Ok(usize::try_from(longest).unwrap_or(usize::MAX))
}
