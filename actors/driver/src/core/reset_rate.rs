//! [`ResetRate`]: counts the unplanned resets of the last minutes, and how much of that time was trained. A part of the
//! core; `fruitless` acts on it.
//!
//! Resets in a row without progress have a bound of their own (`pacing`). A job whose generations each commit one step
//! before they break, or whose processes by restart end at once, never reaches that bound. Many resets alone are no
//! fault: training on hosts that come and go survives hundreds an hour. So a high count only causes a warning. The job ends
//! only if resets leave hardly any time to train.

use std::collections::VecDeque;
use std::time::Duration;

use elastic_protocol::Time;
use serde::{Deserialize, Serialize};

/// Part of the window that is counted together.
const MINUTE: Duration = Duration::from_secs(60);
/// Minutes of the window.
const MINUTES: usize = 10;
/// Unplanned resets within the window at which a warning is given.
pub(crate) const WARNED_AT: u32 = 20;
/// Least share of the window, in percent, that must be trained if each of its minutes had a reset.
pub(crate) const TRAINED_LEAST_PERCENT: f64 = 5.0;

/// Consequence of one more reset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RateVerdict {
    /// Nothing new.
    Bearable,
    /// Enough resets within the window for a warning, which was not given yet.
    Many { resets: u32, trained_percent: f64 },
    /// Too many resets within the window, and hardly any training.
    TooMany { resets: u32, trained_percent: f64 },
}

/// Unplanned resets of one minute.
#[derive(Debug, Deserialize, Serialize)]
struct ResetMinute {
    /// The minute's number since the node started.
    number: u64,
    resets: u32,
    /// Training time of the generations that ended in this minute.
    trained_ms: f64,
}

/// Unplanned resets of the window, by the minute. A minute without one is not listed.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct ResetRate {
    minutes: VecDeque<ResetMinute>,
    /// Time since which each minute has had a reset.
    since: Time,
    /// Whether the warning was given, and the count has not fallen since.
    is_warned: bool,
}

impl ResetRate {
    /// Counts a reset whose generation has trained for this long. Resets are borne for at least `patience`.
    pub(crate) fn count(
        &mut self,
        now: Time,
        trained: Duration,
        patience: Duration,
    ) -> RateVerdict {
        let number = minute_of(now);
        if self.minutes.back().is_none_or(|last| last.number + 1 < number) {
            self.since = now;
        }
        if self.minutes.back().is_none_or(|last| last.number != number) {
            self.minutes.push_back(ResetMinute { number, resets: 0, trained_ms: 0.0 });
        }
        if let Some(minute) = self.minutes.back_mut() {
            minute.resets += 1;
            minute.trained_ms += trained.as_secs_f64() * 1e3;
        }
        // The present minute has only begun: the window is the ten minutes before it, and this one.
        self.minutes.retain(|minute| minute.number + MINUTES as u64 >= number);
        let resets = self.minutes.iter().map(|minute| minute.resets).sum();
        let trained_ms: f64 = self.minutes.iter().map(|minute| minute.trained_ms).sum();
        let window_s = now.since(self.since).min(MINUTE * MINUTES as u32).as_secs_f64();
        let trained_percent = (trained_ms / 10.0 / window_s.max(1.0)).min(100.0);
        if resets < WARNED_AT {
            self.is_warned = false;
            return RateVerdict::Bearable;
        }
        let is_long = now >= self.since + patience.max(MINUTE * MINUTES as u32);
        if is_long && trained_percent < TRAINED_LEAST_PERCENT {
            return RateVerdict::TooMany { resets, trained_percent };
        }
        match std::mem::replace(&mut self.is_warned, true) {
            true => RateVerdict::Bearable,
            false => RateVerdict::Many { resets, trained_percent },
        }
    }

    /// Checks that the window is bounded and in order.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.minutes.len() > MINUTES + 1 {
            return Err(format!("resets of {} minutes are kept", self.minutes.len()));
        }
        let mut pairs = self.minutes.iter().zip(self.minutes.iter().skip(1));
        match pairs.all(|(one, next)| one.number < next.number) {
            true => Ok(()),
            false => Err("minutes of resets are out of order".to_owned()),
        }
    }
}

fn minute_of(now: Time) -> u64 {
    now.since(Time::ZERO).as_secs() / MINUTE.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_ms(seconds * 1000)
    }

    /// Counts a reset at each interval of seconds, each after this training. Returns the verdicts other than `Bearable`.
    fn resets(every: u64, until: u64, trained: Duration) -> Vec<(u64, RateVerdict)> {
        let mut rate = ResetRate::default();
        let verdicts = (0..until).step_by(every as usize).map(|second| {
            let verdict = rate.count(at(second), trained, Duration::ZERO);
            rate.check().expect("it is in order");
            (second, verdict)
        });
        verdicts.filter(|(_, verdict)| *verdict != RateVerdict::Bearable).collect()
    }

    #[test]
    fn many_resets_of_a_job_that_trains_are_told_once() {
        // The rate of resets of `bench recovery`, for an hour.
        let told = resets(3, 3600, Duration::from_millis(2900));
        assert!(matches!(told[..], [(57, RateVerdict::Many { resets: 20, .. })]), "{told:?}");
    }

    #[test]
    fn a_job_that_hardly_trains_is_ended_once_the_window_is_full() {
        let told = resets(10, 3600, Duration::from_millis(100));
        assert!(matches!(told[0], (190, RateVerdict::Many { .. })), "{told:?}");
        let (at, verdict) = told[1];
        let RateVerdict::TooMany { resets, trained_percent } = verdict else { panic!("{told:?}") };
        assert_eq!((at, resets), (600, 61));
        assert!(trained_percent < 2.0, "{trained_percent}");
    }

    #[test]
    fn a_minute_without_a_reset_and_few_resets_are_borne() {
        // Between two waves of resets the hosts are away for two minutes.
        let mut rate = ResetRate::default();
        for second in (0..3600).filter(|second| second % 300 < 150) {
            let verdict = rate.count(at(second), Duration::ZERO, Duration::ZERO);
            assert!(!matches!(verdict, RateVerdict::TooMany { .. }), "at {second} s: {verdict:?}");
        }
        assert_eq!(resets(40, 3600, Duration::ZERO), []);
    }

    #[test]
    fn a_job_that_waits_longer_for_workers_bears_resets_for_as_long() {
        let mut rate = ResetRate::default();
        let patience = Duration::from_secs(1800);
        let ends = (0..3600).step_by(10).find(|second| {
            let verdict = rate.count(at(*second), Duration::ZERO, patience);
            matches!(verdict, RateVerdict::TooMany { .. })
        });
        assert_eq!(ends, Some(1800));
    }

    #[test]
    fn a_further_wave_is_told_again() {
        let mut rate = ResetRate::default();
        let mut warnings = 0;
        for second in [0..30, 2000..2030].into_iter().flatten() {
            let verdict = rate.count(at(second), Duration::from_secs(1), Duration::ZERO);
            warnings += u32::from(matches!(verdict, RateVerdict::Many { .. }));
        }
        assert_eq!(warnings, 2);
    }
}
