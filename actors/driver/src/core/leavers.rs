//! Members on notice without which no generation can go on: their state is saved before they leave. Part of the core;
//! called by `review`, `interrupt`, `gather`, `checkpoints` and `status`.
//!
//! A member is on notice if it or its host is about to leave, or if the operator has taken the host out or off the list.
//! Notices to many machines rarely come in one moment. The first one may leave too few members (`min_np`): training would
//! stop, and the next one would take the only copies of the state along. So members on notice train on until the nearest
//! commit is saved, for half the grace period at most. If no member stays at all, they train on for as long as they may, and
//! save again and again. Jobs without checkpoints, and jobs by restart, have nothing to wait for.

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Step, Time, WorkerId};
use serde::{Deserialize, Serialize};

use super::DriverCore;
use super::gather::missing::list;
use super::phase::RoundPhase;
use super::timers::Timer;

/// The save that members on notice are kept for.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct LeaversSave {
    /// Highest step that a member was known to have reached: a checkpoint of a later one is enough.
    beyond: Step,
    until: Time,
}

impl DriverCore {
    /// Whether a worker is about to leave, with its host or by itself.
    fn is_on_notice(&self, worker: &WorkerId) -> bool {
        let asked = self.roster.worker(worker).is_some_and(|record| record.leaving.is_some());
        asked
            || self.roster.seating().draining().contains(&worker.host)
            || self.roster.is_taken_out(&worker.host)
    }

    /// Members on notice that train on, in words.
    pub(crate) fn awaited_before_leaving(&self, now: Time) -> Option<String> {
        let alive = &self.round.current().filter(|_| self.checkpoints.is_hurried)?.alive;
        let (leavers, staying): (Vec<&WorkerId>, Vec<_>) =
            alive.iter().partition(|worker| self.is_on_notice(worker));
        let leavers = list(leavers.into_iter().map(ToString::to_string));
        if staying.is_empty() {
            return Some(format!(
                "no worker stays; training on until another one comes: {leavers}"
            ));
        }
        let until = self.checkpoints.leavers.filter(|_| self.leavers_train_on(now, 0))?.until;
        let seconds = until.since(now).as_secs();
        Some(format!("to leave once a commit is saved, within {seconds} s: {leavers}"))
    }

    /// Has saves follow each other from now on if too few members of the running generation stay, or none: the others take
    /// the state with them.
    pub(crate) fn hurry_checkpoints_of_leavers(&mut self, now: Time) {
        let Some(current) = self.round.current() else { return };
        let alive = &current.alive;
        let staying = alive.iter().filter(|worker| !self.is_on_notice(worker)).count();
        let nobody_leaves = staying == alive.len();
        let newcomers = self.roster.seating().ready().filter(|worker| !alive.contains(worker));
        let are_too_few = staying + newcomers.count() < self.min_np() as usize;
        let is_hurried = !nobody_leaves && (staying == 0 || are_too_few);
        if nobody_leaves {
            self.checkpoints.leavers = None;
        }
        let was_hurried = std::mem::replace(&mut self.checkpoints.is_hurried, is_hurried);
        if is_hurried && !was_hurried {
            self.checkpoints.due_at = Some(now);
            if !self.awaits_save_of_leavers(now) && self.can_save() {
                let until = now + self.config.deadlines.grace / 2;
                self.checkpoints.leavers = Some(LeaversSave { beyond: self.highest_step(), until });
                self.agenda.set(until, Timer::Checkpoint);
            }
            self.save_soon(now);
        }
    }

    /// Whether members on notice are kept for a save that is not safe yet.
    fn awaits_save_of_leavers(&self, now: Time) -> bool {
        let last = self.checkpoints.last_step();
        self.checkpoints.leavers.is_some_and(|save| now < save.until && last <= Some(save.beyond))
    }

    /// Whether members on notice train on, since only so many would stay, and their commit is not safe yet.
    pub(crate) fn leavers_train_on(&self, now: Time, staying: usize) -> bool {
        staying < self.min_np() as usize
            && self.awaits_save_of_leavers(now)
            && self.trouble_of_stop_save(now).is_none()
            && !is_planted(Bug::LeaversNotSaved)
    }

    /// A save of this generation has ended, with success or not: members on notice may be kept for no other reason.
    pub(crate) fn save_of_leavers_ended(&mut self, now: Time, is_safe: bool) {
        let Some(save) = &mut self.checkpoints.leavers else { return };
        if !is_safe {
            save.until = now;
        }
        self.agenda.ask_review(now);
    }

    /// Members of the generation formed last that take part once more although they are on notice:
    /// without them there are fewer workers than `needed`, and their commit is not safe, or no worker at all stays.
    pub(crate) fn leavers_to_go_on_with(&self, now: Time, needed: usize) -> Vec<WorkerId> {
        let RoundPhase::Gather(gather) = self.round.phase() else { return Vec::new() };
        let Some(current) = self.round.current().filter(|_| !self.is_by_restart()) else {
            return Vec::new();
        };
        let seating = self.roster.seating();
        let ready = seating.ready_for(needed).len();
        if ready >= needed || is_planted(Bug::LeaversNotSaved) {
            return Vec::new();
        }
        let last = self.checkpoints.last_step();
        let is_unsaved = self.config.checkpoint.is_some()
            && match self.checkpoints.leavers {
                Some(_) => self.awaits_save_of_leavers(now),
                None => last < Some(self.highest_step()),
            };
        if ready > 0 && !is_unsaved {
            return Vec::new();
        }
        let takes_part = |worker: &WorkerId| {
            let is_eligible = self.roster.worker(worker).is_some_and(|it| it.is_eligible());
            is_eligible && self.is_on_notice(worker) && seating.unwanted().contains(worker)
        };
        let room =
            self.config.max_np.map_or(usize::MAX, |max| (max as usize).saturating_sub(ready));
        let members = current.assignment.members().map(|member| member.worker);
        let leavers: Vec<WorkerId> = members.filter(takes_part).take(room).collect();
        let are_enough = ready + leavers.len() + gather.waiting_for.len() >= needed;
        if are_enough { leavers } else { Vec::new() }
    }
}
