//! Pacing: slows down resets without progress, and ends the job when they do not stop. Used by `gather`.
//!
//! A cause that breaks a generation may break the next one as well: a worker without descriptors, or a program whose
//! second collective always fails. Failures counted against a slot or a host are bounded there. Other resets have no
//! such bound, and would follow each other as fast as generations form.

use std::time::Duration;

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Stamp, Time, WorkerId};

use super::DriverCore;
use super::output::EventKind;
use super::timers::Timer;

/// Fruitless resets in a row without a pause. Two deaths in a row are usual, and cost no delay.
const FREE: u32 = 2;
/// First pause; each pause is twice the one before, up to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LONGEST: Duration = Duration::from_secs(10);
/// Fruitless resets in a row at which a warning is given.
const WARNED_AT: u32 = 8;
/// Fruitless resets in a row that end the job, once they have gone on for the elastic timeout.
const ENDED_AT: u32 = 16;
/// Training time after which a generation counts as progress, whether or not it has committed.
const STEADY: Duration = Duration::from_secs(10);

/// Counter of resets in a row without progress.
#[derive(Debug, Default)]
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

    /// Text for `status` while the next generation is paused; none without a pause.
    pub(crate) fn put_off(&self, now: Time) -> Option<String> {
        (self.not_before > now).then(|| {
            let (resets, ms) = (self.fruitless, self.not_before.ms_since(now));
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

impl DriverCore {
    /// Whether the next generation of these members is put off, or the job has ended instead.
    pub(crate) fn is_put_off(&mut self, now: Time, members: &[WorkerId]) -> bool {
        self.count_fruitless_reset(now, members);
        if self.round.phase().is_over() {
            return true;
        }
        let not_before = self.pacing.not_before;
        if now < not_before && !is_planted(Bug::NoPauseBetweenResets) {
            self.agenda.set(not_before, Timer::LastCall);
            return true;
        }
        false
    }

    /// Counts the generation that ended last, once. Resets by restart are not counted: they come from deaths of
    /// processes, and each slot has its own back-off.
    fn count_fruitless_reset(&mut self, now: Time, members: &[WorkerId]) {
        let Some(ended) = self.round.current() else { return };
        let is_planned = self.round.reset().is_none_or(|reset| reset.cause.is_planned());
        if self.pacing.counted.replace(ended.stamp) == Some(ended.stamp)
            || is_planned
            || self.is_by_restart()
        {
            return;
        }
        let was_steady = self.pacing.running_since.is_some_and(|since| now >= since + STEADY);
        if was_steady || self.roster.best_step(members) > Some(ended.formation.step) {
            self.pacing.fruitless = 0;
            return;
        }
        if self.pacing.fruitless == 0 {
            self.pacing.since = now;
        }
        self.pacing.fruitless += 1;
        let (fruitless, since) = (self.pacing.fruitless, self.pacing.since);
        self.pacing.not_before = now + pause(fruitless);
        let cause = self.round.reset().map(|reset| reset.cause.to_string()).unwrap_or_default();
        if fruitless == WARNED_AT {
            let message = format!(
                "{fruitless} resets in a row have brought the job no further; the last cause: {cause}; \
                 generations are formed at growing intervals"
            );
            self.event(EventKind::Warning { message });
        }
        if fruitless >= ENDED_AT && now >= since + self.config.deadlines.elastic {
            let seconds = now.ms_since(since) / 1000.0;
            let reason = format!(
                "{fruitless} resets in a row within {seconds:.0} s have brought the job no further; the last cause: {cause}"
            );
            self.fail_with_first_cause(now, &reason);
        }
    }
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
}
