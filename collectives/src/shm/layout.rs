//! The layout of a segment: control words, a slot for each rank, and each rank's buffers. Pure functions; used by
//! the segment.
//!
//! Slots and buffers exist twice, for even and for odd steps. A rank's data of step s is read before any reader
//! arrives at step s + 1. So between s and s + 1 every rank may write what s + 1 publishes.

use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The largest contribution of a rank to one step, in bytes; larger messages go in pieces of this length. Two such buffers fill a
/// core's second-level cache (1 to 2 MiB), so a piece has left it for the cache that cores share when another rank reads it.
/// Reading from another core's own cache takes three times as long (measured on an AMD EPYC of the fourth generation).
pub(crate) const PIECE_MOST: usize = 512 * 1024;
/// The contribution of a rank to one step in the largest worlds, in bytes: large enough that a step is worth its wake-ups.
const PIECE_LEAST: usize = 64 * 1024;
/// The contributions of all ranks to the two steps that have buffers, in bytes: few enough that they stay in the shared cache.
const CONTRIBUTIONS_MOST: usize = 16 * 1024 * 1024;
/// Buffers start at multiples of this, in bytes: no two ranks write to one pair of cache lines.
const ALIGNMENT: usize = 128;
const PAGE: usize = 4096;
/// The largest world that shares memory: each rank's part of a piece has at least a few cache lines.
pub(crate) const WORLD_MAX: u32 = 512;

/// Bytes published beside the step, so that a reader of the step has them.
pub(crate) const INLINE: usize = 48;

/// A word with cache lines of its own; processors fetch them in pairs.
#[repr(C, align(128))]
pub(super) struct Padded<T>(pub(super) T);

/// The words that all ranks share.
#[repr(C)]
pub(super) struct ControlLine {
    /// Random words known only to this generation's ranks: they detect the wrong file.
    pub(super) token: Padded<[AtomicU64; 4]>,
    /// The poison word: zero, or the end of the generation here, see [`super::poison`]. Only the first writer sets
    /// it.
    pub(super) poison: Padded<AtomicU64>,
    /// The word on which sleepers sleep. A ring changes it.
    pub(super) bell: Padded<AtomicU32>,
    /// The number of ranks that sleep, or are about to.
    pub(super) sleepers: Padded<AtomicU32>,
}

/// The words that a rank publishes with steps of one parity; only that rank writes them. All but the last lie in one cache line,
/// and only an operation of several parts reads the last.
#[repr(C, align(64))]
pub(super) struct RankLine {
    /// The last step of this parity at which the rank has arrived. It wraps.
    pub(super) step: AtomicU32,
    /// The mark of the rank's robust lock, in the line of even steps; zero if it has none.
    pub(super) lock: AtomicU32,
    /// The operation that the step enters: see [`super::brief`].
    pub(super) brief: AtomicU64,
    /// The bytes of [`Area::Inline`].
    inline: [AtomicU64; INLINE / size_of::<u64>()],
    /// The composition of the operation that the step enters, if its word says that it has one.
    pub(super) composition: [AtomicU64; 2],
}

/// A rank's own words, by parity.
pub(super) type Slot = [Padded<RankLine>; 2];

/// The kind of a rank's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// A short contribution, in the rank's [`RankLine`].
    Inline,
    /// The rank's contribution.
    Contribution,
    /// The slice that the rank has reduced for all.
    Result,
}

/// The positions of all parts in a segment for `world` ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentLayout {
    world: u32,
}

impl SegmentLayout {
    pub(super) fn new(world: u32) -> SegmentLayout {
        SegmentLayout { world }
    }

    pub(super) fn world(self) -> u32 {
        self.world
    }

    /// A rank's contribution to one step, in bytes.
    pub(super) fn piece(self) -> usize {
        let share = CONTRIBUTIONS_MOST / 2 / self.world as usize;
        share.clamp(PIECE_LEAST, PIECE_MOST) / PAGE * PAGE
    }

    /// The length of a [`Area::Result`] buffer: the longest slice of a piece.
    fn result_length(self) -> usize {
        // A slice has at most one element, of at most 8 bytes, more than the average.
        (self.piece() / self.world as usize + 8).next_multiple_of(ALIGNMENT)
    }

    fn area_length(self, area: Area) -> usize {
        match area {
            Area::Inline => INLINE,
            Area::Contribution => self.piece(),
            Area::Result => self.result_length(),
        }
    }

    pub(super) fn slot(self, rank: u32) -> usize {
        assert!(rank < self.world, "a rank of this world");
        size_of::<ControlLine>() + rank as usize * size_of::<Slot>()
    }

    /// The position in the segment of the bytes `within` a rank's buffer.
    pub(super) fn area(
        self,
        rank: u32,
        area: Area,
        parity: usize,
        within: Range<usize>,
    ) -> Range<usize> {
        assert!(rank < self.world && parity < 2, "a buffer of this world");
        assert!(
            within.start <= within.end && within.end <= self.area_length(area),
            "inside the buffer"
        );
        let (contribution, result) = (self.piece(), self.result_length());
        let buffers = self.buffers() + rank as usize * self.rank_length();
        let start = match area {
            Area::Inline => {
                self.slot(rank)
                    + parity * size_of::<Padded<RankLine>>()
                    + offset_of!(RankLine, inline)
            }
            Area::Contribution => buffers + parity * contribution,
            Area::Result => buffers + 2 * contribution + parity * result,
        };
        start + within.start..start + within.end
    }

    fn buffers(self) -> usize {
        (size_of::<ControlLine>() + self.world as usize * size_of::<Slot>()).next_multiple_of(PAGE)
    }

    /// The length of a rank's buffers: whole pages, so that each rank's memory lies on its own NUMA node.
    fn rank_length(self) -> usize {
        (2 * (self.piece() + self.result_length())).next_multiple_of(PAGE)
    }

    /// The length of the segment, in bytes.
    pub(super) fn length(self) -> usize {
        self.buffers() + self.world as usize * self.rank_length()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        for world in [1, 2, 3, 7, 64] {
            let layout = SegmentLayout::new(world);
            let mut places = Vec::from([(0, size_of::<ControlLine>())]);
            for rank in 0..world {
                let slot = layout.slot(rank);
                assert!(slot.is_multiple_of(align_of::<Slot>()));
                places.push((slot, slot + size_of::<Slot>()));
            }
            for rank in 0..world {
                for area in [Area::Contribution, Area::Result] {
                    for parity in 0..2 {
                        let place = layout.area(rank, area, parity, 0..layout.area_length(area));
                        assert!(place.start.is_multiple_of(ALIGNMENT));
                        places.push((place.start, place.end));
                    }
                }
            }
            assert!(places.is_sorted_by(|left, right| left.1 <= right.0));
            assert!(places.last().unwrap().1 <= layout.length());
        }
    }
}
