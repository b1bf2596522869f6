//! What torchrun's flags mean for a driver, and how a Python script is run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::arguments::RunArguments;
use super::driver_flags::DriverFlags;
use super::failure::{Failure, ResultExt};
use super::torch_flags::{Nodes, TorchFlags};
use super::values::seconds;
use elastic_protocol::messages::OutputSettings;

/// torchrun's `--shutdown-timeout`.
const GRACE: Duration = Duration::from_secs(30);

/// What comes of torchrun's flags beside the driver's own.
#[derive(Clone, Debug, Default)]
pub(crate) struct TorchPlan {
    /// Failures that the group may have; none: any number, within each slot's bound.
    pub(crate) max_job_restarts: Option<u32>,
    /// The job's name for its workers.
    pub(crate) run_id: Option<String>,
    /// The role of the workers.
    pub(crate) role: Option<String>,
    /// What becomes of their output, less the folder.
    pub(crate) output: OutputSettings,
    /// Where output goes, by job.
    pub(crate) log_dir: Option<PathBuf>,
}

/// Reads torchrun's flags into the driver's, and gives the program as it is to be run.
pub(crate) fn read_torch(
    run: &RunArguments,
) -> Result<(DriverFlags, TorchPlan, Vec<String>), Failure> {
    let (torch, mut flags) = (&run.torch, run.driver.clone());
    check(torch)?;
    let is_torch_s = !run.is_behind_dashes;
    flags.np = flags.np.or(torch.nproc_per_node).or(is_torch_s.then_some(1));
    let grace = torch.shutdown_timeout.or(is_torch_s.then_some(GRACE));
    flags.grace_period = flags.grace_period.or(grace);
    if let Some(conf) = &torch.rdzv_conf {
        read_conf(conf, &mut flags)?;
    }
    let of_torch = std::env::var("PET_MAX_RESTARTS").ok();
    let of_torch = of_torch.map(|text| text.trim().parse::<u32>()).transpose();
    let of_torch = of_torch.usage("PET_MAX_RESTARTS is no number")?;
    let max_restarts = flags.max_restarts.or(of_torch).or(is_torch_s.then_some(0));
    flags.max_restarts = max_restarts;
    let output = OutputSettings {
        directory: None,
        redirects: torch.redirects.clone().unwrap_or_default(),
        tee: torch.tee.clone().unwrap_or_default(),
        shown: torch.local_ranks_filter.clone().map(BTreeSet::from_iter),
        prefix: torch.log_line_prefix_template.clone(),
    };
    let plan = TorchPlan {
        max_job_restarts: max_restarts.filter(|_| is_torch_s),
        run_id: torch.rdzv_id.clone(),
        role: torch.role_name.clone(),
        log_dir: log_dir(torch, &flags, &output)?,
        output,
    };
    let is_python =
        if is_torch_s { !torch.no_python } else { torch.module || is_script(&run.program) };
    let program = match is_python {
        true => with_python(torch.module, &run.program),
        false => run.program.clone(),
    };
    Ok((flags, plan, program))
}

/// Refuses what one host cannot do.
fn check(torch: &TorchFlags) -> Result<(), Failure> {
    let of_several = "start `elastic-node --role driver -- train.py` on one machine and \
                      `elastic-node --role worker --join HOST:PORT` on each";
    if let Some(Nodes { min, .. }) = torch.nnodes.filter(|nodes| nodes.min > 1) {
        let message = format!("--nnodes asks for {min} hosts, and `run` is for this one");
        return Err(Failure::usage(message).hint(of_several));
    }
    match torch.node_rank {
        None | Some(0) => Ok(()),
        Some(rank) => {
            Err(Failure::usage(format!("--node-rank {rank} means another host")).hint(of_several))
        }
    }
}

/// `--rdzv-conf`.
fn read_conf(conf: &str, flags: &mut DriverFlags) -> Result<(), Failure> {
    for entry in conf.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (key, value) = entry.split_once('=').ok_or_else(|| {
            Failure::usage(format!("--rdzv-conf: {entry:?} is not of the form KEY=VALUE"))
        })?;
        let time = || {
            seconds(value).map_err(|reason| Failure::usage(format!("--rdzv-conf {key}: {reason}")))
        };
        match key.trim() {
            "join_timeout" | "timeout" => {
                flags.elastic_timeout = flags.elastic_timeout.or(Some(time()?));
            }
            "last_call_timeout" => {
                flags.last_call_timeout = flags.last_call_timeout.or(Some(time()?));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Where output is stored, if anything is: a folder of its own if it is to be and none is given.
fn log_dir(
    torch: &TorchFlags,
    flags: &DriverFlags,
    output: &OutputSettings,
) -> Result<Option<PathBuf>, Failure> {
    let is_stored = !output.redirects.is_empty() || !output.tee.is_empty();
    match &torch.log_dir {
        Some(folder) => Ok(Some(folder.clone())),
        None if is_stored && flags.output_dir.is_none() => {
            let folder = tempfile::Builder::new().prefix("elastic-node-logs-").tempdir();
            let folder = folder.failed("no folder for the output can be made")?.keep();
            tracing::info!("the output is stored in {}", folder.display());
            Ok(Some(folder))
        }
        None => Ok(None),
    }
}

/// Whether a program is a Python script by its name.
pub(crate) fn is_script(program: &[String]) -> bool {
    program.first().is_some_and(|name| name.ends_with(".py"))
}

/// A script or module as torchrun runs it.
pub(crate) fn with_python(is_module: bool, program: &[String]) -> Vec<String> {
    let mut argv = vec![interpreter(), "-u".to_owned()];
    if is_module {
        argv.push("-m".to_owned());
    }
    argv.extend(program.iter().cloned());
    argv
}

/// `PYTHON_EXEC`, or `python` as far as PATH has one here, or `python3`.
fn interpreter() -> String {
    if let Some(given) = std::env::var("PYTHON_EXEC").ok().filter(|given| !given.is_empty()) {
        return given;
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let has_python = std::env::split_paths(&folders).any(|folder| is_file(&folder.join("python")));
    if has_python { "python" } else { "python3" }.to_owned()
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|it| it.is_file())
}
