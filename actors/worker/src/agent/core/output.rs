//! What the agent's core asks of its shell, and what the shell tells it about the link. Plain data.

use std::fmt;

use elastic_protocol::messages::{AgentToDriver, OutputSettings, ProcessPlace, ProgramError};
use elastic_protocol::{HostName, JobId, ProgramSpec, Term, WorkerId};

/// Something the shell has to do, in the order in which it was asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AgentOutput {
    /// Send this to the driver.
    ToDriver(AgentToDriver),
    /// Start a process; the answer is `handle_spawned`.
    Spawn(SpawnOrder),
    /// Send a signal to a process that was started.
    Signal {
        /// Whose.
        worker: WorkerId,
        /// Which.
        signal: StopSignal,
        /// Why, for the log.
        reason: String,
    },
    /// End the agent. The last output: no process of its is left but those that the reason names.
    Exit {
        /// Exit code of the agent.
        code: i32,
        /// Why.
        reason: String,
    },
    /// Worth a line in the log, and a place in the counters.
    Warn(AgentWarning),
}

/// A process to be started.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SpawnOrder {
    /// Who it will be.
    pub worker: WorkerId,
    /// What it runs; `argv` is not empty.
    pub program: ProgramSpec,
    /// Its environment on top of the program's and the agent's own; later entries win.
    pub environment: Vec<(String, String)>,
    /// Its place in the one generation that it lives for, if it lives for one.
    pub place: Option<ProcessPlace>,
    /// With what it joins; its environment only, as `ELASTIC_CREDENTIAL`.
    pub credential: Credential,
    /// What becomes of its output.
    pub output: OutputSettings,
}

/// A worker's secret. Never printed: its `Debug` hides it.
#[derive(Clone, Eq, PartialEq)]
pub struct Credential(pub String);

impl fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Credential(..)")
    }
}

/// What a process that ended has left to say.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LastWords {
    /// The end of what it wrote to stderr.
    pub tail: String,
    /// What it wrote to its error file.
    pub error: Option<ProgramError>,
}

impl From<String> for LastWords {
    fn from(tail: String) -> Self {
        Self { tail, error: None }
    }
}

/// How a process is stopped.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum StopSignal {
    /// SIGTERM to the worker's own process: its children learn from it (see `process`).
    Terminate,
    /// SIGKILL to its whole process group.
    Kill,
}

impl fmt::Display for StopSignal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Terminate => "SIGTERM",
            Self::Kill => "SIGKILL",
        })
    }
}

/// What the core needs to know of the link to the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DriverLink {
    /// A new session.
    Up,
    /// The session is over.
    Lost {
        /// How that was noticed.
        reason: String,
    },
}

/// What the agent did not do, or had to do, and why.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AgentWarning {
    /// A driver of an older term answered (G-2).
    #[error("a driver of term {theirs} was not obeyed: this host serves term {ours}")]
    OldTerm {
        /// The term that this agent serves.
        ours: Term,
        /// The one that was offered.
        theirs: Term,
    },
    /// An order on a session whose driver has not said `Welcome`, or was not accepted (G-2).
    #[error("{order} was dropped: the driver of this session has not been accepted")]
    NotWelcomed {
        /// Which order.
        order: &'static str,
    },
    /// A driver of another job answered.
    #[error("the driver runs job {theirs} now; this host's workers belong to job {ours}")]
    OtherJob {
        /// The job that this agent serves.
        ours: JobId,
        /// The one that was offered.
        theirs: JobId,
    },
    /// An order for a life of a slot that is over (G-2).
    #[error("the order to start {worker} was dropped: its slot has seen incarnation {newest}")]
    OldIncarnation {
        /// Who was to be started.
        worker: WorkerId,
        /// The newest that this slot has seen.
        newest: u64,
    },
    /// An order to stop somebody who is not here.
    #[error("{worker} was to be stopped ({reason}) but does not run here")]
    NotHere {
        /// Who.
        worker: WorkerId,
        /// Why it was to be stopped.
        reason: String,
    },
    /// The process port told of a process that the core does not have.
    #[error("a process of {worker} was reported that is not expected")]
    UnknownProcess {
        /// Who.
        worker: WorkerId,
    },
    /// A worker outlived its grace period.
    #[error(
        "{worker} (pid {pid}) ignored SIGTERM for {grace_ms} ms and is killed now; it was to stop because: {reason}"
    )]
    KilledAfterGrace {
        /// Who.
        worker: WorkerId,
        /// Its process id.
        pid: u32,
        /// How long it had, in milliseconds.
        grace_ms: u64,
        /// Why it was to stop.
        reason: String,
    },
    /// A slot was to be filled while its former worker still ran.
    #[error("{old} still runs on the slot of {new} and is killed first")]
    SlotTaken {
        /// Who is there.
        old: WorkerId,
        /// Who comes.
        new: WorkerId,
    },
    /// Reports to the driver were dropped.
    #[error("{count} reports were dropped: too many wait for a driver")]
    ReportsDropped {
        /// How many.
        count: usize,
    },
    /// The driver is gone.
    #[error("the driver of host {host} is gone ({reason}); its workers {}", fate(*limit_ms))]
    DriverLost {
        /// This host.
        host: HostName,
        /// How that was noticed.
        reason: String,
        /// How long its workers may train on without one, in milliseconds, if there is a limit.
        limit_ms: Option<u64>,
    },
}

fn fate(limit_ms: Option<u64>) -> String {
    match limit_ms {
        Some(limit_ms) => format!("stop in {limit_ms} ms"),
        None => "train on while nobody fails".to_owned(),
    }
}
