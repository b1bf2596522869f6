//! Durable checkpoints of the simulated programs, on storage that all hosts share: parts take their time, fail, or hang.
//! What the storage itself does in a loss of power is tested with the format (`elastic-checkpoint`).

use std::collections::BTreeMap;

use elastic_protocol::messages::{CheckpointReport, CheckpointSource};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Stamp, Step};
use elastic_runtime::random::stream;
use elastic_worker::state::core::{CheckpointCommand, CheckpointOutcome, TrainingEvent};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::program::TrainedModel;
use super::state::ThreadTell;
use super::{Happening, MS, World};
use crate::oracle::JobNumber;

/// Most checkpoints of a job that are kept for a look.
const SEALED_KEPT: usize = 8;

/// The error of a write that fails.
const NO_SPACE: &str = "simulated: no space left";

/// Shared storage.
#[derive(Debug)]
pub(super) struct SharedStorage {
    random: ChaCha8Rng,
    /// Parts that are safe, by rank.
    parts: BTreeMap<(JobNumber, Stamp, u64), BTreeMap<u32, TrainedModel>>,
    /// Checkpoints that are whole.
    sealed: BTreeMap<JobNumber, BTreeMap<u64, TrainedModel>>,
}

impl SharedStorage {
    pub(super) fn new(seed: u64) -> Self {
        let random = stream(seed, "shared storage", 0);
        Self { random, parts: BTreeMap::new(), sealed: BTreeMap::new() }
    }

    /// The step of a job's newest checkpoint.
    pub(super) fn newest(&self, job: JobNumber) -> Option<u64> {
        self.sealed.get(&job)?.keys().next_back().copied()
    }
}

/// A save at one worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartSave {
    stamp: Stamp,
    step: u64,
    /// The rank in that generation: by the end of a slow write the process may have another one.
    rank: u32,
    model: Option<TrainedModel>,
    /// Whether the writer is at it.
    is_busy: bool,
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
            CheckpointCommand::Save { order, .. } => {
                let (stamp, step) = (order.stamp, order.step);
                let reached = Step(program.saved.map_or(0, |saved| saved.model.step));
                let outcome = |report| Some(CheckpointOutcome { stamp, step, report });
                if program.generation == stamp && reached >= step {
                    return outcome(CheckpointReport::Missed { reached });
                }
                if program.part.is_some_and(|part| part.is_busy) {
                    let reason = "busy with an earlier save".to_owned();
                    return outcome(CheckpointReport::Failed { reason });
                }
                let (rank, step) = (program.rank, step.0);
                program.part = Some(PartSave { stamp, step, rank, model: None, is_busy: false });
                self.decide(place, || format!("save step {step}"));
                None
            }
            CheckpointCommand::Seal { stamp, step, .. } => {
                self.decide(place, || format!("make step {step} whole"));
                let ranks = self.processes[process as usize].program.world_size();
                let takes = self.storage_takes()?;
                let whole = Happening::MadeWhole { process, stamp, step: step.0, ranks };
                self.agenda.push(self.now + takes, whole);
                None
            }
        }
    }

    /// The time that a write takes; none if it hangs for ever.
    fn storage_takes(&mut self) -> Option<u64> {
        let random = &mut self.storage.random;
        let takes = random.random_range(MS..2_000 * MS);
        (!random.random_bool(0.02)).then_some(takes)
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
        if let Some(takes) = self.storage_takes() {
            let written = Happening::PartWritten { process, stamp, step };
            self.agenda.push(self.now + takes, written);
        }
    }

    /// A process has written its part.
    pub(super) fn handle_part_written(&mut self, process: u32, stamp: Stamp, step: u64) {
        if self.freeze(process, Happening::PartWritten { process, stamp, step }) {
            return;
        }
        let fails = self.storage_fails();
        let entry = &mut self.processes[process as usize];
        let job = entry.job;
        let part = entry.program.part.as_mut();
        let Some(part) = part.filter(|part| (part.stamp, part.step) == (stamp, step)) else {
            return;
        };
        part.is_busy = false;
        let (rank, model) = (part.rank, part.model);
        let report = match model.filter(|_| !fails) {
            Some(model) => {
                self.storage.parts.entry((job, stamp, step)).or_default().insert(rank, model);
                CheckpointReport::PartSaved { bytes: 1 }
            }
            None => CheckpointReport::Failed { reason: NO_SPACE.to_owned() },
        };
        let outcome = CheckpointOutcome { stamp, step: Step(step), report };
        self.tell(process, ThreadTell::Checkpoint(outcome));
    }

    /// A process has made a checkpoint of so many ranks whole.
    pub(super) fn handle_made_whole(&mut self, process: u32, stamp: Stamp, step: u64, ranks: u32) {
        if self.freeze(process, Happening::MadeWhole { process, stamp, step, ranks }) {
            return;
        }
        let job = self.processes[process as usize].job;
        let report = if self.storage_fails() {
            CheckpointReport::Failed { reason: NO_SPACE.to_owned() }
        } else if self.are_parts_of_differing_replicas(job, stamp, step) {
            let reason = "the parts are of different commits".to_owned();
            CheckpointReport::Failed { reason }
        } else {
            match self.seal(job, stamp, step, ranks) {
                Ok(()) => CheckpointReport::Sealed { bytes: 1, troubles: Vec::new() },
                Err(error) => return self.fail_safety(error),
            }
        };
        let outcome = CheckpointOutcome { stamp, step: Step(step), report };
        self.tell(process, ThreadTell::Checkpoint(outcome));
    }

    /// Whether bits have flipped in some of the replicas that parts are of: their digests differ, so nothing is made whole.
    fn are_parts_of_differing_replicas(&self, job: JobNumber, stamp: Stamp, step: u64) -> bool {
        let parts = self.storage.parts.get(&(job, stamp, step));
        let mut damages = parts.into_iter().flat_map(BTreeMap::values).map(|model| model.damage);
        let first = damages.next();
        damages.any(|damage| Some(damage) != first)
    }

    fn storage_fails(&mut self) -> bool {
        self.storage.random.random_bool(0.05)
    }

    /// Checks C-1: a checkpoint is made whole only of the parts of all ranks, which are of one commit.
    fn seal(&mut self, job: JobNumber, stamp: Stamp, step: u64, size: u32) -> Result<(), String> {
        let parts = self.storage.parts.remove(&(job, stamp, step)).unwrap_or_default();
        if let Some(rank) = (0..size).find(|rank| !parts.contains_key(rank)) {
            return Err(format!(
                "C-1: the checkpoint of step {step} is made whole, and the part of rank {rank} is not safe"
            ));
        }
        let Some(first) = parts.values().next().copied() else { return Ok(()) };
        if parts.values().any(|model| *model != first) {
            return Err(format!("C-1: the checkpoint of step {step} has parts of several commits"));
        }
        let sealed = self.storage.sealed.entry(job).or_default();
        sealed.insert(step, first);
        if sealed.len() > SEALED_KEPT {
            sealed.pop_first();
        }
        Ok(())
    }

    /// Checks what the driver says of checkpoints.
    pub(super) fn check_checkpoint_told(&mut self, step: u64) {
        let sealed = self.storage.sealed.get(&self.driver.job);
        if !sealed.is_some_and(|sealed| sealed.contains_key(&step)) {
            self.fail_safety(format!("C-1: step {step} is said to be saved, and is not"));
        }
    }

    /// The root of a generation in which nobody holds a commit looks for a checkpoint.
    pub(super) fn load_checkpoint(&mut self, process: u32, source: Option<&CheckpointSource>) {
        let job = self.processes[process as usize].job;
        let program = &mut self.processes[process as usize].program;
        if source.is_none() || program.saved.is_some() || !program.is_root() {
            return;
        }
        let newest = self.storage.sealed.get(&job).and_then(|sealed| sealed.last_key_value());
        let found = newest.map(|(_, model)| *model);
        if let Some(model) = found {
            program.begin_from(model);
        }
        let (stamp, step) = (program.stamp, found.map(|model| Step(model.step)));
        self.tell_event(process, TrainingEvent::Resumed { stamp, step, notes: Vec::new() });
    }
}
