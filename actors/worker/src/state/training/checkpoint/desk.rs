//! Desk for orders to save a checkpoint. The actor thread leaves an order to save a step, and the training thread takes
//! it at that step's commit. One lock decides between them: an order that comes after the commit is *missed*, never
//! half taken.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use elastic_checkpoint::{CheckpointTensor, Retention, SaveAttempt, StateFields, store_of};
use elastic_protocol::messages::{BulkWork, CheckpointOrder, CheckpointReport, MovedBytes};
use elastic_protocol::{Stamp, Step};
use serde_json::Value;

use super::jobs::{Refusal, WriterJob, WriterJobs};
use super::writer::{self, PartWriter};
use crate::state::core::{CheckpointCommand, CheckpointOutcome, CheckpointPart};
use crate::state::training::control::StoreOf;

/// Sends an outcome to the State's actor. Never blocks.
pub(super) type TellOutcome = Arc<dyn Fn(CheckpointOutcome) + Send + Sync>;

/// An order that the training thread has taken.
#[derive(Clone, Debug)]
pub(in crate::state::training) struct SaveOrder {
    pub(super) stamp: Stamp,
    pub(super) rank: u32,
    pub(super) directory: PathBuf,
    pub(super) attempt: SaveAttempt,
    pub(super) bytes_per_s: Option<u64>,
}

impl SaveOrder {
    fn of(part: CheckpointPart, fields: Option<StateFields>) -> Self {
        let CheckpointPart { order, job, rank, parts } = part;
        let CheckpointOrder { stamp, step, directory, name, bytes_per_s, .. } = order;
        let attempt = SaveAttempt {
            job: job.to_string(),
            name,
            term: stamp.term.0,
            generation: stamp.generation.0,
            step: step.0,
            world_size: parts,
            fields,
        };
        Self { stamp, rank, directory: PathBuf::from(directory), attempt, bytes_per_s }
    }

    /// The save that it is a part of.
    pub(super) const fn save(&self) -> (Stamp, Step) {
        (self.stamp, Step(self.attempt.step))
    }
}

/// A commit that is to be saved.
#[derive(Debug)]
pub(in crate::state::training) struct SavedCommit {
    pub(in crate::state::training) bytes: Arc<Vec<u8>>,
    pub(in crate::state::training) tensors: Vec<CheckpointTensor>,
    pub(in crate::state::training) position: Value,
}

#[derive(Default)]
struct Desk {
    /// The state's fields, where its type is a struct.
    fields: Option<StateFields>,
    /// The last commit of this generation.
    reached: Step,
    ordered: Option<SaveOrder>,
    /// The order of the step that was taken last, which a seal refers to.
    taken: Option<SaveOrder>,
    tell: Option<TellOutcome>,
    /// The writer, from its first job on.
    writer: Option<PartWriter>,
    /// Whether the caller of [`CheckpointDesk::write_next`] writes, and no thread.
    is_written_by_caller: bool,
}

/// Orders to save checkpoints, shared by the actor thread and the training thread.
pub struct CheckpointDesk {
    store_of: StoreOf,
    /// The lock is held for a few assignments only.
    desk: Mutex<Desk>,
    jobs: Arc<WriterJobs>,
    /// Bytes that the writer has written of its part, and those of that part; 0: it writes none.
    written: Arc<[AtomicU64; 2]>,
}

impl Default for CheckpointDesk {
    fn default() -> Self {
        Self::new(store_of)
    }
}

impl Drop for CheckpointDesk {
    fn drop(&mut self) {
        self.jobs.close();
    }
}

impl std::fmt::Debug for CheckpointDesk {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("CheckpointDesk")
    }
}

impl CheckpointDesk {
    /// A desk whose parts are written into these stores.
    pub fn new(store_of: StoreOf) -> Self {
        Self { store_of, desk: Mutex::default(), jobs: Arc::default(), written: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets where outcomes go that are not known at once. Called before training begins.
    pub fn tell_through(&self, tell: impl Fn(CheckpointOutcome) + Send + Sync + 'static) {
        self.lock().tell = Some(Arc::new(tell));
    }

    /// Makes [`write_next`](Self::write_next) write instead of a thread. Called before training begins, by the
    /// simulation.
    pub fn write_by_caller(&self) {
        self.lock().is_written_by_caller = true;
    }

    /// Sets the state's fields. Called as a generation takes its state over.
    pub(in crate::state::training) fn set_fields(&self, fields: Option<StateFields>) {
        self.lock().fields = fields;
    }

    /// Whether the writer has a job that [`write_next`](Self::write_next) would carry out.
    pub fn is_write_due(&self) -> bool {
        self.jobs.has_next()
    }

    /// Carries the writer's next job out on the calling thread, if there is one.
    pub fn write_next(&self) {
        let Some(writer) = self.lock().writer.clone() else { return };
        if let Some(job) = self.jobs.begin_next() {
            writer.carry_out(job);
        }
    }

    /// The part that is being written.
    pub(in crate::state::training) fn saving(&self) -> Option<MovedBytes> {
        let [done, total] = &*self.written;
        let (done, total) = (done.load(Ordering::Relaxed), total.load(Ordering::Relaxed));
        (total > 0).then_some(MovedBytes { work: BulkWork::SavesCheckpoint, done, total })
    }

    /// Actor, while the training thread is at rest: forgets the orders of the generation that ended. A part that is still being
    /// written is vain, and is given up.
    pub(in crate::state::training) fn begin_generation(&self) {
        let mut desk = self.lock();
        (desk.ordered, desk.taken, desk.reached) = (None, None, Step::default());
        drop(desk);
        self.jobs.give_up_parts(None);
    }

    /// Actor: leaves an order. Returns the outcome where it is known at once. A driver has one save under way: the part of another
    /// one, which a former driver had ordered for example, is vain.
    pub fn command(&self, command: CheckpointCommand) -> Option<CheckpointOutcome> {
        match command {
            CheckpointCommand::Save(part) => {
                let (stamp, step) = (part.order.stamp, part.order.step);
                let mut desk = self.lock();
                if desk.reached >= step {
                    let report = CheckpointReport::Missed { reached: desk.reached };
                    return Some(CheckpointOutcome { stamp, step, report });
                }
                desk.ordered = Some(SaveOrder::of(part, desk.fields.clone()));
                drop(desk);
                self.jobs.give_up_parts(Some((stamp, step)));
                None
            }
            CheckpointCommand::Seal { stamp, step, keep, spared } => {
                let order = self.lock().taken.clone();
                let order = order.filter(|it| (it.stamp, it.attempt.step) == (stamp, step.0))?;
                let keep = usize::try_from(keep).unwrap_or(usize::MAX);
                let retention = Retention { keep, spared: spared.map(|step| step.0) };
                self.hand(WriterJob::Seal { order, retention }).err()
            }
        }
    }

    /// Training thread: this commit is about to be made. Returns the order if it is the one to save.
    pub(in crate::state::training) fn reach(&self, stamp: Stamp, step: Step) -> Option<SaveOrder> {
        let mut desk = self.lock();
        desk.reached = step;
        let is_due = |order: &mut SaveOrder| order.stamp == stamp && order.attempt.step == step.0;
        if let Some(order) = desk.ordered.take_if(is_due) {
            desk.taken = Some(order.clone());
            return Some(order);
        }
        None
    }

    /// Training thread, after the end of training: takes the order to save the commit with which it ended.
    pub(in crate::state::training) fn take_last(&self, part: CheckpointPart) -> SaveOrder {
        let mut desk = self.lock();
        let order = SaveOrder::of(part, desk.fields.clone());
        (desk.ordered, desk.taken) = (None, Some(order.clone()));
        drop(desk);
        self.jobs.give_up_parts(Some(order.save()));
        order
    }

    /// Training thread: a commit that was to be saved could not be encoded.
    pub(in crate::state::training) fn fail(&self, order: &SaveOrder, reason: String) {
        let (stamp, step) = (order.stamp, Step(order.attempt.step));
        let report = CheckpointReport::Failed { reason };
        if let Some(tell) = self.lock().tell.clone() {
            tell(CheckpointOutcome { stamp, step, report });
        }
    }

    /// Training thread: the generation begins from this commit. An order that came before is missed if it is of an
    /// earlier step: where none of the members held a commit, the driver does not know the step.
    pub(in crate::state::training) fn begin_from(&self, step: Step) {
        let (missed, tell) = {
            let mut desk = self.lock();
            desk.reached = step;
            let missed = desk.ordered.take_if(|order| order.attempt.step <= step.0);
            (missed, desk.tell.clone())
        };
        if let (Some(order), Some(tell)) = (missed, tell) {
            let report = CheckpointReport::Missed { reached: step };
            tell(CheckpointOutcome { stamp: order.stamp, step: Step(order.attempt.step), report });
        }
    }

    /// Training thread: gives a commit away to be written. Does not wait.
    pub(in crate::state::training) fn give(&self, order: SaveOrder, commit: SavedCommit) {
        if let Err(outcome) = self.hand(WriterJob::Part { order, commit })
            && let Some(tell) = self.lock().tell.clone()
        {
            tell(outcome);
        }
    }

    /// Hands a job to the writer, whose thread is started with the first one. A part waits for the job before.
    fn hand(&self, job: WriterJob) -> Result<(), CheckpointOutcome> {
        let mut desk = self.lock();
        let Some(tell) = desk.tell.clone() else { return Ok(()) };
        let (stamp, step) = job.order().save();
        // Another order has come since this commit was made.
        if desk.ordered.is_some() && job.is_part() {
            return Ok(());
        }
        let failed = |reason: String| {
            let report = CheckpointReport::Failed { reason };
            Err(CheckpointOutcome { stamp, step, report })
        };
        if desk.writer.is_none() {
            let writer = PartWriter {
                store_of: self.store_of,
                tell,
                jobs: Arc::clone(&self.jobs),
                written: Arc::clone(&self.written),
            };
            if !desk.is_written_by_caller
                && let Err(error) = writer::start(writer.clone())
            {
                return failed(format!("no thread can be started to write it: {error}"));
            }
            desk.writer = Some(writer);
        }
        self.jobs.put(job).or_else(|refusal| match refusal {
            Refusal::Busy => failed("this worker is still busy with an earlier save".to_owned()),
            Refusal::HasEnded => failed("the thread that writes it has ended".to_owned()),
        })
    }
}

#[cfg(test)]
mod tests;
