//! Rule: a job that is asked to end while it trains saves a commit first (C-1), unless the driver says why it could not. Called
//! for the operator's request and for the driver's events.

use elastic_protocol::JobOutcome;

use super::super::driver::ObservedPhase;
use super::super::{MS, World};

/// Longest time by which the driver's knowledge of steps is behind the members.
const BEHIND_NS: u64 = 1_000 * MS;

/// Commits that are to be safe when a job is asked to end.
#[derive(Debug, Default)]
pub(in crate::cores) struct SaveBeforeStop {
    /// The step that all members had committed then.
    committed: Option<u64>,
    /// World time until which the driver lets the job's end wait for a save.
    pub(in crate::cores) until: Option<u64>,
}

impl SaveBeforeStop {
    /// The driver has said why a step could not be saved.
    pub(super) const fn forget(&mut self) {
        self.committed = None;
    }
}

impl World {
    /// The job is asked to end.
    pub(in crate::cores) fn note_stop_asked(&mut self) {
        self.driver.before_stop.committed = self.commit_to_save();
    }

    /// The step that all members of the generation that trains have committed. None if it may be that they cannot save one.
    pub(super) fn commit_to_save(&self) -> Option<u64> {
        let has_checkpoints =
            self.scenario.driver.checkpoint.is_some() && self.options.job.is_in_process();
        let trains = self.driver.phase == ObservedPhase::Run && self.driver.result.is_none();
        let is_calm = self.calm_before_fault > BEHIND_NS.max(2 * self.commit_ns());
        if !has_checkpoints || !trains || !is_calm || self.storage.hangs_in(self.driver.stamp) {
            return None;
        }
        let programs = self.driver.members.iter().map(|it| &self.processes[*it as usize].program);
        let steps = programs.map(|program| {
            let trains = program.trains_in(self.driver.stamp);
            program.saved.filter(|_| trains).map(|saved| saved.model.step)
        });
        steps.min().flatten()
    }

    /// Most steps by which the driver's knowledge is behind the members, and by which a save may be behind that.
    pub(super) fn steps_behind(&self) -> u64 {
        BEHIND_NS / self.scenario.step_ns.max(1) + 2 * self.scenario.commit_every
    }

    /// The driver lets the job's end wait for a save.
    pub(in crate::cores) fn note_stopping(&mut self, within_ms: u64) {
        self.driver.before_stop.until = Some(self.now + within_ms * MS);
    }

    /// Checks the storage when the driver ends a job.
    pub(in crate::cores) fn check_saved_before_stop(
        &mut self,
        outcome: JobOutcome,
    ) -> Result<(), String> {
        let asked = std::mem::take(&mut self.driver.before_stop);
        let Some(step) = asked.committed.filter(|_| outcome == JobOutcome::Stopped) else {
            return Ok(());
        };
        let newest = self.storage.newest(self.driver.job);
        if newest.unwrap_or(0) + self.steps_behind() >= step {
            return Ok(());
        }
        Err(format!(
            "C-1: the job was asked to end when all members had committed step {step}; the newest checkpoint is of \
             {newest:?}, and nobody has said why"
        ))
    }
}
