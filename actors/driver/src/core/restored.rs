//! `--mode restart` under a new driver. Processes that live for one generation know no driver. They go on, and are
//! back when their agents are. Called while a core takes over.

use elastic_protocol::{ResetCause, Time, WorkerId};

use super::DriverCore;
use super::phase::RoundPhase;
use super::restart::{NOWHERE, ProcessStage};
use super::table::{PeerLink, Stance, WorkerRecord};
use crate::journal::{JournalRecord, ProcessImage};

impl DriverCore {
    /// Restores the record of a process that a former driver started for a generation. If the generation goes on, the
    /// process takes part. Else it was to stop, whether or not it has been told.
    pub(crate) fn restore_process(
        &mut self,
        now: Time,
        worker: &WorkerId,
        process: ProcessImage,
        takes_part: bool,
    ) {
        if process == ProcessImage::Done && !takes_part {
            return self.record(&JournalRecord::WorkerGone { worker: worker.clone() });
        }
        let stage = match process {
            ProcessImage::Running => ProcessStage::Running,
            ProcessImage::Done => ProcessStage::Done,
        };
        let mut record = WorkerRecord {
            link: PeerLink::Up,
            data_address: Some(NOWHERE),
            stage: Some(stage),
            ..WorkerRecord::starting(now)
        };
        record.take_stance(now, if takes_part { Stance::Member } else { Stance::Leaving });
        self.roster.restore(worker, record);
    }

    /// Votes again for members whose processes have ended with success: no agent reports them again.
    pub(crate) fn vote_again_for_the_done(&mut self) {
        for worker in self.members_at(|stage| stage == ProcessStage::Done) {
            self.vote_for_standing(&worker);
        }
        if matches!(self.round.phase(), RoundPhase::Run) {
            self.vote_for_the_done();
        }
    }

    /// Ends a taken-over generation that has lost members but has no end on record. By restart, some were not
    /// started, or the former driver was killed before the registry's verdict. Such a generation cannot go on.
    pub(crate) fn give_up_the_incomplete(&mut self, now: Time) {
        if !self.round.phase().is_generation_active() {
            return;
        }
        self.round.keep_alive(|worker| self.roster.has_worker(worker));
        let Some(current) = self.round.current() else { return };
        let members = current.assignment.members().map(|member| member.worker);
        let missing: Vec<WorkerId> =
            members.filter(|worker| !current.alive.contains(worker)).collect();
        if !missing.is_empty() {
            let phase = "takeover".to_owned();
            let cause = ResetCause::DeadlinePassed { phase, waiting_for: missing };
            self.accuse_generation(cause, now);
        }
    }
}
