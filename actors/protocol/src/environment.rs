//! Names of the variables that tell a worker process of its job: set by the driver and the agent, read by
//! the worker's State.

use crate::ids::{JobId, WorkerId};

/// `HOST:PORT` of the driver; with those that stand by for it, with commas between them.
pub const DRIVER: &str = "ELASTIC_DRIVER";
/// The job's UUID.
pub const JOB: &str = "ELASTIC_JOB";
/// Who the worker is: `HOST[SLOT]#INCARNATION`.
pub const WORKER: &str = "ELASTIC_WORKER";
/// The secret with which the worker joins. Set by the agent, from `DriverToAgent::Start`.
pub const CREDENTIAL: &str = "ELASTIC_CREDENTIAL";

/// What the driver sets. The credential is not among it: it travels apart, and the agent sets it.
pub fn of_worker(driver: &str, job: JobId, worker: &WorkerId) -> [(&'static str, String); 3] {
    [(DRIVER, driver.to_owned()), (JOB, job.to_string()), (WORKER, worker.to_string())]
}
