//! The simulated training program: a deterministic optimiser on integers, in the shape of a real one. Each step
//! adds what the samples of its batch contribute, all-reduced over the ranks, so that the weights after n
//! samples are known without running anything.

mod ends;
mod orders;
mod script;
mod steps;

use elastic_protocol::messages::Placement;
use elastic_protocol::{CommitId, Stamp};
use elastic_worker::state::core::{TrainingCommand, TrainingEvent};

use super::processes::Hop;
use super::state::Tell;
use super::{Happening, World};
use crate::dataset::mix;

/// The training state: counters, sampler and weights, which must always move together.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Model {
    pub(super) epoch: u64,
    /// Samples of this epoch that are done: the sampler's ledger.
    pub(super) consumed: u64,
    pub(super) weights: u64,
    /// How often it was committed.
    pub(super) step: u64,
    /// Samples that were ever trained.
    pub(super) samples: u64,
}

impl Model {
    pub(super) fn digest(&self) -> u64 {
        let place = mix(self.epoch, self.consumed);
        mix(mix(place, self.weights), mix(self.step, self.samples))
    }
}

/// A commit that the process holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saved {
    pub(super) id: CommitId,
    pub(super) model: Model,
}

/// What the training thread does.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Stage {
    /// On its way to `run`.
    #[default]
    Boot,
    AtRest,
    Forming,
    Formed,
    Syncing,
    Computing,
    Reducing,
    /// It saw the pause flag at a boundary and waits for the verdict.
    Asking,
    Held,
    Returned,
    Failed,
    Exiting,
}

/// A process's training thread.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) stage: Stage,
    live: Model,
    pub(super) saved: Option<Saved>,
    pub(super) stamp: Stamp,
    pub(super) rank: u32,
    world_size: u32,
    /// The generation whose communicator it has; none is the default.
    pub(super) generation: Stamp,
    pub(super) operation: u32,
    placement: Option<Box<Placement>>,
    pub(super) boundary: u64,
    pub(super) pause_flag: bool,
    /// World time at which that was set last.
    pub(super) paused_since: u64,
    /// The abort word: collectives of this generation and before return at once.
    pub(super) aborted: Stamp,
    /// Tells what was meant for an earlier stage.
    token: u32,
    /// When it entered the collective that it waits in.
    pub(super) waits_since: u64,
    /// Whether a timer looks after that.
    pub(super) is_watched: bool,
    steps_since_commit: u64,
    has_told_commit: bool,
    pub(super) raises: bool,
    has_raised: bool,
    commands: Hop<TrainingCommand>,
    pub(super) tells: Hop<Tell>,
    /// The newest stamp that its State was seen at.
    pub(super) newest: Stamp,
}

impl Program {
    pub(super) fn is_exiting(&self) -> bool {
        matches!(self.stage, Stage::Exiting | Stage::Failed)
    }

    pub(super) fn has_returned(&self) -> bool {
        self.stage == Stage::Returned || (self.stage == Stage::Exiting && !self.has_raised)
    }

    /// Whether it is in the user's function, in this generation, and nobody wants it to stop.
    pub(super) fn trains_in(&self, stamp: Stamp) -> bool {
        matches!(self.stage, Stage::Computing | Stage::Reducing)
            && (self.stamp, self.generation) == (stamp, stamp)
            && self.aborted < stamp
            && !self.pause_flag
            && !self.raises
    }

    pub(super) const fn has_raised(&self) -> bool {
        self.has_raised
    }

    pub(super) const fn waits_in_collective(&self) -> bool {
        matches!(self.stage, Stage::Forming | Stage::Syncing | Stage::Reducing)
    }

    /// The State sets, or clears, the flag that the thread looks at on every boundary.
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

    pub(super) fn model_to_share(&self) -> Model {
        self.saved.map_or(self.live, |saved| saved.model)
    }
}

impl World {
    pub(super) fn hop(&mut self) -> u64 {
        self.draw_ns(500, self.scenario.hop_ns)
    }

    pub(in crate::cores) fn tell(&mut self, process: u32, tell: Tell) {
        let hop = self.hop();
        let now = self.now;
        let tells = &mut self.processes[process as usize].program.tells;
        let at = (now + hop).max(tells.last_at + 1);
        tells.last_at = at;
        tells.items.push_back((at, tell));
        self.agenda.push(at, Happening::Told { process });
    }

    pub(super) fn tell_event(&mut self, process: u32, event: TrainingEvent) {
        self.tell(process, Tell::Event(event));
    }

    pub(in crate::cores) fn command(&mut self, process: u32, command: TrainingCommand) {
        let hop = self.hop();
        let now = self.now;
        let commands = &mut self.processes[process as usize].program.commands;
        let at = (now + hop).max(commands.last_at + 1);
        commands.last_at = at;
        commands.items.push_back((at, command));
        self.agenda.push(at, Happening::Command { process });
    }

    pub(super) fn program(&mut self, process: u32) -> &mut Program {
        &mut self.processes[process as usize].program
    }

    pub(super) fn enter_stage(&mut self, process: u32, stage: Stage) -> u32 {
        let program = self.program(process);
        program.stage = stage;
        program.token += 1;
        program.token
    }
}
