//! The oracle: what must be true of the whole cluster after every event, whoever is at fault. It sees what no
//! node sees, and is told of everything at the moment when it happens.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use elastic_protocol::messages::{Formation, Placement, Table, Vote};
use elastic_protocol::{Assignment, Incarnation, Stamp, Term, WorkerId};

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
    stamp: Stamp,
    members: Vec<WorkerId>,
    /// The digest of its table.
    table: Option<u64>,
    /// Samples of the commit that it must not fall behind (G-5): acknowledged, and held by a member.
    floor: u64,
    /// Who has said READY.
    ready: BTreeSet<WorkerId>,
    /// What its members hold after the sync.
    synced: Option<u64>,
    commits: VecDeque<Commit>,
}

/// A job: what a driver has begun, and those who take it over go on with.
#[derive(Debug)]
struct Job {
    /// The term of its first driver.
    since: Term,
    newest: Stamp,
    /// The table of the generation that was formed last, where it is learned from what members are told.
    table: Arc<Assignment>,
    /// The digest of the table that each life of a worker was told last.
    tables_told: BTreeMap<Incarnation, u64>,
    /// Samples of the highest commit that every rank of a generation took.
    acknowledged: Option<u64>,
}

/// What is known of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    jobs: Vec<Job>,
    generations: VecDeque<Generation>,
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

    /// A driver begins a job of its own.
    pub(crate) fn job_began(&mut self, since: Term) {
        self.jobs.push(Job {
            since,
            newest: Stamp::default(),
            table: Arc::default(),
            tables_told: BTreeMap::new(),
            acknowledged: None,
        });
    }

    fn job(&self, term: Term) -> Option<&Job> {
        self.jobs.iter().rev().find(|job| job.since <= term)
    }

    fn job_mut(&mut self, term: Term) -> Option<&mut Job> {
        self.jobs.iter_mut().rev().find(|job| job.since <= term)
    }

    /// Samples of the highest commit that every rank of a generation of a term's job took.
    pub(crate) fn acknowledged(&self, term: Term) -> Option<u64> {
        self.job(term)?.acknowledged
    }

    /// The driver forms a generation: G-2, G-3.
    pub(crate) fn formed(
        &mut self,
        stamp: Stamp,
        members: &[WorkerId],
        processes: &[u32],
        best: Option<u64>,
    ) -> Result<(), String> {
        let Some(job) = self.job_mut(stamp.term) else {
            return Err(format!("G-2: no driver has begun term {}", stamp.term));
        };
        if stamp <= job.newest {
            return Err(format!(
                "G-2: generation {} of term {} after {} of {}",
                stamp.generation, stamp.term, job.newest.generation, job.newest.term
            ));
        }
        job.newest = stamp;
        let floor = best.min(job.acknowledged).unwrap_or(0);
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
            stamp,
            members: members.to_vec(),
            table: None,
            floor,
            ready: BTreeSet::new(),
            synced: None,
            commits: VecDeque::new(),
        });
        Ok(())
    }

    /// The members of a generation of which only what its members are told is seen.
    pub(crate) fn members_told(&mut self, formation: &Formation) -> Result<Vec<WorkerId>, String> {
        let Stamp { term, generation } = formation.stamp;
        let Some(job) = self.job_mut(term) else {
            return Err(format!("G-2: no driver has begun term {term}"));
        };
        job.table = match &formation.table {
            Table::Full(assignment) => Arc::clone(assignment),
            Table::Delta(delta) => Arc::new(delta.apply(&job.table).map_err(|error| {
                format!(
                    "the table of generation {generation} does not come of the one before: {error}"
                )
            })?),
        };
        Ok(job.table.members().map(|member| member.worker).collect())
    }

    /// The driver tells a member of its generation: what has changed in a table only if it was told that table.
    pub(crate) fn assigned(&mut self, formation: &Formation, to: &WorkerId) -> Result<(), String> {
        let Stamp { term, generation } = formation.stamp;
        if self.generation(formation.stamp).is_none() {
            return Err(format!(
                "{to} is assigned to generation {generation}, which was not formed"
            ));
        }
        let Some(job) = self.job_mut(term) else { return Ok(()) };
        match &formation.table {
            Table::Full(assignment) => {
                job.tables_told.insert(to.incarnation, assignment.digest());
            }
            Table::Delta(delta) => {
                let told = job.tables_told.insert(to.incarnation, delta.digest());
                if told != Some(delta.base()) {
                    return Err(format!(
                        "{to} is told how the table of generation {generation} differs from one that it \
                         was not told last"
                    ));
                }
            }
        }
        Ok(())
    }

    /// A member begins a generation with the rank and the table that it has made of what it was told: G-3.
    pub(crate) fn placed(
        &mut self,
        placement: &Placement,
        worker: &WorkerId,
    ) -> Result<(), String> {
        let generation = placement.stamp.generation;
        // Of a generation too long ago nothing is remembered.
        let Some(record) = self.generation_mut(placement.stamp) else { return Ok(()) };
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

    /// A member holds the commit of its generation: the same as every other (G-6).
    pub(crate) fn synced(
        &mut self,
        stamp: Stamp,
        digest: u64,
        samples: u64,
        worker: &WorkerId,
    ) -> Result<(), String> {
        let generation = stamp.generation;
        let Some(record) = self.generation_mut(stamp) else { return Ok(()) };
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
        stamp: Stamp,
        step: u64,
        digest: u64,
        samples: u64,
        worker: &WorkerId,
    ) -> Result<(), String> {
        let generation = stamp.generation;
        let Some(record) = self.generation_mut(stamp) else { return Ok(()) };
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
            if let Some(job) = self.job_mut(stamp.term) {
                job.acknowledged = job.acknowledged.max(Some(samples));
            }
        }
        Ok(())
    }

    /// A worker's vote has come to the registry.
    pub(crate) fn voted(&mut self, vote: &Vote) {
        if let Some(record) = self.generation_mut(vote.stamp) {
            record.ready.insert(vote.worker.clone());
        }
    }

    /// The barrier is said to be open: everybody must have voted.
    pub(crate) fn barrier_opened(&self, stamp: Stamp) -> Result<(), String> {
        let Some(record) = self.generation(stamp) else { return Ok(()) };
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
        let is_known = self.job(now.term).is_some_and(|job| now <= job.newest);
        if !is_known && now != Stamp::default() {
            return Err(format!("G-2: generation {} was never formed", now.generation));
        }
        *seen = now;
        Ok(())
    }

    fn generation(&self, stamp: Stamp) -> Option<&Generation> {
        self.generations.iter().rev().find(|record| record.stamp == stamp)
    }

    fn generation_mut(&mut self, stamp: Stamp) -> Option<&mut Generation> {
        self.generations.iter_mut().rev().find(|record| record.stamp == stamp)
    }
}
