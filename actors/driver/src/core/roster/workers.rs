//! Changes of workers: they start, attach, arrive, become members, leave, are lost, come back. Called by the core's
//! handlers.

use std::net::SocketAddr;

use elastic_protocol::messages::{MovedBytes, ReportedValues, WorkerToDriver};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{CommitId, Stamp, Step, Time, WorkerId};

use super::Roster;
use crate::core::restart::{NOWHERE, ProcessStage};
use crate::core::table::{PeerLink, SlotId, Stance, WorkerRecord};

/// Role in which a worker attaches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AttachedAs {
    /// It was told to leave.
    Leaving,
    /// A member, or one that has finished: it goes on.
    Member,
    /// It has to come to rest.
    Newcomer,
    /// Its host is out of reach: it counts once the host is back.
    WithoutHost,
}

/// Answer to a worker's wish to leave.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WorkerDeparture {
    /// It was told to leave already.
    UnderWay,
    /// The wish is new.
    Asked,
    /// The wish is known.
    AskedAgain,
}

impl Roster {
    /// Gives an empty slot a worker whose process is about to be started.
    pub(crate) fn start(&mut self, now: Time, slot: &SlotId) -> WorkerId {
        let worker = self.take_slot(slot);
        self.workers.insert(worker.clone(), WorkerRecord::starting(now));
        worker
    }

    /// Gives an empty slot a worker whose process is to be started for the next generation. It counts as arrived.
    pub(crate) fn plan(&mut self, now: Time, slot: &SlotId) -> WorkerId {
        let worker = self.take_slot(slot);
        let record = WorkerRecord {
            stance: Stance::Arrived,
            link: PeerLink::Up,
            data_address: Some(NOWHERE),
            stage: Some(ProcessStage::Planned),
            ..WorkerRecord::starting(now)
        };
        self.workers.insert(worker.clone(), record);
        worker
    }

    /// Restores the record of a worker that a former driver has started.
    pub(crate) fn restore(&mut self, worker: &WorkerId, record: WorkerRecord) {
        self.workers.insert(worker.clone(), record);
        self.hold_slot(worker);
    }

    /// Removes the record of a worker whose process is gone.
    pub(crate) fn remove(&mut self, worker: &WorkerId) -> Option<WorkerRecord> {
        let slot = (worker.host.clone(), worker.slot);
        if let Some(slot) = self.slots.get_mut(&slot)
            && slot.worker.as_ref() == Some(worker)
        {
            slot.worker = None;
        }
        self.workers.remove(worker)
    }

    /// Sets a worker's stance. False if the worker is not on record.
    pub(crate) fn set_stance(&mut self, now: Time, worker: &WorkerId, stance: Stance) -> bool {
        let record = self.workers.get_mut(worker);
        record.map(|record| record.take_stance(now, stance)).is_some()
    }

    /// Notes that a worker has lost its session, and the time at which it was heard last, if that is known.
    pub(crate) fn lose_session(&mut self, now: Time, worker: &WorkerId, heard_until: Option<Time>) {
        if let Some(record) = self.workers.get_mut(worker) {
            record.take_stance(now, Stance::Lost);
            record.heard_until = heard_until;
        }
    }

    /// Notes that a worker has become a member of the generation formed last, or is none any more. The seating derived from
    /// that is out of date.
    pub(crate) fn membership_changed(&mut self, worker: &WorkerId) {
        self.workers.touch(&worker.host);
    }

    /// Notes the id of a worker's process.
    pub(crate) fn note_pid(&mut self, worker: &WorkerId, pid: u32) {
        if let Some(record) = self.workers.get_mut_untouched(worker) {
            record.pid = Some(pid);
        }
    }

    /// Notes a worker's last step, and the note and values that its program reports.
    pub(crate) fn note_progress(
        &mut self,
        worker: &WorkerId,
        step: Step,
        note: String,
        reported: ReportedValues,
    ) {
        if let Some(record) = self.workers.get_mut_untouched(worker) {
            record.step = step;
            record.note = bounded(note);
            record.reported = reported;
        }
    }

    /// Notes the bytes that a worker moves in bulk for a generation.
    pub(crate) fn note_moved(&mut self, worker: &WorkerId, stamp: Stamp, bytes: MovedBytes) {
        if let Some(record) = self.workers.get_mut_untouched(worker) {
            record.moved = Some((stamp, bytes));
        }
    }

    /// Counts a worker's warning. False if it has warned as often as it may, or is not on record.
    pub(crate) fn note_warning(&mut self, worker: &WorkerId) -> bool {
        let Some(record) = self.workers.get_mut_untouched(worker) else { return false };
        let may_warn = record.warnings < WorkerToDriver::WARNINGS_MAX;
        record.warnings += usize::from(may_warn);
        may_warn
    }

    /// Notes the state of the link to a worker. None if the worker is not on record, or lives for one generation: its
    /// agent watches it, until it attaches.
    pub(crate) fn set_worker_link(
        &mut self,
        worker: &WorkerId,
        link: PeerLink,
    ) -> Option<&WorkerRecord> {
        let record = self.workers.get_mut(worker)?;
        if record.stage.is_some() {
            return None;
        }
        record.link = link;
        Some(record)
    }

    /// Takes a worker that attaches. `pid` may be unknown. None if the worker is not on record.
    pub(crate) fn attach(
        &mut self,
        now: Time,
        worker: &WorkerId,
        pid: Option<u32>,
        data_address: SocketAddr,
        commit: Option<CommitId>,
    ) -> Option<AttachedAs> {
        let host_is_there = self.agent_of(worker).is_some();
        let record = self.workers.get_mut(worker)?;
        record.pid = pid;
        let is_first = record.data_address.is_none();
        if is_first || !is_planted(Bug::FirstAddressKept) {
            record.data_address = Some(data_address);
        }
        record.link = PeerLink::Up;
        self.other_releases.remove(&(worker.host.clone(), worker.slot));
        record.at_rest = false;
        record.commit = commit.or(record.commit);
        // A driver that is new has not heard the reports of a member that stands still.
        if let Some(commit) = commit {
            record.step = record.step.max(commit.step);
        }
        if record.stance == Stance::Leaving {
            return Some(AttachedAs::Leaving);
        }
        record.accused = false;
        record.is_before_arrival = !matches!(record.stance, Stance::Member | Stance::Finished);
        Some(match record.stance {
            Stance::Member | Stance::Finished => AttachedAs::Member,
            _ if host_is_there => {
                record.take_stance(now, Stance::Attached);
                AttachedAs::Newcomer
            }
            stance => {
                // The worker has found a new driver before its agent has: it is in reach once its host is.
                if stance == Stance::Starting {
                    record.take_stance(now, Stance::Lost);
                }
                AttachedAs::WithoutHost
            }
        })
    }

    /// Takes a worker's report that it rests, and its commit.
    pub(crate) fn note_rest(&mut self, worker: &WorkerId, commit: Option<CommitId>) {
        if let Some(record) = self.workers.get_mut(worker) {
            record.at_rest = true;
            record.is_before_arrival = false;
            record.commit = commit;
            record.step = commit.map_or(record.step, |commit| commit.step);
        }
    }

    /// Notes that a worker is a member of a new generation.
    pub(crate) fn join_generation(&mut self, now: Time, worker: &WorkerId) {
        if let Some(record) = self.workers.get_mut(worker) {
            record.take_stance(now, Stance::Member);
            record.accused = false;
            record.at_rest = false;
        }
    }

    /// Notes the commit that a member takes over. A process that lives for one generation takes none over.
    pub(crate) fn share_commit(&mut self, worker: &WorkerId, commit: CommitId) {
        if let Some(record) = self.workers.get_mut(worker)
            && record.stage.is_none()
        {
            record.commit = Some(commit);
        }
    }

    /// Notes that a member's training function returned. False if the worker is no member.
    pub(crate) fn finish(&mut self, now: Time, worker: &WorkerId) -> bool {
        let record = self.workers.get_mut(worker);
        let record = record.filter(|record| record.stance == Stance::Member);
        record.map(|record| record.take_stance(now, Stance::Finished)).is_some()
    }

    /// Notes that a peer said that its link to this worker broke. None if the worker is not on record.
    pub(crate) fn accuse(&mut self, worker: &WorkerId) -> Option<PeerLink> {
        let record = self.workers.get_mut(worker)?;
        record.accused = true;
        Some(record.link)
    }

    /// Notes that a worker wants to leave. None if the worker is not on record.
    pub(crate) fn ask_to_leave(
        &mut self,
        worker: &WorkerId,
        reason: &str,
    ) -> Option<WorkerDeparture> {
        let record = self.workers.get_mut(worker)?;
        if record.stance == Stance::Leaving {
            return Some(WorkerDeparture::UnderWay);
        }
        if record.leaving.is_some() {
            return Some(WorkerDeparture::AskedAgain);
        }
        record.leaving = Some(reason.to_owned());
        Some(WorkerDeparture::Asked)
    }

    /// Takes an agent's report that a process runs. Returns whether the process is to go on.
    pub(crate) fn process_is_there(&mut self, now: Time, worker: &WorkerId, pid: u32) -> bool {
        self.workers.get_mut(worker).is_some_and(|record| {
            record.pid = Some(pid);
            if record.stance == Stance::Lost {
                record.come_back(now);
            }
            record.stance != Stance::Leaving
        })
    }

    /// Takes a worker back that was given up for its silence. Returns whether it is at rest.
    pub(crate) fn heard_again(&mut self, now: Time, worker: &WorkerId) -> bool {
        self.workers.get_mut(worker).is_some_and(|record| {
            if record.stance == Stance::Lost {
                record.come_back(now);
            }
            record.at_rest
        })
    }

    /// Notes that a worker's host is out of reach. Returns whether the worker itself may be in reach.
    pub(crate) fn lose_with_host(&mut self, now: Time, worker: &WorkerId) -> bool {
        self.workers.get_mut(worker).is_some_and(|record| {
            if !matches!(record.stance, Stance::Leaving | Stance::Dying) {
                record.take_stance(now, Stance::Lost);
            }
            record.may_be_told()
        })
    }

    /// Notes that a planned process is started. False if the worker is not planned, or its host is out of reach.
    pub(crate) fn run_planned(&mut self, worker: &WorkerId) -> bool {
        let host_is_there = self.agent_of(worker).is_some();
        self.workers.get_mut(worker).is_some_and(|record| {
            let runs = record.stage == Some(ProcessStage::Planned) && host_is_there;
            if runs {
                record.stage = Some(ProcessStage::Running);
            }
            runs
        })
    }

    /// Notes that a member's process, which lives for one generation, has ended well. False if it is no such process.
    pub(crate) fn note_done(&mut self, worker: &WorkerId) -> bool {
        self.workers.get_mut(worker).is_some_and(|record| {
            let runs =
                record.stage == Some(ProcessStage::Running) && record.stance == Stance::Member;
            if runs {
                record.stage = Some(ProcessStage::Done);
                record.pid = None;
            }
            runs
        })
    }

    /// Keeps a process that was to live for one generation. Returns whether it must attach from now on.
    pub(crate) fn keep_process(
        &mut self,
        now: Time,
        worker: &WorkerId,
        has_attached: bool,
    ) -> bool {
        self.workers.get_mut(worker).is_some_and(|record| {
            record.stage = None;
            record.data_address = None;
            if !has_attached {
                record.link = PeerLink::Down;
            }
            let was_member = record.stance == Stance::Member;
            if was_member {
                record.take_stance(now, Stance::Starting);
            }
            was_member
        })
    }

    /// Whether a worker's slot is at rest: the worker is to be replaced.
    pub(crate) fn is_at_rest(&self, worker: &WorkerId) -> bool {
        let slot = self.slots.get(&(worker.host.clone(), worker.slot));
        slot.is_some_and(|record| record.rest.is_some())
    }

    /// Restarts the waits for ordered processes, and returns their workers.
    pub(crate) fn restart_waits(&mut self, now: Time) -> Vec<WorkerId> {
        let is_awaited = |record: &WorkerRecord| match record.stance {
            Stance::Starting => record.link == PeerLink::Down,
            Stance::Attached => true,
            _ => false,
        };
        let awaited = self.workers.iter().filter(|(_, record)| is_awaited(record));
        let awaited: Vec<WorkerId> = awaited.map(|(worker, _)| worker.clone()).collect();
        for worker in &awaited {
            if let Some(record) = self.workers.get_mut_untouched(worker) {
                record.since = now;
            }
        }
        awaited
    }

    /// Checks each worker's record.
    pub(super) fn check_workers(&self) -> Result<(), String> {
        for (worker, record) in self.workers.iter() {
            let slot = (worker.host.clone(), worker.slot);
            if !self.slots.contains_key(&slot) {
                return Err(format!("{worker} is of a slot that is not on record"));
            }
            let is_planned = record.stage == Some(ProcessStage::Planned);
            if record.stance == Stance::Arrived && !record.at_rest && !is_planned {
                return Err(format!("{worker} has arrived and is not at rest"));
            }
            let has_ended = matches!(record.stage, None | Some(ProcessStage::Done));
            if record.stance == Stance::Finished && !has_ended {
                return Err(format!("{worker} has finished, and its process has not ended"));
            }
            let is_active = matches!(record.stance, Stance::Member | Stance::Finished);
            if is_active && record.data_address.is_none() {
                return Err(format!("{worker} is a member without an address"));
            }
        }
        Ok(())
    }
}

/// A note, cut to the length that a worker may send. A hostile worker sends more.
fn bounded(note: String) -> String {
    let most = WorkerToDriver::NOTE_BYTES_MAX;
    if note.len() <= most {
        return note;
    }
    let end = (0..=most).rev().find(|at| note.is_char_boundary(*at)).unwrap_or(0);
    note[..end].to_owned()
}
