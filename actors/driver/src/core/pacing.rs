//! [`Pacing`]: the count of resets without progress, and the pause of the next generation after them. A part of the core;
//! `fruitless` acts on it.
//!
//! A cause that breaks a generation may break the next one as well: a worker without descriptors, or a program whose
//! second collective always fails. Failures counted against a slot or a host are bounded there. Other resets have no
//! such bound, and would follow each other as fast as generations form.

use std::time::Duration;

use elastic_protocol::{Stamp, Time};
use serde::{Deserialize, Serialize};

/// Fruitless resets in a row without a pause. Two deaths in a row are usual, and cost no delay.
const FREE: u32 = 2;
/// First pause; each pause is twice the one before, up to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LONGEST: Duration = Duration::from_secs(10);
/// Training time after which a generation counts as progress, whether or not it has committed.
const STEADY: Duration = Duration::from_secs(10);

/// Counter of resets in a row without progress.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Pacing {
    /// The ended generation that was counted last.
    counted: Option<Stamp>,
    /// Time since which the generation formed last trains; none if it does not.
    running_since: Option<Time>,
    /// Resets in a row whose generation got no further than the one before.
    fruitless: u32,
    /// Time at which the first of them was counted.
    since: Time,
    /// End of the pause: the next generation is not formed before.
    not_before: Time,
}

impl Pacing {
    pub(crate) const fn formed(&mut self) {
        self.running_since = None;
    }

    pub(crate) const fn runs(&mut self, now: Time) {
        self.running_since = Some(now);
    }

    /// Whether the generation formed last has trained.
    pub(crate) const fn has_run(&self) -> bool {
        self.running_since.is_some()
    }

    /// Time for which the generation formed last has trained, if it ended then.
    pub(crate) fn trained_until(&self, end: Time) -> Duration {
        self.running_since.map_or(Duration::ZERO, |since| end.since(since))
    }

    /// Notes that this generation has ended. False if it was noted before.
    pub(crate) fn note_ended(&mut self, ended: Stamp) -> bool {
        self.counted.replace(ended) != Some(ended)
    }

    /// Whether the generation formed last has trained for long.
    pub(crate) fn is_steady(&self, now: Time) -> bool {
        self.running_since.is_some_and(|since| now >= since + STEADY)
    }

    /// Notes that a generation got further than the one before.
    pub(crate) const fn got_on(&mut self) {
        self.fruitless = 0;
    }

    /// Counts a fruitless reset, after which a pause begins. Returns the number of them in a row, and the time of the
    /// first.
    pub(crate) fn count_fruitless(&mut self, now: Time) -> (u32, Time) {
        if self.fruitless == 0 {
            self.since = now;
        }
        self.fruitless += 1;
        self.not_before = now + pause(self.fruitless);
        (self.fruitless, self.since)
    }

    /// End of the pause; none if it is over.
    pub(crate) fn pause_ends(&self, now: Time) -> Option<Time> {
        Some(self.not_before).filter(|end| now < *end)
    }

    /// Checks that pauses come from fruitless resets.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        let fruitless = self.fruitless;
        if fruitless > 0 && self.counted.is_none() {
            return Err(format!("{fruitless} fruitless resets and no ended generation"));
        }
        if fruitless > 0 && self.not_before < self.since {
            return Err("the pause between generations ends before the first reset".to_owned());
        }
        Ok(())
    }

    /// Text for `status` while the next generation is paused; none without a pause.
    pub(crate) fn put_off(&self, now: Time) -> Option<String> {
        self.pause_ends(now).map(|end| {
            let (resets, ms) = (self.fruitless, end.ms_since(now));
            format!(
                "the pause after {resets} resets in a row without progress; {ms:.0} ms are left"
            )
        })
    }
}

/// Pause after this many fruitless resets in a row.
fn pause(fruitless: u32) -> Duration {
    let doublings = match fruitless.checked_sub(FREE + 1) {
        Some(doublings) => doublings.min(16),
        None => return Duration::ZERO,
    };
    (PAUSE_FIRST * (1 << doublings)).min(PAUSE_LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_begin_after_two_resets_double_and_are_bounded() {
        let pauses: Vec<_> = (0..7).map(|fruitless| pause(fruitless).as_millis()).collect();
        assert_eq!(pauses, [0, 0, 0, 50, 100, 200, 400]);
        assert_eq!(pause(u32::MAX), PAUSE_LONGEST);
    }

    #[test]
    fn a_generation_is_steady_once_it_has_trained_for_long() {
        let mut pacing = Pacing::default();
        pacing.runs(Time::from_ms(5));
        let steady = Time::from_ms(5) + STEADY;
        assert!(pacing.is_steady(steady));
        pacing.runs(Time::from_ms(6));
        assert!(!pacing.is_steady(steady));
    }

    #[test]
    fn a_row_of_fruitless_resets_begins_with_its_own_first() {
        let mut pacing = Pacing::default();
        assert_eq!(pacing.count_fruitless(Time::from_ms(5)), (1, Time::from_ms(5)));
        assert_eq!(pacing.count_fruitless(Time::from_ms(6)), (2, Time::from_ms(5)));
        pacing.got_on();
        assert_eq!(pacing.count_fruitless(Time::from_ms(9)), (1, Time::from_ms(9)));
    }
}
