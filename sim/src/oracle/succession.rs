//! Several lives of a driver, one job: no number is given out twice (D-1), and a driver that was succeeded
//! decides nothing more (D-2).

use elastic_protocol::{Stamp, Term, WorkerId};

use super::{Job, JobNumber, Oracle};

impl Oracle {
    /// A driver begins a job, or takes it over: D-1, its term is nobody else's.
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

    /// The driver has a worker started: D-1, its incarnation is nobody else's.
    pub(crate) fn given(&mut self, job: JobNumber, worker: &WorkerId) -> Result<(), String> {
        let job = self.jobs.entry(job).or_default();
        if job.given.insert(worker.incarnation) {
            return Ok(());
        }
        Err(format!("D-1: the incarnation of {worker} was given out before"))
    }

    /// Whether a generation is known: what a former driver has formed is no news under the next.
    pub(crate) fn knows(&self, job: JobNumber, stamp: Stamp) -> bool {
        self.generation(job, stamp).is_some()
    }
}

impl Job {
    /// A driver of a term tells that a generation is formed: it is the newest (D-2), and the number is no other
    /// generation's (D-1).
    pub(super) fn may_form(&self, by: Term, stamp: Stamp) -> Result<(), String> {
        if by < self.term {
            return Err(format!(
                "D-2: the driver of term {by} forms generation {} under term {}",
                stamp.generation, self.term
            ));
        }
        if stamp.generation <= self.newest.generation && stamp.term > self.newest.term {
            return Err(format!(
                "D-1: generation {} of term {} has the number of one of term {}",
                stamp.generation, stamp.term, self.newest.term
            ));
        }
        Ok(())
    }
}
