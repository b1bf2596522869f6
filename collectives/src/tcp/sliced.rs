//! The reduction of large messages: reduce-scatter by pairwise exchange, then all-gather, pipelined. Called by the
//! communicator.
//!
//! Region j of the data belongs to rank j, which receives region j of every rank, folds it in rank order and sends
//! the result to all. The bytes on the wire are those of a ring (Patarasuk and Yuan, 2009), 2 (n - 1) / n of the
//! data each way, in two hops instead of 2 (n - 1). The order of the fold does not depend on the region, so large
//! and small messages give the same bits. Regions are cut into pieces. While the result of one piece is
//! sent, the next piece comes in, so the scratch memory is two pieces a rank.

use std::ops::Range;

use super::flow::{Flow, IncomingBytes, OutgoingBytes, StreamLane};
use super::stripes::stripe;
use crate::element::DataType;
use crate::reduce::{ReduceOp, fold_ranks};

/// The least length of a piece, in bytes.
pub(crate) const PIECE: usize = 64 * 1024;
/// The greatest length of a piece, in bytes: a longer one would leave the caches before it is folded.
const PIECE_MOST: usize = 256 * 1024;
/// The length of the pieces of all ranks together, in bytes, where that leaves them their least length.
const PIECES_MOST: usize = 2 * 1024 * 1024;

/// The length of a piece, in bytes, for data of this length: short enough that moving and folding overlap, and
/// long enough that few system calls are made in large worlds, where a region has as many pieces from each rank.
fn piece_length(length: usize, world: u32) -> usize {
    let most = (PIECES_MOST / world as usize).clamp(PIECE, PIECE_MOST);
    let piece = (length / 32).saturating_mul(world as usize);
    piece.next_multiple_of(PIECE).clamp(PIECE, most.next_multiple_of(PIECE))
}

/// The scratch memory that a world needs to reduce data of this length, in bytes.
pub(crate) fn scratch_length(length: usize, world: u32) -> usize {
    2 * piece_length(length, world) * world as usize
}

/// The buffers of a reduction.
pub(crate) enum Buffers<'a> {
    /// All-reduce in place: the regions are near-equal parts of the data, and the results go to all.
    InPlace(&'a mut [u8]),
    /// Reduce-scatter: the input has equal parts of `part` bytes, and the regions are the bytes `within` each part.
    /// Each rank keeps its own result.
    Scatter { input: &'a [u8], part: usize, within: Range<usize>, output: &'a mut [u8] },
    /// Reduce at the root: as all-reduce, but the results go to this rank only.
    AtRoot(&'a mut [u8]),
    /// Reduce at another rank: the results go to the root. `output` has room for the longest region of each stream.
    ToRoot { input: &'a [u8], root: u32, output: &'a mut [u8] },
}

/// The memory that a rank needs for the regions that it folds for the root, in bytes.
pub(crate) fn to_root_length(length: usize, streams: u32, element: usize, world: u32) -> usize {
    let part = |stream: u32| stripe(0..length, stream, streams, element).len();
    (0..streams).map(|stream| longest_region(part(stream), element, world)).sum()
}

fn longest_region(length: usize, element: usize, world: u32) -> usize {
    (length / element).div_ceil(world as usize) * element
}

impl Buffers<'_> {
    /// The length of all regions together, in bytes.
    pub(crate) fn length(&self) -> usize {
        match self {
            Buffers::InPlace(data) | Buffers::AtRoot(data) => data.len(),
            Buffers::ToRoot { input, .. } => input.len(),
            Buffers::Scatter { input, part, within, .. } => match part {
                0 => 0,
                part => input.len() / part * within.len(),
            },
        }
    }

    /// Divides the buffers among streams. Any division gives the same bits, since each element is folded by itself.
    pub(crate) fn striped(self, streams: u32, element: usize, world: u32) -> Vec<Self> {
        let part = |length: usize, stream: u32| stripe(0..length, stream, streams, element);
        match self {
            Buffers::InPlace(data) => cut(data, streams, element, Buffers::InPlace),
            Buffers::AtRoot(data) => cut(data, streams, element, Buffers::AtRoot),
            Buffers::ToRoot { input, root, mut output } => {
                let parts = (0..streams).map(|stream| {
                    let input = &input[part(input.len(), stream)];
                    let most = longest_region(input.len(), element, world);
                    let (first, rest) = std::mem::take(&mut output).split_at_mut(most);
                    output = rest;
                    Buffers::ToRoot { input, root, output: first }
                });
                parts.collect()
            }
            Buffers::Scatter { input, part: length, mut output, .. } => {
                let parts = (0..streams).map(|stream| {
                    let within = part(length, stream);
                    let (first, rest) = std::mem::take(&mut output).split_at_mut(within.len());
                    output = rest;
                    Buffers::Scatter { input, part: length, within, output: first }
                });
                parts.collect()
            }
        }
    }
}

fn cut<'a>(
    mut data: &'a mut [u8],
    streams: u32,
    element: usize,
    buffers: impl Fn(&'a mut [u8]) -> Buffers<'a>,
) -> Vec<Buffers<'a>> {
    let length = data.len();
    let parts = (0..streams).map(|stream| {
        let part = stripe(0..length, stream, streams, element).len();
        let (first, rest) = std::mem::take(&mut data).split_at_mut(part);
        data = rest;
        buffers(first)
    });
    parts.collect()
}

pub(crate) struct Sliced<'a> {
    buffers: Buffers<'a>,
    scratch: &'a mut [u8],
    /// The number of bytes of this rank's region that each rank has delivered.
    contributed: &'a mut [usize],
    data_type: DataType,
    op: ReduceOp,
    own: u32,
    world: u32,
    piece: usize,
    /// The number of bytes of this rank's region that are folded.
    folded: usize,
}

/// A stretch of a link's stream: its place in the region, and whether it is scattered or gathered.
struct Stretch {
    gather: bool,
    within: Range<usize>,
}

impl<'a> Sliced<'a> {
    /// `scratch` has [`scratch_length`] bytes, aligned for any element; `contributed` has one entry a rank.
    pub(crate) fn new(
        buffers: Buffers<'a>,
        scratch: &'a mut [u8],
        contributed: &'a mut [usize],
        data_type: DataType,
        op: ReduceOp,
        own: u32,
        world: u32,
    ) -> Sliced<'a> {
        contributed.fill(0);
        let piece = piece_length(buffers.length(), world);
        let mut sliced =
            Sliced { buffers, scratch, contributed, data_type, op, own, world, piece, folded: 0 };
        let own_region = sliced.region(own);
        sliced.contributed[own as usize] = own_region.len();
        match &mut sliced.buffers {
            Buffers::Scatter { input, output, .. } | Buffers::ToRoot { input, output, .. } => {
                output[..own_region.len()].copy_from_slice(&input[own_region]);
            }
            Buffers::InPlace(_) | Buffers::AtRoot(_) => {}
        }
        sliced
    }

    fn region(&self, rank: u32) -> Range<usize> {
        let (rank, world) = (rank as usize, self.world as usize);
        if let Buffers::Scatter { part, within, .. } = &self.buffers {
            return rank * part + within.start..rank * part + within.end;
        }
        let size = self.data_type.size_bytes();
        let elements = self.buffers.length() / size;
        let (share, rest) = (elements / world, elements % world);
        let start = rank * share + rank.min(rest);
        let end = start + share + usize::from(rank < rest);
        start * size..end * size
    }

    /// The number of bytes of this rank's result that are sent to `rank`.
    fn gathered_to(&self, rank: u32) -> usize {
        match &self.buffers {
            Buffers::InPlace(_) => self.region(self.own).len(),
            Buffers::ToRoot { root, .. } if rank == *root => self.region(self.own).len(),
            Buffers::ToRoot { .. } | Buffers::AtRoot(_) | Buffers::Scatter { .. } => 0,
        }
    }

    /// The number of bytes of the result of `rank` that are sent to this rank.
    fn gathered_from(&self, rank: u32) -> usize {
        match &self.buffers {
            Buffers::InPlace(_) | Buffers::AtRoot(_) => self.region(rank).len(),
            Buffers::ToRoot { .. } | Buffers::Scatter { .. } => 0,
        }
    }

    /// The stretch of a stream at `moved`. The stream has the pieces of region `scattered` and those of region
    /// `gathered`, in the order s0 s1 g0 s2 g1 …; both ends derive it from the lengths.
    fn stretch(&self, scattered: usize, gathered: usize, moved: usize) -> Option<Stretch> {
        if gathered == 0 {
            return (moved < scattered)
                .then_some(Stretch { gather: false, within: moved..scattered });
        }
        // Region 0 is the longest one, so all ranks count the same number of pieces.
        let pieces = self.region(0).len().div_ceil(self.piece);
        // At least this many whole pairs (s k+1, g k) precede this position; more where the tails are shorter.
        let first = moved.saturating_sub(self.piece) / (2 * self.piece);
        let piece = |k: usize, length: usize| {
            (k * self.piece).min(length)..((k + 1) * self.piece).min(length)
        };
        // The length of the stream before s(first + 1): s up to `first`, g below `first`.
        let mut position = piece(first, scattered).end + piece(first, gathered).start;
        if first == 0 && moved < position {
            return Some(Stretch { gather: false, within: moved..position });
        }
        for k in first..pieces {
            let scatter_next = piece(k + 1, scattered);
            for (gather, within) in [(false, scatter_next), (true, piece(k, gathered))] {
                if moved < position + within.len() {
                    let start = within.start + (moved - position);
                    return Some(Stretch { gather, within: start..within.end });
                }
                position += within.len();
            }
        }
        None
    }

    /// The place of a rank's piece in the scratch memory.
    fn slot(length: usize, world: u32, rank: u32, piece: usize) -> usize {
        ((piece % 2) * world as usize + rank as usize) * length
    }

    /// Folds each piece of this rank's region that every rank has delivered.
    fn fold(&mut self) {
        let region = self.region(self.own);
        let arrived = self.contributed.iter().copied().min().unwrap_or(0);
        while self.folded < region.len() {
            let piece = self.folded / self.piece;
            let end = ((piece + 1) * self.piece).min(region.len());
            if arrived < end {
                return;
            }
            let within = self.folded..end;
            let destination = match &mut self.buffers {
                Buffers::InPlace(data) | Buffers::AtRoot(data) => {
                    &mut data[region.start + within.start..region.start + end]
                }
                Buffers::Scatter { output, .. } | Buffers::ToRoot { output, .. } => {
                    &mut output[within.clone()]
                }
            };
            let (scratch, world, length) = (&*self.scratch, self.world, self.piece);
            fold_ranks(self.data_type, self.op, destination, self.own, world, &|rank| {
                let slot = Self::slot(length, world, rank, piece);
                &scratch[slot..slot + within.len()]
            });
            self.folded = end;
        }
    }
}

impl Sliced<'_> {
    fn outgoing(&self, rank: u32, moved: usize) -> OutgoingBytes<'_> {
        let (theirs, own) = (self.region(rank), self.region(self.own));
        let gathered = self.gathered_to(rank);
        let Some(Stretch { gather, within }) = self.stretch(theirs.len(), gathered, moved) else {
            return OutgoingBytes::Done;
        };
        let (data, folded): (&[u8], &[u8]) = match &self.buffers {
            Buffers::InPlace(data) | Buffers::AtRoot(data) => (data, &data[own]),
            Buffers::Scatter { input, output, .. } | Buffers::ToRoot { input, output, .. } => {
                (input, output)
            }
        };
        if !gather {
            return OutgoingBytes::Ready(
                &data[theirs.start + within.start..theirs.start + within.end],
            );
        }
        let end = within.end.min(self.folded);
        if within.start < end {
            OutgoingBytes::Ready(&folded[within.start..end])
        } else {
            OutgoingBytes::Blocked
        }
    }

    fn incoming(&mut self, rank: u32, moved: usize) -> IncomingBytes<'_> {
        let (theirs, own) = (self.region(rank), self.region(self.own).len());
        let gathered = self.gathered_from(rank);
        let Some(Stretch { gather, within }) = self.stretch(own, gathered, moved) else {
            return IncomingBytes::Done;
        };
        if gather {
            // The peer folded this stretch with this rank's contribution, which therefore was sent.
            return match &mut self.buffers {
                Buffers::InPlace(data) | Buffers::AtRoot(data) => IncomingBytes::Ready(
                    &mut data[theirs.start + within.start..theirs.start + within.end],
                ),
                Buffers::Scatter { .. } | Buffers::ToRoot { .. } => IncomingBytes::Done,
            };
        }
        let piece = within.start / self.piece;
        if piece >= self.folded / self.piece + 2 {
            return IncomingBytes::Blocked;
        }
        let slot = Self::slot(self.piece, self.world, rank, piece);
        let (start, end) = (
            within.start % self.piece,
            within.end.min((piece + 1) * self.piece) - piece * self.piece,
        );
        IncomingBytes::Ready(&mut self.scratch[slot + start..slot + end])
    }

    fn received(&mut self, rank: u32, moved: usize) {
        // The stream up to `moved` is s0 s1 g0 s2 …. Its scattered part is the stretch's start, or all pieces up to
        // the one after which the next gathered stretch comes.
        let (gathered, own) = (self.gathered_from(rank), self.region(self.own).len());
        let scattered = match self.stretch(own, gathered, moved) {
            None => own,
            Some(Stretch { gather: false, within }) => within.start,
            Some(Stretch { gather: true, within }) => {
                ((within.start / self.piece + 2) * self.piece).min(own)
            }
        };
        if scattered > self.contributed[rank as usize] {
            self.contributed[rank as usize] = scattered;
            self.fold();
        }
    }

    /// The pieces that a peer sends before its first result.
    fn ready_from(&self) -> usize {
        self.region(self.own).len().min(2 * self.piece)
    }

    fn length_to(&self, rank: u32) -> u64 {
        (self.region(rank).len() + self.gathered_to(rank)) as u64
    }
}

/// A reduction over one or more streams, each of which carries its own part of the data.
pub(crate) struct Striped<'a>(pub(crate) Vec<Sliced<'a>>);

impl<'a> Striped<'a> {
    fn part(&self, lane: StreamLane) -> &Sliced<'a> {
        &self.0[lane.stream as usize]
    }
}

impl Flow for Striped<'_> {
    fn streams(&self) -> u32 {
        self.0.len() as u32
    }

    fn sends_to(&self, _lane: StreamLane) -> bool {
        true
    }

    fn receives_from(&self, _lane: StreamLane) -> bool {
        true
    }

    fn outgoing(&self, lane: StreamLane, moved: usize) -> OutgoingBytes<'_> {
        self.part(lane).outgoing(lane.rank, moved)
    }

    fn incoming(&mut self, lane: StreamLane, moved: usize) -> IncomingBytes<'_> {
        self.0[lane.stream as usize].incoming(lane.rank, moved)
    }

    fn received(&mut self, lane: StreamLane, moved: usize) {
        self.0[lane.stream as usize].received(lane.rank, moved);
    }

    fn ready_from(&self, lane: StreamLane) -> usize {
        self.part(lane).ready_from()
    }

    fn length_to(&self, lane: StreamLane) -> u64 {
        self.part(lane).length_to(lane.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends derive the same stretches, which cover both regions once, in order.
    #[test]
    fn a_stream_covers_both_regions_in_order() {
        for length in [0, 4, 8, PIECE, 2 * PIECE, 2 * PIECE + 4, 6 * PIECE + 4, 9 * PIECE + 12] {
            let (mut data, mut scratch) = (vec![0; length], vec![0; scratch_length(length, 2)]);
            let mut contributed = [0; 2];
            let buffers = Buffers::InPlace(&mut data);
            let (data_type, op) = (DataType::F32, ReduceOp::Sum);
            let sliced = Sliced::new(buffers, &mut scratch, &mut contributed, data_type, op, 0, 2);
            for (scattered, gathered) in [(0, 1), (1, 0)] {
                let (scattered, gathered) =
                    (sliced.region(scattered).len(), sliced.region(gathered).len());
                let (mut moved, mut next) = (0, [0, 0]);
                while let Some(stretch) = sliced.stretch(scattered, gathered, moved) {
                    let half = moved + stretch.within.len().div_ceil(2);
                    assert_eq!(stretch.within.start, next[usize::from(stretch.gather)]);
                    next[usize::from(stretch.gather)] += half - moved;
                    moved = half;
                }
                assert_eq!((next, moved), ([scattered, gathered], scattered + gathered));
            }
        }
    }
}
