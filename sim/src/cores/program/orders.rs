//! Commands of the State to the training thread: to form, to sync, to rest, to exit. Part of the simulated training
//! program.

use elastic_protocol::messages::{Placement, SyncPlan, UndoneTraining};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{CommitId, Step};
use elastic_worker::state::core::{TrainingCommand, TrainingEvent};

use super::super::processes::{REFUSED_STATUS, SimulatedProcess, data_address};
use super::super::{Happening, World};
use super::{ProgramStage, Saved, TrainedModel};
use crate::trace::TraceKind;

impl World {
    pub(in crate::cores) fn handle_booted(&mut self, process: u32) {
        if self.freeze(process, Happening::Booted { process }) {
            return;
        }
        if self.processes[process as usize].is_script {
            return self.meet(process);
        }
        if self.processes[process as usize].is_of_other_release {
            return self.end_process(process, REFUSED_STATUS, true);
        }
        self.processes[process as usize].has_booted = true;
        self.start_state_node(process);
        if !self.scenario.trains {
            return self.handle_joined_job(process);
        }
        self.rest(process, UndoneTraining::default());
    }

    pub(super) fn rest(&mut self, process: u32, undone: UndoneTraining) {
        self.enter_stage(process, ProgramStage::AtRest);
        self.program(process).rested_at = self.now;
        self.program(process).told_undone = undone;
        self.relocate(process);
        let commit = self.program(process).saved.map(|saved| saved.id);
        self.tell_event(process, TrainingEvent::AtRest { commit, undone });
        self.handle_command(process);
    }

    /// Reads a command, if the thread waits for one.
    pub(in crate::cores) fn handle_command(&mut self, process: u32) {
        if self.freeze(process, Happening::Command { process }) {
            return;
        }
        let now = self.now;
        let program = self.program(process);
        let waits = matches!(
            program.stage,
            ProgramStage::AtRest
                | ProgramStage::Formed
                | ProgramStage::Held
                | ProgramStage::Returned
                | ProgramStage::Failed
        );
        if !waits {
            return;
        }
        // A command in transit from the other thread has an event of its own.
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
            TrainingCommand::SaveLast(_) => 6,
        };
        self.record(TraceKind::Thread, place, (1, code), || format!("{command:?}"));
        match (stage, command) {
            (ProgramStage::AtRest | ProgramStage::Returned, TrainingCommand::Form(placement)) => {
                self.form(process, placement);
            }
            (
                ProgramStage::AtRest | ProgramStage::Returned | ProgramStage::Failed,
                TrainingCommand::Exit(exit),
            ) => {
                self.exit(process, &exit);
            }
            (ProgramStage::Returned, TrainingCommand::SaveLast(part)) => {
                self.write_last_part(process, *part);
                self.handle_command(process);
            }
            (ProgramStage::Formed, TrainingCommand::Sync { plan, source, .. }) => {
                self.load_checkpoint(process, source.as_ref());
                self.sync(process, plan);
            }
            (ProgramStage::Formed | ProgramStage::Held, TrainingCommand::End) => {
                self.roll_back(process)
            }
            (ProgramStage::Held, TrainingCommand::Pass) => {
                self.note_passed(process);
                self.go_on(process);
            }
            (ProgramStage::Held, TrainingCommand::Stop) => self.keep_and_rest(process),
            (stage, command) => {
                let id = self.processes[process as usize].id.clone();
                self.fail_safety(format!(
                    "the training thread of {id} was told {command:?} while {stage:?}"
                ));
            }
        }
    }

    pub(super) fn form(&mut self, process: u32, placement: Box<Placement>) {
        let entry = &self.processes[process as usize];
        let checked = self.oracle.placed(entry.job, &placement, &entry.id);
        self.demand(checked);
        let program = self.program(process);
        program.stamp = placement.stamp;
        program.generation = placement.stamp;
        program.rank = placement.rank;
        if placement.sync == SyncPlan::Skip {
            program.skips_in = placement.stamp;
        }
        if program.world_size == 0 || !is_planted(Bug::SamplerKeepsWorldSize) {
            program.world_size = placement.assignment.world_size();
        }
        program.boundary = 0;
        program.operation = 0;
        program.has_told_commit = false;
        program.loaded = None;
        self.take_shards(process, &placement.shards);
        self.enter_stage(process, ProgramStage::Forming);
        let checked = self.check_own_address(process, &placement);
        self.demand(checked);
        let entry = &self.processes[process as usize];
        if entry.address != self.hosts[entry.host as usize].address {
            self.program(process).placement = Some(placement);
            let why = "its host has another address";
            return self.collective_failed(process, (None, None), why);
        }
        self.join_group(process, &placement);
        self.program(process).placement = Some(placement);
        self.enter_collective(process, 0);
    }

    /// Tells the State the host's address, if it is another than before.
    fn relocate(&mut self, process: u32) {
        let entry = &mut self.processes[process as usize];
        let address = self.hosts[entry.host as usize].address;
        if std::mem::replace(&mut entry.address, address) != address {
            let data_address = data_address(entry.host, address, process);
            let commit = self.program(process).saved.map(|saved| saved.id);
            self.tell_event(process, TrainingEvent::Moved { data_address, commit });
        }
    }

    /// Checks where the others are told to find a process: at the address that it has told last, since its State tells
    /// the address before it says that it has arrived.
    fn check_own_address(&self, process: u32, placement: &Placement) -> Result<(), String> {
        let entry = &self.processes[process as usize];
        let own = data_address(entry.host, entry.address, process);
        let member = placement.assignment.members().find(|member| member.worker == entry.id);
        match member.filter(|member| member.data_address != own) {
            Some(member) => Err(format!(
                "S-3: {} listens at {own}, and its peers are told {}",
                entry.id, member.data_address
            )),
            None => Ok(()),
        }
    }

    pub(super) fn sync(&mut self, process: u32, plan: SyncPlan) {
        match plan {
            SyncPlan::Skip => {
                let model = self.program(process).model_to_share();
                self.take_over(process, model);
            }
            SyncPlan::FromRoot { .. } => {
                self.program(process).operation = 1;
                self.enter_stage(process, ProgramStage::Syncing);
                self.enter_collective(process, 0);
            }
        }
    }

    /// Takes the generation's commit over and enters the user's function.
    pub(super) fn take_over(&mut self, process: u32, model: TrainedModel) {
        let now = self.now;
        let program = self.program(process);
        program.operation = 1;
        program.live = model;
        program.loaded = None;
        (program.steps_since_commit, program.kept_at) = (0, Some(now));
        let stamp = program.stamp;
        let commit = CommitId {
            generation: stamp.generation,
            step: Step(model.step),
            digest: model.digest(),
        };
        program.saved = Some(Saved { id: commit, model });
        program.synced_in = stamp;
        let SimulatedProcess { id, job, .. } = &self.processes[process as usize];
        let checked = self.oracle.synced(*job, stamp, commit.digest, model.samples, id);
        self.demand(checked);
        self.check_model(process, &model);
        self.begin_digests(process, model.step);
        self.tell_event(process, TrainingEvent::Synced { stamp, commit });
        self.go_on(process);
    }

    /// Checks that the weights equal those of a faultless run after as many samples.
    pub(super) fn check_model(&mut self, process: u32, model: &TrainedModel) {
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
}
