//! The commands: their shared arguments and output. Called by `main`.

#[cfg(feature = "planted-bugs")]
mod bugs;
mod decisions;
mod fuzz;
mod recorded;
mod recorded_runs;
#[cfg(feature = "planted-bugs")]
mod recording;
mod replay;
mod run;
mod states;
mod sweep;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use clap::{Args, Parser, Subcommand};
use elastic_driver::recording::moment::RecordedMoment;
use sim::{DRAWS, JobKind, RunOptions, Shape, SimulationMode, recorded_shape};

/// Elastic Node's simulated cluster.
#[derive(Debug, Parser)]
#[command(name = "sim", version)]
struct SimCli {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// Runs one seed.
    Run(run::SimRunArguments),
    /// Runs many seeds.
    Sweep(sweep::SweepArguments),
    /// Makes runs from others that showed something new, until time is up.
    Fuzz(fuzz::FuzzArguments),
    /// Plants bugs, one at a time, and shows that each is found.
    #[cfg(feature = "planted-bugs")]
    Bugs(bugs::BugsArguments),
    /// Steps through a trace that `run --trace` wrote.
    Replay(replay::ReplayArguments),
    /// Replays the recording of a real driver with each planted bug.
    #[cfg(feature = "planted-bugs")]
    Recording(recording::RecordingArguments),
    /// Compares what recorded runs decide with what is committed.
    Decisions(recorded_runs::RecordedRunsArguments),
    /// Compares what the nodes' cores hold in recorded runs with what is committed.
    States(recorded_runs::RecordedRunsArguments),
}

/// Shape of the cluster. Where neither hosts, slots nor seconds are given, each seed has a shape of its own, and
/// where neither mode nor job is, these too.
#[derive(Args, Clone, Debug)]
struct ClusterArguments {
    /// Hosts [default: drawn; 4 where other parts of the shape are given].
    #[arg(long)]
    hosts: Option<u32>,
    /// Most slots of a host [default: drawn, or 2].
    #[arg(long)]
    slots: Option<u32>,
    /// How long faults go on, in simulated seconds [default: drawn, or 30].
    #[arg(long)]
    sim_seconds: Option<u64>,
    /// Which driver of the code [default: drawn with the shape, or cores].
    #[arg(long, value_enum)]
    mode: Option<SimulationMode>,
    /// How the job's program takes part [default: drawn with the shape, or in-process].
    #[arg(long, value_enum)]
    job: Option<JobKind>,
    /// No faults.
    #[arg(long)]
    calm: bool,
    /// Up to which set of draws jobs and faults are drawn.
    #[arg(long, default_value_t = DRAWS)]
    draws: u32,
    /// Goes on from a recorded job (`--record`): its state directory, or a file that `elastic-node replay --export` wrote.
    #[arg(long, value_name = "STATE_DIR", conflicts_with_all = ["hosts", "slots", "calm"])]
    from: Option<PathBuf>,
    /// The record of the recorded job's journal after which its driver dies [default: the last one].
    #[arg(long, value_name = "RECORD", requires = "from")]
    at: Option<u64>,
    /// The job at that record, once it is read.
    #[arg(skip)]
    moment: Option<Arc<RecordedMoment>>,
}

impl ClusterArguments {
    /// Checks the arguments, and reads the recorded job if there is one.
    fn read(&self) -> anyhow::Result<Self> {
        if self.mode == Some(SimulationMode::Actors) && self.job == Some(JobKind::Restart) {
            bail!("--job restart is simulated with --mode cores only");
        }
        let mut cluster = self.clone();
        if let Some(path) = &self.from {
            if self.mode == Some(SimulationMode::Actors) || self.job == Some(JobKind::Restart) {
                bail!("--from is simulated with --mode cores and --job in-process only");
            }
            let moment = recorded::moment_of(path, self.at)?;
            let (hosts, slots) = recorded_shape(&moment)?;
            (cluster.hosts, cluster.slots) = (Some(hosts), Some(slots));
            cluster.moment = Some(Arc::new(moment));
        }
        Ok(cluster)
    }

    /// The mode's name for reports, or `drawn` if it differs from seed to seed.
    fn mode_name(&self) -> &'static str {
        match self.mode {
            None if self.is_drawn() && self.job.is_none() => "drawn",
            mode => mode.unwrap_or_default().name(),
        }
    }

    const fn is_drawn(&self) -> bool {
        self.hosts.is_none() && self.slots.is_none() && self.sim_seconds.is_none()
    }

    /// The options of a seed's run. Its shape is drawn unless some of it is given.
    fn options(&self, seed: u64) -> RunOptions {
        if !self.is_drawn() {
            return self.fixed(seed);
        }
        let is_given = self.mode.is_some() || self.job.is_some();
        let given = (self.mode.unwrap_or_default(), self.job.unwrap_or_default());
        let Shape { hosts, slots, seconds, mode, job } =
            Shape::draw(seed, is_given.then_some(given));
        let usual = RunOptions::new(seed);
        let (calm, draws) = (self.calm, self.draws);
        RunOptions { hosts, slots, seconds, mode, job, calm, draws, ..usual }
    }

    /// The same, with default values for options that are not given.
    fn fixed(&self, seed: u64) -> RunOptions {
        let usual = RunOptions::new(seed);
        RunOptions {
            hosts: self.hosts.unwrap_or(usual.hosts).clamp(1, 100_000),
            slots: self.slots.unwrap_or(usual.slots).clamp(1, 4_096),
            seconds: self.sim_seconds.unwrap_or(usual.seconds).max(1),
            mode: self.mode.unwrap_or_default(),
            job: self.job.unwrap_or_default(),
            calm: self.calm,
            draws: self.draws,
            from: self.moment.clone(),
            ..usual
        }
    }
}

pub(crate) fn main() -> anyhow::Result<ExitCode> {
    match SimCli::parse().command {
        SimCommand::Run(arguments) => run::run(&arguments),
        SimCommand::Sweep(arguments) => sweep::sweep(&arguments),
        SimCommand::Fuzz(arguments) => fuzz::fuzz(&arguments),
        #[cfg(feature = "planted-bugs")]
        SimCommand::Bugs(arguments) => bugs::bugs(&arguments),
        SimCommand::Replay(arguments) => replay::replay(&arguments),
        #[cfg(feature = "planted-bugs")]
        SimCommand::Recording(arguments) => recording::recording(&arguments),
        SimCommand::Decisions(arguments) => decisions::decisions(&arguments),
        SimCommand::States(arguments) => states::states(&arguments),
    }
}

/// Writes a line to stdout. A closed pipe ends the output, not the run.
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
