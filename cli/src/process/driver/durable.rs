//! A driver's journal. It is opened before anything else of the driver starts, so that the term is raised first. Used
//! by the driver's process.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use elastic_driver::JournalPort;
use elastic_driver::journal::{Founding, Image, JobSecretsBytes, Tenure, TenureError};
use elastic_journal::{FileJournal, Journal, JournalBatch, JournalError, LoadedJournal};
use elastic_protocol::WorkerId;
use elastic_runtime::OffloadPort;
use elastic_transport::sealed::{is_sealed, open, seal};
use elastic_transport::{AuthorityError, JobSecrets, SharedSecret};

use super::listening::Listening;
use super::state_keeper::KeptJournal;
use crate::command_line::{CommandFailure, DriverPlan, ResultExt};
use crate::process::state_dir::JOURNAL_FILE;

/// Hint if a driver has another secret than the job's others.
pub(super) const SAME_SECRET: &str = "give every driver of the job the same --store-secret FILE";

/// An open journal with the job that it holds.
pub(super) struct Durable {
    pub(super) tenure: Tenure,
    pub(super) secrets: JobSecrets,
    /// The digest of the secret that seals the secrets in the store; empty if they lie there in the clear.
    pub(super) sealed_with: String,
    pub(super) port: JournalPort,
    /// The journal's file, for its keeper; `None` if the journal is in a store.
    pub(super) file: Option<Weak<Mutex<FileJournal>>>,
    /// The mark to set when the job is over.
    pub(super) over: OverMark,
}

/// Whether the job is over. Records that are appended to its journal later are dropped: the journal is gone. Clones
/// share it.
#[derive(Clone, Debug, Default)]
pub(super) struct OverMark(Arc<AtomicBool>);

impl OverMark {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The reason why a journal cannot be used.
pub(super) enum Unusable {
    /// The journal cannot be used now; later, or by another driver, it may be.
    Now(JournalError),
    /// The journal cannot be used until an operator has mended something.
    Lasting(CommandFailure),
}

impl Durable {
    /// Continues the job in a state directory, or begins a new one there.
    pub(super) fn open(
        folder: &Path,
        plan: &DriverPlan,
        lane: &OffloadPort,
    ) -> Result<Self, CommandFailure> {
        let name = folder.join(JOURNAL_FILE);
        Self::open_file(folder, plan, lane).map_err(|why| match why {
            Unusable::Now(error) => unusable(&name, error),
            Unusable::Lasting(failure) => failure,
        })
    }

    fn open_file(folder: &Path, plan: &DriverPlan, lane: &OffloadPort) -> Result<Self, Unusable> {
        let path = folder.join(JOURNAL_FILE);
        let name = path.display().to_string();
        let journal = FileJournal::open(&path).map_err(Unusable::Now)?;
        let journal = journal.identified_by(Image::identity_of);
        let way_out = format!(
            "start that program again, with the same --backend and --encrypt-data, to go on with its job; or give this one \
             another --state-dir, or remove {name} to give that job up"
        );
        let journal = KeptJournal::new(journal);
        let file = Some(journal.downgrade());
        let begun = Self::begin(Box::new(journal), &name, plan, way_out, lane);
        begun.map(|durable| Self { file, ..durable })
    }

    /// Continues the job of a journal, or begins a new one there. `way_out` is the hint that is shown if the journal
    /// holds another program's job.
    pub(super) fn begin(
        mut journal: Box<dyn Journal>,
        name: &str,
        plan: &DriverPlan,
        way_out: String,
        lane: &OffloadPort,
    ) -> Result<Self, Unusable> {
        let store = plan.store.as_ref();
        let sealing = plan.sealing();
        let founding = || {
            let secrets = Listening::new_job(plan.shared.as_ref())?;
            let bytes = match sealing {
                Some(secret) => seal(secret, &secrets.to_bytes())?,
                None => secrets.to_bytes(),
            };
            if store.is_some() && sealing.is_none() {
                tracing::warn!(
                    "the job's private key lies unsealed in the store: whoever reads it there can join the job; give \
                     every driver the same --store-secret FILE"
                );
            }
            Ok::<_, AuthorityError>(Founding {
                job: secrets.job(),
                secrets: JobSecretsBytes(bytes),
            })
        };
        let begun = Tenure::begin(&mut *journal, &plan.config.program, founding);
        let tenure = begun.map_err(|error| match error {
            TenureError::Journal(error @ JournalError::Corrupt(_)) => {
                Unusable::Lasting(unusable(Path::new(name), error))
            }
            TenureError::Journal(error) => Unusable::Now(error),
            TenureError::Founding(error) => Unusable::Lasting(
                CommandFailure::new("the job's secrets cannot be made").source(error),
            ),
            other @ TenureError::OtherProgram { .. } => {
                Unusable::Lasting(CommandFailure::new(other.to_string()).hint(way_out))
            }
        })?;
        let opened = open(sealing, &tenure.image.secrets.0).map_err(|error| {
            let failure =
                CommandFailure::usage(format!("the job's secrets in {name} cannot be read"));
            Unusable::Lasting(failure.source(error).hint(SAME_SECRET))
        })?;
        let sealing = sealing.filter(|_| is_sealed(&tenure.image.secrets.0));
        let sealed_with = sealing.map(SharedSecret::digest).unwrap_or_default();
        let secrets = JobSecrets::from_bytes(&opened)
            .failed(format!("the journal {name} cannot be used"))
            .map_err(Unusable::Lasting)?;
        let over = OverMark::default();
        let journal = ClosedAside { journal: Some(journal), over: over.clone() };
        let port = JournalPort::new(Box::new(journal), lane.clone());
        Ok(Self { tenure, secrets, sealed_with, port, file: None, over })
    }

    /// Workers that were started and have not attached: their tokens are still valid.
    pub(super) fn expected_workers(&self) -> impl Iterator<Item = &WorkerId> {
        let workers = self.tenure.image.workers.iter();
        workers.filter(|(_, image)| image.data_address.is_none()).map(|(worker, _)| worker)
    }
}

/// Timeout for closing the journal: a hanging disk must not hold up the end of the process.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);

/// A journal that a thread of its own closes, since closing writes to the disk.
struct ClosedAside {
    journal: Option<Box<dyn Journal>>,
    over: OverMark,
}

impl Journal for ClosedAside {
    fn load(&mut self) -> Result<LoadedJournal, JournalError> {
        self.inner()?.load()
    }

    fn append(&mut self, batch: &JournalBatch) -> Result<(), JournalError> {
        if self.over.is_set() { Ok(()) } else { self.inner()?.append(batch) }
    }
}

impl ClosedAside {
    fn inner(&mut self) -> Result<&mut (dyn Journal + 'static), JournalError> {
        self.journal.as_deref_mut().ok_or_else(|| JournalError::Fenced("it is closed".to_owned()))
    }
}

impl Drop for ClosedAside {
    fn drop(&mut self) {
        let (closed, is_closed) = sync_channel::<()>(1);
        let journal = self.journal.take();
        let close = move || {
            drop(journal);
            drop(closed);
        };
        // Without a thread the journal is closed right here.
        if thread::Builder::new().name("close journal".to_owned()).spawn(close).is_ok() {
            let _ = is_closed.recv_timeout(CLOSED_WITHIN);
        }
    }
}

fn unusable(name: &Path, error: JournalError) -> CommandFailure {
    let (hint, name) = (error.hint(), name.display());
    CommandFailure::new(format!("the journal {name} cannot be used")).source(error).hint(hint)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// A journal that takes as long to close as its sender lives.
    struct ClosesLate(Receiver<()>);

    impl Journal for ClosesLate {
        fn load(&mut self) -> Result<LoadedJournal, JournalError> {
            Err(JournalError::Fenced("not part of this test".to_owned()))
        }

        fn append(&mut self, _: &JournalBatch) -> Result<(), JournalError> {
            Ok(())
        }
    }

    impl Drop for ClosesLate {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    #[test]
    fn g_9_a_journal_that_does_not_close_holds_up_nobody() {
        let (disk_answers, answered) = channel();
        let journal: Option<Box<dyn Journal>> = Some(Box::new(ClosesLate(answered)));
        drop(ClosedAside { journal, over: OverMark::default() });
        assert!(disk_answers.send(()).is_ok(), "the journal is still being closed");
    }

    #[test]
    fn what_is_appended_after_the_end_of_the_job_is_dropped() {
        let over = OverMark::default();
        let mut journal = ClosedAside { journal: None, over: over.clone() };
        let batch = JournalBatch { first: 1, records: Vec::new(), snapshot: None };
        assert!(journal.append(&batch).is_err(), "the journal is gone");
        over.set();
        assert!(journal.append(&batch).is_ok(), "nobody misses it");
    }
}
