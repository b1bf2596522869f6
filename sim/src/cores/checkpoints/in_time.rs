//! Bound on the work that a loss of all processes costs (C-1). While nothing is wrong with the storage, each checkpoint becomes
//! whole within one interval and the time of one save after the previous one. Called by `bounds` whenever the job is
//! undisturbed.

use elastic_driver::CheckpointEvery;

use super::super::bounds::SLACK_NS;
use super::super::driver::ObservedPhase;
use super::super::{MS, World};
use super::storage::WRITE_MS_MAX;

/// Steps between the highest reported step and the one that is ordered, where no order comes too late.
const LEAD_STEPS: u64 = 2;

impl World {
    /// Checks that the last checkpoint is not older than an interval and a save.
    pub(in crate::cores) fn check_checkpoints_in_time(&self) -> Result<(), String> {
        let Some(settings) = &self.scenario.driver.checkpoint else { return Ok(()) };
        let stamp = self.driver.stamp;
        if self.driver.phase != ObservedPhase::Run
            || !self.keeps_processes()
            || self.storage.hangs_in(stamp)
        {
            return Ok(());
        }
        let (interval, what) = match settings.every {
            CheckpointEvery::Period(period) => (period.as_nanos() as u64, "of time"),
            // The order is for the first multiple that is ahead, and one more is passed while the save before is written.
            CheckpointEvery::Steps(every) => (2 * every * self.commit_ns(), "of steps"),
        };
        // The ranks write their parts at once, and then one of them makes the checkpoint whole.
        let save = 2 * WRITE_MS_MAX * MS + LEAD_STEPS * self.commit_ns();
        let bound = interval + save + SLACK_NS;
        let since = self.driver.phase_since.max(self.storage.settled_at());
        let lasted = self.calm_for(since);
        if lasted <= bound {
            return Ok(());
        }
        let (lasted, bound) = (lasted / MS, bound / MS);
        Err(format!(
            "C-1: no checkpoint has become whole for {lasted} ms, bound {bound} ms, of an interval {what} and a save"
        ))
    }
}
