//! Messages of the driver. Stamps are checked here, and only here (G-2). Part of `StateCore`.

use std::cmp::Ordering;
use std::sync::Arc;

use elastic_protocol::messages::{
    CheckpointSource, DriverToWorker, Formation, FormationTable, Placement, SyncPlan,
    WorkerToDriver,
};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Assignment, CommitId, Stamp, Time};

use super::{
    BoundaryAnswer, DriverAttachment, Pause, RunExit, StateCore, StateOutput, ThreadState,
    TrainingCommand,
};

impl StateCore {
    /// Handles a message of the driver.
    pub fn handle_driver(&mut self, now: Time, message: DriverToWorker) {
        self.take_message(now, message);
        self.note_waiting(now);
    }

    fn take_message(&mut self, now: Time, message: DriverToWorker) {
        match message {
            DriverToWorker::Welcome { job, .. } if job != self.config.job => {
                let exit = RunExit::WrongJob { ours: self.config.job, theirs: job };
                self.leave(exit, "the driver runs another job");
            }
            DriverToWorker::Welcome { term, .. } if term < self.term => self.dropped += 1,
            DriverToWorker::Welcome { term, deadlines, .. } => {
                if term > self.term {
                    // Promises to an earlier driver do not bind this one: it sends its own Pause.
                    self.pause.asked = false;
                    self.pause.is_old = true;
                }
                self.term = term;
                self.deadlines = deadlines;
                self.link = DriverAttachment::Attached;
                self.announce();
            }
            DriverToWorker::Assign(formation) => self.assigned(formation),
            DriverToWorker::Go { stamp, source } => {
                if self.is_current(stamp) {
                    self.go(now, stamp, source);
                }
            }
            DriverToWorker::SaveCheckpoint(order) => {
                if self.has_left_after_end(order.stamp) {
                    self.refuse_save(&order);
                } else if self.is_current(order.stamp) {
                    self.save_checkpoint(order);
                }
            }
            DriverToWorker::SealCheckpoint { stamp, step, keep, spared } => {
                // The parts of a save that was under way as training ended may be safe only now.
                if self.has_left_after_end(stamp) || self.is_current(stamp) {
                    self.seal_checkpoint(stamp, step, (keep, spared));
                }
            }
            DriverToWorker::Pause { stamp } => {
                if self.is_current(stamp) {
                    self.pause.asked = true;
                    self.pause.is_old = false;
                    self.set_pause_flag();
                }
            }
            DriverToWorker::StopAt { stamp, boundary } => {
                if self.is_current(stamp) {
                    self.stop_at(boundary);
                }
            }
            DriverToWorker::Resume { stamp } => {
                if self.is_current(stamp) {
                    self.resume();
                }
            }
            DriverToWorker::Abort { stamp, cause } => self.aborted(stamp, &cause.to_string()),
            DriverToWorker::Leave { reason } => {
                self.leave(RunExit::Left { reason: reason.clone() }, &reason);
            }
            DriverToWorker::Finished { result } => {
                let reason = result.reason.clone();
                self.leave(RunExit::Finished { result }, &reason);
            }
        }
    }

    /// The pause flag is stored, and the boundary counter was read after it.
    pub fn handle_pause_read(&mut self, _now: Time, boundary: u64) {
        if !self.pause.flag || !self.is_active() {
            return;
        }
        // The first reading is kept: a later one may count a boundary at which the thread is held. If a stop is
        // agreed already, all boundaries before it will be passed.
        let agreed = self.pause.stop_at.map_or(0, |stop| stop.saturating_sub(1));
        let promised = self.pause.promised.unwrap_or(boundary).max(agreed);
        self.pause.promised = Some(promised);
        if std::mem::take(&mut self.pause.asked) {
            self.tell_driver(WorkerToDriver::Paused { stamp: self.stamp, boundary: promised });
        }
        self.settle_held();
    }

    /// Whether a message is about the active generation. Messages about other generations are dropped and
    /// counted, those about a generation that was never assigned here too: only `Assign` begins a generation.
    fn is_current(&mut self, stamp: Stamp) -> bool {
        if stamp != self.stamp {
            self.dropped += 1;
            return false;
        }
        self.is_active()
    }

    /// Whether the last generation is this one, and was interrupted after the end of training.
    fn has_left_after_end(&self, stamp: Stamp) -> bool {
        stamp == self.stamp && self.left_after_end == Some(stamp)
    }

    fn assigned(&mut self, formation: Formation) {
        let stamp = formation.stamp;
        if stamp <= self.stamp {
            self.dropped += 1;
            return;
        }
        let Some(assignment) = self.resolve(&formation.table) else {
            self.tell_driver(WorkerToDriver::TableWanted { stamp });
            return;
        };
        let Some(rank) = self.rank_in(&assignment) else {
            self.dropped += 1;
            return;
        };
        if !is_planted(Bug::ChangeOfWrongTable) {
            self.table = Arc::clone(&assignment);
        }
        self.end_generation("a newer generation was assigned");
        self.stamp = stamp;
        if !is_planted(Bug::PauseOutlivesGeneration) {
            self.pause = Pause::default();
        }
        let placement = Placement {
            stamp,
            assignment,
            rank,
            sync: formation.sync,
            step: formation.step,
            key: formation.key,
            encrypts: formation.encrypts,
            data_plane: formation.data_plane,
            shards: formation.shards,
        };
        self.pending = (self.exit.is_none() && !self.is_exited()).then_some(placement);
        self.go_on();
    }

    /// The assignment that a message means. `None` if it is a delta against another table than the one held
    /// here.
    fn resolve(&self, table: &FormationTable) -> Option<Arc<Assignment>> {
        match table {
            FormationTable::Full(assignment) => Some(Arc::clone(assignment)),
            FormationTable::Delta(delta) if is_planted(Bug::ChangeOfWrongTable) => {
                delta.apply_unchecked(&self.table).ok().map(Arc::new)
            }
            FormationTable::Delta(delta) => delta.apply(&self.table).ok().map(Arc::new),
        }
    }

    fn rank_in(&self, assignment: &Assignment) -> Option<u32> {
        match assignment.rank_of(&self.config.worker)? {
            1 if is_planted(Bug::RankGivenTwice) => Some(0),
            rank => Some(rank),
        }
    }

    fn go(&mut self, now: Time, stamp: Stamp, source: Option<CheckpointSource>) {
        let Some(placement) = self.placement.as_ref() else { return };
        if !matches!(self.training, ThreadState::Formed) {
            return;
        }
        if is_planted(Bug::ChangeOfWrongTable) {
            self.table = Arc::clone(&placement.assignment);
        }
        let plan = placement.sync;
        let held = self.commit.map(|commit| commit.step);
        if plan == SyncPlan::Skip && held != Some(placement.step) {
            let error = format!(
                "told to skip the sync at step {} while holding {} (G-6)",
                placement.step,
                held.map_or_else(|| "no commit".to_owned(), |step| format!("step {step}")),
            );
            self.report_failure(error);
            return;
        }
        self.sample_at = Some(now + self.deadlines.beat);
        self.command(TrainingCommand::Sync { stamp, plan, source });
        self.training = ThreadState::Syncing;
        if plan == SyncPlan::Skip {
            // The thread holds the commit, and may train already: it takes the command at its first call.
            self.commit = self.commit.map(|held| CommitId { generation: stamp.generation, ..held });
            self.trains();
        }
    }

    /// Ends the generation at this worker because of a local failure, and reports it to the driver.
    fn report_failure(&mut self, error: String) {
        let (stamp, reason) = (self.stamp, error.clone());
        let (peer, told_by) = (None, None);
        self.tell_driver(WorkerToDriver::CollectiveFailed { stamp, peer, told_by, error });
        self.end_generation(&reason);
    }

    fn stop_at(&mut self, boundary: u64) {
        if matches!(self.training, ThreadState::Returned) {
            self.end_generation("interrupted after its end");
            self.say_arrived();
            return;
        }
        // Boundaries before an earlier stop may have been passed.
        let earlier = self.pause.stop_at.replace(boundary).map_or(0, |stop| stop.saturating_sub(1));
        self.pause.promised = self.pause.promised.map(|promised| promised.max(earlier));
        if !self.pause.flag {
            self.set_pause_flag();
        }
        self.settle_held();
    }

    /// Sets the pause flag, so that the training thread asks at its next boundary. Put off until the generation
    /// has begun here.
    pub(super) fn set_pause_flag(&mut self) {
        if self.pending.is_none() {
            self.pause.flag = true;
            self.outputs.push_back(StateOutput::PauseFlag { on: true });
        }
    }

    fn resume(&mut self) {
        self.pause = Pause::default();
        self.outputs.push_back(StateOutput::PauseFlag { on: false });
        self.settle_held();
    }

    fn aborted(&mut self, stamp: Stamp, cause: &str) {
        if stamp < self.stamp {
            self.dropped += 1;
            return;
        }
        self.end_generation(cause);
        self.arrived &= stamp == self.stamp && self.pending.is_none();
        self.stamp = stamp;
        self.pending = None;
        if matches!(self.training, ThreadState::AtRest) && !self.arrived {
            self.say_arrived();
        }
    }

    /// Gives a held thread its verdict, if it is decided.
    fn settle_held(&mut self) {
        let ThreadState::Running { held: Some(boundary) } = self.training else { return };
        let command = match self.verdict(boundary) {
            BoundaryAnswer::Hold => return,
            BoundaryAnswer::Pass => TrainingCommand::Pass,
            BoundaryAnswer::Stop => TrainingCommand::Stop,
            BoundaryAnswer::End => {
                self.overran(boundary);
                return;
            }
        };
        self.training = match command {
            TrainingCommand::Stop => self.stopping(),
            _ => ThreadState::Running { held: None },
        };
        self.command(command);
    }

    fn stopping(&mut self) -> ThreadState {
        self.placement = None;
        ThreadState::Ending
    }

    fn overran(&mut self, boundary: u64) {
        let error = format!(
            "reached boundary {boundary} beyond the agreed stop at {}: the ranks do not commit alike",
            self.pause.stop_at.unwrap_or_default(),
        );
        self.report_failure(error);
    }

    /// The training thread saw the pause flag at this boundary and asks.
    ///
    /// Any answer but [`BoundaryAnswer::Hold`] is final; after `Hold` the answer comes as a command.
    pub fn handle_boundary(&mut self, now: Time, stamp: Stamp, boundary: u64) -> BoundaryAnswer {
        if stamp != self.stamp || !matches!(self.training, ThreadState::Running { .. }) {
            return BoundaryAnswer::End;
        }
        let verdict = self.verdict(boundary);
        match verdict {
            BoundaryAnswer::Hold => self.training = ThreadState::Running { held: Some(boundary) },
            BoundaryAnswer::Pass => self.training = ThreadState::Running { held: None },
            BoundaryAnswer::Stop => self.training = self.stopping(),
            BoundaryAnswer::End => self.overran(boundary),
        }
        self.note_waiting(now);
        verdict
    }

    pub(super) fn verdict(&self, boundary: u64) -> BoundaryAnswer {
        match (self.pause.flag, self.pause.stop_at, self.pause.promised) {
            (false, _, _) => BoundaryAnswer::Pass,
            (true, Some(stop), _) => match boundary.cmp(&stop) {
                Ordering::Less => BoundaryAnswer::Pass,
                Ordering::Equal => BoundaryAnswer::Stop,
                Ordering::Greater => BoundaryAnswer::End,
            },
            (true, None, Some(promised)) if boundary <= promised => BoundaryAnswer::Pass,
            (true, None, _) if is_planted(Bug::PromiseBroken) => BoundaryAnswer::Pass,
            (true, None, _) => BoundaryAnswer::Hold,
        }
    }
}
