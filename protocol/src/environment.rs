//! Names of the environment variables that describe the job to a worker process. The driver and the agent set
//! them; the worker's State reads them.

use crate::ids::{JobId, WorkerId};

/// `HOST:PORT` of the driver and of its standbys, separated by commas.
pub const DRIVER: &str = "ELASTIC_DRIVER";
/// The job's UUID.
pub const JOB: &str = "ELASTIC_JOB";
/// The worker's id: `HOST[SLOT]#INCARNATION`.
pub const WORKER: &str = "ELASTIC_WORKER";
/// The secret with which the worker joins. Set by the agent, from `DriverToAgent::Start`.
pub const CREDENTIAL: &str = "ELASTIC_CREDENTIAL";
/// The robust lock that the worker takes for life, in memory that it shares with its agent: see `robust_lock`. Set by the
/// agent.
pub const LOCK: &str = "ELASTIC_LOCK";
/// The address at which other workers reach this one. Set by the agent if an interface was named; by default
/// the local address of the route to the driver.
pub const DATA_ADDRESS: &str = "ELASTIC_DATA_ADDRESS";
/// `HOST:PORT` of the job's store, as the agent serves it to its workers. Set by the agent.
pub const STORE_ADDRESS: &str = "ELASTIC_STORE_ADDRESS";
/// `HOST:PORT` at which all ranks reach a port that rank 0 opens, which was free when its agent started. Set by the
/// agent; `MASTER_ADDR:MASTER_PORT` is the same if that is not the store.
pub const MEETING_ADDRESS: &str = "ELASTIC_MEETING_ADDRESS";

/// The variables that the driver sets. The credential is not one of them: it travels apart, and the agent sets
/// it.
pub fn of_worker(driver: &str, job: JobId, worker: &WorkerId) -> [(&'static str, String); 3] {
    [(DRIVER, driver.to_owned()), (JOB, job.to_string()), (WORKER, worker.to_string())]
}
