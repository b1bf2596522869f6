//! The oracle: what must be true of the whole cluster after every event, whoever is at fault. It sees what no
//! node sees, and is told of everything at the moment when it happens.

mod generations;
mod succession;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use elastic_protocol::messages::{Formation, Table};
use elastic_protocol::{Assignment, Incarnation, Stamp, Term, WorkerId};

use self::generations::Generation;

/// Generations that are remembered.
const GENERATIONS_KEPT: usize = 16;

/// Which job: the life of the driver that began it.
pub(crate) type JobNumber = u32;

/// A job: what a driver has begun, and those who take it over go on with.
#[derive(Debug, Default)]
struct Job {
    /// The term of its newest driver.
    term: Term,
    newest: Stamp,
    /// The incarnations that workers were given.
    given: BTreeSet<Incarnation>,
    /// The table of the generation that was formed last, where it is learned from what members are told.
    table: Arc<Assignment>,
    /// The digest of the table that each life of a worker was told last, and by the driver of which term.
    tables_told: BTreeMap<Incarnation, (Term, u64)>,
    /// Samples of the highest commit that every rank of a generation took.
    acknowledged: Option<u64>,
}

/// What is known of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    jobs: BTreeMap<JobNumber, Job>,
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

    /// Samples of the highest commit that every rank of a generation of a job took.
    pub(crate) fn acknowledged(&self, job: JobNumber) -> Option<u64> {
        self.jobs.get(&job)?.acknowledged
    }

    /// A generation begins from so many samples, and nobody holds more: what was acknowledged beyond is lost.
    pub(crate) fn begin_again_from(&mut self, job: JobNumber, samples: Option<u64>) {
        if let Some(job) = self.jobs.get_mut(&job) {
            job.acknowledged = job.acknowledged.min(samples);
        }
    }

    /// The driver forms a generation: G-2, G-3.
    pub(crate) fn formed(
        &mut self,
        number: JobNumber,
        by: Term,
        stamp: Stamp,
        members: &[WorkerId],
        best: Option<u64>,
    ) -> Result<(), String> {
        let job = self.jobs.entry(number).or_default();
        job.may_form(by, stamp)?;
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
        self.generations_formed += 1;
        if self.generations.len() >= GENERATIONS_KEPT {
            self.generations.pop_front();
        }
        self.generations.push_back(Generation::new(number, stamp, members, floor));
        Ok(())
    }

    /// The members of a generation of which only what its members are told is seen.
    pub(crate) fn members_told(
        &mut self,
        job: JobNumber,
        formation: &Formation,
    ) -> Result<Vec<WorkerId>, String> {
        let generation = formation.stamp.generation;
        let job = self.jobs.entry(job).or_default();
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

    /// The driver of a term tells a member of its generation: what has changed in a table only if that driver
    /// has told it that table. What a former driver has told nobody knows for certain: whoever holds another
    /// table asks.
    pub(crate) fn assigned(
        &mut self,
        number: JobNumber,
        term: Term,
        formation: &Formation,
        to: &WorkerId,
    ) -> Result<(), String> {
        let generation = formation.stamp.generation;
        if self.generation(number, formation.stamp).is_none() {
            return Err(format!(
                "{to} is assigned to generation {generation}, which was not formed"
            ));
        }
        let job = self.jobs.entry(number).or_default();
        match &formation.table {
            Table::Full(assignment) => {
                job.tables_told.insert(to.incarnation, (term, assignment.digest()));
            }
            Table::Delta(delta) => {
                let told = job.tables_told.insert(to.incarnation, (term, delta.digest()));
                let may_be_another = match told {
                    Some((by, digest)) => by == term && digest != delta.base(),
                    None => term == Term(1),
                };
                if may_be_another {
                    return Err(format!(
                        "{to} is told how the table of generation {generation} differs from one that it \
                         was not told last"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The generation that a State is in only grows (G-2).
    pub(crate) fn state_stamp(
        &self,
        job: JobNumber,
        seen: &mut Stamp,
        now: Stamp,
    ) -> Result<(), String> {
        if now < *seen {
            return Err(format!(
                "G-2: back from generation {} to {}",
                seen.generation, now.generation
            ));
        }
        let is_known = self.jobs.get(&job).is_some_and(|job| now <= job.newest);
        if !is_known && now != Stamp::default() {
            return Err(format!("G-2: generation {} was never formed", now.generation));
        }
        *seen = now;
        Ok(())
    }
}
