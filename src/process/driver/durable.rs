//! A driver's journal: opened before anything else of the driver is there, so that the term is raised first.

use std::path::Path;

use elastic_driver::JournalPort;
use elastic_driver::journal::{Founding, JobSecretsBytes, Tenure, TenureError};
use elastic_host_manager::{HostSlots, KnownHost};
use elastic_journal::{FileJournal, Journal, JournalError};
use elastic_protocol::{ProgramSpec, WorkerId};
use elastic_runtime::OffloadPort;
use elastic_transport::{AuthorityError, JobSecrets};

use super::listening::Listening;
use crate::cli::{Failure, ResultExt};
use crate::process::state_dir::JOURNAL_FILE;

/// A journal with the job that stands in it.
pub(super) struct Durable {
    pub(super) tenure: Tenure,
    pub(super) secrets: JobSecrets,
    pub(super) port: JournalPort,
}

/// Why a journal is of no use.
pub(super) enum Unusable {
    /// It may be later, or to another driver.
    Now(JournalError),
    /// It is not before somebody has mended something.
    Lasting(Failure),
}

impl Durable {
    /// Goes on with the job in a state directory, or begins one there.
    pub(super) fn open(folder: &Path, program: &ProgramSpec) -> Result<Self, Failure> {
        let path = folder.join(JOURNAL_FILE);
        let name = path.display().to_string();
        let journal = FileJournal::open(&path).map_err(|error| unusable(&name, error))?;
        let way_out = format!(
            "start that program again to go on with its job; or give this one another --state-dir, or remove \
             {name} to give that job up"
        );
        Self::begin(Box::new(journal), &name, program, way_out).map_err(|why| match why {
            Unusable::Now(error) => unusable(&name, error),
            Unusable::Lasting(failure) => failure,
        })
    }

    /// Goes on with the job of a journal, or begins one there. `way_out` is for who finds another program's job.
    pub(super) fn begin(
        mut journal: Box<dyn Journal>,
        name: &str,
        program: &ProgramSpec,
        way_out: String,
    ) -> Result<Self, Unusable> {
        let founding = || {
            let secrets = Listening::new_job()?;
            let bytes = JobSecretsBytes(secrets.to_bytes());
            Ok::<_, AuthorityError>(Founding { job: secrets.job(), secrets: bytes })
        };
        let begun = Tenure::begin(&mut *journal, program, founding);
        let tenure = begun.map_err(|error| match error {
            TenureError::Journal(error @ JournalError::Corrupt(_)) => {
                Unusable::Lasting(unusable(name, error))
            }
            TenureError::Journal(error) => Unusable::Now(error),
            TenureError::Founding(error) => {
                Unusable::Lasting(Failure::new("the job's secrets cannot be made").source(error))
            }
            other @ TenureError::OtherProgram { .. } => {
                Unusable::Lasting(Failure::new(other.to_string()).hint(way_out))
            }
        })?;
        let secrets = JobSecrets::from_bytes(&tenure.image.secrets.0)
            .failed(format!("the journal {name} cannot be used"))
            .map_err(Unusable::Lasting)?;
        let port = JournalPort::new(journal, OffloadPort::blocking_threads());
        Ok(Self { tenure, secrets, port })
    }

    /// Workers that were started and have not attached: their tokens are good still.
    pub(super) fn expected_workers(&self) -> impl Iterator<Item = &WorkerId> {
        let workers = self.tenure.image.workers.iter();
        workers.filter(|(_, image)| image.data_address.is_none()).map(|(worker, _)| worker)
    }

    /// The hosts that a former driver had.
    pub(super) fn known_hosts(&self) -> Vec<KnownHost> {
        let known = self.tenure.image.hosts.iter().map(|host| KnownHost {
            host: HostSlots { name: host.name.clone(), slots: host.slots },
            is_blacklisted: host.is_blacklisted,
        });
        known.collect()
    }
}

fn unusable(name: &str, error: JournalError) -> Failure {
    let hint = error.hint();
    Failure::new(format!("the journal {name} cannot be used")).source(error).hint(hint)
}
