//! A training script that does not use the library (`--job restart`). It meets its peers, loads the last checkpoint and
//! trains. Rank 0 writes checkpoints to shared storage. A failed collective ends the script with an error, and SIGTERM
//! ends it at once. Part of the simulated training program.

use elastic_protocol::CommitId;
use elastic_protocol::messages::{Ballot, ProcessPlace, Vote};

use super::super::World;
use super::super::processes::SimulatedProcess;
use super::ends::EXIT_NS;
use super::{ProgramStage, Saved};
use crate::trace::TraceKind;

impl World {
    /// Gives a started script its place in a generation.
    pub(in crate::cores) fn begin_in_place(
        &mut self,
        process: u32,
        place: ProcessPlace,
        environment: &[(String, String)],
    ) {
        let ProcessPlace { stamp, rank, .. } = place;
        let world_size = environment.iter().rev().find(|(name, _)| name == "WORLD_SIZE");
        let world_size = world_size.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
        let SimulatedProcess { id, job, .. } = &self.processes[process as usize];
        let (job, checked) = (*job, self.oracle.started(*job, stamp, (rank, world_size), id));
        self.demand(checked);
        // A running process counts as a vote.
        let worker = self.processes[process as usize].id.clone();
        self.oracle.voted(job, &Vote { stamp, worker, ballot: Ballot::Ready }, self.now);
        // A process that uses the library ignores this place: the driver gives it another one once it has attached.
        if self.processes[process as usize].is_script {
            let program = self.program(process);
            (program.stamp, program.generation) = (stamp, stamp);
            (program.rank, program.world_size) = (rank, world_size);
        }
        if (job, stamp) == (self.driver.job, self.driver.stamp)
            && let Some(member) = self.driver.members.get_mut(rank as usize)
        {
            *member = process;
        }
    }

    /// Begins to form a group with the script's peers.
    pub(super) fn meet(&mut self, process: u32) {
        let job = self.processes[process as usize].job;
        let stamp = self.program(process).stamp;
        if !self.has_group(job, stamp) {
            let members = self.oracle.members(job, stamp);
            self.open_group(process, stamp, &members, None);
        }
        self.enter_stage(process, ProgramStage::Forming);
        self.enter_collective(process, 0);
    }

    /// The group is formed: training goes on from the last checkpoint.
    pub(super) fn take_up(&mut self, process: u32) {
        let job = self.processes[process as usize].job;
        let found = self.checkpoints.get(&job).copied().unwrap_or_default();
        let stamp = self.program(process).stamp;
        let model = self.shared_or(job, stamp, found);
        self.check_model(process, &model);
        let program = self.program(process);
        program.live = model;
        program.operation = 1;
        self.go_on(process);
    }

    pub(super) fn write_checkpoint(&mut self, process: u32) {
        let SimulatedProcess { job, place, .. } = self.processes[process as usize];
        let program = self.program(process);
        program.live.step += 1;
        program.steps_since_commit = 0;
        let (model, rank) = (program.live, program.rank);
        if rank == 0 {
            self.checkpoints.insert(job, model);
            self.oracle.commits += 1;
            self.record(TraceKind::Commit, place, (model.step, model.digest()), String::new);
        }
    }

    /// The script has trained all epochs: writes the last checkpoint and exits.
    pub(super) fn end_script(&mut self, process: u32) {
        if self.program(process).steps_since_commit > 0 {
            self.write_checkpoint(process);
        }
        let program = self.program(process);
        program.saved = Some(Saved { id: CommitId::default(), model: program.live });
        self.leave_group(process, false);
        self.exit_within(process, 0, EXIT_NS);
    }

    pub(super) fn fail_script(&mut self, process: u32) {
        self.program(process).has_raised = true;
        self.leave_group(process, true);
        self.exit_within(process, 1, EXIT_NS);
    }
}
