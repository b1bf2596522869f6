//! Rules for several lives of a driver in one job. Each number is given out once (D-1). A driver that was succeeded decides
//! nothing more (D-2). Called by `cores::driver`.

use elastic_protocol::{GenerationId, Stamp, Term, WorkerId};

use super::{JobNumber, JobRecord, Oracle};

/// Most resets whose decision is stored when a driver dies before it tells of them: that of a generation, and that of the next one,
/// which members are told while the first is being stored.
const RESETS_UNHEARD_MAX: u64 = 2;

/// Most resets of which a driver has told, and whose decision is not stored.
const RESETS_UNSTORED_MAX: u64 = 1;

impl Oracle {
    /// Checks D-1 when a driver begins a job or takes it over: its term is new.
    pub(crate) fn driver_began(&mut self, job: JobNumber, term: Term) -> Result<(), String> {
        let job = self.jobs.entry(job).or_default();
        if term <= job.term {
            return Err(format!(
                "D-1: a driver begins term {term}, and there was term {}",
                job.term
            ));
        }
        job.term = term;
        Ok(())
    }

    /// The newest driver decides to reset a generation. A planned end that becomes an abort counts as one reset.
    pub(crate) fn reset_decided(&mut self, job: JobNumber, ended: GenerationId) {
        let job = self.jobs.entry(job).or_default();
        if job.last_reset.replace(ended) != Some(ended) {
            job.resets += 1;
        }
    }

    /// Resets of a job, over all lives of its driver.
    pub(crate) fn resets_of(&self, job: JobNumber) -> u64 {
        self.jobs.get(&job).map_or(0, |job| job.resets)
    }

    /// Checks the number of resets that a driver goes on from (D-4), and counts on from it.
    pub(crate) fn taken_over(&mut self, job: JobNumber, resets: u64) -> Result<(), String> {
        let job = self.jobs.entry(job).or_default();
        let decided = std::mem::replace(&mut job.resets, resets);
        if resets < decided {
            // The last decision was not stored: the new driver decides on that generation's end again.
            job.last_reset = None;
        }
        let (unheard, unstored) = (resets.saturating_sub(decided), decided.saturating_sub(resets));
        if unheard <= RESETS_UNHEARD_MAX && unstored <= RESETS_UNSTORED_MAX {
            return Ok(());
        }
        Err(format!("D-4: a new driver goes on from {resets} resets, and {decided} were decided"))
    }

    /// A job was recorded: it had so many resets, and this was the highest step that a member had committed.
    pub(crate) fn goes_on_from(&mut self, job: JobNumber, resets: u64, step: Option<u64>) {
        let job = self.jobs.entry(job).or_default();
        (job.resets, job.highest_step) = (resets, step);
    }

    /// Checks D-1 when the driver has a worker started: its incarnation is new.
    pub(crate) fn given(&mut self, job: JobNumber, worker: &WorkerId) -> Result<(), String> {
        let job = self.jobs.entry(job).or_default();
        if job.given.insert(worker.incarnation) {
            return Ok(());
        }
        Err(format!("D-1: the incarnation of {worker} was given out before"))
    }

    /// Checks D-2 for a generation that takes effect: its driver is the newest.
    pub(crate) fn takes_effect(
        &self,
        job: JobNumber,
        by: Term,
        stamp: Stamp,
    ) -> Result<(), String> {
        match self.jobs.get(&job).map(|job| job.term).filter(|term| by < *term) {
            None => Ok(()),
            Some(term) => Err(format!(
                "D-2: the driver of term {by} begins generation {} under term {term}",
                stamp.generation
            )),
        }
    }

    /// Whether a generation is known already, for example from a former driver.
    pub(crate) fn knows(&self, job: JobNumber, stamp: Stamp) -> bool {
        self.generation(job, stamp).is_some()
    }
}

impl JobRecord {
    /// Checks a formed generation: its number is new (D-1).
    pub(super) fn may_form(&self, stamp: Stamp) -> Result<(), String> {
        if stamp.generation <= self.newest.generation && stamp.term > self.newest.term {
            return Err(format!(
                "D-1: generation {} of term {} has the number of one of term {}",
                stamp.generation, stamp.term, self.newest.term
            ));
        }
        Ok(())
    }
}
