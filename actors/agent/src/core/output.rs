//! Outputs of the agent's core, and the link events that its shell gives it. Plain data, used by the core, the
//! actor and the process ports.

use std::fmt;
use std::time::Duration;

use elastic_protocol::messages::{AgentToDriver, OutputSettings, ProcessPlace, ProgramError};
use elastic_protocol::{HostName, JobId, ProgramSpec, Term, WorkerId};
use elastic_runtime::transport::LinkEvent;

/// Outputs of the core. The shell carries them out in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AgentOutput {
    /// Send this to the driver.
    ToDriver(AgentToDriver),
    /// Start a process; the shell answers with `handle_spawned`.
    Spawn(Box<SpawnOrder>),
    /// Send a signal to a running process.
    Signal {
        /// The worker of that process.
        worker: WorkerId,
        /// The signal.
        signal: StopSignal,
        /// The reason, for the log.
        reason: String,
    },
    /// Inspect a process. The shell answers with `handle_inspected`, unless the process ends.
    Inspect {
        /// The worker of that process.
        worker: WorkerId,
        /// Whether its stacks are wanted, too.
        with_stack: bool,
    },
    /// Run the operator's health check; the shell answers with `handle_health_checked`.
    CheckHealth {
        /// The command, for the shell.
        command: String,
        /// The time within which it must end.
        timeout: Duration,
    },
    /// End the agent. This is the last output: no process of the agent is left, except those that the reason
    /// names.
    Exit {
        /// Exit code of the agent.
        code: i32,
        /// The reason.
        reason: String,
    },
    /// A warning, to be logged and counted.
    Warn(AgentWarning),
}

/// A process to be started.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SpawnOrder {
    /// The worker that the process will be.
    pub worker: WorkerId,
    /// The program to run; `argv` is not empty.
    pub program: ProgramSpec,
    /// The worker's environment variables, on top of the program's and the agent's own; later entries win.
    pub environment: Vec<(String, String)>,
    /// The worker's place in its generation, if the process lives for one generation only.
    pub place: Option<ProcessPlace>,
    /// The secret with which the worker joins. It is passed in the environment only, as `ELASTIC_CREDENTIAL`.
    pub credential: WorkerCredential,
    /// Settings for storing and showing the worker's output.
    pub output: OutputSettings,
}

/// A worker's secret. `Debug` hides it, so that it is never printed.
#[derive(Clone, Eq, PartialEq)]
pub struct WorkerCredential(pub String);

impl fmt::Debug for WorkerCredential {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Credential(..)")
    }
}

/// The last words of a process that has ended.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LastWords {
    /// The end of its stderr.
    pub tail: String,
    /// The content of its error file, if there is one.
    pub error: Option<ProgramError>,
    /// The reading of the kernel's OOM counters, if the OOM killer ended the process.
    pub out_of_memory: Option<String>,
}

/// The signals that stop a process.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum StopSignal {
    /// SIGTERM to the worker's own process only: its children are left to it (see `process`).
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

/// Events of the link to the driver, reduced to what the core needs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DriverLink {
    /// A new session.
    Up,
    /// The session exists, but the driver has been silent.
    Silent {
        /// The length of the silence, in milliseconds.
        silent_ms: u64,
    },
    /// The driver is heard again.
    Heard,
    /// The session has ended.
    Lost {
        /// The cause of the loss.
        reason: String,
    },
}

impl From<&LinkEvent> for DriverLink {
    fn from(event: &LinkEvent) -> Self {
        match event {
            LinkEvent::Up => Self::Up,
            LinkEvent::Silent { silent_ms } => Self::Silent { silent_ms: *silent_ms },
            LinkEvent::Heard => Self::Heard,
            LinkEvent::Lost { reason, .. } => Self::Lost { reason: reason.to_string() },
        }
    }
}

/// Warnings of the core: orders that it dropped, and exceptional steps that it took.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AgentWarning {
    /// A driver of an older term answered (G-2).
    #[error("a driver of term {theirs} was not obeyed: this host serves term {ours}")]
    OldTerm {
        /// The term that this agent serves.
        ours: Term,
        /// The driver's term.
        theirs: Term,
    },
    /// An order came from a driver that has not sent `AcceptedWelcome`, or was not accepted (G-2).
    #[error("{order} was dropped: the driver of this session has not been accepted")]
    NotWelcomed {
        /// The name of the order.
        order: &'static str,
    },
    /// A driver of another job answered.
    #[error("the driver runs job {theirs} now; this host's workers belong to job {ours}")]
    OtherJob {
        /// The job that this agent serves.
        ours: JobId,
        /// The driver's job.
        theirs: JobId,
    },
    /// A start order named an incarnation of the slot that is over (G-2).
    #[error("the order to start {worker} was dropped: its slot has seen incarnation {newest}")]
    OldIncarnation {
        /// The worker that was to be started.
        worker: WorkerId,
        /// The newest incarnation of this slot.
        newest: u64,
    },
    /// A stop order named a worker that does not run on this host.
    #[error("{worker} was to be stopped ({reason}) but does not run here")]
    NotHere {
        /// The worker.
        worker: WorkerId,
        /// The reason for the stop.
        reason: String,
    },
    /// The process port reported a process that the core does not know.
    #[error("a process of {worker} was reported that is not expected")]
    UnknownProcess {
        /// The worker.
        worker: WorkerId,
    },
    /// A worker outlived its grace period. It need not have ignored SIGTERM: the driver keeps a worker that wants to
    /// leave, and alone has the job's commit, as long as it may.
    #[error(
        "{worker} (pid {pid}) did not end within {grace_ms} ms of SIGTERM and is killed now; it was to stop because: {reason}"
    )]
    KilledAfterGrace {
        /// The worker.
        worker: WorkerId,
        /// Its process id.
        pid: u32,
        /// The worker's grace period, in milliseconds.
        grace_ms: u64,
        /// The reason for the stop.
        reason: String,
    },
    /// A start order named a slot whose former worker still runs.
    #[error("{old} still runs on the slot of {new} and is killed first")]
    SlotTaken {
        /// The worker that still runs.
        old: WorkerId,
        /// The worker to be started.
        new: WorkerId,
    },
    /// Reports to the driver were dropped.
    #[error("{count} reports were dropped: too many wait for a driver")]
    ReportsDropped {
        /// The number of dropped reports.
        count: usize,
    },
    /// The session with the driver is lost.
    #[error("the driver of host {host} is gone ({reason}); its workers {}", fate(*limit_ms))]
    DriverLost {
        /// This host.
        host: HostName,
        /// The cause of the loss.
        reason: String,
        /// The time that workers may train on without a driver, in milliseconds, if there is a limit.
        limit_ms: Option<u64>,
    },
}

fn fate(limit_ms: Option<u64>) -> String {
    match limit_ms {
        Some(limit_ms) => format!("stop in {limit_ms} ms"),
        None => "train on while nobody fails".to_owned(),
    }
}

/// Error of the start of a process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StartFailure {
    /// The system's error, and the program that it is about.
    pub reason: String,
    /// Whether the program itself is at fault: it is missing on this host, or nothing that can be executed.
    pub is_programs: bool,
}

impl From<String> for StartFailure {
    fn from(reason: String) -> Self {
        Self { reason, is_programs: false }
    }
}
