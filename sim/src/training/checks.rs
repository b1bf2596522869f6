//! Checks of the oracle of mode `training`: messages to the driver, and checkpoints. Part of `world`.

use std::path::Path;

use elastic_checkpoint::{load, newest};
use elastic_protocol::messages::{ReportedValues, StateDigests, TensorDigest};
use elastic_protocol::{Assignment, Stamp};
use elastic_worker::state::sampler::SampleLedger;

use super::driver::{DIRECTORY, ScriptedSave};
use super::exchange::NodeNumber;
use super::job::DataAccess;
use super::model::TrainedState;
use super::seat::lock;
use super::witness::{GenerationBegin, HeldCommit, mark};
use super::world::TrainingWorld;

impl TrainingWorld {
    /// Checks that the process blamed for a failed collective is at fault.
    pub(super) fn check_blame(&mut self, node: NodeNumber, peer: Option<u32>) {
        let due = self.witness().blamed(node);
        let said = peer.and_then(|rank| self.driver.members.get(rank as usize).copied());
        if due != said {
            self.violated(format!(
                "blame: process {node} blames {said:?}, and {due:?} is at fault"
            ));
        }
    }

    /// The progress that a process tells is that of its program.
    pub(super) fn check_progress(
        &mut self,
        node: NodeNumber,
        (stamp, step): (Stamp, u64),
        note: &str,
        reported: &ReportedValues,
    ) {
        let is_known = self.progress.get(&node).is_none_or(|(of, at)| *of < stamp || *at <= step);
        self.progress.insert(node, (stamp, step));
        let said: Vec<f64> = reported.iter().map(|(_, value)| value).collect();
        let is_shown = note.is_empty() || note.contains(" of ");
        if !is_known || !is_shown || said.len() > 1 {
            self.violated(format!("progress: process {node} says step {step}, {note:?}, {said:?}"));
        }
    }

    /// A process that says how many shards it carries carries those that were dealt to it.
    pub(super) fn check_shards(&mut self, node: NodeNumber, stamp: Stamp, said: u32) {
        let rank = self.driver.members.iter().position(|member| *member == node);
        let Some(due) = rank.and_then(|rank| self.dealt.get(rank).copied()) else { return };
        let is_sharded = matches!(self.job.access, DataAccess::Shards { .. });
        if stamp == self.driver.stamp && is_sharded && said != 0 && said != due {
            self.violated(format!("shards: process {node} carries {said} shards, dealt {due}"));
        }
    }

    /// Digests of one array at one step are equal where the replicas are, and differ where one was flipped.
    pub(super) fn compare_digests(
        &mut self,
        node: NodeNumber,
        stamp: Stamp,
        digests: &StateDigests,
    ) {
        for name in &digests.names {
            self.tensors.insert(name.id, name.tensor.clone());
        }
        let flipped = self.witness().flipped_at(node);
        let (passes, arrays): (Vec<_>, Vec<_>) =
            digests.digests.iter().partition(|digest| TensorDigest::is_pass_id(digest.tensor));
        self.compare_passes(node, stamp, &passes);
        for digest in arrays {
            // Rank 0 names its arrays; they keep their names.
            let Some(name) = self.tensors.get(&digest.tensor).cloned() else { continue };
            let is_flipped = flipped.is_some_and(|(of, step)| of == stamp && digest.step >= step);
            let key = (stamp, digest.step, digest.tensor);
            let (other, theirs, other_flipped) =
                *self.seen_digests.entry(key).or_insert((node, digest.digest, is_flipped));
            let is_scratch = name == "scratch";
            let is_own = name == "own";
            let is_due_equal = !is_scratch || is_flipped == other_flipped;
            if is_own || (theirs == digest.digest) != is_due_equal {
                self.violated(format!(
                    "replicas: {name:?} of processes {other} and {node} at step {}: equal should be {is_due_equal}",
                    digest.step
                ));
            }
        }
    }

    /// Processes that draw from a pass for one step have a way through it in common. A process draws in two ways for a step that
    /// ends one epoch and begins the next one.
    fn compare_passes(&mut self, node: NodeNumber, stamp: Stamp, passes: &[&TensorDigest]) {
        for digest in passes {
            let key = (stamp, digest.step, digest.tensor);
            let ways = self.seen_ways.entry(key).or_default().entry(node).or_default();
            ways.insert(digest.digest);
        }
        for digest in passes {
            let Some(ways) = self.seen_ways.get(&(stamp, digest.step, digest.tensor)) else {
                continue;
            };
            let Some(own) = ways.get(&node) else { continue };
            let apart = ways.iter().find(|(_, theirs)| theirs.is_disjoint(own));
            if let Some((other, _)) = apart {
                let (other, step) = (*other, digest.step);
                self.violated(format!(
                    "H-23: processes {other} and {node} go through a pass in different ways at step {step}"
                ));
                return;
            }
        }
    }

    /// A process that moved is told to others at its new address.
    pub(super) fn check_addresses(&mut self, assignment: &Assignment) {
        for member in assignment.members() {
            let node = member.worker.incarnation.0 as NodeNumber;
            let due = self.witness().facts(node).address;
            if due.is_some_and(|due| due != member.data_address) {
                self.violated(format!("S-3: process {node} is told at {}", member.data_address));
            }
        }
    }

    /// Training has ended while this step was being saved. A process that has made that commit, and a later one, has answered
    /// the order, unless the answer is still on its way.
    pub(super) fn check_answers(&self, save: &ScriptedSave) {
        for (number, node) in &self.nodes {
            let is_asked = self.driver.members.contains(number) && !save.saved.contains(number);
            let is_past = self.witness().facts(*number).held.is_some_and(|it| it.step > save.step);
            let is_quiet = node.from_driver.is_empty()
                && node.to_driver.is_empty()
                && lock(&node.seat.told).is_empty()
                && !node.shared.checkpoints().is_write_due();
            if is_asked && is_past && is_quiet && !self.gone.contains(number) {
                let step = save.step;
                self.violated(format!("C-4: process {number} does not answer for step {step}"));
            }
        }
    }

    /// A process cannot save a step. Its disk may be full or lose power; an earlier save is in vain by then, and no reason.
    pub(super) fn check_not_busy(&mut self, node: NodeNumber, step: u64, reason: &str) {
        if reason.contains("busy with an earlier save") {
            self.violated(format!("C-4: process {node} refuses to save step {step}: {reason}"));
        }
    }

    /// A checkpoint is said to be whole: it holds the commit of its step.
    pub(super) fn sealed(&mut self, stamp: Stamp, step: u64, keep: u32) {
        let due = self.witness().commits.get(&(stamp, step)).copied();
        let due = due.or_else(|| {
            let root = *self.driver.members.first()?;
            self.witness().facts(root).held.filter(|held| held.step == step).map(|held| held.mark)
        });
        let found = self.read_checkpoint(step);
        if found.is_none() || found != due {
            self.violated(format!(
                "C-1: the checkpoint of step {step} of {stamp:?} does not hold its commit"
            ));
        }
        if let Some(content) = found {
            self.checkpoints.insert(step, content);
        }
        while self.checkpoints.len() > keep as usize {
            self.checkpoints.pop_first();
        }
    }

    /// The content of the checkpoint of a step, if it is whole.
    fn read_checkpoint(&self, step: u64) -> Option<u64> {
        let path = Path::new(DIRECTORY).join(elastic_checkpoint::step_directory(step));
        let loaded = load(&self.around.store.files, &path).ok()?;
        let bytes = loaded.bytes;
        let beside: usize = self.job.device.iter().sum();
        let (encoded, mut rest) = bytes.split_at(bytes.len().checked_sub(beside)?);
        let decoded = postcard::from_bytes::<(Vec<u64>, SampleLedger, TrainedState)>(encoded);
        let (_, _, state) = decoded.ok()?;
        let mut device = Vec::new();
        for length in &self.job.device {
            let (part, others) = rest.split_at(*length);
            device.push(part.to_vec());
            rest = others;
        }
        Some(mark(&state, &device))
    }

    /// Required start of the next generation: from the root's commit, the newest checkpoint, or the start of training.
    pub(super) fn begin_from(&mut self, root: NodeNumber, has_commit: bool) -> GenerationBegin {
        let held = self.witness().facts(root).held.filter(|_| has_commit);
        if let Some(held) = held {
            return GenerationBegin { held, goes_on: true, root };
        }
        let newest = if self.job.keep.is_some() { self.newest_checkpoint() } else { None };
        if let Some((step, Some(content))) = newest {
            return GenerationBegin {
                held: HeldCommit { step, mark: content },
                goes_on: true,
                root,
            };
        }
        GenerationBegin { held: self.witness().initial(), goes_on: false, root }
    }

    /// The newest whole checkpoint, with its content. It may be newer than the last that was told, whose teller died.
    fn newest_checkpoint(&self) -> Option<(u64, Option<u64>)> {
        let found = newest(&self.around.store.files, Path::new(DIRECTORY), Some("job"));
        let step = found.ok()?.0?.manifest.step;
        Some((step, self.read_checkpoint(step)))
    }

    /// The root says from which checkpoint training goes on.
    pub(super) fn resumed(&mut self, step: Option<u64>) {
        let newest = self.newest_checkpoint().map(|(step, _)| step);
        let told = self.checkpoints.last_key_value().map(|(step, _)| *step);
        if step != newest || newest < told {
            self.violated(format!(
                "C-2: training goes on from step {step:?}, {newest:?} is the newest checkpoint, and {told:?} was told"
            ));
        }
        self.resumes += 1;
    }
}
