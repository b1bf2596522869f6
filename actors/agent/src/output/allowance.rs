//! [`OutputAllowance`]: limits the output that is shown, by a long-run rate and a burst. Without I/O. Used by
//! `standard`.

use tokio::time::Instant;

/// Bounds of the output that an agent shows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ShownRate {
    /// Bytes a second, in the long run.
    pub bytes_per_s: u64,
    /// Bytes at once, after silence.
    pub burst_bytes: u64,
}

impl ShownRate {
    /// Rate for output that goes over a network into the log of a driver, together with that of all other hosts.
    pub const REMOTE: Self = Self { bytes_per_s: 1 << 20, burst_bytes: 16 << 20 };
}

/// Decision about a line of output.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// Show it; so many lines before it were not shown.
    Show { missed: u64 },
    /// Do not show it.
    Drop,
}

/// The allowance of one stream. Once it is used up, nothing is shown until a part of the burst has come together
/// again, so that the log has a few gaps with their counts and not one after each line.
#[derive(Debug)]
pub(super) struct OutputAllowance {
    rate: ShownRate,
    left: u64,
    at: Instant,
    missed: u64,
}

/// The part of the burst with which a stream goes on that had used its allowance up.
const RESUME_SHARE: u64 = 8;

impl OutputAllowance {
    pub(super) const fn new(rate: ShownRate, now: Instant) -> Self {
        Self { rate, left: rate.burst_bytes, at: now, missed: 0 }
    }

    pub(super) fn take(&mut self, now: Instant, bytes: usize) -> Verdict {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.refill(now);
        let is_dry = self.missed > 0 && self.left < self.rate.burst_bytes / RESUME_SHARE;
        if is_dry || bytes > self.left {
            self.missed += 1;
            return Verdict::Drop;
        }
        self.left -= bytes;
        Verdict::Show { missed: std::mem::take(&mut self.missed) }
    }

    /// Lines that were not shown, and not told of, at the end of the stream.
    pub(super) fn missed(&mut self) -> u64 {
        std::mem::take(&mut self.missed)
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        let earned = passed.as_micros() * u128::from(self.rate.bytes_per_s) / 1_000_000;
        let earned = u64::try_from(earned).unwrap_or(u64::MAX);
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(self.rate.burst_bytes);
            self.at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const RATE: ShownRate = ShownRate { bytes_per_s: 1_000, burst_bytes: 8_000 };

    #[test]
    fn s_12_a_flood_is_shown_up_to_the_burst_and_then_at_the_rate_with_the_count_of_what_is_missing()
     {
        let start = Instant::now();
        let mut allowance = OutputAllowance::new(RATE, start);
        let (mut shown, mut gaps, mut missed_in_all) = (0, 0, 0);
        for ms in 0..10_000 {
            // 100 kB a second.
            match allowance.take(start + Duration::from_millis(ms), 100) {
                Verdict::Show { missed } => {
                    shown += 100;
                    gaps += u64::from(missed > 0);
                    missed_in_all += missed;
                }
                Verdict::Drop => {}
            }
        }
        assert!((16_000..=18_000).contains(&shown), "{shown}");
        assert!(gaps <= 10, "a gap a second at most: {gaps}");
        missed_in_all += allowance.missed();
        assert_eq!(missed_in_all * 100 + shown, 1_000_000, "each line is shown or counted");
    }

    #[test]
    fn usual_output_is_shown_whole() {
        let start = Instant::now();
        let mut allowance = OutputAllowance::new(RATE, start);
        for second in 0..100 {
            let now = start + Duration::from_secs(second);
            assert_eq!(allowance.take(now, 900), Verdict::Show { missed: 0 });
        }
    }
}
