//! The commands.

#[cfg(feature = "planted-bugs")]
mod bugs;
mod replay;
mod run;
mod sweep;

use std::io::Write;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Parser, Subcommand};
use sim::{Job, Mode, Options};

/// Elastic Node's simulated cluster.
#[derive(Debug, Parser)]
#[command(name = "sim", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one seed.
    Run(run::RunArguments),
    /// Runs many seeds.
    Sweep(sweep::SweepArguments),
    /// Plants bugs, one at a time, and shows that each is found.
    #[cfg(feature = "planted-bugs")]
    Bugs(bugs::BugsArguments),
    /// Steps through a trace that `run --trace` wrote.
    Replay(replay::ReplayArguments),
}

/// What a cluster is like.
#[derive(Args, Clone, Debug)]
struct ClusterArguments {
    /// Hosts.
    #[arg(long, default_value_t = 4)]
    hosts: u32,
    /// Most slots of a host.
    #[arg(long, default_value_t = 2)]
    slots: u32,
    /// How long faults go on, in simulated seconds.
    #[arg(long, default_value_t = 30)]
    sim_seconds: u64,
    /// Which driver of the code.
    #[arg(long, value_enum, default_value_t = Mode::Cores)]
    mode: Mode,
    /// How the job's program takes part.
    #[arg(long, value_enum, default_value_t = Job::InProcess)]
    job: Job,
    /// No faults.
    #[arg(long)]
    calm: bool,
}

impl ClusterArguments {
    fn check(&self) -> anyhow::Result<()> {
        if self.mode == Mode::Actors && !self.job.is_in_process() {
            bail!("--job restart is simulated with --mode cores only");
        }
        Ok(())
    }

    fn options(&self, seed: u64) -> Options {
        Options {
            seed,
            hosts: self.hosts.clamp(1, 100_000),
            slots: self.slots.clamp(1, 4_096),
            seconds: self.sim_seconds.max(1),
            mode: self.mode,
            job: self.job,
            keep: None,
            calm: self.calm,
            plan: None,
        }
    }
}

pub(crate) fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Sweep(arguments) => sweep::sweep(&arguments),
        #[cfg(feature = "planted-bugs")]
        Command::Bugs(arguments) => bugs::bugs(&arguments),
        Command::Replay(arguments) => replay::replay(&arguments),
    }
}

/// Writes a line to stdout; a closed pipe ends the output, not the run.
fn say(line: impl AsRef<str>) {
    let _written = writeln!(std::io::stdout().lock(), "{}", line.as_ref()).is_ok();
}

/// Writes a line to stderr.
fn note(line: impl AsRef<str>) {
    let _written = writeln!(std::io::stderr().lock(), "{}", line.as_ref()).is_ok();
}

/// The commit of the working tree, for reports.
fn commit() -> String {
    let output = std::process::Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".to_owned(),
    }
}
