//! [`Checkpoints`]: saves of commits as durable checkpoints, their schedule and their results. A part of the core. `resume` has
//! what training begins from.
//!
//! The driver orders a step that no member has committed yet, since a member keeps its last commit only. Each member
//! writes a part of it; when all parts are safe, rank 0 makes the checkpoint whole. At most one save is under way. A save
//! that fails, or that its generation does not outlive, costs nothing but itself: another one follows.

mod resume;
mod unused;

use std::collections::BTreeSet;
use std::time::Duration;

use elastic_protocol::messages::{
    CheckpointOrder, CheckpointReport, CheckpointStatus, DriverToWorker,
};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Stamp, Step, Time, WorkerId};
use serde::{Deserialize, Serialize};

use super::DriverCore;
use super::commit_pace::CommitPace;
use super::config::{CheckpointEvery, CheckpointSettings};
use super::event::EventKind;
use super::leavers::LeaversSave;
use super::phase::RoundPhase;
use super::slow_load::CheckpointLoad;
use super::table::Stance;
use super::timers::Timer;
use crate::journal::{CheckpointImage, Image, JournalRecord};
use unused::UnusedCheckpoints;

/// Time after which an incomplete save counts as slow. The status then names the members that it waits for.
const SAVE_SLOW: Duration = Duration::from_secs(60);

/// Least lead of an order: the number of steps between the highest reported step and the one that is ordered. The lead
/// doubles whenever a member has made the commit before the order came, and each save halves it: a long lead makes
/// checkpoints rare.
pub(super) const LEAD_STEPS: u64 = 2;

/// The least lead while the job waits for the save, since steps may be long.
const LEAD_SOON: u64 = 1;

/// Time that such an order, and the members' reports before it, may take. The number of commits in this time is its lead.
const ORDERED_WITHIN: Duration = Duration::from_millis(500);

/// Interval between two saves while members are about to leave without which no generation can go on.
pub(super) const HURRIED_EVERY: Duration = Duration::from_secs(2);

/// Largest lead, in steps.
const LEAD_STEPS_MAX: u64 = 1 << 20;

/// The save that is under way.
#[derive(Debug, Deserialize, Serialize)]
struct Save {
    stamp: Stamp,
    step: Step,
    began: Time,
    /// Members whose parts are not safe yet; if empty, rank 0 makes the checkpoint whole.
    waiting_for: BTreeSet<WorkerId>,
    sealer: WorkerId,
    /// Time at which it counts as slow.
    slow_at: Time,
}

/// Saves of checkpoints.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Checkpoints {
    save: Option<Save>,
    last: Option<CheckpointImage>,
    /// The directory of checkpoints that the last one is in; none: that of the settings.
    #[serde(default)]
    directory: Option<String>,
    /// Time at which the last one became whole; none if that was under a former driver.
    last_at: Option<Time>,
    trouble: Option<String>,
    lead: u64,
    /// Time at which the next save is due; none before training, and if saves go by steps.
    pub(super) due_at: Option<Time>,
    /// Highest step that a member is known to have reached, beside its reports of progress.
    reached: Step,
    /// The step whose save failed last, until a member has reached it: the next order may fail at once, too.
    #[serde(default)]
    failed: Option<Step>,
    /// The commit with which training has ended, while the job's end waits for its save.
    #[serde(default)]
    ends_with: Option<Step>,
    /// Whether rank 0 writes the whole of each checkpoint, since the contents of the members have differed.
    #[serde(default)]
    is_by_rank_0: bool,
    /// The step of the checkpoint that the job has begun from, which it has not made itself; none if a former driver began it.
    #[serde(default)]
    begun_at: Option<Step>,
    /// Whether members are about to leave without which no generation can go on.
    #[serde(default)]
    pub(super) is_hurried: bool,
    /// The save that they are kept for.
    #[serde(default)]
    pub(super) leavers: Option<LeaversSave>,
    #[serde(default)]
    pace: CommitPace,
    /// The wait for the checkpoint that training is to begin from; none once a generation trains.
    #[serde(default)]
    pub(super) load: Option<CheckpointLoad>,
    /// The wait for a program by restart to use the library.
    #[serde(default)]
    unused: UnusedCheckpoints,
}

impl Checkpoints {
    /// The state at the start of a driver: the last checkpoint is taken from the journal's image, the rest is empty.
    pub(crate) fn restored(image: Option<&Image>) -> Self {
        Self {
            save: None,
            last: image.and_then(|image| image.checkpoint),
            directory: image.and_then(|image| image.checkpoint_directory.clone()),
            last_at: None,
            trouble: None,
            lead: LEAD_STEPS,
            due_at: None,
            reached: Step::default(),
            failed: None,
            ends_with: None,
            is_by_rank_0: image.is_some_and(|image| image.is_saved_by_rank_0),
            begun_at: None,
            is_hurried: false,
            leavers: None,
            pace: CommitPace::default(),
            load: None,
            unused: UnusedCheckpoints::default(),
        }
    }

    /// Whether rank 0 writes the whole of each checkpoint.
    pub(crate) const fn is_by_rank_0(&self) -> bool {
        self.is_by_rank_0
    }

    /// The last checkpoint; none if this job has made none.
    pub(crate) const fn last(&self) -> Option<CheckpointImage> {
        self.last
    }

    /// The directory of checkpoints that the last one is in; none: that of the settings.
    pub(crate) fn directory(&self) -> Option<&str> {
        self.directory.as_deref()
    }

    /// The step of the last checkpoint; none if this job has made none.
    pub(crate) fn last_step(&self) -> Option<Step> {
        self.last.map(|checkpoint| checkpoint.step)
    }

    /// Whether a step is being saved.
    pub(crate) const fn is_saving(&self) -> bool {
        self.save.is_some()
    }

    /// The commit with which training has ended, while the job's end waits for its save.
    pub(crate) const fn ends_with(&self) -> Option<Step> {
        self.ends_with
    }

    /// Training has ended with this commit, and the job's end waits for its save.
    pub(crate) const fn end_with(&mut self, step: Step) {
        self.ends_with = Some(step);
    }

    /// The job's end does not wait for a save any more.
    pub(crate) fn no_longer_ends(&mut self) {
        (self.ends_with, self.save) = (None, None);
    }

    /// The lead of an order that is not to be missed, and no longer than that.
    fn lead_soon(&self) -> u64 {
        self.pace.commits_in(ORDERED_WITHIN).max(LEAD_SOON)
    }

    /// The step that is being saved.
    pub(crate) fn saving(&self) -> Option<Step> {
        self.save.as_ref().map(|save| save.step)
    }

    /// Whether a step before this one is being saved.
    pub(crate) fn saves_before(&self, step: Step) -> bool {
        self.save.as_ref().is_some_and(|save| save.step < step)
    }

    /// Workers without which the save under way cannot end: those whose parts are not safe yet, and the one that makes the
    /// checkpoint whole after that.
    pub(crate) fn needed(&self) -> Vec<WorkerId> {
        let Some(save) = &self.save else { return Vec::new() };
        save.waiting_for.iter().chain([&save.sealer]).cloned().collect()
    }

    /// The trouble with saves, in words.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

impl DriverCore {
    /// A generation trains: saves begin.
    pub(crate) fn begin_checkpoints(&mut self, now: Time) {
        let found = self.checkpoints.load.take().and_then(|load| load.found);
        if let Some(step) = found.filter(|step| self.checkpoints.last_step() < Some(*step)) {
            // A former driver has ended before it could record this save, or another job has made it.
            let is_first = self.checkpoints.last.is_none() && self.round.resets() == 0;
            self.checkpoints.begun_at = is_first.then_some(step);
            // One that this job has made has training of this job behind it.
            if self.checkpoints.last.is_none() && self.state.trained().is_zero() {
                self.inherit_state(now);
            }
            self.keep_found_checkpoint(CheckpointImage {
                generation: self.round.generation(),
                step,
            });
        }
        self.watch_unused_checkpoints(now);
        self.go_on_saving(now);
    }

    /// Remembers the last checkpoint that is whole, also for the next driver.
    fn keep_checkpoint(&mut self, checkpoint: CheckpointImage, directory: String) {
        self.checkpoints.last = Some(checkpoint);
        self.checkpoints.directory = Some(directory.clone());
        self.state.reached(checkpoint.step);
        self.record(&JournalRecord::CheckpointKept { checkpoint, directory });
    }

    /// Sets the timer of the next save, since a generation trains, or trains on. The timer may have passed while training was
    /// about to stop.
    pub(crate) fn go_on_saving(&mut self, now: Time) {
        let Some(settings) = &self.config.checkpoint else { return };
        if let CheckpointEvery::Period(period) = settings.every {
            let due_at = *self.checkpoints.due_at.get_or_insert(now + period);
            self.agenda.set(due_at.max(now), Timer::Checkpoint);
        }
        self.consider_checkpoint(now);
    }

    /// Gives up the save under way, since the generation formed last does not train any more and cannot complete it.
    pub(crate) fn end_checkpoints(&mut self) {
        self.checkpoints.save = None;
        self.checkpoints.reached = Step::default();
        self.checkpoints.failed = None;
        self.checkpoints.is_hurried = false;
        self.checkpoints.pace = CommitPace::default();
        // The next generation's members may be nearer, and its steps longer.
        self.checkpoints.lead = LEAD_STEPS;
    }

    /// Begins a save if one is due and none is under way.
    pub(crate) fn consider_checkpoint(&mut self, now: Time) {
        let Some(every) = self.checkpoint_every() else { return };
        let trains = matches!(self.round.phase(), RoundPhase::Run);
        if !trains || self.checkpoints.save.is_some() || !self.can_save() {
            return;
        }
        if self.checkpoints.failed.is_some_and(|failed| self.reported_step() < failed) {
            return;
        }
        let is_early = self.checkpoints.due_at.is_none_or(|at| at > now);
        let (reached, lead) = (self.highest_step().0, self.checkpoints.lead);
        let step = match every {
            _ if self.stopping.is_some() => reached + lead,
            CheckpointEvery::Period(_) if is_early => return,
            CheckpointEvery::Period(_) => reached + lead,
            CheckpointEvery::Steps(every) => (reached + lead).next_multiple_of(every.max(1)),
        };
        self.checkpoints.failed = None;
        self.order_save(now, Step(step));
    }

    /// Interval between saves: that of the job's settings, or a short one while members are about to leave without which no
    /// generation can go on.
    fn checkpoint_every(&self) -> Option<CheckpointEvery> {
        let every = self.config.checkpoint.as_ref()?.every;
        Some(match self.checkpoints.is_hurried {
            true => CheckpointEvery::Period(HURRIED_EVERY),
            false => every,
        })
    }

    /// Whether the members of the generation formed last can save a commit that is yet to be made.
    pub(crate) fn can_save(&self) -> bool {
        let Some(current) = self.round.current() else { return false };
        let is_whole = current.alive.len() == current.assignment.world_size() as usize;
        // A member whose training function has returned makes no commit any more. The last one is saved at the job's end.
        let has_returned = |worker: &WorkerId| {
            self.roster.worker(worker).is_some_and(|record| record.stance == Stance::Finished)
        };
        let has_checkpoints = self.config.checkpoint.is_some() && !self.is_by_restart();
        has_checkpoints && is_whole && !current.alive.iter().any(has_returned)
    }

    /// The highest step that a member of the generation formed last is known to have reached.
    pub(crate) fn highest_step(&self) -> Step {
        let began = self.round.current().map(|current| current.formation.step);
        self.reported_step().max(self.checkpoints.reached).max(began.unwrap_or_default())
    }

    /// The highest step that a member of the generation formed last has reported.
    fn reported_step(&self) -> Step {
        let members = self.round.current().into_iter().flat_map(|current| &current.alive);
        let steps = members.filter_map(|worker| self.roster.worker(worker)).map(|it| it.step);
        steps.max().unwrap_or_default()
    }

    /// Saves the next commit that all members can reach. A step that was ordered and lies far ahead is not saved.
    pub(crate) fn save_soon(&mut self, now: Time) {
        self.checkpoints.lead = self.checkpoints.lead_soon();
        // One that is as near may be taken already.
        let soon = Step(self.highest_step().0 + self.checkpoints.lead.max(LEAD_STEPS));
        if self.checkpoints.save.as_ref().is_some_and(|save| save.step > soon) {
            self.checkpoints.save = None;
        }
        self.checkpoints.failed = None;
        self.consider_checkpoint(now);
    }

    /// Orders a step to be saved by all members.
    pub(crate) fn order_save(&mut self, now: Time, step: Step) {
        let Some(settings) = &self.config.checkpoint else { return };
        let Some(current) = self.round.current() else { return };
        let Some(sealer) = current.assignment.member(0).map(|member| member.worker) else {
            return;
        };
        let stamp = current.stamp;
        let order = self.save_order(settings, stamp, step);
        let waiting_for = current.alive.clone();
        let slow_at = now + SAVE_SLOW;
        self.agenda.set(slow_at, Timer::Checkpoint);
        self.tell_all(waiting_for.iter().cloned().collect(), order);
        self.checkpoints.save =
            Some(Save { stamp, step, began: now, waiting_for, sealer, slow_at });
    }

    fn save_order(
        &self,
        settings: &CheckpointSettings,
        stamp: Stamp,
        step: Step,
    ) -> DriverToWorker {
        DriverToWorker::SaveCheckpoint(CheckpointOrder {
            stamp,
            step,
            directory: settings.directory.clone(),
            name: self.config.run_id.clone(),
            bytes_per_s: settings.bytes_per_s,
            is_by_rank_0: self.checkpoints.is_by_rank_0,
        })
    }

    /// Handles the timer of checkpoints: a save is due or slow, or a load is slow.
    pub(crate) fn handle_checkpoint_timer(&mut self, now: Time) {
        self.review_load(now);
        self.watch_unused_checkpoints(now);
        if let Some(save) = self.checkpoints.save.as_mut().filter(|save| save.slow_at <= now) {
            save.slow_at = now + SAVE_SLOW;
            self.agenda.set(save.slow_at, Timer::Checkpoint);
            self.tell_of_slow_save();
        }
        self.consider_checkpoint(now);
        self.consider_stop(now);
        if self.checkpoints.leavers.is_some() {
            self.agenda.ask_review(now);
        }
    }

    /// Tells of the members that a slow save waits for, unless its commit has not been made yet.
    fn tell_of_slow_save(&mut self) {
        let Some(save) = &self.checkpoints.save else { return };
        let has_reached = |worker: &&WorkerId| {
            self.roster.worker(worker).is_some_and(|record| record.step >= save.step)
        };
        let mut late: Vec<String> =
            save.waiting_for.iter().filter(has_reached).map(ToString::to_string).collect();
        if save.waiting_for.is_empty() {
            late.push(save.sealer.to_string());
        }
        if late.is_empty() {
            return;
        }
        let reason = format!("the save is slow: waiting for {}", late.join(", "));
        let step = save.step.0;
        self.checkpoints.trouble = Some(format!("the checkpoint of step {step}: {reason}"));
        self.event(EventKind::CheckpointFailed { step, reason });
    }

    /// Handles a member's report on the step that it was told to save.
    pub(crate) fn handle_checkpoint_report(
        &mut self,
        now: Time,
        worker: &WorkerId,
        stamp: Stamp,
        step: Step,
        report: CheckpointReport,
    ) {
        let Some(settings) = self.config.checkpoint.clone() else { return };
        let save = self.checkpoints.save.as_mut();
        let Some(save) = save.filter(|save| (save.stamp, save.step) == (stamp, step)) else {
            return;
        };
        match report {
            CheckpointReport::PartSaved { .. } => {
                let is_news = save.waiting_for.remove(worker);
                if is_planted(Bug::SealedTooEarly) {
                    save.waiting_for.clear();
                }
                if is_news && save.waiting_for.is_empty() {
                    let sealer = save.sealer.clone();
                    self.tell(&sealer, seal_order(&settings, stamp, step));
                }
            }
            CheckpointReport::Missed { reached } => self.handle_missed_save(now, reached),
            CheckpointReport::Sealed { bytes, troubles } => {
                let ms = now.ms_since(save.began);
                self.checkpoints.save = None;
                self.checkpoints.trouble = None;
                let checkpoint = CheckpointImage { generation: stamp.generation, step };
                self.keep_checkpoint(checkpoint, settings.directory);
                self.checkpoints.last_at = Some(now);
                let is_soon = self.stopping.is_some() || self.checkpoints.is_hurried;
                let least = if is_soon { self.checkpoints.lead_soon() } else { LEAD_STEPS };
                self.checkpoints.lead = (self.checkpoints.lead / 2).max(least);
                self.event(EventKind::CheckpointSaved { step: step.0, bytes, ms });
                if let Some(trouble) = troubles.first() {
                    let message = format!("the checkpoint of step {step} is saved; but {trouble}");
                    self.event(EventKind::Warning { message });
                }
                self.save_of_leavers_ended(now, true);
                self.await_next_save(now, step);
            }
            CheckpointReport::Differ { reason } => {
                if self.checkpoints.is_by_rank_0 || self.divergence.is_distrusted(worker) {
                    return self.handle_failed_save(now, worker, step, &reason);
                }
                self.checkpoints.is_by_rank_0 = true;
                // A successor orders a step that is being saved anew: the members must not write it in two ways.
                self.record(&JournalRecord::SavedByRank0);
                let message = format!(
                    "the members' states differ ({reason}): from now on rank 0 writes each checkpoint alone, with its own content"
                );
                self.event(EventKind::Warning { message });
                self.save_another_step(now, step);
            }
            CheckpointReport::Failed { reason } => {
                self.handle_failed_save(now, worker, step, &reason);
            }
        }
    }

    fn handle_failed_save(&mut self, now: Time, worker: &WorkerId, step: Step, reason: &str) {
        self.checkpoints.save = None;
        self.tell_of_failed_save(step, format!("{worker}: {reason}"));
        self.checkpoints.failed = self.saves_by_steps().then_some(step);
        if self.stopping.is_some() {
            return self.finish_stop(now);
        }
        self.save_of_leavers_ended(now, false);
        self.await_next_save(now, step);
    }

    /// Handles a member that had made the commit before the order came. Another step is ordered at once: who writes a part of this
    /// one gives it up.
    fn handle_missed_save(&mut self, now: Time, reached: Step) {
        let Some(save) = self.checkpoints.save.take() else { return };
        self.checkpoints.lead = (self.checkpoints.lead * 2).min(LEAD_STEPS_MAX);
        self.checkpoints.reached = self.checkpoints.reached.max(reached);
        self.consider_checkpoint(now);
        self.last_save_missed(now, save.step, reached);
    }

    /// Orders a commit to be saved in the place of one whose parts differ: the nearest, or the same if training has ended with it.
    fn save_another_step(&mut self, now: Time, step: Step) {
        self.checkpoints.save = None;
        if self.checkpoints.ends_with() == Some(step) {
            return self.order_last_save_or_end(now);
        }
        self.checkpoints.reached = self.checkpoints.reached.max(step);
        self.save_soon(now);
        self.last_save_ended(now, step);
    }

    /// Reports that a step was not saved, with the reason.
    pub(crate) fn tell_of_failed_save(&mut self, step: Step, reason: String) {
        self.checkpoints.trouble =
            Some(format!("the checkpoint of step {step} was not saved: {reason}"));
        self.event(EventKind::CheckpointFailed { step: step.0, reason });
    }

    fn saves_by_steps(&self) -> bool {
        let every = self.config.checkpoint.as_ref().map(|settings| settings.every);
        matches!(every, Some(CheckpointEvery::Steps(_)))
    }

    /// Notes a member's commit. After a failed save, another one follows once its step is reached.
    pub(crate) fn note_committed(&mut self, now: Time, step: Step) {
        self.checkpoints.pace.handle_step(now, step);
        if self.checkpoints.failed.is_some() {
            self.consider_checkpoint(now);
        }
    }

    /// Handles the end of a save of this step, with success or not.
    fn await_next_save(&mut self, now: Time, step: Step) {
        if is_planted(Bug::OneSaveAGeneration) {
            return;
        }
        self.checkpoints.reached = self.checkpoints.reached.max(step);
        if let Some(CheckpointEvery::Period(period)) = self.checkpoint_every() {
            let due_at = now + period;
            self.checkpoints.due_at = Some(due_at);
            self.agenda.set(due_at, Timer::Checkpoint);
        }
        self.consider_stop(now);
        self.consider_checkpoint(now);
        self.last_save_ended(now, step);
    }

    /// Repeats the orders of the save that is under way to a member that is back: they may not have reached it.
    pub(crate) fn repeat_checkpoint_orders(&mut self, worker: &WorkerId) {
        let Some(settings) = &self.config.checkpoint else { return };
        let Some(save) = &self.checkpoints.save else { return };
        let (stamp, step) = (save.stamp, save.step);
        if save.waiting_for.contains(worker) {
            let order = self.save_order(settings, stamp, step);
            self.tell(worker, order);
        } else if save.waiting_for.is_empty() && save.sealer == *worker {
            let order = seal_order(settings, stamp, step);
            self.tell(worker, order);
        }
    }

    /// The checkpoints, for the status.
    pub(crate) fn checkpoint_status(
        &self,
        wall_clock: &dyn Fn(Time) -> String,
    ) -> Option<CheckpointStatus> {
        let settings = self.config.checkpoint.as_ref()?;
        let Checkpoints { save, last, last_at, trouble, .. } = &self.checkpoints;
        Some(CheckpointStatus {
            directory: settings.directory.clone(),
            last_step: last.map(|checkpoint| checkpoint.step.0),
            at: last_at.map(wall_clock),
            saving: save.as_ref().map(|save| save.step.0),
            failed: trouble.clone(),
        })
    }
}

/// The order to make a checkpoint whole.
fn seal_order(settings: &CheckpointSettings, stamp: Stamp, step: Step) -> DriverToWorker {
    let (keep, spared) = (settings.keep, settings.resume.step());
    DriverToWorker::SealCheckpoint { stamp, step, keep, spared }
}
