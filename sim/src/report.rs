//! The result of a run, for people and as the one line of `--json`.

use serde_json::{Value, json};

use crate::options::RunOptions;
use crate::states::StateLook;

/// The oracle's verdict on a run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RunVerdict {
    /// Nothing was wrong.
    Ok,
    /// A rule was broken.
    Safety,
    /// The job did not go on.
    Liveness,
    /// Two runs of one seed differed.
    Nondeterministic,
}

impl RunVerdict {
    /// The verdict's name in `--json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Safety => "safety",
            Self::Liveness => "liveness",
            Self::Nondeterministic => "nondeterministic",
        }
    }

    /// The process's exit code.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Safety => 3,
            Self::Liveness => 4,
            Self::Nondeterministic => 5,
        }
    }
}

/// The failure of a run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RunFailure {
    /// The kind of failure.
    pub verdict: RunVerdict,
    /// The reason, with names of nodes.
    pub reason: String,
}

/// One run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The options of the run.
    pub options: RunOptions,
    /// Events in the trace.
    pub events: u64,
    /// World time at the end.
    pub nanoseconds: u64,
    /// Hash of the trace.
    pub hash: u64,
    /// Hash after every 4096 events.
    pub checkpoints: Vec<u64>,
    /// Resets that the driver decided.
    pub resets: u64,
    /// Generations formed.
    pub generations: u64,
    /// Commits that every rank of a generation took.
    pub commits: u64,
    /// The job's logical shards, if it has any: the weights of each of its commits are those of the undisturbed run.
    pub shards: Option<u32>,
    /// Number of times that the driver died or stood still while a generation trained and nothing else happened.
    pub interregna: u64,
    /// Faults planned.
    pub faults: usize,
    /// The plan, one line a fault.
    pub plan: Vec<String>,
    /// Result of the job, if it has ended.
    pub result: Option<String>,
    /// The failure, if there was one.
    pub failure: Option<RunFailure>,
    /// The decisions of the nodes in words, if they were wanted.
    pub decisions: Vec<String>,
    /// The states of the nodes' cores at each look, if they were wanted.
    pub states: Vec<StateLook>,
    /// The recording of each life of the driver, in segments, if they were wanted.
    pub recordings: Vec<Vec<String>>,
    /// The last events with a column for each host.
    pub last_events: Vec<String>,
}

impl RunReport {
    /// The verdict.
    pub fn verdict(&self) -> RunVerdict {
        self.failure.as_ref().map_or(RunVerdict::Ok, |failure| failure.verdict)
    }

    /// The reason of the failure, if there was one.
    pub fn reason(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| failure.reason.as_str())
    }

    /// The line of `--json`.
    pub fn json(&self) -> Value {
        json!({
            "seed": self.options.seed,
            "mode": self.options.mode.name(),
            "hosts": self.options.hosts,
            "slots": self.options.slots,
            "events": self.events,
            "sim_seconds": self.nanoseconds as f64 / 1e9,
            "hash": format!("{:016x}", self.hash),
            "resets": self.resets,
            "generations": self.generations,
            "commits": self.commits,
            "faults": self.faults,
            "result": self.result,
            "verdict": self.verdict().name(),
            "reason": self.reason(),
        })
    }
}
