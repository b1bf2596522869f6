//! Replicas that differ: simulated programs digest their commits, a fault flips a bit in one process's weights, and the oracle
//! checks the members that the driver names. A named member differs from the majority, and a member that differs for long is
//! named. Arrays that each process has for itself are never accused. A repair begins from the majority's state.

use std::collections::{BTreeMap, BTreeSet};

use elastic_protocol::messages::{StateDigests, StatusReport, TensorDigest, TensorName};
use elastic_protocol::{ResetCause, Stamp, WorkerId};

use super::driver::ObservedPhase;
use super::{MS, World};
use crate::dataset::mix;

/// The arrays of a program: weights, averages of each process, and a table that some processes change after a while.
const WEIGHTS: u64 = 1;
const AVERAGES: u64 = 2;
const TABLE: u64 = 3;
const ARRAYS: [(u64, &str); 3] = [(WEIGHTS, "weights"), (AVERAGES, "averages"), (TABLE, "table")];

/// Commits until each array was due.
const ROTATION: u64 = 4;

/// The step from which on the table changes.
const TABLE_CHANGES_FROM: u64 = 20;

/// Commits within which a difference is named, and the time for reports on their way.
const NAMED_WITHIN: u64 = 64;
pub(super) const TOLD_AFTER_NS: u64 = 5_000 * MS;

/// Most commits that are remembered.
pub(super) const STEPS_MAX: usize = 4_096;

/// The members' weights at a commit of a generation, as their damage by process.
#[derive(Debug, Default)]
struct HeldStep {
    damages: BTreeMap<u32, u64>,
    /// World time of the last one.
    at: u64,
}

/// A repair that was decided.
#[derive(Debug)]
struct Repair {
    /// The damage that the majority has.
    damage: u64,
    members: Vec<u32>,
    /// The workers under repair. Another bit may flip until all members stand still, which nobody can know.
    workers: Vec<WorkerId>,
}

/// The oracle's knowledge of replicas.
#[derive(Debug, Default)]
pub(super) struct ReplicaWatch {
    stamp: Stamp,
    held: BTreeMap<u64, HeldStep>,
    /// The damage of the majority when the driver last named others.
    majority: Option<u64>,
    repair: Option<Repair>,
    /// Processes that a driver has named against a majority, in this generation of this job.
    named: BTreeSet<u32>,
    named_in: (u32, Stamp),
}

/// The damage that the largest group of equal members has, and the size of that group.
fn largest(damages: &[u64]) -> (u64, usize) {
    let mut groups: BTreeMap<u64, usize> = BTreeMap::new();
    damages.iter().for_each(|damage| *groups.entry(*damage).or_default() += 1);
    groups.into_iter().max_by_key(|(_, count)| *count).unwrap_or_default()
}

/// The damage that most members have, if one is that of more than half of them.
fn majority(damages: &[u64]) -> Option<u64> {
    let (right, count) = largest(damages);
    (count * 2 > damages.len()).then_some(right)
}

/// Whether the weights are digested at this step.
fn are_weights_due(step: u64) -> bool {
    (step + WEIGHTS).is_multiple_of(ROTATION)
}

impl World {
    fn has_digests(&self) -> bool {
        self.options.draws >= 8 && self.options.job.is_in_process()
    }

    /// A bit flips in the live weights of a process that trains.
    pub(super) fn flip_bit(&mut self, process: u32, bit: u32) {
        if self.has_digests() {
            self.processes[process as usize].program.live.damage ^= 1 << (bit % 64);
        }
    }

    /// A process begins a generation from this step.
    pub(super) fn begin_digests(&mut self, process: u32, step: u64) {
        self.processes[process as usize].program.digests = StateDigests::after(step);
    }

    /// A process has committed: digests what is due.
    pub(super) fn digest_commit(&mut self, process: u32) {
        if !self.has_digests() {
            return;
        }
        let now = self.now;
        let program = &mut self.processes[process as usize].program;
        let (model, generation) = (program.live, program.generation);
        if self.replicas.stamp != generation {
            if self.replicas.stamp > generation {
                return;
            }
            self.replicas.stamp = generation;
            self.replicas.held.clear();
        }
        let held = self.replicas.held.entry(model.step).or_default();
        held.damages.insert(process, model.damage);
        held.at = now;
        if self.replicas.held.len() > STEPS_MAX {
            self.replicas.held.pop_first();
        }
        let step = model.step;
        let content = |tensor: u64| match tensor {
            WEIGHTS => (mix(model.weights, model.damage), true),
            AVERAGES => (mix(u64::from(process), step), true),
            // Odd ranks keep something there that the others do not have.
            _ if program.rank % 2 == 1 && step >= TABLE_CHANGES_FROM => (mix(step, 1), true),
            _ => (0, false),
        };
        let due = ARRAYS.iter().filter(|(tensor, _)| (step + tensor).is_multiple_of(ROTATION));
        let digests = due.map(|(tensor, _)| {
            let (digest, changed) = content(*tensor);
            TensorDigest { step, tensor: *tensor, digest, changed }
        });
        let name = |(id, name): &(u64, &str)| TensorName { id: *id, tensor: (*name).to_owned() };
        let names = if program.rank == 0 { ARRAYS.iter().map(name).collect() } else { Vec::new() };
        let digests = digests.collect();
        let mut told = StateDigests { since: step - 1, through: step, digests, names };
        self.digest_passes(process, step, &mut told);
        self.processes[process as usize].program.digests.extend(told);
    }

    /// The digests since the last call.
    pub(super) fn take_digests(&mut self, process: u32) -> Option<StateDigests> {
        let has = self.has_digests();
        self.processes[process as usize].program.digests.take().filter(|_| has)
    }

    /// The damages of all members at a step, by rank, if all have committed it.
    fn damages_at(&self, step: u64) -> Option<Vec<u64>> {
        let held = self.replicas.held.get(&step)?;
        self.driver.members.iter().map(|process| held.damages.get(process).copied()).collect()
    }

    /// The damage that most members held at a step, if all have committed it.
    fn majority_at(&self, step: u64) -> Option<u64> {
        majority(&self.damages_at(step)?)
    }

    /// Checks members that the driver names as different: they are, and they are those that the majority disagrees with.
    pub(super) fn check_differing(
        &mut self,
        tensor: &str,
        step: u64,
        ranks: &[u32],
        agreeing: u32,
    ) -> Result<(), String> {
        if tensor != "weights" {
            return Err(format!(
                "replicas: {tensor} is said to differ at step {step}, and each rank has its own"
            ));
        }
        // A driver whose disk stores nothing tells of it later than steps are remembered here.
        let is_forgotten = self.replicas.held.first_key_value().is_some_and(|(it, _)| step < *it);
        if self.replicas.stamp != self.driver.stamp || is_forgotten {
            return Ok(());
        }
        let Some(damages) = self.damages_at(step) else {
            return Err(format!("replicas: step {step} is compared, which not all have committed"));
        };
        let (_, count) = largest(&damages);
        if count == damages.len() {
            return Err(format!(
                "replicas: {ranks:?} are said to differ at step {step}, and do not"
            ));
        }
        let majority = majority(&damages);
        let is_wrong =
            |rank: &u32| majority.is_none_or(|right| damages.get(*rank as usize) != Some(&right));
        let expected: Vec<u32> = (0..damages.len() as u32).filter(is_wrong).take(16).collect();
        if ranks != expected || agreeing as usize != count {
            return Err(format!(
                "replicas: {ranks:?} are said to differ at step {step}, where {expected:?} do; {agreeing} are said to agree, \
                 where {count} do"
            ));
        }
        self.replicas.majority = majority;
        let named_in = (self.driver.job, self.driver.stamp);
        if self.replicas.named_in != named_in {
            self.replicas.named.clear();
            self.replicas.named_in = named_in;
        }
        if majority.is_some() {
            let members = &self.driver.members;
            let named = expected.iter().filter_map(|rank| members.get(*rank as usize));
            self.replicas.named.extend(named);
        }
        Ok(())
    }

    /// A reset is decided: notes the state from which a repair must begin.
    pub(super) fn note_repair(&mut self, cause: &ResetCause) -> Result<(), String> {
        if self.driver.life != self.newest {
            // A former driver goes on from its old knowledge, and its journal refuses its decisions.
            return Ok(());
        }
        self.replicas.repair = None;
        let ResetCause::ReplicasDiffer { workers, step, .. } = cause else { return Ok(()) };
        let members = self.driver.members.clone();
        // A driver may die between the record of a difference and its event. Its successor knows the record.
        let Some(damage) = self.replicas.majority.or_else(|| self.majority_at(*step)) else {
            return Err(format!("replicas: {cause}; but there was no majority"));
        };
        let of = |process: u32| self.processes[process as usize].program.live.damage;
        let is_right = |worker: &&WorkerId| {
            self.process_of(self.driver.job, worker).is_some_and(|process| of(process) == damage)
        };
        // Another bit may have flipped back meanwhile: then the worker holds the majority's weights by chance.
        let never_flipped = workers.iter().filter(is_right).count() == workers.len();
        if never_flipped
            && self.replicas.held.values().all(|it| it.damages.values().all(|d| *d == 0))
        {
            return Err(format!("replicas: {cause}; but none was ever different"));
        }
        self.replicas.repair = Some(Repair { damage, members, workers: workers.clone() });
        Ok(())
    }

    /// A generation is formed: after a repair, its root holds the majority's state, if a member with as late a commit still
    /// holds it.
    pub(super) fn check_repair(
        &mut self,
        members: &[WorkerId],
        root: Option<u32>,
    ) -> Result<(), String> {
        let Some(repair) = self.replicas.repair.take() else { return Ok(()) };
        let Repair { damage, members: before, workers } = repair;
        let process_of = |worker: &WorkerId| self.process_of(self.driver.job, worker);
        let saved = |worker: &WorkerId| {
            let process = process_of(worker).filter(|process| before.contains(process))?;
            self.processes[process as usize].program.saved
        };
        let Some(root) = root.and_then(|root| members.get(root as usize)) else { return Ok(()) };
        if !workers.contains(root) {
            return Ok(());
        }
        let Some(content) = saved(root).filter(|it| it.model.damage != damage) else {
            return Ok(());
        };
        let is_better = |worker: &&WorkerId| {
            saved(worker).is_some_and(|it| {
                it.model.damage == damage
                    && (it.id.generation, it.id.step) == (content.id.generation, content.id.step)
            })
        };
        match members.iter().find(is_better) {
            None => Ok(()),
            Some(better) => Err(format!(
                "replicas: a repair begins from {root}, which the majority disagreed with, and {better} holds what it had"
            )),
        }
    }

    /// Checks that a member that was named against a majority is shown for as long as the generation trains, by the next
    /// drivers too. Called at each check in time.
    pub(super) fn check_named_are_shown(&mut self) -> Result<(), String> {
        let is_watched = self.has_digests()
            && self.driver.phase == ObservedPhase::Run
            && self.replicas.named_in == (self.driver.job, self.driver.stamp)
            && !self.replicas.named.is_empty();
        if !is_watched {
            return Ok(());
        }
        let now = self.driver.clock.local(self.now);
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        let status = cores.driver.status(now, &|time| time.to_string());
        if status.divergence.len() >= StatusReport::DIVERGENCE_MAX {
            return Ok(());
        }
        let is_shown = |process: &&u32| {
            let id = &self.processes[**process as usize].id;
            status.divergence.iter().any(|it| (&it.host, it.slot) == (&id.host, id.slot))
        };
        match self.replicas.named.iter().find(|process| !is_shown(process)) {
            None => Ok(()),
            Some(process) => Err(format!(
                "replicas: {} was named against a majority, and the driver does not show it: {:?}",
                self.processes[*process as usize].id, status.divergence
            )),
        }
    }

    /// Checks that a member that has differed from the majority for long is named, or the weights are said to be left out.
    /// Called at each check in time.
    pub(super) fn check_difference_is_named(&mut self) -> Result<(), String> {
        let is_watched = self.has_digests()
            && self.driver.phase == ObservedPhase::Run
            && self.replicas.stamp == self.driver.stamp
            && self.driver.members.len() > 2;
        if !is_watched || self.calm_for(0) < TOLD_AFTER_NS {
            return Ok(());
        }
        let Some(late) = self.differing_for_long() else { return Ok(()) };
        let id = self.processes[late as usize].id.clone();
        let now = self.driver.clock.local(self.now);
        let Some(cores) = self.driver.cores() else { return Ok(()) };
        if cores.waits_for_its_disk() {
            return Ok(());
        }
        let status = cores.driver.status(now, &|time| time.to_string());
        let is_named =
            status.divergence.iter().any(|it| (&it.host, it.slot) == (&id.host, id.slot));
        let is_left_out = status.not_compared.iter().any(|it| it.tensor == "weights");
        match is_named || is_left_out {
            true => Ok(()),
            false => Err(format!(
                "replicas: {id} has differed for more than {NAMED_WITHIN} commits, and is not named: {:?}",
                status.divergence
            )),
        }
    }

    /// A member that all steps show as different from the majority, for longer than it may take to name it.
    fn differing_for_long(&self) -> Option<u32> {
        let from = self.now - self.calm_for(0);
        let told = |(_, held): &(&u64, &HeldStep)| held.at + TOLD_AFTER_NS <= self.now;
        let steps = self.replicas.held.iter().filter(told);
        let due = steps.filter(|(step, held)| held.at >= from && are_weights_due(**step));
        let seen: Vec<(u64, Vec<u64>)> =
            due.filter_map(|(step, _)| Some((*step, self.damages_at(*step)?))).collect();
        let last = seen.last()?.0;
        let is_wrong = |rank: usize, damages: &[u64]| {
            majority(damages).is_some_and(|right| damages[rank] != right)
        };
        let is_late = |rank: &usize| {
            let wrong = seen.iter().rev().take_while(|(_, damages)| is_wrong(*rank, damages));
            wrong.last().is_some_and(|(first, _)| first + NAMED_WITHIN < last)
        };
        let rank = (0..self.driver.members.len()).find(is_late)?;
        self.driver.members.get(rank).copied()
    }
}
