//! Slot-time by bucket over the job's whole life, in pieces that become wider as the job grows older. Kept by the ledger,
//! drawn by the page.

use elastic_protocol::Time;

use super::bucket::TimeBucket;
use super::spans::SlotSpan;
use super::totals::{BucketTotals, add_to, seconds, transfer_in};

/// Width of a piece at first, in nanoseconds: one second.
const WIDTH_FIRST: u64 = 1_000_000_000;

/// Most pieces. When there would be more, two neighbours become one.
const PIECES_MAX: usize = 512;

/// Sums of slot-time by bucket, for pieces of equal width without gaps.
#[derive(Clone, Debug)]
pub struct TotalsTimeline {
    /// Width of a piece in nanoseconds.
    width: u64,
    /// Number of the first piece: its start divided by the width.
    first: u64,
    pieces: Vec<BucketTotals>,
}

impl Default for TotalsTimeline {
    fn default() -> Self {
        Self { width: WIDTH_FIRST, first: 0, pieces: Vec::new() }
    }
}

impl TotalsTimeline {
    /// The pieces, each with its start, the oldest first.
    pub fn pieces(&self) -> impl Iterator<Item = (Time, &BucketTotals)> {
        let starts = (self.first..).map(|number| Time(number * self.width));
        starts.zip(&self.pieces)
    }

    /// Width of a piece, in seconds.
    pub fn width_seconds(&self) -> f64 {
        seconds(u128::from(self.width))
    }

    /// Adds `slots` in a bucket over a stretch of time.
    pub(super) fn add(&mut self, bucket: TimeBucket, slots: u64, start: Time, end: Time) {
        self.reach(start, end);
        add_to(self.overlapping(start, end), bucket, slots);
    }

    /// Moves a span from one bucket to another, as far as it is there.
    pub(super) fn transfer(&mut self, buckets: (TimeBucket, TimeBucket), span: &SlotSpan) {
        transfer_in(self.overlapping(span.start, span.end), buckets, span);
    }

    /// Makes the pieces up to a time, at first those from `start` on.
    fn reach(&mut self, start: Time, end: Time) {
        if self.pieces.is_empty() {
            self.first = start.0 / self.width;
        }
        while (end.0 / self.width).saturating_sub(self.first) >= PIECES_MAX as u64 {
            self.widen();
        }
        let pieces = (end.0 / self.width).saturating_sub(self.first) as usize + 1;
        if pieces > self.pieces.len() {
            self.pieces.resize(pieces, BucketTotals::default());
        }
    }

    /// Doubles the width.
    fn widen(&mut self) {
        let mut wider: Vec<BucketTotals> = Vec::with_capacity(self.pieces.len() / 2 + 1);
        let first = self.first / 2;
        for (number, totals) in (self.first..).zip(&self.pieces) {
            let index = (number / 2 - first) as usize;
            match wider.get_mut(index) {
                Some(sum) => sum.add_all(totals),
                None => wider.push(*totals),
            }
        }
        (self.width, self.first, self.pieces) = (self.width * 2, first, wider);
    }

    /// The pieces that a stretch of time overlaps, with the nanoseconds that they share.
    fn overlapping(
        &mut self,
        start: Time,
        end: Time,
    ) -> impl Iterator<Item = (u64, &mut BucketTotals)> {
        let (width, first) = (self.width, self.first);
        let skipped = (start.0 / width).saturating_sub(first);
        let upto = (end.0 / width + 1).saturating_sub(first);
        let length = self.pieces.len() as u64;
        let (from, upto) = (skipped.min(length) as usize, upto.min(length) as usize);
        let pieces = self.pieces[from..upto.max(from)].iter_mut();
        pieces.zip(first + from as u64..).filter_map(move |(totals, number)| {
            let (left, right) = (number * width, (number + 1) * width);
            let shared = end.0.min(right).saturating_sub(start.0.max(left));
            (shared > 0).then_some((shared, totals))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_ms(seconds * 1_000)
    }

    fn sum(timeline: &TotalsTimeline, bucket: TimeBucket) -> f64 {
        timeline.pieces().map(|(_, totals)| totals.seconds_of(bucket)).sum()
    }

    #[test]
    fn a_long_life_has_wider_pieces_and_no_second_less() {
        let mut timeline = TotalsTimeline::default();
        let (training, lost) = (TimeBucket::Training, TimeBucket::Lost);
        timeline.add(training, 2, at(101), at(103));
        assert_eq!((timeline.pieces().count(), timeline.width_seconds()), (3, 1.0));
        timeline.add(training, 3, at(103), at(100_000));
        assert!(timeline.pieces().count() <= PIECES_MAX);
        assert_eq!(timeline.width_seconds(), 256.0);
        assert_eq!(sum(&timeline, training), 4.0 + 3.0 * 99_897.0);
        timeline.transfer((training, lost), &SlotSpan::whole(3, at(99_990), at(100_000)));
        assert_eq!((sum(&timeline, lost), sum(&timeline, training)), (30.0, 299_665.0));
        let (start, last) = timeline.pieces().last().expect("pieces");
        assert!(start <= at(100_000) && last.sum() > 0);
    }

    #[test]
    fn a_stretch_before_the_first_piece_is_left_out() {
        let mut timeline = TotalsTimeline::default();
        let lost = (TimeBucket::Training, TimeBucket::Lost);
        timeline.transfer(lost, &SlotSpan::whole(1, at(0), at(9)));
        timeline.add(TimeBucket::Training, 1, at(10), at(12));
        timeline.transfer(lost, &SlotSpan::whole(1, at(0), at(11)));
        assert_eq!(sum(&timeline, TimeBucket::Lost), 1.0);
    }
}
