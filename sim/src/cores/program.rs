//! The simulated training program: a deterministic optimiser on integers, in the shape of a real one. Each step
//! adds what the samples of its batch contribute, all-reduced over the ranks, so that the weights after n
//! samples are known without running anything.

use elastic_protocol::messages::{Placement, SyncPlan};
use elastic_protocol::{CommitId, GenerationId, Outcome, Stamp, Step};
use elastic_worker::state::core::{Exit, TrainingCommand, TrainingEvent, Verdict};
use elastic_worker::state::sampler::share;

use elastic_runtime::planted::{Bug, is_planted};

use super::processes::Hop;
use super::state::Tell;
use super::{Happening, MS, World};
use crate::dataset::mix;
use crate::trace::Kind;

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
    /// The generation whose communicator it has; 0: none.
    pub(super) generation: u64,
    pub(super) operation: u32,
    placement: Option<Box<Placement>>,
    pub(super) boundary: u64,
    pub(super) pause_flag: bool,
    /// The abort word: collectives of this generation and before return at once.
    pub(super) aborted: Stamp,
    /// Tells what was meant for an earlier stage.
    token: u32,
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

    pub(super) const fn has_raised(&self) -> bool {
        self.has_raised
    }

    pub(super) const fn waits_in_collective(&self) -> bool {
        matches!(self.stage, Stage::Forming | Stage::Syncing | Stage::Reducing)
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
    fn hop(&mut self) -> u64 {
        self.draw_ns(500, self.scenario.hop_ns)
    }

    pub(super) fn tell(&mut self, process: u32, tell: Tell) {
        let hop = self.hop();
        let now = self.now;
        let tells = &mut self.processes[process as usize].program.tells;
        let at = (now + hop).max(tells.last_at + 1);
        tells.last_at = at;
        tells.items.push_back((at, tell));
        self.agenda.push(at, Happening::Told { process });
    }

    fn tell_event(&mut self, process: u32, event: TrainingEvent) {
        self.tell(process, Tell::Event(event));
    }

    pub(super) fn command(&mut self, process: u32, command: TrainingCommand) {
        let hop = self.hop();
        let now = self.now;
        let commands = &mut self.processes[process as usize].program.commands;
        let at = (now + hop).max(commands.last_at + 1);
        commands.last_at = at;
        commands.items.push_back((at, command));
        self.agenda.push(at, Happening::Command { process });
    }

    fn program(&mut self, process: u32) -> &mut Program {
        &mut self.processes[process as usize].program
    }

    fn enter_stage(&mut self, process: u32, stage: Stage) -> u32 {
        let program = self.program(process);
        program.stage = stage;
        program.token += 1;
        program.token
    }

    pub(super) fn handle_booted(&mut self, process: u32) {
        if self.freeze(process, Happening::Booted { process }) {
            return;
        }
        self.processes[process as usize].has_booted = true;
        self.start_state_node(process);
        self.rest(process, 0);
    }

    fn rest(&mut self, process: u32, steps_lost: u64) {
        self.enter_stage(process, Stage::AtRest);
        let commit = self.program(process).saved.map(|saved| saved.id);
        self.tell_event(process, TrainingEvent::AtRest { commit, steps_lost });
        self.handle_command(process);
    }

    /// Reads a command, if the thread waits for one.
    pub(super) fn handle_command(&mut self, process: u32) {
        if self.freeze(process, Happening::Command { process }) {
            return;
        }
        let now = self.now;
        let program = self.program(process);
        let waits = matches!(
            program.stage,
            Stage::AtRest | Stage::Formed | Stage::Held | Stage::Returned | Stage::Failed
        );
        if !waits {
            return;
        }
        // What is still on its way from the other thread has an event of its own.
        let is_there = program.commands.items.front().is_some_and(|(at, _)| *at <= now);
        if !is_there {
            return;
        }
        let Some((_, command)) = program.commands.items.pop_front() else { return };
        let stage = program.stage;
        let place = self.processes[process as usize].place;
        let code = match &command {
            TrainingCommand::Form(_) => 0,
            TrainingCommand::Sync { .. } => 1,
            TrainingCommand::Pass => 2,
            TrainingCommand::Stop => 3,
            TrainingCommand::End => 4,
            TrainingCommand::Exit(_) => 5,
        };
        self.record(Kind::Thread, place, (1, code), || format!("{command:?}"));
        match (stage, command) {
            (Stage::AtRest | Stage::Returned, TrainingCommand::Form(placement)) => {
                self.form(process, placement);
            }
            (Stage::AtRest | Stage::Returned | Stage::Failed, TrainingCommand::Exit(exit)) => {
                self.exit(process, &exit);
            }
            (Stage::Formed, TrainingCommand::Sync { plan, .. }) => self.sync(process, plan),
            (Stage::Formed | Stage::Held, TrainingCommand::End) => self.roll_back(process),
            (Stage::Held, TrainingCommand::Pass) => self.go_on(process),
            (Stage::Held, TrainingCommand::Stop) => self.keep_and_rest(process),
            (stage, command) => {
                let id = self.processes[process as usize].id.clone();
                self.fail_safety(format!(
                    "the training thread of {id} was told {command:?} while {stage:?}"
                ));
            }
        }
    }

    fn form(&mut self, process: u32, placement: Box<Placement>) {
        let program = self.program(process);
        program.stamp = placement.stamp;
        program.generation = placement.stamp.generation.0;
        program.rank = placement.rank;
        if program.world_size == 0 || !is_planted(Bug::SamplerKeepsWorldSize) {
            program.world_size = placement.assignment.world_size();
        }
        program.boundary = 0;
        program.operation = 0;
        program.has_told_commit = false;
        self.enter_stage(process, Stage::Forming);
        self.join_group(process, &placement);
        self.program(process).placement = Some(placement);
        self.enter_collective(process, 0);
    }

    fn sync(&mut self, process: u32, plan: SyncPlan) {
        match plan {
            SyncPlan::Skip => {
                let model = self.program(process).model_to_share();
                self.take_over(process, model);
            }
            SyncPlan::FromRoot { .. } => {
                self.program(process).operation = 1;
                self.enter_stage(process, Stage::Syncing);
                self.enter_collective(process, 0);
            }
        }
    }

    /// It holds the generation's commit, and enters the user's function.
    fn take_over(&mut self, process: u32, model: Model) {
        let program = self.program(process);
        program.operation = 1;
        program.live = model;
        program.steps_since_commit = 0;
        let stamp = program.stamp;
        let commit = CommitId {
            generation: stamp.generation,
            step: Step(model.step),
            digest: model.digest(),
        };
        program.saved = Some(Saved { id: commit, model });
        let id = self.processes[process as usize].id.clone();
        let checked = self.oracle.synced(stamp.generation.0, commit.digest, model.samples, &id);
        self.demand(checked);
        self.check_model(process, &model);
        self.tell_event(process, TrainingEvent::Synced { stamp, commit });
        self.go_on(process);
    }

    /// The weights are those of a run without faults that has seen as many samples.
    fn check_model(&mut self, process: u32, model: &Model) {
        let expected = self.data.weights(model.epoch, model.consumed);
        let samples = model.epoch * self.data.length() + model.consumed;
        if model.weights != expected || model.samples != samples {
            let id = self.processes[process as usize].id.clone();
            self.fail_safety(format!(
                "{id} has not trained every sample exactly once: epoch {}, {} samples, {} in all: \
                 weights {:x}, expected {expected:x}",
                model.epoch, model.consumed, model.samples, model.weights
            ));
        }
    }

    /// The next step, or the end of the user's function.
    fn go_on(&mut self, process: u32) {
        let epochs = self.scenario.epochs;
        let program = self.program(process);
        if program.live.epoch >= epochs {
            let commit = self.keep(process);
            self.leave_group(process, false);
            self.enter_stage(process, Stage::Returned);
            let stamp = self.program(process).stamp;
            let note = String::new();
            self.tell_event(process, TrainingEvent::Returned { stamp, commit, note });
            return self.handle_command(process);
        }
        let token = self.enter_stage(process, Stage::Computing);
        let host = self.processes[process as usize].host;
        let slow = self.hosts[host as usize].slow_times;
        let step = self.scenario.step_ns;
        let takes = self.draw_ns(step - step / 8, step + step / 8) * slow;
        self.agenda.push(self.now + takes, Happening::Computed { process, token });
    }

    pub(super) fn handle_computed(&mut self, process: u32, token: u32) {
        if self.freeze(process, Happening::Computed { process, token }) {
            return;
        }
        let program = self.program(process);
        if program.token != token {
            return;
        }
        if program.raises {
            program.raises = false;
            program.has_raised = true;
            let stamp = program.stamp;
            self.enter_stage(process, Stage::Failed);
            self.leave_group(process, true);
            let message = "simulated error".to_owned();
            self.tell_event(process, TrainingEvent::Failed { stamp, message });
            return self.handle_command(process);
        }
        if program.aborted >= program.stamp {
            return self.roll_back(process);
        }
        let (epoch, consumed) = (program.live.epoch, program.live.consumed);
        let (world_size, rank) = (program.world_size, program.rank);
        program.operation += 1;
        let Some(part) = share(consumed, self.data.length(), self.scenario.batch, world_size, rank)
        else {
            return self.fail_safety(format!("no samples are left at {epoch} {consumed}"));
        };
        let value = self.data.contribution(epoch, part.local.start, part.local.end);
        self.enter_stage(process, Stage::Reducing);
        self.enter_collective(process, value);
    }

    /// A collective has returned a result to the thread.
    pub(super) fn collective_returned(&mut self, process: u32, value: u64, shared: Option<Model>) {
        let stage = self.program(process).stage;
        match stage {
            Stage::Forming => {
                let stamp = self.program(process).stamp;
                self.enter_stage(process, Stage::Formed);
                self.tell_event(process, TrainingEvent::Formed { stamp });
                self.handle_command(process);
            }
            Stage::Syncing => {
                if let Some(model) = shared {
                    self.take_over(process, model);
                }
            }
            Stage::Reducing => self.apply(process, value),
            _ => {}
        }
    }

    fn apply(&mut self, process: u32, value: u64) {
        let (length, batch) = (self.data.length(), self.scenario.batch);
        let commit_every = self.scenario.commit_every;
        let checks = self.scenario.checks_every_step;
        let program = self.program(process);
        let Some(part) =
            share(program.live.consumed, length, batch, program.world_size, program.rank)
        else {
            return;
        };
        let live = &mut program.live;
        live.weights = live.weights.wrapping_add(value);
        live.samples += part.global.end - part.global.start;
        live.consumed = part.global.end;
        let ends_epoch = live.consumed >= length;
        if ends_epoch {
            live.epoch += 1;
            live.consumed = 0;
        }
        program.steps_since_commit += 1;
        let model = *live;
        let commits = program.steps_since_commit >= commit_every || ends_epoch;
        self.check_model(process, &model);
        if commits {
            self.commit(process);
        }
        if !(commits || checks) {
            return self.go_on(process);
        }
        let program = self.program(process);
        program.boundary += 1;
        if program.pause_flag {
            let boundary = program.boundary;
            let stage = if self.answers_by_command() { Stage::Held } else { Stage::Asking };
            self.enter_stage(process, stage);
            self.tell(process, Tell::Boundary(boundary));
        } else {
            self.go_on(process);
        }
    }

    fn commit(&mut self, process: u32) {
        let program = self.program(process);
        program.live.step += 1;
        program.steps_since_commit = 0;
        let (model, generation) = (program.live, program.generation);
        let digest = model.digest();
        let id = CommitId { generation: GenerationId(generation), step: Step(model.step), digest };
        program.saved = Some(Saved { id, model });
        let tells = !std::mem::replace(&mut program.has_told_commit, true);
        let place = self.processes[process as usize].place;
        self.record(Kind::Commit, place, (model.step, digest), String::new);
        let worker = &self.processes[process as usize].id;
        let checked = self.oracle.committed(generation, model.step, digest, model.samples, worker);
        self.demand(checked);
        if tells {
            self.tell(process, Tell::Progress);
        }
    }

    /// Saves live state as the commit that an interrupt, or the end, leaves behind.
    fn keep(&mut self, process: u32) -> CommitId {
        if self.program(process).steps_since_commit > 0 {
            self.commit(process);
        }
        self.program(process).saved.map(|saved| saved.id).unwrap_or_default()
    }

    fn keep_and_rest(&mut self, process: u32) {
        self.keep(process);
        self.leave_group(process, false);
        self.rest(process, 0);
    }

    fn roll_back(&mut self, process: u32) {
        self.leave_group(process, true);
        let program = self.program(process);
        let steps_lost = program.steps_since_commit;
        program.steps_since_commit = 0;
        let weights = program.live.weights;
        program.live = program.saved.map(|saved| saved.model).unwrap_or_default();
        if is_planted(Bug::RollbackKeepsWeights) {
            program.live.weights = weights;
            if let Some(saved) = &mut program.saved {
                saved.model.weights = weights;
            }
        }
        self.rest(process, steps_lost);
    }

    pub(super) fn take_verdict(&mut self, process: u32, verdict: Verdict) {
        if self.program(process).stage != Stage::Asking {
            return;
        }
        match verdict {
            Verdict::Pass => self.go_on(process),
            Verdict::Hold => {
                self.enter_stage(process, Stage::Held);
                self.handle_command(process);
            }
            Verdict::Stop => self.keep_and_rest(process),
            Verdict::End => self.roll_back(process),
        }
    }

    /// The abort word is set: a blocked collective returns at once.
    pub(crate) fn abort(&mut self, process: u32, stamp: Stamp) {
        let hop = self.hop();
        let program = self.program(process);
        program.aborted = program.aborted.max(stamp);
        let watches = !is_planted(Bug::AbortWordIgnored);
        if watches && program.waits_in_collective() && program.stamp <= stamp {
            let token = program.token;
            self.agenda.push(self.now + hop, Happening::AbortSeen { process, token });
        }
    }

    pub(super) fn handle_abort_seen(&mut self, process: u32, token: u32) {
        if self.freeze(process, Happening::AbortSeen { process, token }) {
            return;
        }
        if self.program(process).token == token {
            self.roll_back(process);
        }
    }

    /// A collective failed at this thread.
    pub(super) fn collective_failed(&mut self, process: u32, peer: u32) {
        let program = self.program(process);
        let stamp = program.stamp;
        if program.aborted < stamp {
            let error = "connection reset by peer".to_owned();
            let event = TrainingEvent::CollectiveFailed { stamp, peer: Some(peer), error };
            self.tell_event(process, event);
        }
        self.roll_back(process);
    }

    fn exit(&mut self, process: u32, exit: &Exit) {
        let code = match exit {
            Exit::Left { .. } => 0,
            Exit::Finished { result } => i32::from(result.outcome == Outcome::Failed),
            Exit::Failed | Exit::Orphaned { .. } | Exit::WrongJob { .. } => 1,
        };
        self.enter_stage(process, Stage::Exiting);
        let wait = self.draw_ns(200_000, 20 * MS);
        self.agenda.push(self.now + wait, Happening::Exited { process, code });
    }
}
