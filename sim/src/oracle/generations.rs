//! The oracle's checks of a generation's members: ranks, votes, sync, commits.

use std::collections::{BTreeMap, VecDeque};

use elastic_protocol::messages::{Ballot, Placement, Vote};
use elastic_protocol::{Stamp, WorkerId};

use super::{JobNumber, Oracle};

/// Most remembered commits of a generation that some ranks have not taken yet. Ranks are at most a step apart.
const COMMITS_OPEN_MAX: usize = 8;

#[derive(Debug)]
struct OpenCommit {
    step: u64,
    digest: u64,
    ranks: u32,
}

#[derive(Debug)]
pub(super) struct GenerationRecord {
    pub(super) job: JobNumber,
    pub(super) stamp: Stamp,
    pub(super) members: Vec<WorkerId>,
    /// The digest of the generation's table.
    table: Option<u64>,
    /// Least samples to begin from (G-5): those of the acknowledged commit that a member holds.
    pub(super) floor: u64,
    /// Members that voted READY, and SYNCED, with the world time at which the vote reached the registry.
    ready: BTreeMap<WorkerId, u64>,
    proved: BTreeMap<WorkerId, u64>,
    /// Digest that the members hold after the sync.
    synced: Option<u64>,
    commits: VecDeque<OpenCommit>,
}

impl GenerationRecord {
    /// A generation of which only the members are known.
    pub(super) fn new(job: JobNumber, stamp: Stamp, members: &[WorkerId], floor: u64) -> Self {
        Self {
            job,
            stamp,
            members: members.to_vec(),
            table: None,
            floor,
            ready: BTreeMap::new(),
            proved: BTreeMap::new(),
            synced: None,
            commits: VecDeque::new(),
        }
    }
}

impl Oracle {
    /// Checks G-3 when a member begins a generation: its rank and its table.
    pub(crate) fn placed(
        &mut self,
        job: JobNumber,
        placement: &Placement,
        worker: &WorkerId,
    ) -> Result<(), String> {
        let generation = placement.stamp.generation;
        // Generations too long ago are forgotten.
        let Some(record) = self.generation_mut(job, placement.stamp) else { return Ok(()) };
        let table = &placement.assignment;
        let rank = placement.rank as usize;
        if record.members.get(rank) != Some(worker) {
            return Err(format!("G-3: {worker} takes rank {rank} of generation {generation}"));
        }
        // The first table is compared in full, the others by their digest.
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

    /// Checks G-3 when a script is started: its rank and its world size, if the generation is remembered.
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

    /// The members of a generation, by rank; empty if it is not remembered.
    pub(crate) fn members(&self, job: JobNumber, stamp: Stamp) -> Vec<WorkerId> {
        self.generation(job, stamp).map(|record| record.members.clone()).unwrap_or_default()
    }

    /// Checks G-5 and G-6 when a member holds the commit of its generation: not behind the floor, and the same as
    /// every other.
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

    /// Checks a member's commit: all members commit the same, each once.
    pub(crate) fn committed(
        &mut self,
        job: JobNumber,
        stamp: Stamp,
        step: u64,
        digest: u64,
        samples: u64,
        worker: &WorkerId,
    ) -> Result<(), String> {
        self.formed_at.1.clear();
        if let Some(record) = self.jobs.get_mut(&job) {
            record.highest_step = record.highest_step.max(Some(step));
        }
        let generation = stamp.generation;
        let Some(record) = self.generation_mut(job, stamp) else { return Ok(()) };
        let members = record.members.len() as u32;
        let index = record.commits.iter().position(|commit| commit.step == step);
        let index = index.unwrap_or_else(|| {
            record.commits.push_back(OpenCommit { step, digest, ranks: 0 });
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
            if let Some(job) = self.jobs.get_mut(&job)
                && stamp >= job.begun_again
            {
                job.acknowledged = job.acknowledged.max(Some(samples));
            }
        }
        Ok(())
    }

    /// Records a worker's vote that has reached the registry.
    pub(crate) fn voted(&mut self, job: JobNumber, vote: &Vote, now: u64) {
        if let Some(record) = self.generation_mut(job, vote.stamp) {
            record.ready.entry(vote.worker.clone()).or_insert(now);
            if vote.ballot == Ballot::Synced {
                record.proved.entry(vote.worker.clone()).or_insert(now);
            }
        }
    }

    /// When a member's vote for a phase reached the registry: SYNCED for `sync`, otherwise READY.
    pub(crate) fn vote_of(
        &self,
        job: JobNumber,
        stamp: Stamp,
        is_sync: bool,
        worker: &WorkerId,
    ) -> Option<u64> {
        let record = self.generation(job, stamp)?;
        let votes = if is_sync { &record.proved } else { &record.ready };
        votes.get(worker).copied()
    }

    /// Checks that all members have voted when the barrier opens.
    pub(crate) fn barrier_opened(&self, job: JobNumber, stamp: Stamp) -> Result<(), String> {
        let Some(record) = self.generation(job, stamp) else { return Ok(()) };
        match record.members.iter().find(|member| !record.ready.contains_key(member)) {
            None => Ok(()),
            Some(member) => Err(format!(
                "the barrier of generation {} opens before {member} is READY",
                stamp.generation
            )),
        }
    }

    pub(super) fn generation(&self, job: JobNumber, stamp: Stamp) -> Option<&GenerationRecord> {
        self.generations.iter().rev().find(|record| (record.job, record.stamp) == (job, stamp))
    }

    pub(super) fn generation_mut(
        &mut self,
        job: JobNumber,
        stamp: Stamp,
    ) -> Option<&mut GenerationRecord> {
        self.generations.iter_mut().rev().find(|record| (record.job, record.stamp) == (job, stamp))
    }
}
