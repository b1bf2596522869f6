//! [`Tenure`]: the starting state of an incarnation of the driver. The driver's process begins it before it makes the core:
//! the term is raised and stored first.

use std::time::SystemTime;

use elastic_journal::{Journal, JournalBatch, JournalError, JournalSnapshot};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{JobId, ProgramSpec, Term};
use serde::{Deserialize, Serialize};

use super::image::Image;
use super::record::{JobSecretsBytes, JournalRecord};

/// Values made for a new job.
#[derive(Clone, Debug)]
pub struct Founding {
    /// Id of the job.
    pub job: JobId,
    /// The job's secrets.
    pub secrets: JobSecretsBytes,
}

/// Starting state of an incarnation of the driver: all that its predecessors have stored, and a term of its own.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Tenure {
    /// Id of the job.
    pub job: JobId,
    /// State that the records give, the new term included.
    pub image: Image,
    /// Number of the last record.
    pub last: u64,
    /// Wall clock at the start of the core, in milliseconds since 1970; none if nobody has told it.
    #[serde(default)]
    pub begins_at_ms: Option<u64>,
}

/// Reason why a driver cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum TenureError<E: std::error::Error + 'static> {
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The id or the secrets of a new job cannot be made.
    #[error("a new job cannot begin")]
    Founding(#[source] E),
    /// The journal is of a job that runs another program.
    #[error("the journal is of the unfinished job {job}, which runs `{theirs}`, not `{ours}`")]
    OtherProgram {
        /// Id of the journal's job.
        job: JobId,
        /// Command line of the journal's job.
        theirs: String,
        /// Command line that was to be run.
        ours: String,
    },
}

impl Tenure {
    /// Takes over the job of a journal, or begins one there. The new term is stored.
    ///
    /// # Errors
    /// [`TenureError`]; then nothing has begun.
    pub fn begin<E: std::error::Error + 'static>(
        journal: &mut dyn Journal,
        program: &ProgramSpec,
        founding: impl FnOnce() -> Result<Founding, E>,
    ) -> Result<Self, TenureError<E>> {
        let loaded = journal.load()?;
        let (last, mut image) = (loaded.last(), Image::of(&loaded)?);
        let mut records = Vec::new();
        let job = match image.job {
            Some(job) if image.program == *program => job,
            Some(job) => {
                let (theirs, ours) = (command_line(&image.program), command_line(program));
                return Err(TenureError::OtherProgram { job, theirs, ours });
            }
            None => {
                let Founding { job, secrets } = founding().map_err(TenureError::Founding)?;
                records.push(JournalRecord::Job { job, program: program.clone(), secrets });
                job
            }
        };
        let keeps = image.term > Term::default() && is_planted(Bug::TermKept);
        let term = if keeps { image.term } else { image.term.next() };
        records.push(JournalRecord::Term { term });
        for record in &records {
            image.apply(record);
        }
        let records: Vec<Vec<u8>> = records.iter().map(JournalRecord::encode).collect();
        let mut batch = JournalBatch { first: last + 1, records, snapshot: None };
        // The snapshot saves the next incarnation from reading these records again.
        batch.snapshot = Some(JournalSnapshot { upto: batch.last(), bytes: image.encode() });
        journal.append(&batch)?;
        Ok(Self { job, image, last: batch.last(), begins_at_ms: None })
    }

    /// Tells the wall clock at the start of the core, from which the core knows how long no driver lived.
    #[must_use]
    pub fn beginning_at(mut self, wall_clock: SystemTime) -> Self {
        let since_1970 = wall_clock.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.begins_at_ms = u64::try_from(since_1970.as_millis()).ok();
        self
    }

    /// Whether an earlier incarnation drove this job.
    pub fn is_takeover(&self) -> bool {
        self.image.term > Term(1)
    }
}

/// A program as a shell would be told to run it: its variables, then its arguments.
fn command_line(program: &ProgramSpec) -> String {
    let variables = program.environment.iter().map(|(name, value)| format!("{name}={value}"));
    variables.chain(program.argv.iter().cloned()).collect::<Vec<String>>().join(" ")
}
