//! `--mode restart` under a new driver. Processes that live for one generation know no driver: they go on, and are
//! there when their agents are. Called while a core takes over.

use elastic_protocol::{ResetCause, Time, WorkerId};

use super::DriverCore;
use super::phase::Phase;
use super::restart::{NOWHERE, Stage};
use super::table::{Link, Stance, WorkerRecord};
use crate::journal::{ProcessImage, Record};

impl DriverCore {
    /// A process that a former driver has started for a generation. Where that goes on, it takes part; else it was to
    /// stop, whether or not it has been told.
    pub(crate) fn restore_process(
        &mut self,
        now: Time,
        worker: &WorkerId,
        process: ProcessImage,
        takes_part: bool,
    ) {
        if process == ProcessImage::Done && !takes_part {
            return self.record(&Record::WorkerGone { worker: worker.clone() });
        }
        let stage = match process {
            ProcessImage::Running => Stage::Running,
            ProcessImage::Done => Stage::Done,
        };
        let mut record = WorkerRecord {
            link: Link::Up,
            data_address: Some(NOWHERE),
            stage: Some(stage),
            ..WorkerRecord::starting(now)
        };
        record.take_stance(now, if takes_part { Stance::Member } else { Stance::Leaving });
        self.workers.insert(worker.clone(), record);
        self.hold_slot(worker);
    }

    /// The registry hears again of those that nobody else speaks for.
    pub(crate) fn vote_again_for_the_done(&mut self) {
        for worker in self.members_at(|stage| stage == Stage::Done) {
            self.vote_for_standing(&worker);
        }
        if matches!(self.phase, Phase::Run) {
            self.vote_for_the_done();
        }
    }

    /// Members whose processes the former driver had not come to start: the generation cannot be had.
    pub(crate) fn give_up_the_unstarted(&mut self, now: Time) {
        if !self.is_by_restart() || !self.phase.is_generation_active() {
            return;
        }
        let Some(current) = &mut self.current else { return };
        let members = current.assignment.members().map(|member| member.worker);
        let unstarted: Vec<WorkerId> =
            members.filter(|worker| !self.workers.contains_key(worker)).collect();
        if unstarted.is_empty() {
            return;
        }
        current.alive.retain(|worker| self.workers.contains_key(worker));
        let phase = "takeover".to_owned();
        let cause = ResetCause::DeadlinePassed { phase, waiting_for: unstarted };
        self.begin_abort(now, cause, now);
    }
}
