//! Flags of `--role worker`, the agent of a host, and what they mean.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use elastic_protocol::HostName;
use elastic_worker::agent::host;

use super::arguments::RoleArguments;
use super::failure::{Failure, ResultExt};
use super::slurm::SlurmTask;
use super::values::{count, hosts_and_ports};
use crate::process::{TokenSource, read_token_from_launcher};

/// Where the token may come from, if from no file.
pub(crate) const TOKEN_VARIABLE: &str = "ELASTIC_TOKEN";

/// What an agent can be told.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Worker")]
pub(crate) struct WorkerFlags {
    /// The driver, as HOST:PORT; with others that may act, with commas between them
    #[arg(long, env = "ELASTIC_JOIN", value_name = "ADDR")]
    pub(crate) join: Option<String>,
    /// The driver's token. Prefer --token-file: a command line can be read by everyone on this machine
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
    #[arg(long, env = "ELASTIC_SLOTS", value_name = "N", value_parser = count)]
    pub(crate) slots: Option<u32>,
    /// The role of its workers, for scripts of torch that have several [default: default]
    #[arg(long, env = "ELASTIC_ROLE_NAME", value_name = "NAME")]
    pub(crate) role_name: Option<String>,
    /// Started by the driver's launcher, which says itself how the job ended
    #[arg(long, env = "ELASTIC_LAUNCHED", hide = true)]
    pub(crate) launched: bool,
    /// Its launcher holds its stdin, and sends its token there
    #[arg(long, env = "ELASTIC_LEASH", hide = true, value_enum)]
    pub(crate) leash: Option<Leash>,
}

/// `--leash`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Leash {
    /// Whose launcher is gone leaves.
    Tight,
    /// It waits for another.
    Loose,
}

impl Leash {
    /// As the flag's value.
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
            .field("launched", &self.launched)
            .field("leash", &self.leash)
            .finish()
    }
}

/// An agent, completely described.
#[derive(Debug)]
pub(crate) struct WorkerPlan {
    /// `HOST:PORT` of the driver, or of several that may act.
    pub(crate) driver: String,
    /// What lets the agent in.
    pub(crate) token: TokenSource,
    /// This host's name.
    pub(crate) host: HostName,
    /// How many workers it can run at once.
    pub(crate) slots: u32,
    /// The role of its workers.
    pub(crate) role: String,
    /// Whether the driver beside it says how the job ended.
    pub(crate) is_launched: bool,
    /// How its launcher holds it, if it does.
    pub(crate) leash: Option<Leash>,
    /// Another task of the same Slurm node is its agent, with a slot for this one.
    pub(crate) is_spare: bool,
}

/// Fills in the defaults, or says what is missing.
pub(crate) fn plan_worker(arguments: &RoleArguments) -> Result<WorkerPlan, Failure> {
    let flags = &arguments.worker;
    let join = flags.join.as_deref().ok_or_else(|| {
        Failure::usage("--role worker needs to know the driver")
            .hint("add --join HOST:PORT; the driver prints the whole line when it starts")
    })?;
    if !arguments.program.is_empty() {
        return Err(Failure::usage("--role worker takes no program: it runs what the driver says")
            .hint("give the program to --role driver, after `--`"));
    }
    let driver =
        hosts_and_ports(join).map_err(|reason| Failure::usage(format!("--join: {reason}")))?;
    let slurm = SlurmTask::read(&|name| std::env::var(name).ok())?;
    let is_spare = flags.host.is_none() && slurm.as_ref().is_some_and(|task| task.local_id > 0);
    let host = match (&flags.host, &slurm) {
        (Some(name), _) => HostName::new(name).usage("--host")?,
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
    Ok(WorkerPlan { driver, token, host, slots, role, is_launched, leash: flags.leash, is_spare })
}
