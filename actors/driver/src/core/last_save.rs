//! The save of the commit with which training has ended. Part of the core; called by `ending` and `checkpoints`.
//!
//! Members whose training functions have returned wait for the job's end, and hold their last commit until then. So the end
//! waits: for a save of an earlier step that is under way, and then for the save of the last commit. A failure of this save
//! is told, and the job has succeeded all the same.

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Step, Time, WorkerId};

use super::DriverCore;
use super::table::WorkerRecord;

/// Beginning of the reason for which a last commit is not saved.
const WITH_THIS: &str = "training has ended with this commit, and";

impl DriverCore {
    /// Training has ended with success: begins to save the commit with which it ended, if the job has checkpoints. Returns
    /// whether the job's end waits for that.
    pub(crate) fn begin_last_save(&mut self, now: Time) -> bool {
        if self.config.checkpoint.is_none() || self.is_by_restart() {
            return false;
        }
        let Some(current) = self.round.current().filter(|_| !is_planted(Bug::EndNotSaved)) else {
            return false;
        };
        let members = current.assignment.members();
        let records = members.filter_map(|member| self.roster.worker(&member.worker));
        // The steps that members have reported, to this driver or to the one before. A member that holds another commit answers
        // the order with its step.
        let held = |record: &WorkerRecord| {
            let commit = record.commit.map(|commit| commit.step).unwrap_or_default();
            record.step.max(commit)
        };
        let step = records.map(held).max().unwrap_or_default();
        if self.checkpoints.last_step() >= Some(step) {
            return false;
        }
        self.checkpoints.end_with(step);
        self.go_on_with_last_save(now)
    }

    /// Orders the last commit to be saved, unless an earlier save is under way. Returns whether the job's end waits for it: each rank
    /// has a part to write, so that it is given up if one is gone.
    fn go_on_with_last_save(&mut self, now: Time) -> bool {
        let Some(step) = self.checkpoints.ends_with() else { return false };
        if let Some(gone) = self.gone_member() {
            self.cut_last_save_short(&format!("{gone} is gone"));
            return false;
        }
        // A step that nobody will reach is not waited for.
        if !self.checkpoints.saves_before(step) {
            self.order_save(now, step);
        }
        true
    }

    /// The first member of the generation formed last that is lost, or whose process has ended.
    fn gone_member(&self) -> Option<WorkerId> {
        let current = self.round.current()?;
        let mut members = current.assignment.members().map(|member| member.worker);
        members.find(|it| !current.alive.contains(it) || !self.roster.has_worker(it))
    }

    /// A save of this step has ended after the end of training, with success or not: the one of the last commit follows, or the
    /// job's end.
    pub(crate) fn last_save_ended(&mut self, now: Time, step: Step) {
        let Some(last) = self.checkpoints.ends_with() else { return };
        if step < last {
            return self.order_last_save_or_end(now);
        }
        self.checkpoints.no_longer_ends();
        self.dismiss_workers(now);
    }

    /// A member holds another commit than the one that was ordered. A driver that has taken over does not know with which one
    /// training has ended, and learns it so.
    pub(crate) fn last_save_missed(&mut self, now: Time, step: Step, reached: Step) {
        if self.checkpoints.ends_with() != Some(step) {
            return self.last_save_ended(now, step);
        }
        if reached <= step {
            let reason = format!("a member has ended with the commit of step {reached}");
            return self.give_up_last_save(now, &reason);
        }
        self.checkpoints.end_with(reached);
        self.order_last_save_or_end(now);
    }

    /// Orders the last commit to be saved once the save before it has ended, or anew. A member may be gone by now, and nobody
    /// else has its part.
    pub(crate) fn order_last_save_or_end(&mut self, now: Time) {
        match self.go_on_with_last_save(now) {
            true => self.continue_ending(now),
            false => self.dismiss_workers(now),
        }
    }

    /// Whether the job's end waits for the last save. Gives it up if a process is gone that it cannot do without.
    pub(crate) fn awaits_last_save(&mut self, now: Time) -> bool {
        if self.checkpoints.ends_with().is_none() {
            return false;
        }
        let gone = self
            .checkpoints
            .needed()
            .into_iter()
            .find(|it| !self.roster.has_worker(it) || self.roster.agent_of(it).is_none());
        let Some(gone) = gone else { return true };
        self.give_up_last_save(now, &format!("{gone} is gone"));
        false
    }

    /// Gives the last save up: the job ends without it.
    pub(crate) fn give_up_last_save(&mut self, now: Time, reason: &str) {
        self.cut_last_save_short(reason);
        self.dismiss_workers(now);
    }

    /// Gives the last save up, if it is under way. The caller ends the job.
    pub(crate) fn cut_last_save_short(&mut self, reason: &str) {
        let Some(step) = self.checkpoints.ends_with() else { return };
        self.checkpoints.no_longer_ends();
        let reason = format!("{WITH_THIS} {reason}");
        self.tell_of_failed_save(step, reason);
    }

    /// The save that the job's end waits for, in words.
    pub(crate) fn awaited_last_save(&self) -> Option<String> {
        let step = self.checkpoints.ends_with()?;
        Some(format!("training has finished; its last commit, of step {step}, is being saved"))
    }
}
