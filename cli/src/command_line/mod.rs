//! The command line: the flags (`arguments`, `driver_flags`, `worker_flags`, `torch_flags`), the plans made of them
//! (`driver_plan`, `node_plan`, `torch_plan`), the file of `--config` (`config`), the commands `list`, `status`, `explain`, `history`, `stop`, `drain`, `readmit`, `forget`, `logs`, `timeline`, `replay`, `report`, `checkpoint`, `doctor`, `completions` and `man`, and
//! the report of a failure (`failure`). Called by `main`.

mod arguments;
mod checkpoint;
mod completions;
mod config;
mod doctor;
mod driver_flags;
mod driver_plan;
mod driver_silence;
mod event_log;
mod explain;
mod failure;
mod find_job;
mod forget;
mod help;
mod history;
mod job_source;
mod job_start;
mod list;
mod logging;
mod logs;
mod man;
mod nearest;
mod node_plan;
mod operate;
mod output_prefix;
mod printable;
mod program;
mod reading;
mod refusal;
mod replay;
mod report;
mod slurm;
mod status;
mod status_text;
mod stdout;
mod store_plan;
mod tables;
mod timeline;
mod torch_flags;
mod torch_plan;
mod values;
mod watch;
mod worker_flags;

pub(crate) use arguments::{CommandLine, ProgramCommand, Role};
pub(crate) use checkpoint::run_checkpoint;
pub(crate) use completions::print_completions;
pub(crate) use config::run_config;
pub(crate) use doctor::run_doctor;
pub(crate) use driver_flags::LauncherKind;
pub(crate) use driver_plan::{
    DashboardPlan, DiscoveryPlan, DriverPlan, RunPlan, plan_driver, plan_run,
};
pub(crate) use explain::print_explanation;
pub(crate) use failure::{CODE_FAILED, CommandFailure, ResultExt};
pub(crate) use find_job::short_id;
pub(crate) use forget::forget_job;
pub(crate) use history::print_history;
pub(crate) use list::print_jobs;
pub(crate) use logging::{flush_stderr, say, start_logging, stderr_lane};
pub(crate) use logs::print_logs;
pub(crate) use man::run_man;
pub(crate) use node_plan::{NodePlan, SecretSource};
pub(crate) use operate::{drain_host, readmit_host, stop_job};
pub(crate) use printable::printable;
pub(crate) use reading::{flag_variables, read, warn_of_misspelt_variables};
pub(crate) use refusal::{MORE_THREADS, may_pass, remedy};
pub(crate) use replay::run_replay;
pub(crate) use report::{masked_flags, masked_variables, run_report};
pub(crate) use status::print_status;
pub(crate) use status_text::{describe_goodput, program_words};
pub(crate) use stdout::print_line;
pub(crate) use timeline::print_timeline;
pub(crate) use values::host_and_port_or;
pub(crate) use worker_flags::{Leash, TOKEN_VARIABLE, WorkerPlan, plan_worker};
