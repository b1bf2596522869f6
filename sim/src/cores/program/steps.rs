//! The user's function: compute, reduce, apply, commit. Part of the simulated training program.

use elastic_protocol::messages::ReportedValues;
use elastic_protocol::{CommitId, Step};
use elastic_worker::state::core::TrainingEvent;
use elastic_worker::state::sampler::{StepShare, share, share_of_global};

use super::super::processes::SimulatedProcess;
use super::super::state::ThreadTell;
use super::super::{Happening, MS, World};
use super::{ProgramStage, Saved, TrainedModel};
use crate::trace::TraceKind;

/// Range of the delay with which a training function fails where it should return.
const RAISES_AFTER_NS: (u64, u64) = (5 * MS, 3_000 * MS);

impl World {
    /// Begins the next step, or ends the user's function.
    pub(super) fn go_on(&mut self, process: u32) {
        let epochs = self.scenario.epochs;
        let program = self.program(process);
        if program.live.epoch >= epochs && self.processes[process as usize].is_script {
            return self.end_script(process);
        }
        let program = self.program(process);
        if program.live.epoch >= epochs && std::mem::take(&mut program.raises_late) {
            program.raises = true;
            self.disturb();
            let token = self.enter_stage(process, ProgramStage::Computing);
            let takes = self.draw_ns(RAISES_AFTER_NS.0, RAISES_AFTER_NS.1);
            return self.agenda.push(self.now + takes, Happening::Computed { process, token });
        }
        let program = self.program(process);
        if program.live.epoch >= epochs {
            let commit = self.keep(process);
            self.leave_group(process, false);
            self.enter_stage(process, ProgramStage::Returned);
            let stamp = self.program(process).stamp;
            self.program(process).returned_in = stamp;
            let (note, reported) = (String::new(), ReportedValues::default());
            let event = TrainingEvent::Returned { stamp, commit, note, reported };
            self.tell_event(process, event);
            return self.handle_command(process);
        }
        let token = self.enter_stage(process, ProgramStage::Computing);
        self.note_computing(process);
        let entry = &self.processes[process as usize];
        let (host, slot) = (entry.host, entry.id.slot);
        let slow = self.hosts[host as usize].times_of(slot);
        let step = self.scenario.step_ns;
        let takes = self.draw_ns(step - step / 8, step + step / 8) * slow;
        let (carried, usual) = self.carried_by(process).unwrap_or((1, 1));
        let takes = takes * u64::from(carried) / u64::from(usual);
        let ends = self.now + takes;
        if slow > 1 {
            let until = &mut self.hosts[host as usize].slow_until;
            *until = ends.max(*until);
        }
        self.agenda.push(ends, Happening::Computed { process, token });
    }

    pub(in crate::cores) fn handle_computed(&mut self, process: u32, token: u32) {
        if self.freeze(process, Happening::Computed { process, token }) {
            return;
        }
        let program = self.program(process);
        if program.token != token {
            return;
        }
        if program.raises && self.processes[process as usize].is_script {
            return self.fail_script(process);
        }
        let program = self.program(process);
        if program.raises {
            program.raises = false;
            program.has_raised = true;
            let stamp = program.stamp;
            self.enter_stage(process, ProgramStage::Failed);
            self.leave_group(process, true);
            let message = "simulated error".to_owned();
            self.tell_event(process, TrainingEvent::Failed { stamp, message });
            return self.handle_command(process);
        }
        if program.aborted >= program.stamp {
            return self.roll_back(process);
        }
        self.note_computed(process);
        let program = self.program(process);
        let (epoch, consumed) = (program.live.epoch, program.live.consumed);
        program.operation += 1;
        let Some(part) = self.next_step(process) else {
            return self.fail_safety(format!("no samples are left at {epoch} {consumed}"));
        };
        let mut value = 0;
        match self.scenario.plan() {
            Some(plan) => self.compute_shards(process, plan),
            None => value = self.data.contribution(epoch, part.local.start, part.local.end),
        }
        self.enter_stage(process, ProgramStage::Reducing);
        self.enter_collective(process, value);
    }

    /// A collective has returned a result to the thread.
    pub(in crate::cores) fn collective_returned(
        &mut self,
        process: u32,
        value: u64,
        shared: Option<TrainedModel>,
    ) {
        let stage = self.program(process).stage;
        match stage {
            ProgramStage::Forming if self.processes[process as usize].is_script => {
                self.take_up(process)
            }
            ProgramStage::Forming => {
                let stamp = self.program(process).stamp;
                self.program(process).formed_in = stamp;
                self.enter_stage(process, ProgramStage::Formed);
                self.tell_event(process, TrainingEvent::Formed { stamp });
                self.handle_command(process);
            }
            ProgramStage::Syncing => {
                if let Some(model) = shared {
                    self.take_over(process, model);
                }
            }
            ProgramStage::Reducing => {
                self.note_collective_ended(process);
                self.note_waited(process);
                self.apply(process, value);
            }
            _ => {}
        }
    }

    /// The samples of the next step: of this rank, or of the first shard.
    fn next_step(&self, process: u32) -> Option<StepShare> {
        let program = &self.processes[process as usize].program;
        let (length, batch) = (self.data.length(), self.scenario.batch);
        let consumed = program.live.consumed;
        match self.scenario.plan() {
            Some(plan) => share_of_global(consumed, length, plan.global_batch, plan.shards, 0),
            None => share(consumed, length, batch, program.world_size, program.rank),
        }
    }

    pub(super) fn apply(&mut self, process: u32, value: u64) {
        let length = self.data.length();
        let commit_every = self.scenario.commit_every;
        let checks = self.scenario.checks_every_step;
        let Some(part) = self.next_step(process) else { return };
        let weights = self.stepped(self.processes[process as usize].program.live.weights, value);
        let program = self.program(process);
        let live = &mut program.live;
        let before = *live;
        live.weights = weights;
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
            self.write_part_if_due(process, before);
        }
        if !(commits || checks) {
            return self.go_on(process);
        }
        self.end_measured(process, commits);
        let program = self.program(process);
        program.boundary += 1;
        if program.pause_flag {
            let boundary = program.boundary;
            let stage =
                if self.answers_by_command() { ProgramStage::Held } else { ProgramStage::Asking };
            self.enter_stage(process, stage);
            self.tell(process, ThreadTell::Boundary(boundary));
        } else {
            self.go_on(process);
        }
    }

    pub(super) fn commit(&mut self, process: u32) {
        if self.processes[process as usize].is_script {
            return self.write_checkpoint(process);
        }
        let now = self.now;
        let program = self.program(process);
        program.live.step += 1;
        (program.steps_since_commit, program.kept_at) = (0, Some(now));
        let (model, generation) = (program.live, program.generation);
        let (digest, undamaged) = (model.digest(), model.digest_undamaged());
        let id = CommitId { generation: generation.generation, step: Step(model.step), digest };
        program.saved = Some(Saved { id, model });
        let tells = !std::mem::replace(&mut program.has_told_commit, true);
        let place = self.processes[process as usize].place;
        self.record(TraceKind::Commit, place, (model.step, digest), String::new);
        let SimulatedProcess { id: worker, job, .. } = &self.processes[process as usize];
        let checked =
            self.oracle.committed(*job, generation, model.step, undamaged, model.samples, worker);
        self.demand(checked);
        self.digest_commit(process);
        self.warn_after(process, model.step);
        if tells {
            self.tell(process, ThreadTell::Progress);
        }
    }
}
