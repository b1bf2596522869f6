//! The oracle: what must be true of the whole cluster after every event, whoever is at fault. It sees what no
//! node sees, and is told of everything at the moment when it happens.

use std::collections::{BTreeSet, VecDeque};

use elastic_protocol::messages::{Placement, Vote};
use elastic_protocol::{Stamp, WorkerId};

/// Generations that are remembered.
const GENERATIONS_KEPT: usize = 16;

/// Commits of a generation that not every rank has taken yet; ranks are at most a step apart.
const COMMITS_OPEN_MAX: usize = 8;

#[derive(Debug)]
struct Commit {
    step: u64,
    digest: u64,
    ranks: u32,
}

#[derive(Debug)]
struct Generation {
    number: u64,
    members: Vec<WorkerId>,
    /// Samples of the commit that it must not fall behind (G-5): acknowledged, and held by a member.
    floor: u64,
    /// Who has said READY.
    ready: BTreeSet<WorkerId>,
    /// What its members hold after the sync.
    synced: Option<u64>,
    commits: VecDeque<Commit>,
}

/// What is known of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    newest: Stamp,
    generations: VecDeque<Generation>,
    /// Samples of the highest commit that every rank of a generation took.
    acknowledged: Option<u64>,
    pub(crate) resets: u64,
    pub(crate) generations_formed: u64,
    pub(crate) commits: u64,
    commits_when_healed: u64,
}

impl Oracle {
    /// Faults are over: what is committed from here on is progress.
    pub(crate) fn mark_healed(&mut self) {
        self.commits_when_healed = self.commits;
    }

    /// Commits that every rank took since faults are over.
    pub(crate) fn commits_since_healed(&self) -> u64 {
        self.commits - self.commits_when_healed
    }

    /// Samples of the highest commit that every rank of a generation took.
    pub(crate) fn acknowledged(&self) -> Option<u64> {
        self.acknowledged
    }

    /// The driver forms a generation: G-2, G-3.
    pub(crate) fn formed(
        &mut self,
        stamp: Stamp,
        members: &[WorkerId],
        processes: &[u32],
        best: Option<u64>,
    ) -> Result<(), String> {
        if stamp <= self.newest {
            return Err(format!(
                "G-2: generation {} after {}",
                stamp.generation, self.newest.generation
            ));
        }
        self.newest = stamp;
        if members.is_empty() {
            return Err(format!("generation {} has no members", stamp.generation));
        }
        let slots: BTreeSet<_> = members.iter().map(|member| (&member.host, member.slot)).collect();
        if slots.len() < members.len() {
            return Err(format!(
                "G-3: two members of generation {} have one slot",
                stamp.generation
            ));
        }
        let known = processes.iter().all(|process| *process != u32::MAX);
        if !known {
            return Err(format!("generation {} has a member that never started", stamp.generation));
        }
        self.generations_formed += 1;
        if self.generations.len() >= GENERATIONS_KEPT {
            self.generations.pop_front();
        }
        self.generations.push_back(Generation {
            number: stamp.generation.0,
            members: members.to_vec(),
            floor: best.min(self.acknowledged).unwrap_or(0),
            ready: BTreeSet::new(),
            synced: None,
            commits: VecDeque::new(),
        });
        Ok(())
    }

    /// The driver gives a worker its rank: G-3.
    pub(crate) fn assigned(&self, placement: &Placement, to: &WorkerId) -> Result<(), String> {
        let generation = placement.stamp.generation;
        let Some(record) = self.generation(generation.0) else {
            return Err(format!(
                "{to} is assigned to generation {generation}, which was not formed"
            ));
        };
        let rank = placement.rank as usize;
        let in_table = placement.assignment.members.get(rank).map(|member| &member.worker);
        if record.members.get(rank) != Some(to)
            || in_table != Some(to)
            || placement.assignment.members.len() != record.members.len()
        {
            return Err(format!("G-3: {to} is given rank {rank} of generation {generation}"));
        }
        Ok(())
    }

    /// A member holds the commit of its generation: the same as every other (G-6).
    pub(crate) fn synced(
        &mut self,
        generation: u64,
        digest: u64,
        samples: u64,
        worker: &WorkerId,
    ) -> Result<(), String> {
        let Some(record) = self.generation_mut(generation) else { return Ok(()) };
        if samples < record.floor {
            return Err(format!(
                "G-5: {worker} begins generation {generation} from {samples} samples; a member holds the \
                 acknowledged commit at {}",
                record.floor
            ));
        }
        match record.synced {
            None => record.synced = Some(digest),
            Some(first) if first == digest => {}
            Some(_) => {
                return Err(format!(
                    "G-6: {worker} begins generation {generation} with another state than the others"
                ));
            }
        }
        Ok(())
    }

    /// A member commits: all of them the same.
    pub(crate) fn committed(
        &mut self,
        generation: u64,
        step: u64,
        digest: u64,
        samples: u64,
        worker: &WorkerId,
    ) -> Result<(), String> {
        let Some(record) = self.generation_mut(generation) else { return Ok(()) };
        let members = record.members.len() as u32;
        let index = record.commits.iter().position(|commit| commit.step == step);
        let index = index.unwrap_or_else(|| {
            record.commits.push_back(Commit { step, digest, ranks: 0 });
            record.commits.len() - 1
        });
        let commit = &mut record.commits[index];
        if commit.digest != digest {
            return Err(format!(
                "{worker} commits step {step} of generation {generation} with another state than the others"
            ));
        }
        commit.ranks += 1;
        let is_acknowledged = commit.ranks == members;
        if commit.ranks > members {
            return Err(format!("{worker} commits step {step} of generation {generation} twice"));
        }
        if record.commits.len() > COMMITS_OPEN_MAX {
            record.commits.pop_front();
        }
        if is_acknowledged {
            self.commits += 1;
            self.acknowledged = self.acknowledged.max(Some(samples));
        }
        Ok(())
    }

    /// A worker's vote has come to the registry.
    pub(crate) fn voted(&mut self, vote: &Vote) {
        if let Some(record) = self.generation_mut(vote.stamp.generation.0) {
            record.ready.insert(vote.worker.clone());
        }
    }

    /// The barrier is said to be open: everybody must have voted.
    pub(crate) fn barrier_opened(&self, stamp: Stamp) -> Result<(), String> {
        let Some(record) = self.generation(stamp.generation.0) else { return Ok(()) };
        match record.members.iter().find(|member| !record.ready.contains(member)) {
            None => Ok(()),
            Some(member) => Err(format!(
                "the barrier of generation {} opens before {member} is READY",
                stamp.generation
            )),
        }
    }

    /// The generation that a State is in only grows (G-2).
    pub(crate) fn state_stamp(&self, seen: &mut Stamp, now: Stamp) -> Result<(), String> {
        if now < *seen {
            return Err(format!(
                "G-2: back from generation {} to {}",
                seen.generation, now.generation
            ));
        }
        if now > self.newest {
            return Err(format!("G-2: generation {} was never formed", now.generation));
        }
        *seen = now;
        Ok(())
    }

    fn generation(&self, number: u64) -> Option<&Generation> {
        self.generations.iter().rev().find(|record| record.number == number)
    }

    fn generation_mut(&mut self, number: u64) -> Option<&mut Generation> {
        self.generations.iter_mut().rev().find(|record| record.number == number)
    }
}
