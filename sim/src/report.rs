//! How a run ended: for people, and as the one line of `--json`.

use serde_json::{Value, json};

use crate::options::Options;

/// What the oracle says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Nothing was wrong.
    Ok,
    /// A rule was broken.
    Safety,
    /// The job did not go on.
    Liveness,
    /// Two runs of one seed differed.
    Nondeterministic,
}

impl Verdict {
    /// As in `--json`.
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

/// What was wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    /// Of what kind.
    pub verdict: Verdict,
    /// What, with names.
    pub reason: String,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was asked for.
    pub options: Options,
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
    /// How often the driver died while a generation trained and nothing else happened.
    pub interregna: u64,
    /// Faults planned.
    pub faults: usize,
    /// The plan, a line each.
    pub plan: Vec<String>,
    /// How the job ended, if it did.
    pub result: Option<String>,
    /// What was wrong, if something was.
    pub failure: Option<Failure>,
    /// The last events with a column for each host.
    pub last_events: Vec<String>,
}

impl Report {
    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        self.failure.as_ref().map_or(Verdict::Ok, |failure| failure.verdict)
    }

    /// Why, or how the job ended.
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
