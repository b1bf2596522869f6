//! Reports a reset: as it ends, or, if the exit status of the death that began it is still awaited, as soon as that is
//! known. A part of the core; called when a generation trains (`gather`), when an exit is known (`losses`), and before the
//! next reset or the job's end is reported.
//!
//! Survivors may train again before the system has cleared a dead process's memory, which takes 0.2 s a GB. The report
//! has the exit status of the process, since it stays in the event log.

use std::time::Duration;

use elastic_protocol::{ResetCause, Time};

use super::DriverCore;
use super::event::EventKind;
use super::phase::ResetRecord;
use super::table::Stance;
use super::timers::Timer;

/// Longest wait of a reset's report for the exit status of the death that began it.
const STATUS_WITHIN: Duration = Duration::from_secs(1);

impl DriverCore {
    /// Reports a reset that has ended just now, or holds the report until its cause has an exit status.
    pub(crate) fn report_reset(&mut self, now: Time, reset: ResetRecord) {
        let lacks_status = match &reset.cause {
            ResetCause::WorkerDied { worker } => {
                self.roster.worker(worker).is_some_and(|record| record.stance == Stance::Dying)
            }
            _ => false,
        };
        self.round.hold_report(reset, now + STATUS_WITHIN);
        if lacks_status {
            self.agenda.set(now + STATUS_WITHIN, Timer::ResetReport);
        } else {
            self.report_held_reset();
        }
    }

    /// Reports the reset whose report is held, with its cause as it is known now.
    pub(crate) fn report_held_reset(&mut self) {
        let Some(reset) = self.round.take_held_report() else { return };
        self.event(EventKind::ResetDone {
            ms: reset.phases(),
            cause: reset.cause,
            from: reset.from,
            steps_lost: reset.undone.steps,
            lost_ms: reset.undone.ms,
        });
        self.tell_first_steps_if_known();
    }

    /// Handles the end of a report's wait.
    pub(crate) fn handle_report_deadline(&mut self, now: Time) {
        if self.round.held_report_until().is_some_and(|until| until <= now) {
            self.report_held_reset();
        }
    }
}
