//! The operations as steps of a [`Session`]. Each goes in pieces: while piece k is read, piece k + 1 is
//! offered, so that one step a piece is enough.

use std::ops::Range;

use super::layout::{Area, INLINE, PIECE};
use super::session::Session;
use crate::element::DataType;
use crate::error::CollectiveError;
use crate::reduce::{ReduceOp, fold_ranks};

pub(super) type Done = Result<(), CollectiveError>;

/// The largest all-reduce, in bytes, that every rank folds as a whole. It saves the second step; above,
/// the work that it repeats on each rank costs more.
pub(crate) const WHOLE: usize = 16 * 1024;

/// What one piece of each rank's part takes of a buffer that is shared by all ranks' parts, in bytes.
fn share(world: u32) -> usize {
    (PIECE / world as usize / 64).max(1) * 64
}

/// Bytes of piece `index`, where pieces have `piece` bytes.
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

/// Everyone folds everything: one step.
pub(super) fn all_reduce_whole(
    session: &mut Session<'_>,
    data: &mut [u8],
    data_type: DataType,
    op: ReduceOp,
) -> Done {
    let length = data.len();
    let area = if length <= INLINE { Area::Inline } else { Area::Contribution };
    session.offer(area, 0, data);
    session.enter()?;
    fold_ranks(data_type, op, data, session.own(), session.world(), |rank| {
        session.published(rank, area, 0..length)
    });
    Ok(())
}

/// Each rank folds its slice of each piece, and hands it out with the next step.
pub(super) fn all_reduce_sliced(
    session: &mut Session<'_>,
    data: &mut [u8],
    data_type: DataType,
    op: ReduceOp,
) -> Done {
    let (own, world, length) = (session.own(), session.world(), data.len());
    let pieces = length.div_ceil(PIECE);
    let offer = |session: &mut Session<'_>, data: &[u8], index: usize| {
        // Nobody but this rank reads its own slice.
        let within = piece(index, PIECE, length);
        let mine = slice(own, world, &within, data_type);
        session.offer(Area::Contribution, 0, &data[within.start..mine.start]);
        let after = mine.end - within.start;
        session.offer(Area::Contribution, after, &data[mine.end..within.end]);
    };
    let collect = |session: &Session<'_>, data: &mut [u8], index: usize| {
        let within = piece(index, PIECE, length);
        for rank in session.others() {
            let theirs = slice(rank, world, &within, data_type);
            let result = session.published(rank, Area::Result, 0..theirs.len());
            data[theirs].copy_from_slice(result);
        }
    };
    offer(session, data, 0);
    session.enter()?;
    for index in 0..pieces {
        let within = piece(index, PIECE, length);
        let mine = slice(own, world, &within, data_type);
        let place = mine.start - within.start..mine.end - within.start;
        fold_ranks(data_type, op, &mut data[mine.clone()], own, world, |rank| {
            session.published(rank, Area::Contribution, place.clone())
        });
        session.offer(Area::Result, 0, &data[mine]);
        if index > 0 {
            collect(session, data, index - 1);
        }
        if index + 1 < pieces {
            offer(session, data, index + 1);
        }
        session.arrive()?;
    }
    if pieces > 0 {
        collect(session, data, pieces - 1);
    }
    Ok(())
}

/// Each rank folds its part of the input.
pub(super) fn reduce_scatter(
    session: &mut Session<'_>,
    input: &[u8],
    output: &mut [u8],
    data_type: DataType,
    op: ReduceOp,
) -> Done {
    let (own, world, length) = (session.own(), session.world(), output.len());
    let part = |rank: u32| rank as usize * length..(rank as usize + 1) * length;
    let share = share(world);
    let place = share * own as usize;
    output.copy_from_slice(&input[part(own)]);
    let pieces = length.div_ceil(share).max(1);
    offer_parts(session, input, part, share, 0);
    session.enter()?;
    for index in 0..pieces {
        let within = piece(index, share, length);
        let taken = place..place + within.len();
        fold_ranks(data_type, op, &mut output[within], own, world, |rank| {
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
    session: &mut Session<'_>,
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

/// Every rank's input goes to `place(rank)` of the output.
pub(super) fn all_gather(
    session: &mut Session<'_>,
    input: &[u8],
    output: &mut [u8],
    place: impl Fn(u32) -> Range<usize>,
) -> Done {
    let (own, world) = (session.own(), session.world());
    output[place(own)].copy_from_slice(input);
    let longest = (0..world).map(|rank| place(rank).len()).max().unwrap_or(0);
    let pieces = longest.div_ceil(PIECE).max(1);
    session.offer(Area::Contribution, 0, &input[piece(0, PIECE, input.len())]);
    session.enter()?;
    for index in 0..pieces {
        for rank in session.others() {
            let theirs = &mut output[place(rank)];
            let within = piece(index, PIECE, theirs.len());
            let taken = session.published(rank, Area::Contribution, 0..within.len());
            theirs[within].copy_from_slice(taken);
        }
        if index + 1 < pieces {
            let within = piece(index + 1, PIECE, input.len());
            session.offer(Area::Contribution, 0, &input[within]);
            session.arrive()?;
        }
    }
    Ok(())
}

/// The root's data goes to all.
pub(super) fn broadcast(session: &mut Session<'_>, data: &mut [u8], root: u32) -> Done {
    let (is_root, length) = (session.own() == root, data.len());
    let pieces = length.div_ceil(PIECE).max(1);
    if is_root {
        session.offer(Area::Contribution, 0, &data[piece(0, PIECE, length)]);
    }
    session.enter()?;
    for index in 0..pieces {
        let more = index + 1 < pieces;
        if !is_root {
            let within = piece(index, PIECE, length);
            let taken = session.published(root, Area::Contribution, 0..within.len());
            data[within].copy_from_slice(taken);
        } else if more {
            session.offer(Area::Contribution, 0, &data[piece(index + 1, PIECE, length)]);
        }
        if more {
            session.arrive()?;
        }
    }
    Ok(())
}

/// Part r of the input goes to rank r; `to` and `from` give the parts. They are of `longest` bytes at most,
/// on any rank.
pub(super) fn all_to_all(
    session: &mut Session<'_>,
    input: &[u8],
    to: impl Fn(u32) -> Range<usize>,
    output: &mut [u8],
    from: impl Fn(u32) -> Range<usize>,
    longest: usize,
) -> Done {
    let own = session.own();
    output[from(own)].copy_from_slice(&input[to(own)]);
    let share = share(session.world());
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

/// Tells each rank the lengths, in bytes, of what goes to whom; refuses those that are not due here.
/// Returns the longest of all.
pub(super) fn agree_on_lengths(
    session: &mut Session<'_>,
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
