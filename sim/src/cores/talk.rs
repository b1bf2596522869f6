//! Messages that training does not need: a program's warnings, its note, reported values and moved bytes, and an agent's report of why a
//! process has ended. Drawn by hashes of sender and moment, so that no other draw moves. Part of the simulated world.

use elastic_agent::core::LastWords;
use elastic_protocol::messages::{BulkWork, MovedBytes, ProgramError, ReportedValues};
use elastic_worker::state::core::{TrainingEvent, TrainingProgress};

use super::World;
use super::program::ProgramStage;
use crate::dataset::mix;

/// One commit in this many brings a warning.
const WARNS_ONE_IN: u64 = 40;

/// Texts of a program's warnings: the same one is told once.
const WARNINGS: u64 = 4;

/// Bytes that a program says to move.
const MOVED_BYTES: u64 = 1_000;

impl World {
    /// A number for what a process says at one of its moments.
    fn said(&self, process: u32, moment: u64) -> u64 {
        let worker = &self.processes[process as usize].id;
        mix(mix(self.options.seed, worker.incarnation.0), moment)
    }

    /// A program has committed this step: perhaps it warns of something.
    pub(super) fn warn_after(&mut self, process: u32, step: u64) {
        let number = self.said(process, step);
        if self.scenario.programs_talk && number.is_multiple_of(WARNS_ONE_IN) {
            let text = format!("simulated warning {}", number / WARNS_ONE_IN % WARNINGS);
            self.tell_event(process, TrainingEvent::Warned { text });
        }
    }

    /// A program's progress, with its note, reported values and moved bytes.
    pub(super) fn talk(&self, process: u32, mut progress: TrainingProgress) -> TrainingProgress {
        if !self.scenario.programs_talk {
            return progress;
        }
        let program = &self.processes[process as usize].program;
        let step = progress.step.0;
        progress.note = format!("epoch {}", program.live.epoch);
        let mut reported = ReportedValues::default();
        if reported.set("loss", 1.0 / (step + 1) as f64).is_ok() {
            progress.reported = reported;
        }
        let work = match program.stage {
            ProgramStage::Syncing => BulkWork::TakesState,
            _ => BulkWork::SavesCheckpoint,
        };
        let done = self.said(process, self.now) % (MOVED_BYTES + 1);
        let writes = program.part.as_ref().is_some_and(|part| part.is_busy);
        let moves = writes || program.stage == ProgramStage::Syncing;
        progress.moved = moves.then_some(MovedBytes { work, done, total: MOVED_BYTES });
        progress
    }

    /// The last words of an ended process: the end of its stderr, its error file, the OOM killer's count.
    pub(super) fn last_words(&self, process: u32) -> LastWords {
        let entry = &self.processes[process as usize];
        let has_failed = entry.end.is_some_and(|status| !status.is_success());
        let tail = if has_failed { "simulated end".to_owned() } else { String::new() };
        let mut said = LastWords { tail, ..LastWords::default() };
        if has_failed && self.scenario.programs_talk {
            match self.said(process, 0) % 4 {
                0 => {
                    let message = "simulated traceback".to_owned();
                    said.error = Some(ProgramError { message, at: None });
                }
                1 => said.out_of_memory = Some("oom_kill 1".to_owned()),
                _ => {}
            }
        }
        said
    }
}
