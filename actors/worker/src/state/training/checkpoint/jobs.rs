//! The jobs of a worker's writer: the one that it carries out, and those that wait for it. The desk puts them, and gives up
//! parts that are vain: those of a save that its generation did not outlive, or that a later order took the place of. The
//! writer's thread takes them (`writer`), and looks here between two pieces of a part.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use elastic_checkpoint::Retention;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Stamp, Step};

use super::desk::{SaveOrder, SavedCommit};

/// Work for the writer.
#[derive(Debug)]
pub(super) enum WriterJob {
    /// Write this rank's part.
    Part { order: SaveOrder, commit: SavedCommit },
    /// Make the checkpoint whole.
    Seal { order: SaveOrder, retention: Retention },
}

impl WriterJob {
    pub(super) const fn order(&self) -> &SaveOrder {
        match self {
            Self::Part { order, .. } | Self::Seal { order, .. } => order,
        }
    }

    pub(super) const fn is_part(&self) -> bool {
        matches!(self, Self::Part { .. })
    }
}

/// Reason for which a job is not taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Refusal {
    /// A seal waits for nobody, and of parts one waits at most.
    Busy,
    /// The writer's thread has ended.
    HasEnded,
}

#[derive(Debug, Default)]
struct JobsState {
    current: Option<CurrentJob>,
    /// At most a seal, and a part behind it.
    next: VecDeque<WriterJob>,
    /// Whether no other job is taken.
    is_closed: bool,
}

/// The job that the writer carries out.
#[derive(Debug)]
struct CurrentJob {
    save: (Stamp, Step),
    is_part: bool,
    is_given_up: bool,
}

impl JobsState {
    fn begin_next(&mut self) -> Option<WriterJob> {
        let job = self.next.pop_front()?;
        let (save, is_part) = (job.order().save(), job.is_part());
        self.current = Some(CurrentJob { save, is_part, is_given_up: false });
        Some(job)
    }

    /// Takes out the parts that wait, but those of this save.
    fn take_parts(&mut self, but_of: Option<(Stamp, Step)>) -> Vec<WriterJob> {
        let is_vain = |job: &WriterJob| job.is_part() && Some(job.order().save()) != but_of;
        let (vain, others): (Vec<_>, Vec<_>) = self.next.drain(..).partition(is_vain);
        self.next = others.into();
        vain
    }
}

/// The jobs of one writer.
#[derive(Debug, Default)]
pub(super) struct WriterJobs {
    /// The lock is held for a few assignments only.
    state: Mutex<JobsState>,
    changed: Condvar,
}

impl WriterJobs {
    fn lock(&self) -> MutexGuard<'_, JobsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a job. A part waits behind the job that is carried out, which may be a part that was given up and whose write does
    /// not return. So at most two commits are held.
    pub(super) fn put(&self, job: WriterJob) -> Result<(), Refusal> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(Refusal::HasEnded);
        }
        let waiting = state.next.iter().find(|it| it.is_part());
        let is_refused = match (job.is_part(), waiting.map(|it| it.order().save())) {
            // Its outcome answers both.
            (true, Some(save)) if save == job.order().save() => return Ok(()),
            (true, waiting) => waiting.is_some(),
            (false, _) => state.current.is_some() || !state.next.is_empty(),
        };
        if is_refused {
            return Err(Refusal::Busy);
        }
        state.next.push_back(job);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Gives up the parts, but those of one save. One that waits is dropped; the writer ends the one that it writes
    /// before its next piece, and removes its files.
    pub(super) fn give_up_parts(&self, but_of: Option<(Stamp, Step)>) {
        if is_planted(Bug::VainPartWritten) {
            return;
        }
        let mut state = self.lock();
        let vain = state.take_parts(but_of);
        if let Some(current) = &mut state.current
            && current.is_part
            && Some(current.save) != but_of
        {
            current.is_given_up = true;
        }
        drop(state);
        self.changed.notify_all();
        // A commit may be large: its memory is freed outside of the lock.
        drop(vain);
    }

    /// Whether a job waits.
    pub(super) fn has_next(&self) -> bool {
        !self.lock().next.is_empty()
    }

    /// Begins the next job, if one waits.
    pub(super) fn begin_next(&self) -> Option<WriterJob> {
        self.lock().begin_next()
    }

    /// Waits for the next job, and begins it. None once the jobs are closed.
    pub(super) fn begin(&self) -> Option<WriterJob> {
        let is_idle = |state: &mut JobsState| state.next.is_empty() && !state.is_closed;
        let state = self.changed.wait_while(self.lock(), is_idle);
        state.unwrap_or_else(PoisonError::into_inner).begin_next()
    }

    /// The job that was begun has ended.
    pub(super) fn end(&self) {
        self.lock().current = None;
    }

    /// Waits for this time, or until the part that is being written is given up. Returns whether it is.
    pub(super) fn is_given_up_within(&self, time: Duration) -> bool {
        let is_given_up =
            |state: &JobsState| state.current.as_ref().is_some_and(|current| current.is_given_up);
        let waited =
            self.changed.wait_timeout_while(self.lock(), time, |state| !is_given_up(state));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        is_given_up(&state)
    }

    /// Takes no other job. Those that wait are still carried out.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Closes the jobs when the writer's thread ends, by a panic too.
    pub(super) const fn closed_at_end(&self) -> impl Drop + '_ {
        ClosedAtEnd(self)
    }
}

struct ClosedAtEnd<'a>(&'a WriterJobs);

impl Drop for ClosedAtEnd<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use elastic_checkpoint::SaveAttempt;
    use elastic_protocol::{GenerationId, Term};

    use super::*;

    const STAMP: Stamp = Stamp { term: Term(1), generation: GenerationId(1) };

    fn order(step: u64) -> SaveOrder {
        let attempt = SaveAttempt {
            job: "9d1f".to_owned(),
            name: None,
            term: 1,
            generation: 1,
            step,
            world_size: 1,
            fields: None,
        };
        let directory = PathBuf::from("checkpoints");
        SaveOrder { stamp: STAMP, rank: 0, directory, attempt, bytes_per_s: None }
    }

    fn part(step: u64) -> WriterJob {
        let (tensors, position) = (Vec::new(), serde_json::Value::Null);
        let commit = SavedCommit { bytes: Arc::default(), tensors, position };
        WriterJob::Part { order: order(step), commit }
    }

    fn step_of(job: Option<WriterJob>) -> Option<u64> {
        job.map(|job| job.order().attempt.step)
    }

    #[test]
    fn c_4_one_part_waits_behind_a_write_that_does_not_return() {
        let jobs = WriterJobs::default();
        assert_eq!(jobs.put(part(5)), Ok(()));
        assert_eq!(step_of(jobs.begin()), Some(5));
        assert!(!jobs.is_given_up_within(Duration::ZERO));
        jobs.give_up_parts(Some((STAMP, Step(5))));
        assert!(!jobs.is_given_up_within(Duration::ZERO), "it is still wanted");
        jobs.give_up_parts(Some((STAMP, Step(6))));
        assert!(jobs.is_given_up_within(Duration::MAX), "at once");
        assert_eq!(jobs.put(part(6)), Ok(()), "the next one waits for it");
        assert_eq!(jobs.put(part(7)), Err(Refusal::Busy), "and no other one behind it");
        jobs.give_up_parts(Some((STAMP, Step(7))));
        assert_eq!(jobs.put(part(7)), Ok(()), "it takes the place of one that is in vain");
        assert_eq!(
            jobs.put(WriterJob::Seal { order: order(7), retention: Retention::newest(1) }),
            Err(Refusal::Busy)
        );
        jobs.end();
        assert_eq!(step_of(jobs.begin()), Some(7));
        assert!(!jobs.is_given_up_within(Duration::ZERO));
        jobs.end();
        assert!(jobs.begin_next().is_none());
    }

    #[test]
    fn c_4_a_checkpoint_that_is_being_made_whole_is_not_given_up() {
        let jobs = WriterJobs::default();
        assert_eq!(
            jobs.put(WriterJob::Seal { order: order(5), retention: Retention::newest(1) }),
            Ok(())
        );
        jobs.give_up_parts(None);
        assert_eq!(step_of(jobs.begin()), Some(5));
        jobs.give_up_parts(None);
        assert!(!jobs.is_given_up_within(Duration::ZERO));
        assert_eq!(jobs.put(part(6)), Ok(()));
        jobs.end();
        assert_eq!(step_of(jobs.begin_next()), Some(6));
    }

    #[test]
    fn a_writer_that_has_ended_takes_no_job() {
        let jobs = WriterJobs::default();
        assert_eq!(jobs.put(part(5)), Ok(()));
        drop(jobs.closed_at_end());
        assert_eq!(jobs.put(part(6)), Err(Refusal::HasEnded));
        assert_eq!(step_of(jobs.begin()), Some(5), "what waits is still carried out");
        assert!(jobs.begin().is_none());
    }
}
