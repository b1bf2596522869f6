//! What the driver says: stamps are checked here, and only here (G-2).

use std::cmp::Ordering;
use std::sync::Arc;

use elastic_protocol::messages::{
    DriverToWorker, Formation, Placement, SyncPlan, Table, WorkerToDriver,
};
use elastic_protocol::{Assignment, Stamp, Time};
use elastic_runtime::planted::{Bug, is_planted};

use super::{Exit, Link, Output, Pause, StateCore, Training, TrainingCommand, Verdict};

impl StateCore {
    /// The driver said something.
    pub fn handle_driver(&mut self, now: Time, message: DriverToWorker) {
        self.take_message(message);
        self.note_waiting(now);
    }

    fn take_message(&mut self, message: DriverToWorker) {
        match message {
            DriverToWorker::Welcome { job, .. } if job != self.config.job => {
                let exit = Exit::WrongJob { ours: self.config.job, theirs: job };
                self.leave(exit, "the driver runs another job");
            }
            DriverToWorker::Welcome { term, .. } if term < self.term => self.dropped += 1,
            DriverToWorker::Welcome { term, deadlines, .. } => {
                if term > self.term {
                    // What a former driver was promised, this one does not build on: it asks itself.
                    self.pause.asked = false;
                    self.pause.is_old = true;
                }
                self.term = term;
                self.deadlines = deadlines;
                self.link = Link::Attached;
                self.announce();
            }
            DriverToWorker::Assign(formation) => self.assigned(formation),
            DriverToWorker::Go { stamp } => {
                if self.is_current(stamp) {
                    self.go(stamp);
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
                self.leave(Exit::Left { reason: reason.clone() }, &reason);
            }
            DriverToWorker::Finished { result } => {
                let reason = result.reason.clone();
                self.leave(Exit::Finished { result }, &reason);
            }
        }
    }

    /// The pause flag is stored, and the boundary counter was read after it.
    pub fn handle_pause_read(&mut self, _now: Time, boundary: u64) {
        if !self.pause.flag || !self.is_active() {
            return;
        }
        // A later reading may count a boundary at which the thread is held: the first one stays. Where
        // a stop is agreed already, all before it will be passed.
        let agreed = self.pause.stop_at.map_or(0, |stop| stop.saturating_sub(1));
        let promised = self.pause.promised.unwrap_or(boundary).max(agreed);
        self.pause.promised = Some(promised);
        if std::mem::take(&mut self.pause.asked) {
            self.tell_driver(WorkerToDriver::Paused { stamp: self.stamp, boundary: promised });
        }
        self.settle_held();
    }

    /// Whether a message is about the generation that goes on here. An older one is counted, one about
    /// a generation that never came here is dropped too: only `Assign` begins one.
    fn is_current(&mut self, stamp: Stamp) -> bool {
        if stamp != self.stamp {
            self.dropped += 1;
            return false;
        }
        self.is_active()
    }

    fn assigned(&mut self, formation: Formation) {
        let Formation { stamp, table, sync, step, key, encrypts, data_plane } = formation;
        if stamp <= self.stamp {
            self.dropped += 1;
            return;
        }
        let Some(assignment) = self.resolve(&table) else {
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
        let placement =
            Placement { stamp, assignment, rank, sync, step, key, encrypts, data_plane };
        self.pending = self.exit.is_none().then_some(placement);
        self.go_on();
    }

    /// The table that is meant; none if it is told as a change of another table than the one held here.
    fn resolve(&self, table: &Table) -> Option<Arc<Assignment>> {
        match table {
            Table::Full(assignment) => Some(Arc::clone(assignment)),
            Table::Delta(delta) if is_planted(Bug::ChangeOfWrongTable) => {
                delta.apply_unchecked(&self.table).ok().map(Arc::new)
            }
            Table::Delta(delta) => delta.apply(&self.table).ok().map(Arc::new),
        }
    }

    fn rank_in(&self, assignment: &Assignment) -> Option<u32> {
        match assignment.rank_of(&self.config.worker)? {
            1 if is_planted(Bug::RankGivenTwice) => Some(0),
            rank => Some(rank),
        }
    }

    fn go(&mut self, stamp: Stamp) {
        let Some(placement) = self.placement.as_ref() else { return };
        if !matches!(self.training, Training::Formed) {
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
            self.report_failure(None, error);
            return;
        }
        self.training = Training::Syncing;
        self.command(TrainingCommand::Sync { stamp, plan });
    }

    /// Ends the generation here for a reason of this worker's own, and says so.
    fn report_failure(&mut self, peer: Option<u32>, error: String) {
        let reason = error.clone();
        self.tell_driver(WorkerToDriver::CollectiveFailed { stamp: self.stamp, peer, error });
        self.end_generation(&reason);
    }

    fn stop_at(&mut self, boundary: u64) {
        if matches!(self.training, Training::Returned) {
            self.end_generation("interrupted after its end");
            self.say_arrived();
            return;
        }
        self.pause.stop_at = Some(boundary);
        if !self.pause.flag {
            self.set_pause_flag();
        }
        self.settle_held();
    }

    /// Makes the training thread ask; put off until the generation begins here if it has not.
    pub(super) fn set_pause_flag(&mut self) {
        if self.pending.is_none() {
            self.pause.flag = true;
            self.outputs.push_back(Output::PauseFlag { on: true });
        }
    }

    fn resume(&mut self) {
        self.pause = Pause::default();
        self.outputs.push_back(Output::PauseFlag { on: false });
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
        if matches!(self.training, Training::AtRest) && !self.arrived {
            self.say_arrived();
        }
    }

    /// Gives a held thread its verdict, if there is one by now.
    fn settle_held(&mut self) {
        let Training::Running { held: Some(boundary) } = self.training else { return };
        let command = match self.verdict(boundary) {
            Verdict::Hold => return,
            Verdict::Pass => TrainingCommand::Pass,
            Verdict::Stop => TrainingCommand::Stop,
            Verdict::End => {
                self.overran(boundary);
                return;
            }
        };
        self.training = match command {
            TrainingCommand::Stop => self.stopping(),
            _ => Training::Running { held: None },
        };
        self.command(command);
    }

    fn stopping(&mut self) -> Training {
        self.placement = None;
        self.sample_at = None;
        Training::Ending
    }

    fn overran(&mut self, boundary: u64) {
        let error = format!(
            "reached boundary {boundary} beyond the agreed stop at {}: the ranks do not commit alike",
            self.pause.stop_at.unwrap_or_default(),
        );
        self.report_failure(None, error);
    }

    /// The training thread saw the pause flag at this boundary and asks.
    ///
    /// Any answer but [`Verdict::Hold`] is final; after `Hold` the answer comes as a command.
    pub fn handle_boundary(&mut self, now: Time, stamp: Stamp, boundary: u64) -> Verdict {
        if stamp != self.stamp || !matches!(self.training, Training::Running { .. }) {
            return Verdict::End;
        }
        let verdict = self.verdict(boundary);
        match verdict {
            Verdict::Hold => self.training = Training::Running { held: Some(boundary) },
            Verdict::Pass => self.training = Training::Running { held: None },
            Verdict::Stop => self.training = self.stopping(),
            Verdict::End => self.overran(boundary),
        }
        self.note_waiting(now);
        verdict
    }

    fn verdict(&self, boundary: u64) -> Verdict {
        match (self.pause.flag, self.pause.stop_at, self.pause.promised) {
            (false, _, _) => Verdict::Pass,
            (true, Some(stop), _) => match boundary.cmp(&stop) {
                Ordering::Less => Verdict::Pass,
                Ordering::Equal => Verdict::Stop,
                Ordering::Greater => Verdict::End,
            },
            (true, None, Some(promised)) if boundary <= promised => Verdict::Pass,
            (true, None, _) if is_planted(Bug::PromiseBroken) => Verdict::Pass,
            (true, None, _) => Verdict::Hold,
        }
    }
}
