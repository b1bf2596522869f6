//! A job that the operator ends while it trains saves one more commit first, if it has checkpoints. Part of the core;
//! called by `ending`, `checkpoints` and `review`.
//!
//! Every member holds a commit that no checkpoint has. The next one is saved, in spite of `--checkpoint-every`, and then
//! the job ends as it was asked to. A save that fails, that its generation does not outlive, or that takes longer than
//! the grace period is given up, and told; a second request ends the job at once.

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{JobOutcome, Stamp, Step, Time};
use serde::{Deserialize, Serialize};

use super::DriverCore;
use super::event::EventKind;
use super::phase::RoundPhase;
use super::timers::Timer;

/// A request to end that waits for a checkpoint.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct PendingStop {
    signal: i32,
    reason: String,
    /// The generation that saves it.
    stamp: Option<Stamp>,
    /// Highest step that a member was known to have reached: a checkpoint of a later one is enough.
    reached: Step,
    until: Time,
}

impl DriverCore {
    /// Begins to save the next commit, since the operator ends the job. Returns whether the job's end waits for that.
    pub(crate) fn begin_stop_save(&mut self, now: Time, signal: i32, reason: &str) -> bool {
        let has_checkpoints = self.config.checkpoint.is_some() && !self.is_by_restart();
        if !has_checkpoints || is_planted(Bug::StopNotSaved) {
            return false;
        }
        if let Some(trouble) = self.trouble_of_stop_save(now) {
            if Some(self.highest_step()) > self.checkpoints.last_step() {
                self.tell_of_failed_stop_save(trouble);
            }
            return false;
        }
        self.record_stop(signal, reason);
        let reached = self.highest_step();
        let until = now + self.config.deadlines.grace;
        let reason = reason.to_owned();
        self.event(EventKind::Stopping { reason: reason.clone(), within_ms: self.grace_ms() });
        let stamp = self.round.stamp();
        self.stopping = Some(PendingStop { signal, reason, stamp, reached, until });
        self.agenda.set(until, Timer::Checkpoint);
        self.save_soon(now);
        true
    }

    /// Ends the job if the checkpoint that its end waits for is safe, or will not become so.
    pub(crate) fn consider_stop(&mut self, now: Time) {
        let Some(stop) = &self.stopping else { return };
        if self.checkpoints.last_step() > Some(stop.reached) {
            return self.finish_stop(now);
        }
        let (stamp, until) = (stop.stamp, stop.until);
        let trouble = if stamp != self.round.stamp() {
            "its generation has ended"
        } else if until <= now {
            "it was not safe within --grace-period"
        } else {
            let Some(trouble) = self.trouble_of_stop_save(now) else { return };
            trouble
        };
        self.give_up_stop_save(now, trouble);
    }

    /// The reason why no commit can be saved before the job ends, or before members leave.
    pub(crate) fn trouble_of_stop_save(&self, now: Time) -> Option<&'static str> {
        match self.round.phase() {
            RoundPhase::Run if self.takeover.is_none() => {}
            RoundPhase::Pausing { .. } | RoundPhase::Stopping { .. } => {
                return Some("its members are about to change");
            }
            _ => return Some("no generation trains now"),
        }
        if self.outbox.trouble().is_some() {
            return Some("no order can leave, as the journal cannot be written");
        }
        if !self.stalled_workers(now).is_empty() {
            return Some("a rank stands still");
        }
        (!self.can_save()).then_some("a rank is gone or has finished")
    }

    /// Ends the job without that checkpoint.
    pub(crate) fn give_up_stop_save(&mut self, now: Time, trouble: &str) {
        self.tell_of_failed_stop_save(trouble);
        self.finish_stop(now);
    }

    fn tell_of_failed_stop_save(&mut self, trouble: &str) {
        let step = self.checkpoints.saving().unwrap_or(self.highest_step());
        self.tell_of_failed_save(step, format!("the job was asked to end, and {trouble}"));
    }

    /// Ends the job as it was asked to.
    pub(crate) fn finish_stop(&mut self, now: Time) {
        let Some(stop) = self.stopping.take() else { return };
        let result = self.result(JobOutcome::Stopped, 128 + stop.signal, stop.reason, None);
        self.end(now, result);
    }

    /// The save that the job's end waits for, in words.
    pub(crate) fn awaited_before_stop(&self, now: Time) -> Option<String> {
        let PendingStop { reason, until, .. } = self.stopping.as_ref()?;
        let seconds = until.since(now).as_secs();
        let step =
            self.checkpoints.saving().map_or("the next step".to_owned(), |it| it.to_string());
        Some(format!(
            "{reason}: the commit of step {step} is being saved first, for at most {seconds} s"
        ))
    }
}
