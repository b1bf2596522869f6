//! Shares of the members' step time that were not computation: data, commits, waiting for slow members. Written to the
//! event log now and then, for the goodput ledger. Called when step times come, and when a generation ends.

use std::time::Duration;

use elastic_protocol::messages::StepTimes;
use elastic_protocol::{Time, WorkerId};

use super::Stragglers;
use super::scoring::MemberPace;
use crate::core::DriverCore;
use crate::core::event::EventKind;

/// Shortest time between two reports in one generation, but for the one at its end.
const SHARES_EVERY: Duration = Duration::from_secs(30);

/// The same while a member is named as slow: it may be fast again long before the other time has passed.
const SHARES_EVERY_WHILE_SLOW: Duration = Duration::from_secs(5);

/// Shares are reported as multiples of one divided by this number: finer differences are noise.
const PARTS: f64 = 10_000.0;

/// Shares of the members' time.
#[derive(Debug, Default, PartialEq)]
struct StepShares {
    data: f64,
    commit: f64,
    straggler: f64,
    slowest: Option<WorkerId>,
}

impl DriverCore {
    /// Reports the shares of step time, if the last report is long enough ago.
    pub(super) fn tell_step_shares_in_turn(&mut self, now: Time) {
        let told_at = *self.stragglers.shares_told_at.get_or_insert(now);
        let every = match self.stragglers.named.is_empty() {
            true => SHARES_EVERY,
            false => SHARES_EVERY_WHILE_SLOW,
        };
        if now >= told_at + every {
            self.tell_step_shares(now);
        }
    }

    /// Reports the shares of step time in the generation under way since the last report.
    pub(crate) fn tell_step_shares(&mut self, now: Time) {
        if self.stragglers.stamp != self.round.stamp() {
            return;
        }
        let Some(told_at) = self.stragglers.shares_told_at.replace(now) else { return };
        let span = now.since(told_at);
        let StepShares { data, commit, straggler, slowest } =
            self.stragglers.step_shares(now, span);
        if span.is_zero() || data + commit + straggler == 0.0 {
            return;
        }
        let (ms, slowest) = (now.ms_since(told_at), slowest.into_iter().collect());
        self.event(EventKind::StepsMeasured { ms, data, commit, straggler, slowest });
    }
}

impl Stragglers {
    /// Shares of the last `span`, by the step times that the members have told last.
    fn step_shares(&self, now: Time, span: Duration) -> StepShares {
        let all = || self.paces.values().map(MemberPace::times);
        let whole: u64 = all().map(|times| times.step_us).sum();
        let share = |us: u64| match whole {
            0 => 0.0,
            _ => (us.min(whole) as f64 / whole as f64 * PARTS).round() / PARTS,
        };
        let of =
            |part: fn(StepTimes) -> u64| all().map(|times| part(times).min(times.step_us)).sum();
        let (data, commit) = (share(of(|times| times.data_us)), share(of(|times| times.commit_us)));
        let Some((slowest, slow_us, since)) = self.slowest_named() else {
            return StepShares { data, commit, ..StepShares::default() };
        };
        let waits =
            all().map(|times| slow_us.saturating_sub(times.compute_us).min(times.waiting_us));
        let waited = share(waits.sum());
        // It may have become slow in the midst of the span.
        let slow_for =
            now.since(since).min(span).as_secs_f64() / span.as_secs_f64().max(f64::EPSILON);
        let straggler = (waited * slow_for.min(1.0) * PARTS).round() / PARTS;
        let slowest = (straggler > 0.0).then(|| slowest.clone());
        StepShares { data, commit, straggler, slowest }
    }

    /// The slowest of the members that were named, its time of computation, and the time since which it is slow.
    fn slowest_named(&self) -> Option<(&WorkerId, u64, Time)> {
        let named = self.named.iter().filter_map(|(worker, named)| {
            Some((worker, self.paces.get(worker)?.times().compute_us, named.since))
        });
        named.max_by_key(|(_, compute_us, _)| *compute_us)
    }
}
