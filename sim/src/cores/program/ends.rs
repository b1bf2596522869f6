//! Departure of a training thread from a generation: at the agreed boundary, by the abort word, or by a failed
//! collective. Also the end of the process. Part of the simulated training program.

use elastic_protocol::messages::UndoneTraining;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{CommitId, JobOutcome, Stamp};
use elastic_worker::state::core::{BoundaryAnswer, RunExit, TrainingEvent};

use super::super::{Happening, MS, World};
use super::ProgramStage;
use crate::decisions::words;

/// Least and longest time in which a program ends that has nothing left to do.
pub(super) const EXIT_NS: (u64, u64) = (200_000, 20 * MS);

impl World {
    /// Saves live state as the commit that an interrupt, or the end, leaves behind.
    pub(super) fn keep(&mut self, process: u32) -> CommitId {
        if self.program(process).steps_since_commit > 0 {
            self.commit(process);
        }
        self.program(process).saved.map(|saved| saved.id).unwrap_or_default()
    }

    pub(super) fn keep_and_rest(&mut self, process: u32) {
        self.keep(process);
        let program = self.program(process);
        program.kept_at = None;
        program.gave_up_in = program.stamp;
        self.leave_group(process, false);
        self.rest(process, UndoneTraining::default());
    }

    pub(super) fn roll_back(&mut self, process: u32) {
        self.note_collective_ended(process);
        self.leave_group(process, true);
        let now = self.now;
        let program = self.program(process);
        program.gave_up_in = program.stamp;
        let steps = program.steps_since_commit;
        let ms = program.kept_at.take().map_or(0, |kept_at| (now - kept_at) / MS);
        program.steps_since_commit = 0;
        let weights = program.live.weights;
        program.live = program.saved.map(|saved| saved.model).unwrap_or_default();
        if is_planted(Bug::RollbackKeepsWeights) {
            program.live.weights = weights;
            if let Some(saved) = &mut program.saved {
                saved.model.weights = weights;
            }
        }
        self.rest(process, UndoneTraining { steps, ms });
    }

    pub(in crate::cores) fn take_verdict(&mut self, process: u32, verdict: BoundaryAnswer) {
        if self.program(process).stage != ProgramStage::Asking {
            return;
        }
        let place = self.processes[process as usize].place;
        self.decide(place, || {
            let says = match verdict {
                BoundaryAnswer::Pass => "pass",
                BoundaryAnswer::Hold => "hold",
                BoundaryAnswer::Stop => "stop",
                BoundaryAnswer::End => "end",
            };
            format!("{says} at the boundary")
        });
        match verdict {
            BoundaryAnswer::Pass => self.go_on(process),
            BoundaryAnswer::Hold => {
                self.enter_stage(process, ProgramStage::Held);
                self.handle_command(process);
            }
            BoundaryAnswer::Stop => self.keep_and_rest(process),
            BoundaryAnswer::End => self.roll_back(process),
        }
    }

    /// Sets the abort word: a blocked collective returns at once.
    pub(crate) fn abort(&mut self, process: u32, stamp: Stamp) {
        let place = self.processes[process as usize].place;
        self.decide(place, || format!("abort word {}", words::stamp(stamp)));
        let hop = self.hop();
        let program = self.program(process);
        program.aborted = program.aborted.max(stamp);
        let watches = !is_planted(Bug::AbortWordIgnored);
        if watches && program.waits_in_collective() && program.stamp <= stamp {
            let token = program.token;
            self.agenda.push(self.now + hop, Happening::AbortSeen { process, token });
        }
    }

    pub(in crate::cores) fn handle_abort_seen(&mut self, process: u32, token: u32) {
        if self.freeze(process, Happening::AbortSeen { process, token }) {
            return;
        }
        if self.program(process).token == token {
            self.roll_back(process);
        }
    }

    /// A collective has failed at this thread: reports it with the rank to blame and the rank that has told of it, and
    /// rolls back.
    pub(in crate::cores) fn collective_failed(
        &mut self,
        process: u32,
        (peer, told_by): (Option<u32>, Option<u32>),
        why: &str,
    ) {
        if self.processes[process as usize].is_script {
            return self.fail_script(process);
        }
        // A thread that was told of the failure by another rank has not seen it itself, and is no witness.
        if told_by.is_none() {
            self.note_witness(process, peer);
        }
        let program = self.program(process);
        let stamp = program.stamp;
        if program.aborted < stamp {
            let error = why.to_owned();
            let event = TrainingEvent::CollectiveFailed { stamp, peer, told_by, error };
            self.tell_event(process, event);
        }
        self.roll_back(process);
    }

    /// A program that does not train ends once it has joined the job, some time later.
    pub(in crate::cores) fn handle_joined_job(&mut self, process: u32) {
        if self.freeze(process, Happening::Joined { process }) {
            return;
        }
        let link = self.processes[process as usize].link;
        if !self.links[link as usize].is_in_touch() {
            self.agenda.push(self.now + 100 * MS, Happening::Joined { process });
            return;
        }
        self.exit_within(process, 0, (200 * MS, 3_000 * MS));
    }

    pub(super) fn exit(&mut self, process: u32, exit: &RunExit) {
        let code = match exit {
            RunExit::Left { .. } => 0,
            RunExit::Finished { result } => i32::from(result.outcome == JobOutcome::Failed),
            RunExit::Failed | RunExit::Orphaned { .. } | RunExit::WrongJob { .. } => 1,
        };
        self.exit_within(process, code, EXIT_NS);
    }

    /// Ends a program after a time between these two, in nanoseconds.
    pub(super) fn exit_within(&mut self, process: u32, code: i32, (least, most): (u64, u64)) {
        self.enter_stage(process, ProgramStage::Exiting);
        let wait = self.draw_ns(least, most);
        self.agenda.push(self.now + wait, Happening::Exited { process, code });
    }
}
