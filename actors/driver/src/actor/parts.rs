//! [`DriverParts`]: what a driver's actor is made of: its core, its observer, its journal and its credentials. Filled in by the
//! driver's process, and by the simulation.

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use elastic_host_manager::{Discovery, HostManagerConfig, HostsSnapshot};
use elastic_journal::{Journal, JournalBatch, JournalError};
use elastic_protocol::messages::{GoodputStatus, LaneStatus};
use elastic_protocol::{JobResult, WorkerId};
use elastic_runtime::{OffloadError, OffloadPort};

use crate::core::DriverEvent;
use crate::recording::RecordedDriver;

/// Issues the one-time credentials with which workers join.
pub trait WorkerCredentials {
    /// A secret that lets this worker join, once.
    ///
    /// # Errors
    /// The reason no credential can be issued.
    fn issue(&self, worker: &WorkerId) -> Result<String, String>;
}

/// Observer of the driver: the event log, the launcher, the process itself.
pub trait DriverObserver {
    /// An event of the log.
    fn event(&mut self, at: SystemTime, event: &DriverEvent);
    /// The hosts that the job may use changed.
    fn hosts(&mut self, hosts: &HostsSnapshot);
    /// The job is over, and all processes have left.
    fn ended(&mut self, result: &JobResult);
    /// The driver must end at once without a message to anyone. The job goes on without it. `is_outdated`: its journal
    /// is older than the job, and no driver may lead from it.
    fn abandoned(&mut self, reason: &str, is_outdated: bool);
    /// The driver must end at once without a message to anyone. A standby goes on with the job.
    fn handed_over(&mut self);
    /// State of the process's lanes (threads for blocking work).
    fn lanes(&self) -> Vec<LaneStatus> {
        Vec::new()
    }
    /// The goodput ledger: use of the job's slot-seconds, from its events. None if the process does not account for them.
    fn goodput(&self) -> Option<GoodputStatus> {
        None
    }
    /// The address of the job's page; none without one.
    fn dashboard(&self) -> Option<String> {
        None
    }
    /// Parts of the process that do not answer in time.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Parts of a driver.
pub struct DriverParts {
    /// The state machine, with its recorder.
    pub core: RecordedDriver,
    /// Validated settings of the host manager.
    pub host_manager: HostManagerConfig,
    /// The discovery of hosts.
    pub discovery: Box<dyn Discovery>,
    /// Issues workers' credentials.
    pub credentials: Rc<dyn WorkerCredentials>,
    /// The observer of events.
    pub observer: Box<dyn DriverObserver>,
    /// Storage of the core's records; none: the core makes no records.
    pub journal: Option<JournalPort>,
    /// Whether the driver may act now (it holds the leader lease); checked before any output leaves.
    pub permit: Box<dyn Fn() -> bool>,
}

/// Storage of records, and the lane that does the blocking work.
#[derive(Clone)]
pub struct JournalPort {
    journal: Arc<Mutex<Box<dyn Journal>>>,
    offload: OffloadPort,
}

impl JournalPort {
    /// Stores in `journal`, by way of `offload`.
    pub fn new(journal: Box<dyn Journal>, offload: OffloadPort) -> Self {
        Self { journal: Arc::new(Mutex::new(journal)), offload }
    }

    /// Stores a batch. The error has a text, and whether it may pass.
    pub(super) async fn append(&self, batch: JournalBatch) -> Result<(), (String, bool)> {
        let journal = Arc::clone(&self.journal);
        let append = move || match journal.lock() {
            Ok(mut journal) => journal.append(&batch),
            Err(_) => Err(JournalError::Corrupt("a former write of it panicked".to_owned())),
        };
        match self.offload.run("journal", append).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err((error_text(&error), error.may_pass())),
            Err(error) => {
                let may_pass =
                    matches!(error, OffloadError::Busy { .. } | OffloadError::Cancelled { .. });
                Err((error.to_string(), may_pass))
            }
        }
    }
}

fn error_text(error: &JournalError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
