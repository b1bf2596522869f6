//! Durable checkpoints of the simulated programs, on storage that all hosts share. Parts take their time, fail, or hang, and
//! the storage loses power (`storage`). Part of the simulated world.

mod at_the_end;
pub(in crate::cores) mod before_leaving;
pub(in crate::cores) mod before_stop;
mod in_time;
mod storage;

use elastic_protocol::messages::{CheckpointReport, CheckpointSource};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Stamp, Step};
use elastic_worker::state::core::{
    CheckpointCommand, CheckpointOutcome, CheckpointPart, TrainingEvent,
};

pub(super) use self::storage::SharedStorage;
use self::storage::StorageResult;
use super::program::TrainedModel;
use super::state::ThreadTell;
use super::{Happening, World};

/// The words by which a driver tells that a checkpoint is not in its folder.
pub(super) const GONE_CHECKPOINT: &str = ", which this job has saved or loaded, is not in ";

/// A save at one worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartSave {
    stamp: Stamp,
    step: u64,
    /// The rank in that generation: by the end of a slow write the process may have another one.
    rank: u32,
    /// The number of ranks in that generation.
    ranks: u32,
    model: Option<TrainedModel>,
    /// Whether the writer is at it.
    pub(super) is_busy: bool,
}

impl World {
    /// Takes an order to save; returns the outcome where it is known at once.
    pub(crate) fn checkpoint_ordered(
        &mut self,
        process: u32,
        command: CheckpointCommand,
    ) -> Option<CheckpointOutcome> {
        let entry = &mut self.processes[process as usize];
        let place = entry.place;
        let program = &mut entry.program;
        match command {
            CheckpointCommand::Save(CheckpointPart { order, rank, parts, .. }) => {
                let (stamp, step) = (order.stamp, order.step);
                let reached = Step(program.saved.map_or(0, |saved| saved.model.step));
                let outcome = |report| Some(CheckpointOutcome { stamp, step, report });
                if program.generation == stamp && reached >= step {
                    return outcome(CheckpointReport::Missed { reached });
                }
                // A part that is still being written is in vain, and is given up: its end is not heard.
                let (ranks, step) = (parts, step.0);
                let part = PartSave { stamp, step, rank, ranks, model: None, is_busy: false };
                program.part = Some(part);
                self.decide(place, || format!("save step {step}"));
                None
            }
            // No simulated command names a checkpoint to begin from.
            CheckpointCommand::Seal { stamp, step, keep, spared: _ } => {
                self.decide(place, || format!("make step {step} whole"));
                let ranks = self.processes[process as usize].program.part.map_or(0, |it| it.ranks);
                let takes = self.begin_write(process, stamp)?;
                let whole = Happening::MadeWhole { process, stamp, step: step.0, ranks, keep };
                self.agenda.push(self.now + takes, whole);
                None
            }
        }
    }

    /// A commit was made. Begins to write its part if it is the one to save.
    pub(super) fn write_part_if_due(&mut self, process: u32, before: TrainedModel) {
        let program = &mut self.processes[process as usize].program;
        let (generation, mut model) = (program.generation, program.live);
        let Some(part) = &mut program.part else { return };
        if (part.stamp, part.step) != (generation, model.step) || part.is_busy {
            return;
        }
        if is_planted(Bug::LedgerOfAnotherStep) {
            model.consumed = before.consumed;
        }
        (part.model, part.is_busy) = (Some(model), true);
        let (stamp, step) = (part.stamp, part.step);
        self.begin_writing(process, stamp, step);
    }

    /// Training has ended, and its last commit is to be saved.
    pub(super) fn write_last_part(&mut self, process: u32, part: CheckpointPart) {
        let CheckpointPart { order, rank, parts: ranks, .. } = part;
        let (stamp, step) = (order.stamp, order.step.0);
        let program = &mut self.processes[process as usize].program;
        let model = program.saved.map(|saved| saved.model);
        // An earlier write may still be under way. It is given up, as nobody waits for its step.
        program.part = Some(PartSave { stamp, step, rank, ranks, model, is_busy: true });
        self.begin_writing(process, stamp, step);
    }

    fn begin_writing(&mut self, process: u32, stamp: Stamp, step: u64) {
        if let Some(takes) = self.begin_write(process, stamp) {
            let written = Happening::PartWritten { process, stamp, step };
            self.agenda.push(self.now + takes, written);
        }
    }

    /// The time that a write of a process takes. None if it hangs, or waits behind one that hangs: a write that does not return cannot
    /// be given up.
    fn begin_write(&mut self, process: u32, stamp: Stamp) -> Option<u64> {
        let program = &mut self.processes[process as usize].program;
        let takes = if program.writer_hangs { None } else { self.storage.draw_time() };
        if takes.is_none() {
            program.writer_hangs = true;
            self.storage.note_hang(stamp);
        }
        takes
    }

    /// A process has written its part.
    pub(super) fn handle_part_written(&mut self, process: u32, stamp: Stamp, step: u64) {
        if self.freeze(process, Happening::PartWritten { process, stamp, step }) {
            return;
        }
        let is_full = self.storage.draw_full();
        let entry = &mut self.processes[process as usize];
        let job = entry.job;
        let part = entry.program.part.as_mut();
        let Some(part) = part.filter(|part| (part.stamp, part.step) == (stamp, step)) else {
            return;
        };
        part.is_busy = false;
        let (rank, ranks, model) = (part.rank, part.ranks, part.model);
        let Some(model) = model else { return };
        let written = match rank < ranks {
            true => self.storage.write((job, stamp, step), (rank, ranks), model, is_full),
            false => Ok(StorageResult::Done),
        };
        let report = match written {
            Ok(StorageResult::Differ(reason)) => CheckpointReport::Differ { reason },
            Ok(StorageResult::Done) => CheckpointReport::PartSaved { bytes: 1 },
            Ok(StorageResult::Failed(reason)) => {
                self.storage.note_settled(self.now);
                CheckpointReport::Failed { reason }
            }
            Err(error) => return self.fail_safety(error),
        };
        let outcome = CheckpointOutcome { stamp, step: Step(step), report };
        self.tell(process, ThreadTell::Checkpoint(outcome));
    }

    /// A process has made a checkpoint of so many ranks whole.
    pub(super) fn handle_made_whole(
        &mut self,
        process: u32,
        save: (Stamp, u64),
        (ranks, keep): (u32, u32),
    ) {
        let (stamp, step) = save;
        if self.freeze(process, Happening::MadeWhole { process, stamp, step, ranks, keep }) {
            return;
        }
        let job = self.processes[process as usize].job;
        let is_full = self.storage.draw_full();
        let report = match self.storage.seal((job, stamp, step), (ranks, keep), is_full) {
            Ok(StorageResult::Done) => CheckpointReport::Sealed { bytes: 1, troubles: Vec::new() },
            Ok(StorageResult::Differ(reason)) => {
                self.storage.note_settled(self.now);
                CheckpointReport::Differ { reason }
            }
            Ok(StorageResult::Failed(reason)) => {
                self.storage.note_settled(self.now);
                CheckpointReport::Failed { reason }
            }
            Err(error) => return self.fail_safety(error),
        };
        let outcome = CheckpointOutcome { stamp, step: Step(step), report };
        self.tell(process, ThreadTell::Checkpoint(outcome));
    }

    /// Checks the driver's report that a checkpoint is saved.
    pub(super) fn check_checkpoint_told(&mut self, step: u64) {
        self.storage.note_settled(self.now);
        self.driver.saved_unstored = Some((step, self.batches));
        if !self.storage.is_sealed(self.driver.job, step) {
            self.fail_safety(format!("C-1: step {step} is said to be saved, and is not"));
        }
    }

    /// The journal has stored so many of the batches that were given: the next driver knows of a save that was told before the last
    /// of them.
    pub(super) fn note_save_stored(&mut self, stored: u64) {
        if let Some((step, given)) = self.driver.saved_unstored
            && stored > given
        {
            self.driver.saved_unstored = None;
            self.storage.note_told(self.driver.job, step);
        }
    }

    /// Checks C-1 when a generation trains: the driver has told of a checkpoint that its root did not find.
    pub(super) fn check_gone_is_told(&mut self) {
        if let Some(step) = self.driver.gone_checkpoint.take() {
            self.fail_safety(format!(
                "C-1: the checkpoint of step {step} is gone, and training goes on without a word"
            ));
        }
    }

    /// The root of a generation in which nobody holds a commit, or only ones before the last checkpoint, looks for a checkpoint.
    pub(super) fn load_checkpoint(&mut self, process: u32, source: Option<&CheckpointSource>) {
        let job = self.processes[process as usize].job;
        let program = &self.processes[process as usize].program;
        if !program.is_root() {
            return;
        }
        let Some(source) = source else {
            let begins_at = program.saved.map_or(0, |saved| saved.model.step);
            let told = self.storage.told(job).unwrap_or_default();
            if begins_at < told {
                self.fail_safety(format!(
                    "C-1: training begins from a commit of step {begins_at}, and step {told} is said to be saved"
                ));
            }
            return;
        };
        let told = self.storage.empty(job);
        if self.driver.job == job {
            self.driver.gone_checkpoint = told.or(self.driver.gone_checkpoint);
        }
        let found = match self.storage.resume(job) {
            Ok(found) => found,
            Err(error) => return self.fail_safety(error),
        };
        let program = &mut self.processes[process as usize].program;
        if let Some(model) = found {
            program.begin_from(model);
        }
        let (stamp, step) = (program.stamp, found.map(|model| Step(model.step)));
        let is_gone = source.last.as_ref().is_some_and(|last| step < Some(last.step));
        let resumed = TrainingEvent::Resumed { stamp, step, notes: Vec::new(), is_gone };
        self.tell_event(process, resumed);
    }
}
