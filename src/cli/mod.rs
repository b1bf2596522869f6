//! The command line: what may be said (`arguments`, `driver_flags`, `worker_flags`), what it means
//! (`driver_plan`), and how a failure is told (`failure`). Called by `main`.

mod arguments;
mod doctor;
mod driver_flags;
mod driver_plan;
mod failure;
mod logging;
mod reading;
mod slurm;
mod status;
mod torch_flags;
mod torch_plan;
mod values;
mod worker_flags;

pub(crate) use arguments::{Cli, Command, Role};
pub(crate) use doctor::run_doctor;
pub(crate) use driver_plan::{DiscoveryPlan, DriverPlan, LauncherPlan, plan_driver, plan_run};
pub(crate) use failure::{Failure, ResultExt};
pub(crate) use logging::start_logging;
pub(crate) use reading::{flag_variables, read};
pub(crate) use status::{describe_phases, describe_status, print_status};
pub(crate) use worker_flags::{Leash, TOKEN_VARIABLE, WorkerPlan, plan_worker};
