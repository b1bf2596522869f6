//! Rule: the commit with which training has ended is saved before the job's end is told (C-1), unless the driver has said that
//! it could not be. Called for the driver's events and its result.

use super::super::World;

impl World {
    /// The driver says that training has ended with success: notes the commit that all ranks hold now. None if a rank is gone.
    pub(in crate::cores) fn note_last_commit(&mut self) {
        let (job, stamp) = (self.driver.job, self.driver.stamp);
        let ended: Vec<_> = self
            .processes
            .iter()
            .filter(|process| process.job == job && process.stays())
            .map(|process| &process.program)
            .filter(|program| program.returned_in == stamp && program.has_returned())
            .collect();
        let step = |index: usize| Some(ended.get(index)?.saved?.model.step);
        let is_whole = ended.first().is_some_and(|one| one.world_size() as usize == ended.len());
        let are_alike = (0..ended.len()).all(|index| step(index) == step(0));
        self.driver.last_commit = step(0).filter(|_| is_whole && are_alike);
    }

    /// The driver says that a step could not be saved, or not yet.
    pub(in crate::cores) fn note_save_failed(&mut self) {
        self.driver.last_commit = None;
        self.driver.before_stop.forget();
        self.no_save_is_due_before_leaving();
    }

    /// World time until which the driver may wait for the last save if the storage hangs.
    pub(in crate::cores) fn last_save_until(&self) -> u64 {
        if self.scenario.driver.checkpoint.is_none() || !self.storage.hangs_in(self.driver.stamp) {
            return 0;
        }
        self.driver.phase_since + self.scenario.driver.deadlines.elastic.as_nanos() as u64
    }

    /// Checks the storage when the job's result is given out.
    pub(in crate::cores) fn check_last_commit_saved(&self) -> Result<(), String> {
        let Some(step) = self.driver.last_commit else { return Ok(()) };
        let newest = self.storage.newest(self.driver.job);
        if self.scenario.driver.checkpoint.is_none() || newest >= Some(step) {
            return Ok(());
        }
        Err(format!(
            "C-1: training has ended with step {step}, and the newest checkpoint is of {newest:?}; nobody has said why"
        ))
    }
}
