//! The checkpoint that training begins from: where the members look for it, what its root has found, and what follows where the
//! last one is gone or damaged. Part of [`Checkpoints`](super::Checkpoints); called as a generation forms and begins.

use std::path::Path;

use elastic_protocol::job::shorten;
use elastic_protocol::messages::{CheckpointSource, LastCheckpoint};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{GenerationId, Stamp, Step, Time};

use crate::core::DriverCore;
use crate::core::config::{CheckpointSettings, ResumeFrom};
use crate::core::event::EventKind;
use crate::journal::{CheckpointImage, JournalRecord};

impl DriverCore {
    /// The folder in which the members of the generation formed last look for a checkpoint, since none of them holds a
    /// commit, or only one that is older than the checkpoint. None if they begin from a commit, by restart, or if the
    /// job has no checkpoints.
    pub(crate) fn checkpoint_source(&self) -> Option<CheckpointSource> {
        let settings = self.config.checkpoint.as_ref()?;
        if self.round.current()?.began_from.is_some() || self.is_by_restart() {
            return None;
        }
        // The operator's choice is about the job's beginning. Once the job has begun from it, that checkpoint is looked for
        // like one that the job has saved: a later one of its own is preferred, of which no driver may know.
        let is_first = self.checkpoints.last.is_none();
        let exactly = match &settings.resume {
            ResumeFrom::Exactly(directory) if is_first => Some(directory.clone()),
            _ => None,
        };
        Some(CheckpointSource {
            directory: settings.directory.clone(),
            exactly,
            begins_anew: is_first && settings.resume == ResumeFrom::Never,
            last: self.checkpoints.last.map(|last| LastCheckpoint {
                step: last.step,
                directory: self.last_directory(settings).to_owned(),
                must_exist: self.is_loss_dear(),
            }),
            name: self.config.run_id.clone(),
        })
    }

    /// The directory of checkpoints that the last one is in.
    fn last_directory<'a>(&'a self, settings: &'a CheckpointSettings) -> &'a str {
        self.checkpoints.directory().unwrap_or(&settings.directory)
    }

    /// Remembers a checkpoint that the members were not told to take: it is the one of the operator's choice, or lies in the
    /// job's directory.
    pub(super) fn keep_found_checkpoint(&mut self, checkpoint: CheckpointImage) {
        let Some(settings) = &self.config.checkpoint else { return };
        let chosen = match &settings.resume {
            ResumeFrom::Exactly(of_step) if self.checkpoints.last.is_none() => Path::new(of_step)
                .parent()
                .map(|directory| directory.to_string_lossy().into_owned()),
            _ => None,
        };
        let directory = chosen.unwrap_or_else(|| settings.directory.clone());
        self.keep_checkpoint(checkpoint, directory);
    }

    /// Handles the root's report of the checkpoint that training begins from, and whether the last one is gone.
    pub(crate) fn handle_resumed(
        &mut self,
        now: Time,
        stamp: Stamp,
        (step, is_gone): (Option<Step>, bool),
        notes: Vec<String>,
    ) {
        if self.round.stamp() != Some(stamp) {
            return self.drop_message();
        }
        let missing = self.checkpointed_step().filter(|saved| step < Some(*saved));
        let missing = missing.filter(|_| !is_planted(Bug::GoneCheckpointNotTold));
        if let Some(step) = step {
            self.state.reached(step);
        }
        if let Some(load) = &mut self.checkpoints.load {
            load.found = step;
        }
        let regained = step.map_or(0, |step| self.regain_steps(now, self.round.generation(), step));
        // A job that ends for want of a checkpoint does not begin from the start.
        if missing.is_none() || !self.ends_without_checkpoint(is_gone) {
            let step = step.map(|step| step.0);
            self.event(EventKind::CheckpointLoaded { step, regained, notes });
        }
        if let Some(saved) = missing {
            self.handle_missing_checkpoint(now, saved, (step, is_gone));
        }
    }

    /// Whether the job ends for want of its last checkpoint: if that is gone, an earlier one is no substitute. One that is
    /// damaged is passed over.
    fn ends_without_checkpoint(&self, is_gone: bool) -> bool {
        is_gone && self.is_loss_dear()
    }

    /// Handles a root that has not found the checkpoint that this job saved last: its folder may not be mounted. The steps
    /// since the one that it begins from are lost, too.
    fn handle_missing_checkpoint(
        &mut self,
        now: Time,
        saved: Step,
        (found, is_gone): (Option<Step>, bool),
    ) {
        let Some(settings) = &self.config.checkpoint else { return };
        let state = match is_gone {
            true => format!("not in {}", self.last_directory(settings)),
            false => "damaged".to_owned(),
        };
        let what = format!(
            "the checkpoint of step {saved}, which this job has saved or loaded, is {state}"
        );
        let directory = settings.directory.clone();
        self.lose_further_steps(now, saved.0.saturating_sub(found.unwrap_or_default().0));
        if self.ends_without_checkpoint(is_gone) {
            let goes_on = match found {
                Some(step) => format!("trains on from step {step}"),
                None => "begins again from the start".to_owned(),
            };
            let hint =
                format!("is that folder mounted on every host? --on-total-loss restart {goes_on}");
            return self.fail(now, &what, Some(&hint));
        }
        let begins_at = found.unwrap_or_default();
        let message = format!("{what}: training begins again at step {begins_at}");
        self.event(EventKind::Warning { message });
        let generation = self.round.generation();
        if let Some(loss) = self.state.begins_earlier(generation, begins_at) {
            self.record(&JournalRecord::StateLost { loss });
        }
        // Its loss is told and counted only once. An earlier one takes its place in the order of commits.
        match (found, self.checkpoints.last) {
            (Some(step), Some(CheckpointImage { generation, .. })) => {
                self.keep_checkpoint(CheckpointImage { generation, step }, directory);
                self.state.go_back_to(step);
            }
            _ => {
                (self.checkpoints.last, self.checkpoints.directory) = (None, None);
                self.record(&JournalRecord::CheckpointGone);
                self.state.forget();
                self.state.reached(begins_at);
            }
        }
        self.record_state(now);
    }

    /// Warns of a job that ends with the checkpoint that it has begun from: its training may have been another command's.
    pub(crate) fn warn_of_no_step(&mut self) {
        let Some(begun_at) = self.checkpoints.begun_at else { return };
        let Some(settings) = &self.config.checkpoint else { return };
        if self.highest_step() > begun_at {
            return;
        }
        let message = format!(
            "this job has trained no step: it began from the checkpoint of step {begun_at} in {}, and its training ends there; if another \
             command has made that, give each command a folder of its own by --checkpoint, or begin anew with --resume never",
            self.last_directory(settings)
        );
        self.event(EventKind::Warning { message });
    }

    /// Ends the job, since the root can load no checkpoint. Another root would read the same files, and no host is at fault.
    pub(crate) fn handle_not_resumed(
        &mut self,
        now: Time,
        stamp: Stamp,
        reason: &str,
        own_hint: Option<&str>,
    ) {
        if self.round.stamp() != Some(stamp) {
            return self.drop_message();
        }
        let hint = "`elastic-node checkpoint verify` shows what is wrong with each; --resume FOLDER/STEP takes another one, and \
                    --resume never none";
        let hint = own_hint.map_or_else(|| hint.to_owned(), shorten);
        self.fail(now, &shorten(reason), Some(&hint));
    }

    /// The last checkpoint of this job; none if it does not save any now.
    fn last_checkpoint(&self) -> Option<CheckpointImage> {
        self.config.checkpoint.as_ref().and_then(|_| self.checkpoints.last())
    }

    /// The step that a generation begins from if none of its members holds a commit.
    pub(crate) fn checkpointed_step(&self) -> Option<Step> {
        self.last_checkpoint().map(|checkpoint| checkpoint.step)
    }

    /// Whether the last checkpoint is of a later generation than all of these commits. A checkpoint is whole only once all
    /// members have made its commit. So a worker with a commit of the same or a later generation holds its step or a later one.
    pub(crate) fn is_checkpoint_later(&self, held: impl IntoIterator<Item = GenerationId>) -> bool {
        self.last_checkpoint()
            .is_some_and(|last| held.into_iter().all(|held| held < last.generation))
    }
}
