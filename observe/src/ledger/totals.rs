//! Sums of slot-time by bucket: since the start, and of the last ten minutes. Used by the ledger.

use std::collections::VecDeque;
use std::time::Duration;

use elastic_protocol::Time;

use super::bucket::TimeBucket;
use super::spans::SlotSpan;

/// Slot-time by bucket, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BucketTotals([u128; TimeBucket::COUNT]);

impl BucketTotals {
    /// Slot-time of one bucket, in nanoseconds.
    pub const fn of(&self, bucket: TimeBucket) -> u128 {
        self.0[bucket as usize]
    }

    /// Slot-seconds of one bucket.
    pub fn seconds_of(&self, bucket: TimeBucket) -> f64 {
        seconds(self.of(bucket))
    }

    /// Slot-time of all buckets, in nanoseconds.
    pub fn sum(&self) -> u128 {
        self.0.iter().sum()
    }

    /// Share of the slot-time that went into training that was kept; none if there was no slot.
    pub fn goodput(&self) -> Option<f64> {
        let sum = self.sum();
        (sum > 0).then(|| seconds(self.of(TimeBucket::Training)) / seconds(sum))
    }

    /// The buckets with any time in them, in slot-seconds.
    pub fn non_empty(&self) -> impl Iterator<Item = (TimeBucket, f64)> {
        let all = TimeBucket::ALL.into_iter().filter(|bucket| self.of(*bucket) > 0);
        all.map(|bucket| (bucket, self.seconds_of(bucket)))
    }

    pub(super) const fn add(&mut self, bucket: TimeBucket, nanos: u128) {
        self.0[bucket as usize] += nanos;
    }

    /// Moves slot-time between two buckets, as far as it is there. Returns how much was moved.
    pub(super) fn transfer(&mut self, from: TimeBucket, to: TimeBucket, nanos: u128) -> u128 {
        let moved = nanos.min(self.of(from));
        self.0[from as usize] -= moved;
        self.0[to as usize] += moved;
        moved
    }

    pub(super) fn add_all(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

pub(super) fn seconds(nanos: u128) -> f64 {
    nanos as f64 / 1e9
}

/// Adds `slots` in a bucket to pieces of time, for the nanoseconds of each.
pub(super) fn add_to<'p>(
    pieces: impl Iterator<Item = (u64, &'p mut BucketTotals)>,
    bucket: TimeBucket,
    slots: u64,
) {
    for (nanos, totals) in pieces {
        totals.add(bucket, u128::from(nanos) * u128::from(slots));
    }
}

/// Moves a span from one bucket to another in pieces of time, for the nanoseconds of each, as far as they are there.
pub(super) fn transfer_in<'p>(
    pieces: impl Iterator<Item = (u64, &'p mut BucketTotals)>,
    (from, to): (TimeBucket, TimeBucket),
    span: &SlotSpan,
) {
    for (nanos, totals) in pieces {
        totals.transfer(from, to, span.nanos_of(nanos));
    }
}

/// Width of a piece of the recent past.
const PIECE: Duration = Duration::from_secs(10);

/// Pieces that are kept: ten minutes, and the piece that is being filled.
const PIECES_MAX: usize = 61;

/// The last ten minutes, in pieces of ten seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentTotals {
    /// Number of each piece (time divided by the width), and its sums; the oldest first, without gaps of kept time.
    pieces: VecDeque<(u64, BucketTotals)>,
}

impl RecentTotals {
    /// Adds `slots` in a bucket over a stretch of time.
    pub(super) fn add(&mut self, bucket: TimeBucket, slots: u64, start: Time, end: Time) {
        self.open(end);
        add_to(self.overlapping(start, end), bucket, slots);
    }

    /// Moves a span from one bucket to another, as far as it is there.
    pub(super) fn transfer(&mut self, buckets: (TimeBucket, TimeBucket), span: &SlotSpan) {
        transfer_in(self.overlapping(span.start, span.end), buckets, span);
    }

    /// The sum of all pieces that are not too old at this time.
    pub(super) fn sum(&self, now: Time) -> BucketTotals {
        let oldest = (number(now) + 1).saturating_sub(PIECES_MAX as u64);
        let mut sum = BucketTotals::default();
        for (_, totals) in self.pieces.iter().filter(|(number, _)| *number >= oldest) {
            sum.add_all(totals);
        }
        sum
    }

    /// Makes the pieces up to a time, and forgets those that are too old.
    fn open(&mut self, upto: Time) {
        let last = number(upto);
        let oldest = (last + 1).saturating_sub(PIECES_MAX as u64);
        let next = self.pieces.back().map_or(oldest, |(number, _)| number + 1).max(oldest);
        self.pieces.extend((next..=last).map(|number| (number, BucketTotals::default())));
        while self.pieces.front().is_some_and(|(number, _)| *number < oldest) {
            self.pieces.pop_front();
        }
    }

    /// The pieces that a stretch of time overlaps, with the nanoseconds that they share.
    fn overlapping(
        &mut self,
        start: Time,
        end: Time,
    ) -> impl Iterator<Item = (u64, &mut BucketTotals)> {
        let width = PIECE.as_nanos() as u64;
        self.pieces.iter_mut().filter_map(move |(number, totals)| {
            let (from, to) = (*number * width, (*number + 1) * width);
            let shared = end.0.min(to).saturating_sub(start.0.max(from));
            (shared > 0).then_some((shared, totals))
        })
    }
}

const fn number(at: Time) -> u64 {
    at.0 / PIECE.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_ms(seconds * 1_000)
    }

    #[test]
    fn the_recent_past_is_ten_minutes_however_long_ago_it_was_written() {
        let mut recent = RecentTotals::default();
        recent.add(TimeBucket::Starting, 2, at(0), at(3_600));
        recent.add(TimeBucket::Training, 2, at(3_600), at(3_603));
        let sum = recent.sum(at(3_603));
        let (starting, training) = (TimeBucket::Starting, TimeBucket::Training);
        assert_eq!((sum.seconds_of(starting), sum.seconds_of(training)), (1_200.0, 6.0));
        assert_eq!(recent.sum(at(9_999)).sum(), 0);
        recent.transfer((training, TimeBucket::Lost), &SlotSpan::whole(2, at(3_602), at(3_603)));
        let sum = recent.sum(at(3_603));
        assert_eq!((sum.seconds_of(training), sum.seconds_of(TimeBucket::Lost)), (4.0, 2.0));
    }

    #[test]
    fn nothing_is_moved_that_is_not_there() {
        let mut totals = BucketTotals::default();
        totals.add(TimeBucket::Training, 5);
        assert_eq!(totals.transfer(TimeBucket::Training, TimeBucket::Lost, 7), 5);
        assert_eq!((totals.of(TimeBucket::Lost), totals.sum()), (5, 5));
    }
}
