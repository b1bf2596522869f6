//! Translates torchrun's flags for a driver, and makes the command of a Python script. Called by `driver_plan` and
//! `node_plan`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::arguments::RunFlags;
use super::driver_flags::DriverFlags;
use super::failure::{CommandFailure, ResultExt};
use super::program::is_no_python;
use super::torch_flags::TorchFlags;
use super::values::seconds;
use elastic_protocol::messages::{FileUmask, OutputSettings};

/// Default grace period, as torchrun's `--shutdown-timeout`.
const GRACE: Duration = Duration::from_secs(30);

/// The settings from torchrun's flags that are not driver flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct TorchPlan {
    /// Most failures of the whole group; none: no limit, within each slot's own limit.
    pub(crate) max_job_restarts: Option<u32>,
    /// The job's name, given to its workers.
    pub(crate) run_id: Option<String>,
    /// The role of the workers.
    pub(crate) role: Option<String>,
    /// The settings of the workers' output, without the folder.
    pub(crate) output: OutputSettings,
    /// The folder of the output, by job.
    pub(crate) log_dir: Option<PathBuf>,
    /// The backend of torch that the Python package takes over.
    pub(crate) backend_for: Option<String>,
}

/// Merges torchrun's flags into the driver's, and returns the command of the program.
pub(crate) fn read_torch(
    run: &RunFlags,
) -> Result<(DriverFlags, TorchPlan, Vec<String>), CommandFailure> {
    let (torch, mut flags) = (&run.torch, run.driver.clone());
    if run.program.first().is_some_and(|name| name.trim().is_empty()) {
        return Err(CommandFailure::usage("the program's name is empty")
            .hint("is a variable of the shell not set? elastic-node run -n 4 -- PROGRAM ARGS"));
    }
    let is_torch_s = !run.is_behind_dashes;
    flags.np = flags.np.or(torch.nproc_per_node).or(is_torch_s.then_some(1));
    let grace = torch.shutdown_timeout.or(is_torch_s.then_some(GRACE));
    flags.grace_period = flags.grace_period.or(grace);
    if let Some(conf) = &torch.rdzv_conf {
        read_conf(conf, &mut flags)?;
    }
    let of_torch = std::env::var("PET_MAX_RESTARTS").ok();
    let of_torch = of_torch.map(|text| text.trim().parse::<u32>()).transpose();
    let of_torch = of_torch
        .usage("PET_MAX_RESTARTS is no number")
        .map_err(|failure| failure.hint("set it to a whole number, or unset it"))?;
    let max_restarts = flags.max_restarts.or(of_torch).or(is_torch_s.then_some(0));
    flags.max_restarts = max_restarts;
    let output = OutputSettings {
        directory: None,
        redirects: torch.redirects.clone().unwrap_or_default(),
        tee: torch.tee.clone().unwrap_or_default(),
        shown: torch.local_ranks_filter.clone().map(BTreeSet::from_iter),
        prefix: torch.log_line_prefix_template.clone(),
        umask: FileUmask::default(),
    };
    let plan = TorchPlan {
        max_job_restarts: max_restarts.filter(|_| is_torch_s),
        run_id: torch.rdzv_id.clone(),
        role: torch.role_name.clone(),
        log_dir: log_dir(torch, &flags, &output)?,
        backend_for: torch.backend_for.clone(),
        output,
    };
    let is_binary = || run.program.first().is_some_and(|name| is_no_python(Path::new(name)));
    let is_python = match is_torch_s {
        true => torch.module || !(torch.no_python || is_binary()),
        false => torch.module || is_script(&run.program),
    };
    let program = match is_python {
        true => with_python(torch.module, &run.program),
        false => run.program.clone(),
    };
    Ok((flags, plan, program))
}

/// The entries of `--rdzv-conf`.
fn conf_entries(conf: &str) -> Result<Vec<(&str, &str)>, CommandFailure> {
    let entries = conf.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let split = |entry: &'_ str| {
        let malformed = || {
            CommandFailure::usage(format!("--rdzv-conf: {entry:?} is not of the form KEY=VALUE"))
        };
        entry.find('=').ok_or_else(malformed)
    };
    entries
        .map(|entry| split(entry).map(|at| (entry[..at].trim(), entry[at + 1..].trim())))
        .collect()
}

/// The value of a key in `--rdzv-conf`, if it is there.
pub(super) fn conf_value(torch: &TorchFlags, key: &str) -> Result<Option<String>, CommandFailure> {
    let entries = conf_entries(torch.rdzv_conf.as_deref().unwrap_or_default())?;
    Ok(entries.iter().find(|(it, _)| *it == key).map(|(_, value)| (*value).to_owned()))
}

/// The flags, by id, that say the same as a key of this `--rdzv-conf`.
pub(super) fn flags_of_conf(conf: &str) -> Vec<&'static str> {
    let entries = conf_entries(conf).unwrap_or_default();
    let flags = entries.into_iter().filter_map(|(key, _)| match key {
        "join_timeout" | "timeout" => Some("elastic_timeout"),
        "last_call_timeout" => Some("last_call_timeout"),
        _ => None,
    });
    flags.collect()
}

/// Reads the timeouts in `--rdzv-conf`.
fn read_conf(conf: &str, flags: &mut DriverFlags) -> Result<(), CommandFailure> {
    for (key, value) in conf_entries(conf)? {
        let time = || {
            seconds(value)
                .map_err(|reason| CommandFailure::usage(format!("--rdzv-conf {key}: {reason}")))
        };
        match key {
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

/// The folder of stored output; a new one if output is to be stored and no folder is given.
fn log_dir(
    torch: &TorchFlags,
    flags: &DriverFlags,
    output: &OutputSettings,
) -> Result<Option<PathBuf>, CommandFailure> {
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

/// Whether the program is a Python script, by its name.
pub(crate) fn is_script(program: &[String]) -> bool {
    program.first().is_some_and(|name| name.ends_with(".py"))
}

/// The command of a script or module, as torchrun runs it.
pub(crate) fn with_python(is_module: bool, program: &[String]) -> Vec<String> {
    let mut argv = vec![interpreter(), "-u".to_owned()];
    if is_module {
        argv.push("-m".to_owned());
    }
    argv.extend(program.iter().cloned());
    argv
}

/// The Python interpreter: `PYTHON_EXEC`, else `python` if PATH has it, else `python3`.
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
