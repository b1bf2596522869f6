//! The oracle: rules that must hold in the whole cluster after every event, under any fault. It sees the state of all
//! nodes, and the world reports every event to it at once.

mod cooldowns;
mod generations;
mod goodput;
mod succession;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use elastic_protocol::messages::{Formation, FormationTable};
use elastic_protocol::{Assignment, GenerationId, Incarnation, Stamp, Term, WorkerId};

pub(crate) use self::cooldowns::Cooldowns;
use self::generations::GenerationRecord;
use self::goodput::AccountedJob;

/// Number of remembered generations.
const GENERATIONS_KEPT: usize = 16;

/// Number of remembered drivers of a job.
const TERMS_KEPT: usize = 8;

/// Most generations that one driver may form within `PACE_NS` nanoseconds without a commit. Pauses leave about eight;
/// planned generations have no pause.
const PACE_MAX: usize = 24;
const PACE_NS: u64 = 1_000_000_000;

/// A job, named by the life of the driver that began it.
pub(crate) type JobNumber = u32;

/// A job: begun by a driver, continued by its successors.
#[derive(Debug, Default)]
struct JobRecord {
    /// The term of the newest driver.
    term: Term,
    newest: Stamp,
    /// Incarnations given to workers.
    given: BTreeSet<Incarnation>,
    /// The table that each of the last drivers has told last, where the oracle learns tables from messages to members. A driver that
    /// was replaced may still tell one, which its successor does not build on.
    tables: BTreeMap<Term, Arc<Assignment>>,
    /// The digest of the table last told to each life of a worker, with the term of the driver that told it.
    tables_told: BTreeMap<Incarnation, (Term, u64)>,
    /// Samples of the highest commit that every rank of a generation took.
    acknowledged: Option<u64>,
    /// The generation that began again from less than was acknowledged. Members of earlier generations that nobody has reached
    /// may still commit. Such commits do not count: they are lost with their holders.
    begun_again: Stamp,
    /// Highest step that any member of a generation has committed.
    highest_step: Option<u64>,
    /// Resets decided, and the generation that the last of them ended.
    resets: u64,
    last_reset: Option<GenerationId>,
    /// Accounts of its slots' time, from its drivers' events; none before the first event.
    accounted: Option<AccountedJob>,
}

/// The oracle's knowledge of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    jobs: BTreeMap<JobNumber, JobRecord>,
    generations: VecDeque<GenerationRecord>,
    pub(crate) resets: u64,
    pub(crate) generations_formed: u64,
    pub(crate) commits: u64,
    commits_when_healed: u64,
    /// Generations formed in a row whose members held no more than those of any before. A commit does not count if it was
    /// lost with its holders.
    pub(crate) fruitless: u32,
    /// World time at which the first of them was formed.
    pub(crate) fruitless_since: u64,
    /// Most samples that a member of a generation held when that was formed.
    held: Option<u64>,
    /// Term of the current driver, and times at which it formed generations since the last commit.
    formed_at: (Term, VecDeque<u64>),
}

impl Oracle {
    /// Checks the pace when the driver forms a generation (`now` in nanoseconds): no rapid series without a pause or
    /// a commit.
    pub(crate) fn paced(&mut self, by: Term, now: u64) -> Result<(), String> {
        if self.fruitless <= 1 {
            self.fruitless_since = now;
        }
        let (term, formed_at) = &mut self.formed_at;
        if *term != by {
            (*term, *formed_at) = (by, VecDeque::new());
        }
        formed_at.push_back(now);
        while formed_at.front().is_some_and(|first| first + PACE_NS < now) {
            formed_at.pop_front();
        }
        if formed_at.len() > PACE_MAX {
            let formed = formed_at.len();
            return Err(format!(
                "G-9: {formed} generations within a second, and nothing was committed"
            ));
        }
        Ok(())
    }

    /// Faults are over: later commits count as progress.
    pub(crate) fn mark_healed(&mut self) {
        self.commits_when_healed = self.commits;
    }

    /// Commits that every rank took since the faults ended.
    pub(crate) fn commits_since_healed(&self) -> u64 {
        self.commits - self.commits_when_healed
    }

    /// Samples of the highest commit that every rank of a generation of a job took.
    pub(crate) fn acknowledged(&self, job: JobNumber) -> Option<u64> {
        self.jobs.get(&job)?.acknowledged
    }

    /// Highest step that any member of a generation of a job has committed.
    pub(crate) fn highest_step(&self, job: JobNumber) -> Option<u64> {
        self.jobs.get(&job)?.highest_step
    }

    /// A generation begins from so many samples, and no process holds more. Acknowledged samples beyond are lost.
    pub(crate) fn begin_again_from(&mut self, job: JobNumber, samples: Option<u64>) {
        if let Some(job) = self.jobs.get_mut(&job) {
            if job.acknowledged > samples {
                job.begun_again = job.newest;
            }
            job.acknowledged = job.acknowledged.min(samples);
        }
    }

    /// Checks G-2 and G-3 when the driver forms a generation.
    pub(crate) fn formed(
        &mut self,
        number: JobNumber,
        stamp: Stamp,
        members: &[WorkerId],
        best: Option<u64>,
    ) -> Result<(), String> {
        let job = self.jobs.entry(number).or_default();
        job.may_form(stamp)?;
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
        // The commit with which training begins is no progress.
        let got_on = best.unwrap_or(0) > self.held.unwrap_or(0);
        self.fruitless = if got_on { 1 } else { self.fruitless + 1 };
        self.held = self.held.max(best);
        self.keep_generation(GenerationRecord::new(number, stamp, members, floor));
        Ok(())
    }

    /// Notes a generation that a driver has formed which is not the newest any more.
    pub(crate) fn forms_in_vain(&mut self, job: JobNumber, stamp: Stamp, members: &[WorkerId]) {
        self.keep_generation(GenerationRecord::new(job, stamp, members, 0));
    }

    fn keep_generation(&mut self, generation: GenerationRecord) {
        if self.generations.len() >= GENERATIONS_KEPT {
            self.generations.pop_front();
        }
        self.generations.push_back(generation);
    }

    /// The members of a generation that the driver of a term goes on with, or that is seen only through messages to its members.
    pub(crate) fn members_told(
        &mut self,
        job: JobNumber,
        term: Term,
        formation: &Formation,
    ) -> Result<Vec<WorkerId>, String> {
        let generation = formation.stamp.generation;
        let job = self.jobs.entry(job).or_default();
        let base = job.tables.get(&term).cloned().unwrap_or_default();
        let table = match &formation.table {
            FormationTable::Full(assignment) => Arc::clone(assignment),
            FormationTable::Delta(delta) => Arc::new(delta.apply(&base).map_err(|error| {
                format!(
                    "the table of generation {generation} does not come of the one before: {error}"
                )
            })?),
        };
        let members = table.members().map(|member| member.worker).collect();
        job.tables.insert(term, table);
        if job.tables.len() > TERMS_KEPT {
            job.tables.pop_first();
        }
        Ok(members)
    }

    /// Checks an assignment. A driver may send only the changes of a table if it has told that table to the member
    /// itself. Tables of a former driver are uncertain: a member with another table asks.
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
            FormationTable::Full(assignment) => {
                job.tables_told.insert(to.incarnation, (term, assignment.digest()));
            }
            FormationTable::Delta(delta) => {
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

    /// Checks that the generation of a State only grows (G-2).
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
        let is_known = self.jobs.get(&job).is_some_and(|job| now <= job.newest)
            || self.generation(job, now).is_some();
        if !is_known && now != Stamp::default() {
            return Err(format!("G-2: generation {} was never formed", now.generation));
        }
        *seen = now;
        Ok(())
    }
}
