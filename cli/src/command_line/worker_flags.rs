//! Flags of `--role worker`, the agent of a host, and the plan made of them. Called by `arguments` and `main`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use elastic_agent::host;
use elastic_protocol::HostName;
use elastic_protocol::messages::JobCommand;

use super::arguments::RoleArguments;
use super::failure::{CommandFailure, ResultExt};
use super::slurm::SlurmTask;
use super::values::{hosts_and_ports, slots};
use crate::process::{TokenSource, read_token_from_launcher};

/// The environment variable of the token, if no file gives it.
pub(crate) const TOKEN_VARIABLE: &str = "ELASTIC_TOKEN";

/// Timeout for finding a driver that does not answer, or has not stored its token yet.
const PATIENCE: Duration = Duration::from_secs(30);

/// The flags of an agent.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Worker")]
pub(crate) struct WorkerFlags {
    /// The driver, as HOST:PORT; with the other drivers that may act, separated by commas
    #[arg(long, env = "ELASTIC_JOIN", value_name = "ADDR")]
    pub(crate) join: Option<String>,
    /// The driver's token. Prefer --token-file: everyone on this machine can read a command line
    #[arg(long, env = TOKEN_VARIABLE, value_name = "TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// A file with the driver's token, mode 0600 [default: that of the state directory, on the driver's
    /// own machine]
    #[arg(long, env = "ELASTIC_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// This host's name [default: the node's within Slurm, else the system's]
    #[arg(long, env = "ELASTIC_HOST", value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// Workers that this host can run at once [default: within Slurm one per GPU, else per task, else per
    /// task's CPUs; elsewhere one per GPU, else 1]
    #[arg(long, env = "ELASTIC_SLOTS", value_name = "N", value_parser = slots)]
    pub(crate) slots: Option<u32>,
    /// The role of its workers, for scripts of torch that have several [default: default]
    #[arg(long, env = "ELASTIC_ROLE_NAME", value_name = "NAME")]
    pub(crate) role_name: Option<String>,
    /// The network interface by which other hosts reach this one's workers [default: that of the way to the driver]
    #[arg(long, env = "ELASTIC_INTERFACE", value_name = "NAME")]
    pub(crate) interface: Option<String>,
    /// Started by the driver's launcher, which itself reports how the job ended
    #[arg(long, env = "ELASTIC_LAUNCHED", hide = true)]
    pub(crate) launched: bool,
    /// The launcher holds the agent's stdin, and sends the token there
    #[arg(long, env = "ELASTIC_LEASH", hide = true, value_enum)]
    pub(crate) leash: Option<Leash>,
}

/// The value of `--leash`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Leash {
    /// The agent leaves when its launcher is gone.
    Tight,
    /// The agent waits for another driver when its launcher is gone.
    Loose,
}

impl Leash {
    /// The flag's value as text.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Tight => "tight",
            Self::Loose => "loose",
        }
    }
}

impl std::fmt::Debug for WorkerFlags {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("WorkerFlags")
            .field("join", &self.join)
            .field("token", &self.token.as_ref().map(|_| "hidden"))
            .field("token_file", &self.token_file)
            .field("host", &self.host)
            .field("slots", &self.slots)
            .field("role_name", &self.role_name)
            .field("interface", &self.interface)
            .field("launched", &self.launched)
            .field("leash", &self.leash)
            .finish()
    }
}

/// The complete description of an agent.
#[derive(Debug)]
pub(crate) struct WorkerPlan {
    /// `HOST:PORT` of the driver, or of several that may act, separated by commas.
    pub(crate) driver: String,
    /// The source of the token that lets the agent in.
    pub(crate) token: TokenSource,
    /// This host's name.
    pub(crate) host: HostName,
    /// The number of workers that this host can run at once.
    pub(crate) slots: u32,
    /// The role of this host's workers.
    pub(crate) role: String,
    /// The name of the job to join (`--rdzv-id`), if one was given.
    pub(crate) run_id: Option<String>,
    /// The job as the command describes it, if that is given on each of the job's hosts (`--nnodes`).
    pub(crate) nodes: Option<JobCommand>,
    /// The network interface by which other hosts reach this one, if one was named.
    pub(crate) interface: Option<String>,
    /// Timeout for finding a driver.
    pub(crate) patience: Duration,
    /// Whether the driver beside this agent reports how the job ended.
    pub(crate) is_launched: bool,
    /// The leash by which the launcher holds the agent, if there is one.
    pub(crate) leash: Option<Leash>,
    /// Whether another task of the same Slurm node is its agent, with a slot for this one.
    pub(crate) is_spare: bool,
}

fn given_host(name: &str) -> Result<HostName, CommandFailure> {
    let hint = "give a name such as node7, or leave --host out: it is the system's then";
    HostName::new(name).usage("--host").map_err(|failure| failure.hint(hint))
}

/// Fills in the defaults, or reports missing flags.
pub(crate) fn plan_worker(arguments: &RoleArguments) -> Result<WorkerPlan, CommandFailure> {
    let flags = &arguments.worker;
    let join = flags.join.as_deref().ok_or_else(|| {
        CommandFailure::usage("--role worker needs to know the driver")
            .hint("add --join HOST:PORT; the driver prints the whole line when it starts")
    })?;
    if !arguments.program.is_empty() {
        return Err(CommandFailure::usage(
            "--role worker takes no program: it runs what the driver says",
        )
        .hint("give the program to --role driver, after `--`"));
    }
    let driver = hosts_and_ports(join)
        .map_err(|reason| CommandFailure::usage(format!("--join: {reason}")))
        .map_err(|failure| failure.hint("the driver prints the whole line when it starts"))?;
    let slurm = SlurmTask::read(&|name| std::env::var(name).ok())?;
    let is_spare = flags.host.is_none() && slurm.as_ref().is_some_and(|task| task.local_id > 0);
    let host = match (&flags.host, &slurm) {
        (Some(name), _) => given_host(name)?,
        (None, Some(task)) => task.node.clone(),
        (None, None) => host::host_name().usage("this host has no name")?,
    };
    let slots = flags.slots.or(slurm.map(|task| task.slots)).unwrap_or_else(host::slots);
    let state_dir = arguments.driver.state_dir.as_deref();
    let token = match flags.leash {
        Some(_) => TokenSource::given(&driver, read_token_from_launcher()?),
        None => TokenSource::new(
            &driver,
            flags.token.as_deref(),
            flags.token_file.as_deref(),
            state_dir,
        )?,
    };
    let is_launched = flags.launched;
    let role = flags.role_name.clone().unwrap_or_else(|| "default".to_owned());
    let (leash, interface) = (flags.leash, flags.interface.clone());
    Ok(WorkerPlan {
        driver,
        token,
        host,
        slots,
        role,
        run_id: None,
        nodes: None,
        interface,
        patience: PATIENCE,
        is_launched,
        leash,
        is_spare,
    })
}
