//! [`Tenure`]: how an incarnation of the driver begins. Called before anything else of it exists: the term is
//! raised and stored first.

use elastic_journal::{Batch, Journal, JournalError, Loaded, Snapshot};
use elastic_protocol::{JobId, ProgramSpec, Term};
use elastic_runtime::planted::{Bug, is_planted};

use super::image::Image;
use super::record::{JobSecretsBytes, Record};

/// What a new job begins with.
#[derive(Clone, Debug)]
pub struct Founding {
    /// Its id.
    pub job: JobId,
    /// Its secrets.
    pub secrets: JobSecretsBytes,
}

/// Where an incarnation of the driver begins: all that its predecessors have stored, and a term of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenure {
    /// The job.
    pub job: JobId,
    /// What the records say, its own term included.
    pub image: Image,
    /// The number of the last record.
    pub last: u64,
}

/// Why a driver cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum TenureError<E: std::error::Error + 'static> {
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What a new job needs cannot be made.
    #[error("a new job cannot begin")]
    Founding(#[source] E),
    /// The journal is of another job.
    #[error("the journal is of the unfinished job {job}, which runs `{theirs}`, not `{ours}`")]
    OtherProgram {
        /// That job.
        job: JobId,
        /// What it runs.
        theirs: String,
        /// What was to be run.
        ours: String,
    },
}

impl Tenure {
    /// Takes over the job of a journal, or begins one there, and stores that it did.
    ///
    /// # Errors
    /// [`TenureError`]; then nothing has begun.
    pub fn begin<E: std::error::Error + 'static>(
        journal: &mut dyn Journal,
        program: &ProgramSpec,
        founding: impl FnOnce() -> Result<Founding, E>,
    ) -> Result<Self, TenureError<E>> {
        let loaded = journal.load()?;
        let (last, mut image) = (loaded.last(), read(&loaded)?);
        let mut records = Vec::new();
        let job = match image.job {
            Some(job) if image.program == *program => job,
            Some(job) => {
                let line = |program: &ProgramSpec| program.argv.join(" ");
                let (theirs, ours) = (line(&image.program), line(program));
                return Err(TenureError::OtherProgram { job, theirs, ours });
            }
            None => {
                let Founding { job, secrets } = founding().map_err(TenureError::Founding)?;
                records.push(Record::Job { job, program: program.clone(), secrets });
                job
            }
        };
        let keeps = image.term > Term::default() && is_planted(Bug::TermKept);
        let term = if keeps { image.term } else { image.term.next() };
        records.push(Record::Term { term });
        for record in &records {
            image.apply(record);
        }
        let records: Vec<Vec<u8>> = records.iter().map(Record::encode).collect();
        let mut batch = Batch { first: last + 1, records, snapshot: None };
        // Whoever comes next has one record less to read for each that is read now.
        batch.snapshot = Some(Snapshot { upto: batch.last(), bytes: image.encode() });
        journal.append(&batch)?;
        Ok(Self { job, image, last: batch.last() })
    }

    /// Whether somebody drove this job before.
    pub fn is_takeover(&self) -> bool {
        self.image.term > Term(1)
    }
}

fn read(loaded: &Loaded) -> Result<Image, JournalError> {
    let damaged = |what: String| JournalError::Corrupt(what);
    let mut image = match &loaded.snapshot {
        Some(Snapshot { upto, bytes }) => Image::decode(bytes)
            .map_err(|error| damaged(format!("snapshot {upto} is no image: {error}")))?,
        None => Image::default(),
    };
    let first = loaded.snapshot.as_ref().map_or(1, |snapshot| snapshot.upto + 1);
    for (number, bytes) in (first..).zip(&loaded.records) {
        let record = Record::decode(bytes)
            .map_err(|error| damaged(format!("record {number} is none: {error}")))?;
        image.apply(&record);
    }
    if loaded.last() > 0 && image.job.is_none() {
        return Err(damaged("its first record is missing".to_owned()));
    }
    Ok(image)
}
