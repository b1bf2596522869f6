//! Commands and roles, as clap reads them. Every flag of a role can come from the environment as
//! `ELASTIC_<FLAG>` or from a file: flag over environment over file over default.

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

use super::checkpoint::CheckpointFlags;
use super::completions::CompletionsFlags;
use super::config::ConfigFlags;
use super::doctor::DoctorFlags;
use super::driver_flags::DriverFlags;
use super::explain::ExplainFlags;
use super::forget::ForgetFlags;
use super::history::HistoryFlags;
use super::list::ListFlags;
use super::logs::LogsFlags;
use super::man::ManFlags;
use super::operate::{HostFlags, StopFlags};
use super::replay::ReplayFlags;
use super::report::ReportFlags;
use super::status::StatusFlags;
use super::timeline::TimelineFlags;
use super::torch_flags::TorchFlags;
use super::worker_flags::WorkerFlags;

const EXAMPLES: &str = "\
Three shells:
  elastic-node --role driver -n 2 --min-np 1 -- target/release/examples/digits
  elastic-node --role worker --join 127.0.0.1:7070 --host a
  elastic-node --role worker --join 127.0.0.1:7070 --host b

One shell:
  elastic-node run -n 4 -- target/release/examples/digits

Exit code: 0 success, 1 the job failed, 2 wrong use.";

/// Keeps a distributed training job running while machines come and go.
#[derive(Debug, Parser)]
#[command(name = "elastic-node", version, after_long_help = EXAMPLES, allow_negative_numbers = true)]
pub(crate) struct CommandLine {
    /// The command to run, where no `--role` is given.
    #[command(subcommand)]
    pub(crate) command: Option<ProgramCommand>,
    /// The role, with its flags.
    #[command(flatten)]
    pub(crate) role: RoleArguments,
    /// The log filter for stderr: a level (error, warn, info, debug, trace), or directives such as
    /// `warn,elastic_driver=debug`.
    #[arg(
        long,
        env = "ELASTIC_LOG",
        value_name = "FILTER",
        default_value = "info",
        global = true,
        help_heading = "All commands"
    )]
    pub(crate) log: String,
    /// Say more: `--log debug`, which also names the incarnation of each worker; a filter given with --log goes first
    #[arg(
        short,
        long,
        env = "ELASTIC_VERBOSE",
        value_parser = BoolishValueParser::new(),
        global = true,
        help_heading = "All commands"
    )]
    pub(crate) verbose: bool,
}

/// The commands, each used instead of a role.
#[derive(Debug, Subcommand)]
pub(crate) enum ProgramCommand {
    /// Run a whole cluster on this machine: it trains, loses a worker and gains one.
    Demo(DemoFlags),
    /// Run a driver, its agents and their workers on this machine.
    Run(Box<RunFlags>),
    /// List the jobs of this user on this machine, running and past.
    List(ListFlags),
    /// Show what a job is doing, or how it ended.
    Status(StatusFlags),
    /// Say why a generation ended and what that cost, or what a job waits for.
    ///
    /// It names who began it and why, what it cost in slot-seconds, and what would have avoided it, with the flag.
    Explain(ExplainFlags),
    /// Show the resets of a job, each with its cause and what it took.
    History(HistoryFlags),
    /// End a job.
    Stop(StopFlags),
    /// Take a host out of a job: its workers leave at a step, without loss.
    Drain(HostFlags),
    /// Let a host in again that was drained or blacklisted.
    Readmit(HostFlags),
    /// Take a job that is over out of the list, with its files.
    Forget(ForgetFlags),
    /// Print what the workers of a job have written (`--output-dir`).
    Logs(LogsFlags),
    /// Print a job's whole life as a trace for Perfetto.
    Timeline(TimelineFlags),
    /// Give a recording (`--record`) to the driver's core again: whether it decides the same.
    Replay(ReplayFlags),
    /// Collect what a bug report needs in one file, without secrets.
    Report(ReportFlags),
    /// List, show, verify and export durable checkpoints.
    Checkpoint(CheckpointFlags),
    /// Show the values of flags that are in force, and where each comes from.
    Config(ConfigFlags),
    /// Check this host: what it has, what will be used, and what is wrong.
    Doctor(DoctorFlags),
    /// Print what a shell needs to complete commands and flags.
    Completions(CompletionsFlags),
    /// Print the manual page, or write those of all commands into a folder.
    Man(ManFlags),
    /// Run the training program of `demo`.
    #[command(hide = true)]
    DemoWorker(crate::digits::Options),
}

/// Flags of `demo`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DemoFlags {
    /// Print one line of JSON on stdout at the end.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `run`: those of the driver, and those of torchrun.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunFlags {
    /// The driver's flags.
    #[command(flatten)]
    pub(crate) driver: DriverFlags,
    /// The flags of torchrun.
    #[command(flatten)]
    pub(crate) torch: TorchFlags,
    /// The program that every worker runs, with its arguments. As with torchrun it is a Python script; behind `--` it
    /// is run as it is, unless its name ends in .py
    ///
    /// Its standard input is empty.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM",
        required = true
    )]
    pub(crate) program: Vec<String>,
    /// Whether `--` stands before the program.
    #[arg(skip)]
    pub(crate) is_behind_dashes: bool,
}

/// The role of this process in a cluster: `--role`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Role {
    /// The driver: the one authority of a job.
    Driver,
    /// The agent of a host's slots.
    Worker,
}

/// A role and its flags.
#[derive(Args, Clone, Debug)]
pub(crate) struct RoleArguments {
    /// The role of this process in a cluster.
    #[arg(long, env = "ELASTIC_ROLE", value_enum)]
    pub(crate) role: Option<Role>,
    /// Flags of `--role driver`.
    #[command(flatten)]
    pub(crate) driver: DriverFlags,
    /// Flags of `--role worker`.
    #[command(flatten)]
    pub(crate) worker: WorkerFlags,
    /// The program that every worker runs, with its arguments (`--role driver`)
    ///
    /// Its standard input is empty.
    #[arg(last = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<String>,
}
