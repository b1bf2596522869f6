//! What is held against slots: failures, with the back-off before the next process, until the host is out or the program
//! itself is at fault. Called where a loss is seen (`losses`).

use std::time::Duration;

use elastic_protocol::{Time, WorkerId};
use elastic_runtime::planted::{Bug, is_planted};
use elastic_runtime::restart::Backoff;

use super::DriverCore;
use super::config::{Mode, OnFailure};
use super::first_failure::shorten;
use super::output::DriverOutput;
use super::phase::Phase;
use super::table::SlotId;
use super::timers::Timer;

/// How long a slot whose worker failed stays empty: doubling with every failure.
const BACKOFF: Backoff = Backoff { base: Duration::from_millis(250), cap: Duration::from_secs(30) };

/// A program that fails so often on each slot before it attached anywhere is at fault itself.
const EARLY_FAILURES: u32 = 2;

impl DriverCore {
    /// A slot's worker failed: back-off or blacklist.
    pub(crate) fn count_failure(&mut self, now: Time, worker: &WorkerId, message: &str) {
        if self.phase.is_over() {
            return;
        }
        let is_by_restart = self.is_by_restart();
        let slot_id = (worker.host.clone(), worker.slot);
        let slot = self.slots.get_or_default(slot_id.clone());
        slot.failures += 1;
        slot.trains_since = None;
        let is_out = match self.config.on_failure {
            OnFailure::Blacklist => true,
            OnFailure::Restart => slot.failures > self.config.max_restarts,
        };
        if is_out {
            let reason = match self.config.on_failure {
                OnFailure::Blacklist => format!("{worker} failed: {}", shorten(message)),
                OnFailure::Restart => {
                    format!("slot {} failed {} times", worker.slot, slot.failures)
                }
            };
            slot.failures = 0;
            self.record_slot(&worker.host, worker.slot);
            self.output(DriverOutput::HostFailed { host: worker.host.clone(), reason });
            return;
        }
        // Restarting the whole group takes time enough the first time.
        let earlier = if is_by_restart { slot.failures - 1 } else { slot.failures };
        let wait = match earlier.checked_sub(1) {
            Some(earlier) => BACKOFF.wait(earlier, &mut self.rng),
            None => Duration::ZERO,
        };
        let until = now + wait;
        let until = if is_planted(Bug::BackOffNeverEnds) { Time(u64::MAX) } else { until };
        slot.backoff_until = Some(until);
        self.record_slot(&worker.host, worker.slot);
        self.timers.set(until, Timer::Slot(slot_id));
    }

    /// In process, a program that has attached nowhere and ends on every slot that the job can use, again and again,
    /// will not do better elsewhere: as where every worker raises (H-10). Not where hosts join as they like: the next
    /// one may be well.
    pub(crate) fn judge_early_failures(&mut self, now: Time) {
        if self.config.mode != Mode::InProcess || self.program_attaches || self.phase.is_over() {
            return;
        }
        let failing = self.slots.values().filter(|slot| slot.failures >= EARLY_FAILURES).count();
        let listed: usize = self.snapshot.hosts.iter().map(|entry| entry.slots as usize).sum();
        let usable = listed.min(self.config.max_np.map_or(usize::MAX, |max| max as usize));
        if !self.config.hosts_join && failing >= usable {
            let reason = format!(
                "the program ended on every slot {EARLY_FAILURES} times before its first call of the library"
            );
            self.fail_with_first_cause(now, &reason);
        }
    }

    /// A generation trains, perhaps with members whose slots have failed before.
    pub(crate) fn watch_failed_slots(&mut self, now: Time) {
        let alive = self.current.iter().flat_map(|current| &current.alive);
        let slots: Vec<SlotId> = alive.map(|worker| (worker.host.clone(), worker.slot)).collect();
        for slot in slots {
            self.consider_forgiveness(now, &slot);
        }
    }

    /// A slot that has been well for long begins from nothing: what befell it in the course of weeks is not one fault.
    /// One whose generation has ended just now is looked at again when the next one trains.
    pub(crate) fn consider_forgiveness(&mut self, now: Time, slot: &SlotId) {
        if !matches!(self.phase, Phase::Run) {
            return;
        }
        let Some(record) = self.slots.get_mut_untouched(slot) else { return };
        let alive = self.current.as_ref().map(|current| &current.alive);
        let trains =
            record.worker.as_ref().is_some_and(|it| alive.is_some_and(|all| all.contains(it)));
        if record.failures == 0 || !trains {
            return;
        }
        let Some(since) = record.trains_since else {
            record.trains_since = Some(now);
            let until = now + self.config.forgiven_after;
            return self.timers.set(until, Timer::Forgiveness(slot.clone()));
        };
        if now.since(since) >= self.config.forgiven_after {
            record.failures = 0;
            record.trains_since = None;
            self.record_slot(&slot.0, slot.1);
        }
    }
}
