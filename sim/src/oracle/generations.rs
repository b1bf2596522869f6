//! What a generation's members do: take their ranks, vote, take the commit over, commit.

use std::collections::{BTreeSet, VecDeque};

use elastic_protocol::messages::{Placement, Vote};
use elastic_protocol::{Stamp, WorkerId};

use super::{JobNumber, Oracle};

/// Commits of a generation that not every rank has taken yet; ranks are at most a step apart.
const COMMITS_OPEN_MAX: usize = 8;

#[derive(Debug)]
struct Commit {
    step: u64,
    digest: u64,
    ranks: u32,
}

#[derive(Debug)]
pub(super) struct Generation {
    pub(super) job: JobNumber,
    pub(super) stamp: Stamp,
    pub(super) members: Vec<WorkerId>,
    /// The digest of its table.
    table: Option<u64>,
    /// Samples of the commit that it must not fall behind (G-5): acknowledged, and held by a member.
    pub(super) floor: u64,
    /// Who has said READY.
    ready: BTreeSet<WorkerId>,
    /// What its members hold after the sync.
    synced: Option<u64>,
    commits: VecDeque<Commit>,
}

impl Generation {
    /// One of which nothing is known but who is to be in it.
    pub(super) fn new(job: JobNumber, stamp: Stamp, members: &[WorkerId], floor: u64) -> Self {
        Self {
            job,
            stamp,
            members: members.to_vec(),
            table: None,
            floor,
            ready: BTreeSet::new(),
            synced: None,
            commits: VecDeque::new(),
        }
    }
}

impl Oracle {
    /// A member begins a generation with the rank and the table that it has made of what it was told: G-3.
    pub(crate) fn placed(
        &mut self,
        job: JobNumber,
        placement: &Placement,
        worker: &WorkerId,
    ) -> Result<(), String> {
        let generation = placement.stamp.generation;
        // Of a generation too long ago nothing is remembered.
        let Some(record) = self.generation_mut(job, placement.stamp) else { return Ok(()) };
        let table = &placement.assignment;
        let rank = placement.rank as usize;
        if record.members.get(rank) != Some(worker) {
            return Err(format!("G-3: {worker} takes rank {rank} of generation {generation}"));
        }
        // The first one is looked at in full, the others by its digest.
        let is_first = record.table.is_none();
        let mut members = table.members().map(|member| member.worker);
        if is_first && record.members.iter().all(|member| members.next().as_ref() == Some(member)) {
            record.table = Some(table.digest());
        }
        if record.table != Some(table.digest())
            || record.members.len() != table.world_size() as usize
        {
            return Err(format!(
                "G-3: {worker} begins generation {generation} with another table than was formed"
            ));
        }
        Ok(())
    }

    /// A script is started with a rank of a generation: its members, if they are remembered. G-3.
    pub(crate) fn started(
        &self,
        job: JobNumber,
        stamp: Stamp,
        (rank, world_size): (u32, u32),
        worker: &WorkerId,
    ) -> Result<(), String> {
        let Some(record) = self.generation(job, stamp) else { return Ok(()) };
        let is_its_rank = record.members.get(rank as usize) == Some(worker);
        if is_its_rank && record.members.len() == world_size as usize {
            return Ok(());
        }
        Err(format!(
            "G-3: {worker} is started as rank {rank} of {world_size} in generation {}, which was formed \
             otherwise",
            stamp.generation
        ))
    }

    /// The members of a generation, by rank; none if it is not remembered.
    pub(crate) fn members(&self, job: JobNumber, stamp: Stamp) -> Vec<WorkerId> {
        self.generation(job, stamp).map(|record| record.members.clone()).unwrap_or_default()
    }

    /// A member holds the commit of its generation: the same as every other (G-6).
    pub(crate) fn synced(
        &mut self,
        job: JobNumber,
        stamp: Stamp,
        digest: u64,
        samples: u64,
        worker: &WorkerId,
    ) -> Result<(), String> {
        let generation = stamp.generation;
        let Some(record) = self.generation_mut(job, stamp) else { return Ok(()) };
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
        job: JobNumber,
        stamp: Stamp,
        step: u64,
        digest: u64,
        samples: u64,
        worker: &WorkerId,
    ) -> Result<(), String> {
        let generation = stamp.generation;
        let Some(record) = self.generation_mut(job, stamp) else { return Ok(()) };
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
            if let Some(job) = self.jobs.get_mut(&job) {
                job.acknowledged = job.acknowledged.max(Some(samples));
            }
        }
        Ok(())
    }

    /// A worker's vote has come to the registry.
    pub(crate) fn voted(&mut self, job: JobNumber, vote: &Vote) {
        if let Some(record) = self.generation_mut(job, vote.stamp) {
            record.ready.insert(vote.worker.clone());
        }
    }

    /// The barrier is said to be open: everybody must have voted.
    pub(crate) fn barrier_opened(&self, job: JobNumber, stamp: Stamp) -> Result<(), String> {
        let Some(record) = self.generation(job, stamp) else { return Ok(()) };
        match record.members.iter().find(|member| !record.ready.contains(member)) {
            None => Ok(()),
            Some(member) => Err(format!(
                "the barrier of generation {} opens before {member} is READY",
                stamp.generation
            )),
        }
    }

    pub(super) fn generation(&self, job: JobNumber, stamp: Stamp) -> Option<&Generation> {
        self.generations.iter().rev().find(|record| (record.job, record.stamp) == (job, stamp))
    }

    pub(super) fn generation_mut(
        &mut self,
        job: JobNumber,
        stamp: Stamp,
    ) -> Option<&mut Generation> {
        self.generations.iter_mut().rev().find(|record| (record.job, record.stamp) == (job, stamp))
    }
}
