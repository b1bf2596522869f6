//! The job in the list of this user's jobs, and the record and report of its end. Called by `drive` and `run_driver`.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use elastic_driver::{AskStatus, Driver};
use elastic_protocol::messages::StatusReport;
use elastic_protocol::{JobId, JobResult, WorkerFailure};
use elastic_runtime::wall_clock;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::job_registry::{JobEnd, JobEntry, JobRegistry, entry_time};
use super::{DriverLifeEnd, GOODBYE};
use crate::command_line::{CommandFailure, DriverPlan, masked_flags, masked_variables};

/// Enters the job into the list of this user's jobs; `None` if there is no list, which costs no more than that.
pub(super) fn registered(
    plan: &DriverPlan,
    job: JobId,
    address: &str,
    state_dir: &Path,
) -> Option<(JobRegistry, JobEntry)> {
    let registry = JobRegistry::of_user()?;
    let entry = JobEntry {
        job: job.to_string(),
        started_at: entry_time(wall_clock()),
        address: address.to_owned(),
        state_dir: state_dir.to_owned(),
        pid: std::process::id(),
        program: plan.config.program.argv.clone(),
        flags: masked_flags(std::env::args_os(), &plan.config.program.argv, &plan.from_file),
        variables: masked_variables(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ended: None,
    };
    match registry.begin(entry.clone()) {
        Ok(()) => Some((registry, entry)),
        Err(error) => {
            tracing::warn!(%error, "`elastic-node list` will not show this job");
            None
        }
    }
}

/// Hosts and workers as they were when the job was over. After that they leave, and the status would not show their
/// work any more. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct LastWorkers(Rc<RefCell<Option<Box<StatusReport>>>>);

impl LastWorkers {
    /// Keeps them once the job is over.
    pub(super) async fn keep(self, over: oneshot::Receiver<()>, driver: actix::Addr<Driver>) {
        if over.await.is_ok()
            && let Ok(status) = driver.send(AskStatus).await
        {
            *self.0.borrow_mut() = Some(status);
        }
    }

    /// A later status with these hosts and workers.
    pub(super) fn within(&self, mut status: Box<StatusReport>) -> Box<StatusReport> {
        if let Some(last) = self.0.borrow_mut().take() {
            (status.hosts, status.workers) = (last.hosts, last.workers);
        }
        status
    }
}

/// A job's end, with its last status; `None` if it has not ended.
pub(super) async fn end_of(
    ended: &Result<DriverLifeEnd, CommandFailure>,
    driver: &actix::Addr<Driver>,
    last_workers: &LastWorkers,
) -> Option<JobEnd> {
    let Ok(DriverLifeEnd::Over(result)) = ended else { return None };
    // Without an answer only the result is kept.
    let status = timeout(GOODBYE, driver.send(AskStatus)).await.ok().and_then(Result::ok);
    let status = status.map(|status| last_workers.within(status));
    Some(JobEnd { at: entry_time(wall_clock()), result: result.clone(), status })
}

pub(super) fn note_end(registry: &JobRegistry, job: JobId, end: JobEnd) {
    if let Err(error) = registry.end(&job.to_string(), end) {
        tracing::warn!(%error, "`elastic-node list` will not show how this job ended");
    }
}

/// The reason why the job did not succeed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct FirstFailure(String);

pub(super) fn tell(result: JobResult) -> CommandFailure {
    let mut failure = CommandFailure::new(result.reason.clone()).with_code(result.code);
    // A reason that names the worker already reports its failure.
    let untold =
        result.first_failure.filter(|failure| !result.reason.contains(&failure.worker.to_string()));
    if let Some(WorkerFailure { worker, rank, status, message }) = untold {
        let rank = rank.map_or_else(String::new, |rank| format!(" (rank {rank})"));
        let status = status.map_or_else(String::new, |status| format!(": {status}"));
        let message = message.trim();
        let said = if message.is_empty() { String::new() } else { format!(": {message}") };
        failure = failure.source(FirstFailure(format!("{worker}{rank} failed{status}{said}")));
    }
    match result.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
