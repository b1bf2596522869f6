//! Changes of the ledger by each event of the driver. Called by `GoodputLedger::handle_event`.

use elastic_driver::{EventKind, ResetWay};
use elastic_protocol::messages::{HangGrounds, JobPhase, PhaseMs};
use elastic_protocol::{GenerationId, HostName, Time, WorkerId};

use super::facts::{KnownPhase, LastEnd};
use super::spans::{LostTraining, SlotSpan};
use super::unseen::UnseenTraining;
use super::{GoodputLedger, TimeBucket, nanos};

impl GoodputLedger {
    pub(super) fn handle_kind(&mut self, generation: GenerationId, kind: &EventKind) {
        match kind {
            EventKind::HostsChanged { needed, min_np, hosts } => {
                self.needed = [*needed, *min_np];
                self.facts.list(hosts);
                self.count_all();
                self.facts.forget_the_gone();
            }
            EventKind::HostJoined { host, .. } => self.host_joined(host),
            EventKind::HostLost { host, .. } => self.host_lost(host),
            EventKind::WorkerStarted { worker } => {
                let slot = self.facts.slot(worker);
                let is_member = slot.is_member && slot.worker.as_ref() == Some(worker);
                slot.worker = Some(worker.clone());
                (slot.has_process, slot.has_attached, slot.is_leaving) = (false, false, false);
                (slot.is_member, slot.was_passed_over) = (is_member, false);
                self.count_slot(worker);
            }
            EventKind::ProcessStarted { worker, .. } => {
                if let Some(slot) = self.facts.slot_with(worker) {
                    slot.has_process = true;
                }
                self.count_slot(worker);
            }
            EventKind::WorkerAttached { worker, .. } => {
                let slot = self.facts.slot(worker);
                slot.is_member &= slot.worker.as_ref() == Some(worker);
                slot.worker = Some(worker.clone());
                slot.has_attached = true;
                self.count_slot(worker);
            }
            EventKind::WorkerStopped { worker, .. } => {
                if let Some(slot) = self.facts.slot_with(worker) {
                    slot.is_leaving = true;
                }
                self.blame(worker);
                self.count_slot(worker);
            }
            EventKind::WorkerExited { worker, status, expected, .. } => {
                self.resets.explain_death(worker, *status);
                self.blame(worker);
                if !expected {
                    self.end_training_of(worker);
                }
                if let Some(slot) = self.facts.slot_with(worker) {
                    slot.last_end = match (status.is_success(), expected) {
                        (_, false) => LastEnd::Failed,
                        (true, true) if slot.is_member => LastEnd::Success,
                        _ => LastEnd::Meant,
                    };
                    slot.worker = None;
                    (slot.is_member, slot.is_leaving) = (false, false);
                }
                self.count_slot(worker);
            }
            EventKind::WorkerFailed { worker, error } => {
                if let Some(account) = self.resets.get_mut(generation.0) {
                    account.note_further_failure(worker, error);
                }
            }
            EventKind::WorkerNotStarted { worker, .. } => {
                if let Some(slot) = self.facts.slot_with(worker) {
                    (slot.worker, slot.last_end) = (None, LastEnd::Failed);
                    (slot.is_member, slot.is_leaving) = (false, false);
                }
                self.count_slot(worker);
            }
            EventKind::GenerationFormed { members, step, .. } => {
                self.generation_formed(generation, members, *step);
            }
            EventKind::GenerationRunning { .. } => self.generation_running(generation),
            EventKind::WorkerStalled { worker, late_ms, grounds, silent_ms, .. } => {
                // A stall that is only possible stays booked as training: the worker may be training. If a worker is
                // given up for its silence, that time belongs to detection, which its reset reports.
                let holds_up_all = grounds.as_ref().is_none_or(HangGrounds::is_more_than_possible);
                if holds_up_all && silent_ms.is_none() {
                    self.stalled(worker, *late_ms);
                }
            }
            EventKind::StallEnded { worker, .. } => self.stall_ended(worker),
            EventKind::StepsMeasured { ms, data, commit, straggler, slowest } => {
                self.waited(nanos(*ms), TimeBucket::Data, *data);
                self.waited(nanos(*ms), TimeBucket::CheckpointStall, *commit);
                let waited = self.waited(nanos(*ms), TimeBucket::Straggler, *straggler);
                self.stragglers.add(slowest, waited);
            }
            EventKind::ResetDecided { cause, way } => {
                let hung = self.end_hang();
                self.end_training();
                self.resets.open(self.now, generation, cause, *way);
                self.resets.charge(generation.0, TimeBucket::Hung, hung);
                self.open_reset = Some(generation);
                self.charge_members();
                let planned = *way == ResetWay::Interrupt;
                self.enter(if planned { KnownPhase::Pause } else { KnownPhase::Gather });
            }
            EventKind::GenerationTakenBack { .. } => {
                self.end_hang();
                self.end_training();
                self.enter(KnownPhase::Gather);
            }
            EventKind::ResetDone { cause, from, ms, steps_lost, lost_ms } => {
                if let Some(account) = self.resets.get_mut(from.0) {
                    // The first sign of a failure may not have been its cause.
                    account.cause = cause.clone();
                }
                self.reset_done((*from, generation), ms, *steps_lost, *lost_ms);
            }
            EventKind::TakeoverBegun { members, phase, .. } => self.taken_over(members, *phase),
            EventKind::TakeoverDone { lost, .. } => self.takeover_done(*lost),
            EventKind::JobEnded { .. } => {
                self.end_hang();
                self.end_training();
                self.enter(KnownPhase::Over);
            }
            EventKind::WorkerOutOfMemory { worker, detail } => {
                self.resets.explain_kill(worker, detail);
            }
            EventKind::CheckpointLoaded { step: Some(step), .. } => {
                self.checkpoint_loaded(generation, *step);
            }
            EventKind::StateLost { committed, begins_at, unseen, .. } => {
                self.rolled_back = committed.saturating_sub(*begins_at);
                self.lost_unseen |= *unseen || self.rolled_back > 0;
            }
            EventKind::HostRefused { .. }
            | EventKind::HostUnreachable(_)
            | EventKind::HostBlacklisted { .. }
            | EventKind::HostDrained { .. }
            | EventKind::HostReadmitted { .. }
            | EventKind::ResetCalledOff { .. }
            | EventKind::FirstSteps { .. }
            | EventKind::StragglerFound { .. }
            | EventKind::StragglerRecovered { .. }
            | EventKind::SlowLinkFound { .. }
            | EventKind::HealthCheckPassed { .. }
            | EventKind::HealthCheckFailed { .. }
            | EventKind::SlowLinkRecovered { .. }
            | EventKind::WorkerReplaced { .. }
            | EventKind::WorkerNotReplaced { .. }
            | EventKind::ReplacementTook { .. }
            | EventKind::SlotRested { .. }
            | EventKind::ShardsRebalanced { .. }
            | EventKind::NotRebalanced { .. }
            | EventKind::RebalanceTook { .. }
            | EventKind::ReplicasDiffer { .. }
            | EventKind::NotCompared { .. }
            | EventKind::StandbysChanged { .. }
            | EventKind::HandedOver { .. }
            | EventKind::Abandoned { .. }
            | EventKind::CheckpointSaved { .. }
            | EventKind::CheckpointFailed { .. }
            | EventKind::CheckpointLoaded { step: None, .. }
            | EventKind::Stopping { .. }
            | EventKind::Warning { .. } => {}
        }
    }

    fn host_joined(&mut self, host: &HostName) {
        self.facts.host(host).has_agent = true;
        self.count_host(host);
    }

    fn host_lost(&mut self, host: &HostName) {
        let workers: Vec<WorkerId> =
            self.facts.host(host).slots.values().filter_map(|slot| slot.worker.clone()).collect();
        for worker in workers {
            self.blame(&worker);
            self.end_training_of(&worker);
        }
        let facts = self.facts.host(host);
        facts.has_agent = false;
        for slot in facts.slots.values_mut() {
            // A worker that comes back attaches again.
            slot.worker = None;
            slot.is_member = false;
            slot.last_end = LastEnd::Meant;
        }
        self.count_host(host);
        self.facts.forget_the_gone();
    }

    /// A member leaves its generation: the time of its slot until it trains again is charged to the generation's end.
    fn blame(&mut self, worker: &WorkerId) {
        let (generation, phase) = (self.generation.0, self.phase);
        if matches!(phase, KnownPhase::Over | KnownPhase::Away) {
            return;
        }
        if let Some(slot) = self.facts.slot_with(worker).filter(|slot| slot.is_member) {
            slot.account = generation;
        }
    }

    fn generation_formed(&mut self, generation: GenerationId, members: &[WorkerId], step: u64) {
        self.end_hang();
        self.end_training();
        self.generation = generation;
        self.step = step;
        for slot in self.facts.slots_mut() {
            slot.is_member = false;
            slot.was_passed_over = slot.has_attached && slot.worker.is_some();
        }
        for member in members {
            let slot = self.facts.slot(member);
            if slot.worker.as_ref() != Some(member) {
                // A process that is started for this generation.
                (slot.worker, slot.has_process) = (Some(member.clone()), false);
                slot.has_attached = false;
            }
            (slot.is_member, slot.was_passed_over, slot.is_leaving) = (true, false, false);
        }
        self.charge_members();
        self.enter(KnownPhase::Form);
    }

    /// A generation whose members held no commit was formed with step 0, and begins at the step of this checkpoint.
    fn checkpoint_loaded(&mut self, generation: GenerationId, step: u64) {
        if generation == self.generation && self.phase == KnownPhase::Form {
            self.step = step;
        }
    }

    fn generation_running(&mut self, generation: GenerationId) {
        self.generation = generation;
        for slot in self.facts.slots_mut().filter(|slot| slot.is_member) {
            slot.account = 0;
        }
        self.open_reset = None;
        self.running_since = self.now;
        self.enter(KnownPhase::Run);
        self.history.begin(self.now, self.step, self.slots_in(TimeBucket::Training));
    }

    fn reset_done(
        &mut self,
        (from, to): (GenerationId, GenerationId),
        ms: &PhaseMs,
        steps_lost: u64,
        lost_ms: u64,
    ) {
        let committed = std::mem::take(&mut self.rolled_back);
        let world_size = self.slots_in(TimeBucket::Training);
        let way = self.resets.get_mut(from.0).map(|account| {
            (account.to, account.ms) = (Some(to), Some(*ms));
            (account.steps_lost, account.lost_ms) = (steps_lost, lost_ms);
            account.lost_unseen = committed > 0;
            account.way
        });
        let sync = nanos(ms.sync.unwrap_or_default());
        let synced_from = Time(self.running_since.0.saturating_sub(sync));
        let synced = SlotSpan::whole(world_size, synced_from, self.running_since);
        self.transfer(from, (TimeBucket::Forming, TimeBucket::Syncing), &synced);
        if way == Some(ResetWay::Interrupt) {
            return;
        }
        if let Some(unnoticed) = self.history.cut_detection(nanos(ms.detect)) {
            self.transfer(from, (TimeBucket::Training, TimeBucket::Detecting), &unnoticed);
        }
        // Processes that live for one generation do not tell their steps.
        if way != Some(ResetWay::Restart) {
            let training = LostTraining {
                goes_on_at: self.step,
                steps: steps_lost,
                committed,
                nanos: lost_ms.saturating_mul(1_000_000),
            };
            for (bucket, lost) in self.history.lose(&training) {
                self.transfer(from, (bucket, TimeBucket::Lost), &lost);
            }
        }
    }

    /// Goes on from the former driver's record, if its events are not known.
    fn taken_over(&mut self, members: &[WorkerId], phase: JobPhase) {
        for member in members {
            let slot = self.facts.slot(member);
            if slot.worker.is_none() {
                (slot.worker, slot.has_attached) = (Some(member.clone()), true);
            }
            slot.is_member |= slot.worker.as_ref() == Some(member);
            // Orders to end of a driver that died before it had journalled them were never given.
            slot.is_leaving &= !slot.is_member;
        }
        let phase = match phase {
            JobPhase::Gather => KnownPhase::Gather,
            JobPhase::Form | JobPhase::Sync => KnownPhase::Form,
            JobPhase::Run => KnownPhase::Run,
            JobPhase::Succeeded | JobPhase::Failed => KnownPhase::Over,
        };
        self.before_away = None;
        self.end_hang();
        if phase != KnownPhase::Run {
            self.end_training();
        }
        self.enter(phase);
    }

    /// The members of a generation that came back to a new driver have trained meanwhile, if none is lost.
    fn takeover_done(&mut self, lost: usize) {
        let slots = self.slots_of_members();
        for span in self.unseen.take(slots) {
            if lost == 0 {
                self.rebook((TimeBucket::DriverAway, TimeBucket::Training), &span);
            }
        }
    }

    fn end_training(&mut self) {
        self.unseen = UnseenTraining::default();
        let slots = self.slots_of_members();
        self.history.end(self.now, slots);
    }

    /// A member is lost: its generation trained until now, with all members.
    fn end_training_of(&mut self, worker: &WorkerId) {
        if self.facts.slot_with(worker).is_some_and(|slot| slot.is_member) {
            self.end_training();
        }
    }

    /// Charges the members' present time to the reset that is under way.
    fn charge_members(&mut self) {
        let Some(GenerationId(from)) = self.open_reset else { return };
        for slot in self.facts.slots_mut().filter(|slot| slot.is_member) {
            slot.account = from;
        }
    }
}
