//! Passes through data that members go through apart (H-23). Simulated programs tell with each commit which passes they drew from, and
//! in which way; a fault lets one process draw other batches. The oracle checks that the job ends where, and only where, no way is
//! common to all members. Called by `replicas` with each commit, by the faults, and by the checks in time and at the end.

use std::collections::{BTreeMap, BTreeSet};

use elastic_protocol::Stamp;
use elastic_protocol::messages::{StateDigests, StatusReport, TensorDigest, TensorName};

use super::World;
use super::driver::ObservedPhase;
use super::replicas::{STEPS_MAX, TOLD_AFTER_NS};
use crate::dataset::mix;

/// The first set of draws in which programs tell their passes.
const PASSES_FROM: u32 = 20;

/// Steps of an epoch. The last one draws from the next epoch, too.
const EPOCH_STEPS: u64 = 7;

/// One step in this many, rank 0 goes through the pass in a further way, for itself.
const FURTHER_ONE_IN: u64 = 11;

/// One step in this many, rank 0 alone draws from a pass of its own.
const OWN_ONE_IN: u64 = 3;

/// Commits within which a difference ends the job: all are compared but the oldest ones of a message that is full.
const ENDED_WITHIN: u64 = 16;

/// Prefix of the reason of a job that fails because its members go through a pass apart.
pub(super) const PLACES_DIFFER: &str = "the ranks' places in the data differ at commit ";

/// The batches that processes drew for a commit.
#[derive(Debug, Default)]
struct DrawnStep {
    /// Whether each process has.
    others: BTreeMap<u32, bool>,
    /// World time of the last one.
    at: u64,
}

/// The oracle's knowledge of passes, in the newest generation.
#[derive(Debug, Default)]
pub(super) struct PassWatch {
    stamp: Stamp,
    drawn: BTreeMap<u64, DrawnStep>,
}

/// A way through the pass in words.
fn way(draws_others: bool, epoch: u64) -> String {
    format!("batches of {}, epoch {epoch}", if draws_others { 4 } else { 8 })
}

/// The number of these words as the product gives it, with the words.
fn named(words: &str) -> TensorName {
    let hash = words.bytes().fold(0, |hash, byte| mix(hash, u64::from(byte)));
    TensorName { id: TensorDigest::pass_id(hash), tensor: words.to_owned() }
}

/// Ranks in words, as the driver lists them.
fn in_words(ranks: &BTreeSet<u32>) -> String {
    let first: Vec<String> =
        ranks.iter().take(StatusReport::DIVERGENCE_MAX).map(u32::to_string).collect();
    format!("{} {}", if ranks.len() > 1 { "ranks" } else { "rank" }, first.join(", "))
}

impl World {
    fn has_passes(&self) -> bool {
        self.options.draws >= PASSES_FROM && self.options.job.is_in_process()
    }

    /// A process draws batches of another size from now on.
    pub(super) fn draw_other_batches(&mut self, process: u32) {
        if self.has_passes() {
            self.processes[process as usize].program.draws_others = true;
        }
    }

    /// A process has committed this step: adds the passes that it drew from to its digests.
    pub(super) fn digest_passes(&mut self, process: u32, step: u64, told: &mut StateDigests) {
        if !self.has_passes() {
            return;
        }
        let program = &self.processes[process as usize].program;
        let (draws_others, rank, generation) =
            (program.draws_others, program.rank, program.generation);
        if self.passes.stamp < generation {
            self.passes = PassWatch { stamp: generation, ..PassWatch::default() };
        }
        let drawn = self.passes.drawn.entry(step).or_default();
        drawn.others.insert(process, draws_others);
        drawn.at = self.now;
        if self.passes.drawn.len() > STEPS_MAX {
            self.passes.drawn.pop_first();
        }
        let epoch = step / EPOCH_STEPS;
        let mut ways = vec![("pass", way(draws_others, epoch))];
        if (step + 1).is_multiple_of(EPOCH_STEPS) {
            ways.push(("pass", way(draws_others, epoch + 1)));
        }
        if rank == 0 && step.is_multiple_of(FURTHER_ONE_IN) {
            ways.push(("pass", "in order, for rank 0".to_owned()));
        }
        if rank == 0 && step.is_multiple_of(OWN_ONE_IN) {
            ways.push(("pass of rank 0", way(draws_others, epoch)));
        }
        for (pass, way) in ways {
            let (pass, way) = (named(pass), named(&way));
            let (tensor, digest) = (pass.id, way.id);
            told.digests.push(TensorDigest { step, tensor, digest, changed: true });
            told.names.extend([pass, way]);
        }
    }

    /// The ranks that drew other batches for a step and those that did not, if all members have committed it.
    fn drawn_at(&self, step: u64) -> Option<(BTreeSet<u32>, BTreeSet<u32>)> {
        let drawn = self.passes.drawn.get(&step)?;
        let draws_others = |process: &u32| drawn.others.get(process).copied();
        let by_rank: Option<Vec<bool>> = self.driver.members.iter().map(draws_others).collect();
        let (others, usual): (Vec<_>, Vec<_>) =
            (0..).zip(by_rank?).partition(|(_, draws_others)| *draws_others);
        let ranks = |of: Vec<(u32, bool)>| of.into_iter().map(|(rank, _)| rank).collect();
        Some((ranks(others), ranks(usual)))
    }

    /// Checks a job that failed because its members go through a pass apart: they do at that commit, and each rank is named with its
    /// batches.
    pub(super) fn check_places_differ(&self, reason: &str) -> Result<(), String> {
        let step = reason.strip_prefix(PLACES_DIFFER).and_then(|rest| rest.split(':').next());
        let step = step.and_then(|step| step.parse().ok());
        let Some(step) = step else { return Err(format!("H-23: no step is named: {reason}")) };
        let is_forgotten = self.passes.drawn.first_key_value().is_some_and(|(it, _)| step < *it);
        // A driver whose disk stores nothing tells of it in a later generation.
        if self.passes.stamp != self.driver.stamp || is_forgotten {
            return match self.processes.iter().any(|process| process.program.draws_others) {
                true => Ok(()),
                false => Err(format!("H-23: the job failed, and need not have: {reason}")),
            };
        }
        let Some((others, usual)) = self.drawn_at(step) else {
            return Err(format!("H-23: a step is compared that not all have committed: {reason}"));
        };
        let epoch = step / EPOCH_STEPS;
        let is_said = |ranks: &BTreeSet<u32>, draws_others: bool| {
            let said = format!("{} on {}", way(draws_others, epoch), in_words(ranks));
            !ranks.is_empty() && reason.contains(&said)
        };
        match is_said(&others, true) && is_said(&usual, false) {
            true => Ok(()),
            false => Err(format!(
                "H-23: other batches are those of {others:?}, and usual ones those of {usual:?}: {reason}"
            )),
        }
    }

    /// Checks that a job whose members have gone through a pass apart for long has ended. Called at each check in time.
    pub(super) fn check_apart_is_ended(&mut self) -> Result<(), String> {
        let is_watched = self.has_passes()
            && self.driver.phase == ObservedPhase::Run
            && self.passes.stamp == self.driver.stamp
            && self.calm_for(0) >= TOLD_AFTER_NS;
        if !is_watched {
            return Ok(());
        }
        let from = self.now - self.calm_for(0);
        let told =
            |(_, drawn): &(&u64, &DrawnStep)| (from..=self.now - TOLD_AFTER_NS).contains(&drawn.at);
        let are_apart = |step: &u64| {
            self.drawn_at(*step)
                .is_some_and(|(others, usual)| !others.is_empty() && !usual.is_empty())
        };
        let steps: Vec<u64> =
            self.passes.drawn.iter().filter(told).map(|(step, _)| *step).collect();
        let apart: Vec<u64> = steps.into_iter().filter(are_apart).collect();
        let (Some(first), Some(last)) = (apart.first(), apart.last()) else { return Ok(()) };
        let is_ended = first + ENDED_WITHIN >= *last;
        match is_ended || self.driver.cores().is_none_or(|cores| cores.waits_for_its_disk()) {
            true => Ok(()),
            false => Err(format!(
                "H-23: members have gone through a pass apart from step {first} to {last}, and the job goes on"
            )),
        }
    }
}
