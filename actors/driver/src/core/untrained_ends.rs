//! [`UntrainedEnds`]: programs that end without having trained. A program that calls `init()`, looks at its rank and ends with
//! code 0 has done its part, as under Horovod: the job succeeds when all its processes have ended so. But if another process
//! comes to train, those that have ended are missing, and count as failed. Called when a process ends (`losses`) and at each
//! review.

use std::collections::BTreeMap;

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{JobOutcome, Time, WorkerId, counted};
use serde::{Deserialize, Serialize};

use super::DriverCore;
use super::losses::ProcessExit;
use super::phase::RoundPhase;
use super::table::{SlotId, Stance, WorkerRecord};
use super::timers::Timer;

/// Failure of a process that has ended so and is missing.
pub(crate) const MISSING: &str =
    "it ended with code 0 before its first collective, and others train";

/// Slots whose process has ended so, while no other has come to train. They keep their ranks, and are not filled until one has.
/// A new driver does not know them, and starts their processes once more.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct UntrainedEnds(BTreeMap<SlotId, WorkerId>);

impl DriverCore {
    /// Whether a process has ended as a program does that does not train: with code 0, of its own accord, after it had joined the
    /// job and before any process came to a generation. Nothing in the library ends a program at this point. A process that was in
    /// one may come back in a new session, and end since it was told to: the word of that may be lost with the old session.
    pub(crate) fn is_untrained_end(&self, record: &WorkerRecord, exit: &ProcessExit) -> bool {
        record.is_before_arrival
            && record.stance != Stance::Leaving
            && record.leaving.is_none()
            && exit.status.is_success()
            && exit.stopped_by.is_none()
            && !self.is_by_restart()
            && matches!(self.round.phase(), RoundPhase::Gather(_))
            && self.round.current().is_none()
            && self.state.committed().is_none()
            && !self.is_anybody_at_rest()
    }

    /// Notes a process that has ended so.
    pub(crate) fn note_untrained_end(&mut self, now: Time, worker: &WorkerId) {
        let slot = (worker.host.clone(), worker.slot);
        self.untrained_ends.0.insert(slot, worker.clone());
        self.agenda.ask_review(now);
    }

    /// Empty slots whose process is to be started.
    pub(crate) fn slots_to_fill(&self) -> Vec<SlotId> {
        let mut empty = self.roster.seating().empty();
        empty.retain(|slot| !self.untrained_ends.0.contains_key(slot));
        empty
    }

    /// Ends a job whose processes have all ended so. If one has come to train instead, counts the others as failed.
    pub(crate) fn consider_untrained_ends(&mut self, now: Time) {
        if self.untrained_ends.0.is_empty() {
            return;
        }
        if self.has_ended_untrained(now) && !is_planted(Bug::UntrainedJobGoesOn) {
            let ended = counted(self.untrained_ends.0.len() as u64, "worker");
            let reason = format!("{ended} ended with code 0, and the program has not trained");
            let result = self.result(JobOutcome::Succeeded, 0, reason, None);
            return self.end(now, result);
        }
        let has_begun = !matches!(self.round.phase(), RoundPhase::Gather(_));
        if has_begun || self.is_anybody_at_rest() {
            for worker in std::mem::take(&mut self.untrained_ends.0).into_values() {
                self.note_failure(&worker, None, MISSING);
                self.count_failure(now, &worker, MISSING);
            }
            self.roster.refresh_seating(now, &self.round);
        }
    }

    /// Whether all processes of the job have ended so. A slot whose process failed is tried again first. A process that is out of
    /// reach is waited for as long as it may live without a driver, and not needed then if the others are enough.
    fn has_ended_untrained(&mut self, now: Time) -> bool {
        let is_in_back_off = |until: Option<Time>| until.is_some_and(|until| until > now);
        // A process that was told to leave keeps that stance if its host is lost then.
        let is_in_reach = |(worker, record): (&WorkerId, &WorkerRecord)| {
            record.stance != Stance::Lost && self.roster.agent_of(worker).is_some()
        };
        if self.untrained_ends.0.len() < self.workers_needed() as usize
            || self.roster.workers().any(is_in_reach)
            || !self.slots_to_fill().is_empty()
            || self.roster.slots().any(|(_, record)| is_in_back_off(record.backoff_until))
        {
            return false;
        }
        let Some(last) = self.roster.workers().map(|(_, record)| record.since).max() else {
            return true;
        };
        let ended_by = last + self.ended_alone_within();
        if now < ended_by {
            self.agenda.set(ended_by, Timer::LastCall);
        }
        now >= ended_by
    }

    /// Whether a worker waits for a generation.
    fn is_anybody_at_rest(&self) -> bool {
        self.roster.workers().any(|(_, record)| record.stance == Stance::Arrived)
    }
}
