//! The records of the round's resets: the one under way, the past ones, what they undid and what caused them.

use elastic_protocol::messages::{StatusReport, UndoneTraining};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{ExitStatus, ResetCause, Stamp, Time, WorkerId};

use super::Round;
use crate::core::event::EventKind;
use crate::core::phase::{ResetRecord, RoundPhase};

impl Round {
    /// The reset under way.
    pub(crate) const fn reset(&self) -> Option<&ResetRecord> {
        self.reset.as_ref()
    }

    /// The last reset that is over.
    pub(crate) fn last_reset(&self) -> Option<&ResetRecord> {
        self.past_resets.back()
    }

    /// The last resets, the oldest first, with the one under way.
    pub(crate) fn recent_resets(&self) -> impl Iterator<Item = &ResetRecord> {
        let room = StatusReport::RESETS_RECENT_MAX - usize::from(self.reset.is_some());
        let skipped = self.past_resets.len().saturating_sub(room);
        self.past_resets.iter().skip(skipped).chain(self.reset.as_ref())
    }

    /// Notes training that the reset under way has undone: the most of any rank.
    pub(crate) fn note_undone(&mut self, undone: UndoneTraining) {
        if let Some(reset) = &mut self.reset {
            reset.undone = reset.undone.most(undone);
        }
    }

    /// Notes lost steps of the reset under way: the most of any rank.
    pub(crate) fn note_lost_steps(&mut self, steps: u64) {
        self.note_undone(UndoneTraining { steps, ms: 0 });
    }

    /// Takes back lost steps of the reset under way. Returns the number of those that it has not.
    pub(crate) fn take_back_lost_steps(&mut self, steps: u64) -> u64 {
        let Some(reset) = &mut self.reset else { return steps };
        let taken = steps.min(reset.undone.steps);
        reset.undone.steps -= taken;
        steps - taken
    }

    /// Replaces a provisional cause of the reset that ended this generation. The next one may have been formed
    /// meanwhile.
    pub(crate) fn correct_cause(&mut self, ended: Stamp, cause: ResetCause) {
        let cause = self.explained(cause);
        let reset = self.reset.as_mut();
        if let Some(reset) = reset.filter(|reset| reset.from == ended.generation) {
            reset.cause = cause;
        }
    }

    /// Puts the exit status of a worker in the place of its death, as the cause of the reset that it began. That reset
    /// may be over, since the others did not wait for the status, or not have begun. Returns whether a held report has
    /// its cause now.
    pub(crate) fn explain_death(&mut self, worker: &WorkerId, status: ExitStatus) -> bool {
        let death = ResetCause::WorkerDied { worker: worker.clone() };
        let cause = ResetCause::WorkerExited { worker: worker.clone(), status };
        let last = self.past_resets.back_mut().filter(|_| !is_planted(Bug::DeathStaysUnexplained));
        for reset in self.reset.as_mut().into_iter().chain(last) {
            if reset.cause == death {
                reset.cause = cause.clone();
            }
        }
        let held = self.held_report.as_mut().filter(|(reset, _)| reset.cause == death);
        held.map(|(reset, _)| reset.cause = cause).is_some()
    }

    /// Notes the exit status of a worker. Its death may have been known before, and the verdict upon that may come after.
    pub(crate) fn note_exit(&mut self, worker: &WorkerId, status: ExitStatus) {
        if !is_planted(Bug::ExitBeforeVerdictForgotten) {
            self.exits.insert(worker.clone(), status);
        }
    }

    /// The cause of a verdict, with the exit status if a death is the cause and its status is known by now.
    pub(crate) fn explained(&self, cause: ResetCause) -> ResetCause {
        let ResetCause::WorkerDied { worker } = &cause else { return cause };
        match self.exits.get(worker) {
            Some(status) => ResetCause::WorkerExited { worker: worker.clone(), status: *status },
            None => cause,
        }
    }

    /// Keeps a reset that is over until it is reported.
    pub(crate) fn hold_report(&mut self, reset: ResetRecord, until: Time) {
        self.held_report = Some((reset, until));
    }

    /// Takes the reset whose report is held.
    pub(crate) fn take_held_report(&mut self) -> Option<ResetRecord> {
        self.held_report.take().map(|(reset, _)| reset)
    }

    /// End of the wait of the report that is held.
    pub(crate) fn held_report_until(&self) -> Option<Time> {
        self.held_report.as_ref().map(|(_, until)| *until)
    }

    /// Notes that all members of the next generation are READY.
    pub(crate) const fn note_ready(&mut self, now: Time) {
        if let Some(reset) = &mut self.reset {
            reset.ready_at = Some(now);
        }
    }

    /// Ends the reset under way, since the next generation trains.
    pub(crate) fn end_reset(&mut self, now: Time) -> Option<ResetRecord> {
        let mut reset = self.reset.take()?;
        reset.synced_at = Some(now);
        if self.past_resets.len() == StatusReport::RESETS_RECENT_MAX {
            self.past_resets.pop_front();
        }
        self.past_resets.push_back(reset.clone());
        Some(reset)
    }

    pub(crate) fn start_reset_record(&mut self, now: Time, cause: ResetCause, evidence: Time) {
        let from = self.generation;
        let detect_ms = now.ms_since(evidence);
        // A generation that breaks before it trained belongs to the reset under way.
        let trained = matches!(self.phase, RoundPhase::Stopping { .. });
        let (decided_at, counts_from, detect_ms, undone) = match &self.reset {
            Some(reset) => {
                let counts_from = if trained { now } else { reset.counts_from };
                (reset.decided_at, counts_from, reset.detect_ms, reset.undone)
            }
            None => (now, now, detect_ms, UndoneTraining::default()),
        };
        self.reset = Some(ResetRecord {
            cause,
            from,
            to: from,
            decided_at,
            counts_from,
            detect_ms,
            ready_at: None,
            synced_at: None,
            undone,
        });
    }

    /// Notes that a member failed after its generation was broken. Whether it is to be told: the first few of a generation are, with
    /// other errors than the reset's cause.
    pub(crate) fn note_further_failure(&mut self, error: &str) -> bool {
        let RoundPhase::Gather(_) = &self.phase else { return false };
        let Some(reset) = &self.reset else { return false };
        let is_cause =
            matches!(&reset.cause, ResetCause::WorkerFailed { error: known, .. } if known == error);
        let is_told = !is_cause && (self.further_failures as usize) < EventKind::WORKERS_FAILED_MAX;
        self.further_failures += u32::from(is_told);
        is_told
    }

    /// Checks that a reset is under way in no phase that trains, and from the decision to stop at a boundary on; and that
    /// its members are READY while they sync, and not before.
    pub(super) fn check_reset(&self) -> Result<(), String> {
        let is_under_way = self.reset.is_some();
        let is_wrong = match self.phase {
            RoundPhase::Run | RoundPhase::Pausing { .. } => is_under_way,
            RoundPhase::Stopping { .. } => !is_under_way,
            _ => false,
        };
        if is_wrong {
            let phase = self.phase.name();
            return Err(format!("whether a reset is under way in phase {phase}: {is_under_way}"));
        }
        let is_ready = self.reset.as_ref().map(|reset| reset.ready_at.is_some());
        let syncs = matches!(self.phase, RoundPhase::Sync { .. });
        match is_ready {
            Some(is_ready) if is_ready != syncs && !self.phase.is_over() => {
                let phase = self.phase.name();
                Err(format!("whether all were READY in phase {phase}: {is_ready}"))
            }
            _ => Ok(()),
        }
    }
}
