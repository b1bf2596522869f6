//! Exchange of the shares that the members of a generation have read. Afterwards each member has the whole commit.
//! Called by `resume`.

use std::collections::VecDeque;
use std::ops::Range;

use elastic_collectives::{CollectiveError, Communicator, CommunicatorExt as _};

use crate::state::training::transfer::ROUND_BYTES;

/// The ranges of a commit that a rank gives and has not given yet.
struct UnsentRanges {
    ranges: VecDeque<Range<usize>>,
    bytes: usize,
}

impl UnsentRanges {
    fn new(ranges: Vec<Range<usize>>) -> Self {
        let bytes = ranges.iter().map(ExactSizeIterator::len).sum();
        Self { ranges: ranges.into(), bytes }
    }

    /// Takes the next bytes, of which so many are left.
    fn take(&mut self, mut bytes: usize) -> Vec<Range<usize>> {
        let mut taken = Vec::new();
        self.bytes -= bytes;
        while bytes > 0
            && let Some(range) = self.ranges.front_mut()
        {
            let end = range.end.min(range.start + bytes);
            bytes -= end - range.start;
            taken.push(range.start..end);
            range.start = end;
            if range.start == range.end {
                self.ranges.pop_front();
            }
        }
        taken
    }
}

/// Exchanges a commit's content, in rounds: each rank holds the ranges `given[rank]` of `commit`, and has all of them
/// afterwards. `given` is the same on every rank. `moved` is told the bytes that were exchanged so far.
pub(super) fn exchange(
    group: &mut dyn Communicator,
    given: Vec<Vec<Range<usize>>>,
    commit: &mut [u8],
    mut moved: impl FnMut(u64),
) -> Result<(), CollectiveError> {
    let rank = group.rank() as usize;
    let mut unsent: Vec<UnsentRanges> = given.into_iter().map(UnsentRanges::new).collect();
    let each = (ROUND_BYTES / unsent.len()).max(1);
    let (mut sent, mut gathered, mut done) = (Vec::new(), Vec::new(), 0);
    while unsent.len() > 1 && unsent.iter().any(|of_rank| of_rank.bytes > 0) {
        let counts: Vec<usize> = unsent.iter().map(|of_rank| of_rank.bytes.min(each)).collect();
        let taken: Vec<Vec<Range<usize>>> =
            unsent.iter_mut().zip(&counts).map(|(of_rank, count)| of_rank.take(*count)).collect();
        sent.clear();
        taken[rank].iter().for_each(|range| sent.extend_from_slice(&commit[range.clone()]));
        gathered.resize(counts.iter().sum(), 0);
        group.all_gather_v(&sent, &mut gathered, &counts)?;
        let mut left = gathered.as_slice();
        for (of, ranges) in taken.into_iter().enumerate() {
            for range in ranges {
                let (content, others) = left.split_at(range.len());
                left = others;
                if of != rank {
                    commit[range].copy_from_slice(content);
                }
            }
        }
        done += gathered.len() as u64;
        moved(done);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_covers_the_ranges_in_order_whatever_the_pieces() {
        let ranges = vec![3..10, 20..21, 40..55];
        let all: Vec<usize> = ranges.iter().cloned().flatten().collect();
        for piece in 1..30 {
            let mut unsent = UnsentRanges::new(ranges.clone());
            let mut taken = Vec::new();
            while unsent.bytes > 0 {
                taken.extend(unsent.take(piece.min(unsent.bytes)).into_iter().flatten());
            }
            assert_eq!(taken, all, "{piece} at a time");
        }
    }
}
