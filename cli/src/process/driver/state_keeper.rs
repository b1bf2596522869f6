//! [`StateKeeper`]: makes anew what was removed or overwritten of a driver's state while its job runs, so that people still find the job
//! and a next driver its journal. Used by the driver's process.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use elastic_journal::{FileJournal, Journal, JournalBatch, JournalError, LoadedJournal};
use elastic_runtime::OffloadPort;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;

use super::standing::with_cause;
use crate::process::job_registry::{JobEntry, JobRegistry};
use crate::process::state_dir::DriverStateDir;

/// Interval between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A journal in a file that its lane writes and a [`StateKeeper`] looks after.
pub(super) struct KeptJournal(Arc<Mutex<FileJournal>>);

impl KeptJournal {
    pub(super) fn new(journal: FileJournal) -> Self {
        Self(Arc::new(Mutex::new(journal)))
    }

    /// What the keeper needs of it. The journal is closed when it itself is dropped.
    pub(super) fn downgrade(&self) -> Weak<Mutex<FileJournal>> {
        Arc::downgrade(&self.0)
    }
}

impl Journal for KeptJournal {
    fn load(&mut self) -> Result<LoadedJournal, JournalError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).load()
    }

    fn append(&mut self, batch: &JournalBatch) -> Result<(), JournalError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).append(batch)
    }
}

/// What is looked after.
#[derive(Clone)]
pub(super) struct StateKeeper {
    /// The state directory.
    pub(super) state: Arc<DriverStateDir>,
    /// The journal, if it is a file there.
    pub(super) journal: Option<Weak<Mutex<FileJournal>>>,
    /// The job's entry in the list of this user's jobs, if there is a list.
    pub(super) entry: Option<(JobRegistry, JobEntry)>,
}

/// Ends a keeper when it is dropped, and gives the directory's lock back: this process may drive again.
#[derive(Debug)]
pub(super) struct RunningKeeper {
    state: Arc<DriverStateDir>,
    task: JoinHandle<()>,
}

impl Drop for RunningKeeper {
    fn drop(&mut self) {
        self.task.abort();
        self.state.release();
    }
}

impl StateKeeper {
    /// Begins to look.
    pub(super) fn start(self, lane: OffloadPort) -> RunningKeeper {
        let state = Arc::clone(&self.state);
        RunningKeeper { state, task: spawn_local(self.keep(lane)) }
    }

    /// Removes what lets nodes in and a next driver continue the job: it is over.
    pub(super) fn withdraw(&self) {
        let journal = self.journal.as_ref().and_then(Weak::upgrade);
        // The journal's lane waits for the lock. A batch that it appends later is dropped.
        let mut journal =
            journal.as_ref().map(|journal| journal.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(journal) = &mut journal {
            journal.retire();
        }
        self.state.withdraw();
    }

    /// Looks again and again, on the lane of the state directory. What was removed or overwritten is a warning, and so is the first of
    /// several failures in a row.
    async fn keep(self, lane: OffloadPort) {
        let folder = self.state.path().display().to_string();
        let mut was_failing = false;
        loop {
            sleep(LOOK_EVERY).await;
            let keeper = self.clone();
            // A busy lane is named by the watchdog.
            let Ok(looked) = lane.run("look", move || keeper.look()).await else { continue };
            match &looked {
                Ok(true) => tracing::warn!(
                    folder,
                    "the state directory, or a part of it, was removed or overwritten while the job runs; it is written anew"
                ),
                Err(error) if !was_failing => {
                    tracing::warn!(
                        folder,
                        error,
                        "the state directory was removed, and cannot be written anew: another driver will not find \
                         this job there"
                    );
                }
                _ => {}
            }
            was_failing = looked.is_err();
        }
    }

    /// Returns whether something was removed, and is there again.
    fn look(&self) -> Result<bool, String> {
        let restored = self.state.restore_if_removed();
        let mut was_removed = restored.map_err(|failure| failure.to_string())?;
        if let Some(journal) = self.journal.as_ref().and_then(Weak::upgrade)
            // Who writes it meanwhile looks, too.
            && let Ok(mut journal) = journal.try_lock()
        {
            was_removed |= journal.restore_if_removed().map_err(|error| with_cause(&error))?;
        }
        if let Some((registry, entry)) = &self.entry
            && let Err(error) = registry.restore_if_removed(entry)
        {
            tracing::debug!(%error, "the list of jobs cannot be written");
        }
        Ok(was_removed)
    }
}
