//! Resets without progress: the next generation is formed after a pause, and the job ends when they do not stop. Resets
//! that leave hardly any time to train end it too. Called by `gather`.

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Step, Time, WorkerId};

use super::DriverCore;
use super::event::EventKind;
use super::phase::FormedGeneration;
use super::reset_rate::{RateVerdict, TRAINED_LEAST_PERCENT};
use super::timers::Timer;
use crate::journal::CheckpointImage;

/// Fruitless resets in a row at which a warning is given.
const WARNED_AT: u32 = 8;
/// Fruitless resets in a row that end the job, once they have gone on for the elastic timeout.
const ENDED_AT: u32 = 16;

impl DriverCore {
    /// Whether the next generation of these members is put off, or the job has ended instead.
    pub(crate) fn is_put_off(&mut self, now: Time, members: &[WorkerId]) -> bool {
        self.count_fruitless_reset(now, members);
        if self.round.phase().is_over() {
            return true;
        }
        let pause_ends = self.pacing.pause_ends(now);
        let Some(end) = pause_ends.filter(|_| !is_planted(Bug::NoPauseBetweenResets)) else {
            return false;
        };
        self.agenda.set(end, Timer::LastCall);
        true
    }

    /// Whether a generation that ended has brought these members further than where it began. Where it began from a checkpoint or
    /// from the start, a member may still hold an older commit, which is no progress.
    pub(crate) fn has_got_on(&self, ended: &FormedGeneration, members: &[WorkerId]) -> bool {
        let Some(best) = self.roster.best_commit(members) else { return false };
        if ended.began_from.is_some() {
            return best.step > ended.formation.step;
        }
        let is_earlier = |it: &CheckpointImage| it.generation < ended.stamp.generation;
        let checkpoint = self.checkpoints.last().filter(is_earlier);
        let began_at = checkpoint.map_or(Step::default(), |it| it.step);
        best.generation >= ended.stamp.generation && best.step > began_at
    }

    /// Counts the generation that ended last, once.
    fn count_fruitless_reset(&mut self, now: Time, members: &[WorkerId]) {
        let Some(ended) = self.round.current() else { return };
        let stamp = ended.stamp;
        let is_further = self.has_got_on(ended, members);
        let is_planned = self.round.reset().is_none_or(|reset| reset.cause.is_planned());
        if !self.pacing.note_ended(stamp) {
            return;
        }
        // By restart a generation's progress is not known, and each slot has its own back-off.
        if !self.is_by_restart() {
            // Progress counts however the generation ended.
            if is_further || self.pacing.is_steady(now) {
                self.pacing.got_on();
            } else if !is_planned {
                self.count_fruitless(now);
            }
        }
        if !is_planned && !self.round.phase().is_over() {
            self.count_against_rate(now);
        }
    }

    fn count_fruitless(&mut self, now: Time) {
        let (fruitless, since) = self.pacing.count_fruitless(now);
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

    /// Counts an unplanned reset among those of the last ten minutes.
    fn count_against_rate(&mut self, now: Time) {
        let Some(reset) = self.round.reset() else { return };
        let cause = reset.cause.to_string();
        let trained = self.pacing.trained_until(reset.decided_at);
        match self.reset_rate.count(now, trained, self.config.deadlines.elastic) {
            RateVerdict::Bearable => {}
            RateVerdict::Many { resets, trained_percent } => {
                let message = format!(
                    "{resets} resets within ten minutes, {trained_percent:.0} % of the time since the first was trained; \
                     the last cause: {cause}"
                );
                self.event(EventKind::Warning { message });
            }
            RateVerdict::TooMany { resets, trained_percent } => {
                let reason = format!(
                    "{resets} resets within ten minutes have left {trained_percent:.1} % of them to train, and \
                     {TRAINED_LEAST_PERCENT:.0} % is the least; the last cause: {cause}"
                );
                self.fail_with_first_cause(now, &reason);
            }
        }
    }
}
