//! [`StateKeeper`]: restores removed or overwritten files of a driver's state while its job runs, so that people still
//! find the job and a next driver its journal. Used by the driver's process.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use elastic_gpu::describe_error;
use elastic_journal::{FileJournal, Journal, JournalBatch, JournalError, LoadedJournal, Restored};
use elastic_runtime::OffloadPort;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;

use crate::process::job_registry::{JobEntry, JobRegistry};
use crate::process::state_dir::{DriverStateDir, NotRestored, StateDamage};

/// Interval between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A journal in a file that its lane writes and a [`StateKeeper`] looks after.
pub(super) struct KeptJournal(Arc<Mutex<FileJournal>>);

impl KeptJournal {
    pub(super) fn new(journal: FileJournal) -> Self {
        Self(Arc::new(Mutex::new(journal)))
    }

    /// A reference for the keeper. The journal is closed when this owner is dropped.
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

/// The files that the keeper looks after.
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

/// Files that a look has written anew.
#[derive(Debug, Default)]
struct KeptAnew {
    /// Something was removed or overwritten.
    was_removed: bool,
    /// An older journal of the job stood in the journal's place.
    came_back: bool,
}

impl KeptAnew {
    fn warn(&self, folder: &str) {
        if self.was_removed {
            tracing::warn!(
                folder,
                "the state directory, or a part of it, was removed or overwritten while the job runs; it is written anew"
            );
        }
        if self.came_back {
            tracing::warn!(
                folder,
                "an older journal of this job came to stand in the state directory while the job runs; that of this driver \
                 is written in its place"
            );
        }
    }
}

/// The reason why something cannot be restored. The text is the error with its causes.
#[derive(Debug)]
enum KeepFailure {
    /// The directory, its lock, or a file that others find there.
    Directory { found: StateDamage, error: String },
    /// The journal.
    Journal { error: String },
}

impl From<NotRestored> for KeepFailure {
    fn from(NotRestored { found, failure }: NotRestored) -> Self {
        Self::Directory { found, error: failure.finding().0 }
    }
}

impl From<JournalError> for KeepFailure {
    fn from(error: JournalError) -> Self {
        Self::Journal { error: describe_error(&error) }
    }
}

impl KeepFailure {
    fn warn(&self, folder: &str) {
        match self {
            Self::Directory { found: StateDamage::Removed, error } => tracing::warn!(
                folder,
                error,
                "the state directory, or a part of it, was removed, and cannot be written anew: another driver will not \
                 find this job there"
            ),
            Self::Directory { found: StateDamage::Unreadable(reading), error } => tracing::warn!(
                folder,
                %reading,
                error,
                "the state directory cannot be read, nor written anew: another driver may not find this job there"
            ),
            Self::Directory { found: StateDamage::Overwritten, error } => tracing::warn!(
                folder,
                error,
                "what stands in the state directory is not what this driver wrote, and cannot be written anew: another \
                 driver may not find this job there"
            ),
            Self::Journal { error } => tracing::warn!(
                folder,
                error,
                "the journal in the state directory cannot be looked at, or written anew: another driver may not find \
                 this job there"
            ),
        }
    }
}

impl StateKeeper {
    /// Begins to look.
    pub(super) fn start(self, lane: OffloadPort) -> RunningKeeper {
        let state = Arc::clone(&self.state);
        RunningKeeper { state, task: spawn_local(self.keep(lane)) }
    }

    /// Removes the files that let nodes in and a next driver continue the job: it is over.
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

    /// Looks again and again, on the lane of the state directory. A removed or overwritten file is a warning, and so is
    /// the first of several failures in a row.
    async fn keep(self, lane: OffloadPort) {
        let folder = self.state.path().display().to_string();
        let mut was_failing = false;
        loop {
            sleep(LOOK_EVERY).await;
            let keeper = self.clone();
            // A busy lane is named by the watchdog.
            let Ok(looked) = lane.run("look", move || keeper.look()).await else { continue };
            match &looked {
                Ok(looked) => looked.warn(&folder),
                Err(failed) if !was_failing => failed.warn(&folder),
                Err(_) => {}
            }
            was_failing = looked.is_err();
        }
    }

    /// Restores removed and overwritten files, and says which they were.
    fn look(&self) -> Result<KeptAnew, KeepFailure> {
        let mut looked =
            KeptAnew { was_removed: self.state.restore_if_removed()?, came_back: false };
        if let Some(journal) = self.journal.as_ref().and_then(Weak::upgrade)
            // A thread that writes it meanwhile looks, too.
            && let Ok(mut journal) = journal.try_lock()
        {
            match journal.restore_if_removed()? {
                Some(Restored::Removed) => looked.was_removed = true,
                Some(Restored::CameBack) => looked.came_back = true,
                None => {}
            }
        }
        if let Some((registry, entry)) = &self.entry
            && let Err(error) = registry.restore_if_removed(entry)
        {
            tracing::debug!(%error, "the list of jobs cannot be written");
        }
        Ok(looked)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn s_12_an_error_of_the_journal_is_told_with_the_system_s_reason() {
        let failed = KeepFailure::from(JournalError::Io(io::Error::other("a broken disk")));
        let KeepFailure::Journal { error } = failed else { panic!("{failed:?}") };
        assert_eq!(error, "the journal cannot be reached: a broken disk");
        let failed = KeepFailure::from(JournalError::InUse);
        let KeepFailure::Journal { error } = failed else { panic!("{failed:?}") };
        assert_eq!(error, "another driver has the journal open");
    }
}
