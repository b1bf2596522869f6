//! The options of a run. They come from the command line or a regression file. Used by every mode.

use std::sync::Arc;

use elastic_driver::recording::moment::RecordedMoment;
use serde::{Deserialize, Serialize};

use crate::plan::FaultPlan;

/// The code that runs the nodes: cores or actors.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum SimulationMode {
    /// The state machines alone, from one agenda.
    #[default]
    Cores,
    /// The product's actors over a simulated transport, on a paused clock.
    Actors,
    /// The product's training threads, which take turns, under a driver's script.
    Training,
    /// The product's key-value store for scripts, its relays, and clients that speak torch's protocol.
    Store,
}

impl SimulationMode {
    /// The mode's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::Actors => "actors",
            Self::Training => "training",
            Self::Store => "store",
        }
    }
}

/// How the job's program takes part in generations.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// The program uses the library: its workers survive resets.
    #[default]
    InProcess,
    /// A script that knows nothing of the library: a generation's processes live for it alone (in cores only).
    Restart,
}

impl JobKind {
    /// Whether the job is of the default kind, which files and commands leave out.
    pub fn is_in_process(&self) -> bool {
        *self == Self::InProcess
    }
}

/// The newest set of draws. A seed keeps its job and faults under each older set. A regression thus stays what it was
/// found with when more is drawn.
pub const DRAWS: u32 = 20;

const fn is_first(draws: &u32) -> bool {
    *draws == 0
}

/// One run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct RunOptions {
    /// Seed of all the run's randomness.
    pub seed: u64,
    /// Number of hosts.
    pub hosts: u32,
    /// Most slots of a host.
    pub slots: u32,
    /// Duration of the faults, in simulated seconds.
    pub seconds: u64,
    /// Whether cores or actors run.
    pub mode: SimulationMode,
    /// Kind of the job, by the part that its program takes in generations.
    #[serde(default, skip_serializing_if = "JobKind::is_in_process")]
    pub job: JobKind,
    /// The newest set of draws used for the job and its faults; see [`DRAWS`].
    #[serde(default, skip_serializing_if = "is_first")]
    pub draws: u32,
    /// Numbers of the faults that happen; all of them if `None`. Set by shrinking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Vec<usize>>,
    /// No faults at all.
    pub calm: bool,
    /// Faults in place of the drawn ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<FaultPlan>,
    /// The recorded job from which the run goes on; none: it begins a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Arc<RecordedMoment>>,
}

impl RunOptions {
    /// The options of a small cluster.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            hosts: 4,
            slots: 2,
            seconds: 30,
            mode: SimulationMode::Cores,
            job: JobKind::InProcess,
            draws: 0,
            keep: None,
            calm: false,
            plan: None,
            from: None,
        }
    }

    /// The command that repeats the run. A run with its own faults, or that goes on from a
    /// recording, is repeated from their file.
    pub fn command(&self) -> String {
        if self.plan.is_some() || self.from.is_some() {
            return "cargo run --release -p sim -- run --regression FILE".to_owned();
        }
        let mut command = format!(
            "cargo run --release -p sim -- run --seed {} --hosts {} --slots {} --sim-seconds {} --mode {}",
            self.seed,
            self.hosts,
            self.slots,
            self.seconds,
            self.mode.name()
        );
        if !self.job.is_in_process() {
            command += " --job restart";
        }
        command += &format!(" --draws {}", self.draws);
        if self.calm {
            command += " --calm";
        }
        if let Some(keep) = &self.keep {
            let keep: Vec<String> = keep.iter().map(ToString::to_string).collect();
            command += &format!(" --keep={}", keep.join(","));
        }
        command
    }
}
