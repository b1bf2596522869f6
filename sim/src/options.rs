//! What a run is asked for: from the command line, or a regression seed.

use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// Which driver of the code.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The state machines alone, from one agenda.
    #[default]
    Cores,
    /// The product's actors over a simulated transport, on a paused clock.
    Actors,
}

impl Mode {
    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::Actors => "actors",
        }
    }
}

/// How the job's program takes part.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// It uses the library: its workers survive resets.
    #[default]
    InProcess,
    /// A script that knows nothing of the library: a generation's processes live for it alone (in cores only).
    Restart,
}

impl Job {
    /// Whether it is the usual one, which goes without saying.
    pub fn is_in_process(&self) -> bool {
        *self == Self::InProcess
    }
}

/// One run.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Options {
    /// All randomness comes from it.
    pub seed: u64,
    /// How many hosts there are.
    pub hosts: u32,
    /// Most slots of a host.
    pub slots: u32,
    /// How long faults go on, in simulated seconds.
    pub seconds: u64,
    /// Which driver of the code.
    pub mode: Mode,
    /// How the job's program takes part.
    #[serde(default, skip_serializing_if = "Job::is_in_process")]
    pub job: Job,
    /// Only the faults with these numbers happen; all if none is given. What shrinking leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Vec<usize>>,
    /// No faults at all.
    pub calm: bool,
    /// These faults, in the place of those that are drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
}

impl Options {
    /// A small cluster.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            hosts: 4,
            slots: 2,
            seconds: 30,
            mode: Mode::Cores,
            job: Job::InProcess,
            keep: None,
            calm: false,
            plan: None,
        }
    }

    /// The command that repeats the run; one with faults of its own is repeated from their file.
    pub fn command(&self) -> String {
        if self.plan.is_some() {
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
