//! The simulated training program: a deterministic optimiser on integers, with the steps of a real one. Each step adds
//! the contributions of its batch's samples, all-reduced over the ranks. The weights after n samples are thus known
//! without any run. With shards (`shards`), each step's gradients are added up in the product's order. Part of the
//! simulated world.

mod ends;
mod orders;
mod script;
mod shards;
mod steps;

use std::collections::VecDeque;

use elastic_protocol::messages::{Placement, StateDigests, SyncPlan, UndoneTraining};
use elastic_protocol::{CommitId, Stamp};
use elastic_worker::state::core::{TrainingCommand, TrainingEvent};
use elastic_worker::state::training::StepSamples;

use super::checkpoints::PartSave;
use super::processes::Hop;
use super::state::ThreadTell;
use super::{Happening, World};
use crate::dataset::mix;
use crate::decisions::words;

/// The training state. Counters, sampler and weights must always change together.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct TrainedModel {
    pub(super) epoch: u64,
    /// Processed samples of this epoch: the sampler's ledger.
    pub(super) consumed: u64,
    /// A sum of integers; with shards, the bits of a number.
    pub(super) weights: u64,
    /// Number of commits so far.
    pub(super) step: u64,
    /// Samples trained in all epochs.
    pub(super) samples: u64,
    /// Bits that flipped in its weights, which are otherwise as they should be.
    pub(super) damage: u64,
}

impl TrainedModel {
    pub(super) fn digest(&self) -> u64 {
        self.digest_undamaged() ^ self.damage
    }

    /// The digest that it would have if no bit had flipped.
    pub(super) fn digest_undamaged(&self) -> u64 {
        let place = mix(self.epoch, self.consumed);
        mix(mix(place, self.weights), mix(self.step, self.samples))
    }
}

/// A commit that the process holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saved {
    pub(super) id: CommitId,
    pub(super) model: TrainedModel,
}

/// Stages of the training thread.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum ProgramStage {
    /// Before `run`.
    #[default]
    Boot,
    AtRest,
    Forming,
    Formed,
    Syncing,
    Computing,
    Reducing,
    /// Waiting for the verdict, after the pause flag was seen at a boundary.
    Asking,
    Held,
    Returned,
    Failed,
    Exiting,
}

/// Step times of a program.
#[derive(Debug, Default)]
pub(super) struct ProgramPaces {
    /// The program's own measurements.
    pub(super) samples: StepSamples,
    /// Steps since the last measurement.
    pub(super) unmeasured: u64,
    /// World time at which the present computation began, and time spent in those before it and in collectives, in
    /// nanoseconds.
    pub(super) computes_since: u64,
    pub(super) computed_ns: u64,
    pub(super) waited_ns: u64,
    /// Whether the present step's computation took longer than any that nothing slows.
    pub(super) is_slow: bool,
    /// The last steps with such a computation: when they ended, and how long they took with their collectives.
    pub(super) slow_steps: VecDeque<(u64, u64)>,
}

/// A process's training thread.
#[derive(Debug, Default)]
pub(super) struct TrainingProgram {
    pub(super) stage: ProgramStage,
    pub(super) live: TrainedModel,
    pub(super) saved: Option<Saved>,
    /// The model that the root of this generation has loaded from a checkpoint. The root's own commit is an earlier
    /// one.
    loaded: Option<TrainedModel>,
    pub(super) stamp: Stamp,
    pub(super) rank: u32,
    world_size: u32,
    pub(super) shards: shards::ShardedProgram,
    /// The generation of the thread's communicator; the default without one.
    pub(super) generation: Stamp,
    pub(super) operation: u32,
    placement: Option<Box<Placement>>,
    pub(super) boundary: u64,
    pub(super) pause_flag: bool,
    /// World time at which the pause flag was last set.
    pub(super) paused_since: u64,
    /// The abort word: collectives of this generation and before return at once.
    pub(super) aborted: Stamp,
    /// Identifies the current stage, so that events for an earlier one are ignored.
    token: u32,
    /// World time at which the current collective was entered.
    pub(super) waits_since: u64,
    pub(super) paces: ProgramPaces,
    /// Digests of commits that the State has not taken.
    pub(super) digests: StateDigests,
    /// Whether it draws batches of another size than the program should.
    pub(super) draws_others: bool,
    /// Whether a deadline timer runs for collectives.
    pub(super) is_watched: bool,
    /// The step that this process was told to save.
    pub(super) part: Option<PartSave>,
    /// Whether a write to the storage does not return.
    pub(super) writer_hangs: bool,
    steps_since_commit: u64,
    /// World time of the last commit, or of the begin of training; `None` in a generation that does not train yet.
    kept_at: Option<u64>,
    has_told_commit: bool,
    pub(super) raises: bool,
    /// Whether the training function fails where it should return.
    pub(super) raises_late: bool,
    /// World time at which the thread last came to rest.
    pub(super) rested_at: u64,
    has_raised: bool,
    /// The last generations in which the thread formed its group, took the commit over, returned, and gave up.
    pub(super) formed_in: Stamp,
    /// The last generation that has begun without a sync.
    pub(super) skips_in: Stamp,
    pub(super) synced_in: Stamp,
    pub(super) returned_in: Stamp,
    pub(super) gave_up_in: Stamp,
    /// Training that the thread reported as undone when it last came to rest.
    pub(super) told_undone: UndoneTraining,
    commands: Hop<TrainingCommand>,
    pub(super) tells: Hop<ThreadTell>,
    /// The newest stamp at which the State was seen.
    pub(super) newest: Stamp,
}

impl TrainingProgram {
    pub(super) fn is_exiting(&self) -> bool {
        matches!(self.stage, ProgramStage::Exiting | ProgramStage::Failed)
    }

    pub(super) fn has_returned(&self) -> bool {
        self.stage == ProgramStage::Returned
            || (self.stage == ProgramStage::Exiting && !self.has_raised)
    }

    /// Whether the thread is in the user's function, in this generation, without an order to stop.
    pub(super) fn trains_in(&self, stamp: Stamp) -> bool {
        matches!(self.stage, ProgramStage::Computing | ProgramStage::Reducing)
            && (self.stamp, self.generation) == (stamp, stamp)
            && self.aborted < stamp
            && !self.pause_flag
            && !self.raises
    }

    /// Whether the thread has reported its rest and has no command since.
    pub(super) fn is_at_rest(&self) -> bool {
        self.stage == ProgramStage::AtRest
            && self.commands.items.is_empty()
            && self.tells.items.is_empty()
    }

    /// Whether the thread is in a generation, or on its way out of one.
    pub(super) const fn is_engaged(&self) -> bool {
        !matches!(self.stage, ProgramStage::Boot | ProgramStage::AtRest)
    }

    pub(super) const fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Whether the others take this process's state over.
    pub(super) fn is_root(&self) -> bool {
        let sync = self.placement.as_ref().map(|placement| placement.sync);
        sync == Some(SyncPlan::FromRoot { root: self.rank })
    }

    /// Takes a state over that no member holds, before the others take it from here.
    pub(super) const fn begin_from(&mut self, model: TrainedModel) {
        self.loaded = Some(model);
    }

    pub(super) const fn has_raised(&self) -> bool {
        self.has_raised
    }

    pub(super) const fn waits_in_collective(&self) -> bool {
        matches!(self.stage, ProgramStage::Forming | ProgramStage::Syncing | ProgramStage::Reducing)
    }

    /// Sets or clears the pause flag, which the thread reads at every boundary.
    pub(super) fn set_pause_flag(&mut self, is_set: bool, now: u64) {
        if is_set && !self.pause_flag {
            self.paused_since = now;
        }
        self.pause_flag = is_set;
    }

    /// Commands that the thread has not read yet.
    pub(super) fn commands_waiting(&self) -> usize {
        self.commands.items.len()
    }

    pub(super) fn model_to_share(&self) -> TrainedModel {
        let committed = || self.saved.map_or(self.live, |saved| saved.model);
        self.loaded.unwrap_or_else(committed)
    }
}

impl World {
    pub(super) fn hop(&mut self) -> u64 {
        self.draw_ns(500, self.scenario.hop_ns)
    }

    pub(in crate::cores) fn tell(&mut self, process: u32, tell: ThreadTell) {
        let hop = self.hop();
        let now = self.now;
        let tells = &mut self.processes[process as usize].program.tells;
        let at = (now + hop).max(tells.last_at + 1);
        tells.last_at = at;
        tells.items.push_back((at, tell));
        self.agenda.push(at, Happening::Told { process });
    }

    pub(super) fn tell_event(&mut self, process: u32, event: TrainingEvent) {
        self.tell(process, ThreadTell::Event(event));
    }

    pub(in crate::cores) fn command(&mut self, process: u32, command: TrainingCommand) {
        let place = self.processes[process as usize].place;
        self.decide(place, || words::training(&command));
        let hop = self.hop();
        let now = self.now;
        let commands = &mut self.processes[process as usize].program.commands;
        let at = (now + hop).max(commands.last_at + 1);
        commands.last_at = at;
        commands.items.push_back((at, command));
        self.agenda.push(at, Happening::Command { process });
    }

    pub(super) fn program(&mut self, process: u32) -> &mut TrainingProgram {
        &mut self.processes[process as usize].program
    }

    pub(super) fn enter_stage(&mut self, process: u32, stage: ProgramStage) -> u32 {
        let program = self.program(process);
        program.stage = stage;
        program.token += 1;
        program.token
    }
}
