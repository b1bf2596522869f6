//! The job's program, exit statuses, reset causes and result: used in messages by drivers, agents and workers.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;

use serde::{Deserialize, Serialize};

use crate::ids::{GenerationId, HostName, WorkerId};

/// The program that every worker runs.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProgramSpec {
    /// Program and arguments; never empty.
    pub argv: Vec<String>,
    /// Variables added to the agent's own environment.
    pub environment: Vec<(String, String)>,
}

/// The end of a process.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub enum ExitStatus {
    /// The process exited with this code.
    Code(i32),
    /// The process was killed by this signal.
    Signal(i32),
}

impl ExitStatus {
    /// Whether the process exited with code 0.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }

    /// The exit code as a shell gives it: 128 + n for signal n.
    pub const fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

impl From<std::process::ExitStatus> for ExitStatus {
    fn from(status: std::process::ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or_default()),
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(formatter, "exit code {code}"),
            Self::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(formatter, "signal {signal} ({name})"),
                None => write!(formatter, "signal {signal}"),
            },
        }
    }
}

/// Names of the signals that commonly end a process (Linux numbers, signal(7)).
const fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

/// The reason for a generation's end.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum ResetCause {
    /// A worker's process ended.
    WorkerExited {
        /// The worker.
        worker: WorkerId,
        /// Its process's exit status.
        status: ExitStatus,
    },
    /// A worker's training function returned an error.
    WorkerFailed {
        /// The worker.
        worker: WorkerId,
        /// The message of its error.
        error: String,
    },
    /// A worker was silent for too long while its host was heard.
    WorkerSilent {
        /// The worker.
        worker: WorkerId,
        /// Duration of the silence, in milliseconds.
        silent_ms: u64,
        /// The process's activity as its agent observed it, in words that follow its name; `None` if unknown.
        doing: Option<String>,
    },
    /// A worker's link to a peer broke in a collective.
    PeerBroken {
        /// The worker that reported it.
        reporter: WorkerId,
        /// The worker at the other end; `None` if unknown.
        peer: Option<WorkerId>,
        /// The message of its error.
        error: String,
    },
    /// A host was silent for too long, or its agent went away.
    HostLost {
        /// The host.
        host: HostName,
        /// The evidence of the loss.
        reason: String,
    },
    /// A host was blacklisted after a failure on it.
    HostBlacklisted {
        /// The host.
        host: HostName,
    },
    /// Forming or syncing the generation took too long.
    DeadlinePassed {
        /// `form` or `sync`.
        phase: String,
        /// The workers that were waited for (G-9).
        waiting_for: Vec<WorkerId>,
    },
    /// The set of hosts changed: a planned end.
    HostsChanged {
        /// Workers that joined.
        added: Vec<WorkerId>,
        /// Workers that left.
        removed: Vec<WorkerId>,
    },
    /// A worker asked to leave (SIGTERM, spot notice), or is replaced (`--on-straggler replace`): a planned end.
    WorkerLeaves {
        /// The worker; of several that are replaced with their host, the first.
        worker: WorkerId,
        /// The reason that it gave, or why it is replaced.
        reason: String,
    },
    /// A worker has died. Its process's exit status is not known yet; then this becomes [`Self::WorkerExited`].
    WorkerDied {
        /// The worker.
        worker: WorkerId,
    },
    /// Replicas of the state differ, and take the majority's content over (`--on-divergence repair`): a planned end.
    ReplicasDiffer {
        /// The workers that take it over.
        workers: Vec<WorkerId>,
        /// One of the arrays that differ.
        tensor: String,
        /// The first commit in which that was seen.
        step: u64,
    },
    /// The members stay, and carry other numbers of logical shards (`--on-straggler rebalance`): a planned end.
    ShardsRebalanced {
        /// The workers that compute more slowly or faster than the shards before were dealt for.
        workers: Vec<WorkerId>,
        /// The number of shards that each rank is to carry.
        shard_counts: Vec<u32>,
    },
}

impl ResetCause {
    /// Whether live state is kept (interrupt) or everyone rolls back to the last commit (abort).
    pub const fn is_planned(&self) -> bool {
        matches!(
            self,
            Self::HostsChanged { .. }
                | Self::WorkerLeaves { .. }
                | Self::ReplicasDiffer { .. }
                | Self::ShardsRebalanced { .. }
        )
    }

    /// Whether a worker's program failed: such causes count against the restart limit (T-4).
    pub const fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::WorkerExited { .. } | Self::WorkerFailed { .. } | Self::WorkerDied { .. }
        )
    }
}

/// A failure's message is cut to this many characters if it becomes part of a reason.
pub const REASON_CHARACTERS_MAX: usize = 600;

/// The last part of a message, which holds the error: at most [`REASON_CHARACTERS_MAX`] characters.
pub fn shorten(message: &str) -> String {
    let message = message.trim();
    let characters = message.chars().count();
    if characters <= REASON_CHARACTERS_MAX {
        return message.to_owned();
    }
    let skipped = characters - REASON_CHARACTERS_MAX;
    let tail: String = message.chars().skip(skipped).collect();
    format!("… {tail}")
}

impl fmt::Display for ResetCause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WorkerExited { worker, status } => write!(formatter, "{worker} ended: {status}"),
            Self::WorkerFailed { worker, error } => write!(formatter, "{worker} failed: {error}"),
            Self::WorkerSilent { worker, silent_ms, doing } => {
                write!(formatter, "{worker} was not heard for {silent_ms} ms")?;
                let Some(doing) = doing else { return Ok(()) };
                write!(formatter, "; its process {doing}")
            }
            Self::PeerBroken { reporter, peer, error } => match peer {
                Some(peer) => write!(formatter, "{reporter} lost its link to {peer}: {error}"),
                None => write!(formatter, "{reporter} lost a collective: {error}"),
            },
            Self::HostLost { host, reason } => write!(formatter, "host {host} lost: {reason}"),
            Self::HostBlacklisted { host } => write!(formatter, "host {host} was blacklisted"),
            Self::DeadlinePassed { phase, waiting_for } => {
                write!(formatter, "the {phase} deadline passed, waiting for {}", list(waiting_for))
            }
            Self::HostsChanged { added, removed } => {
                formatter.write_str("hosts changed:")?;
                if !added.is_empty() {
                    write!(formatter, " added {}", list(added))?;
                }
                if !removed.is_empty() {
                    write!(formatter, " removed {}", list(removed))?;
                }
                Ok(())
            }
            Self::WorkerLeaves { worker, reason } => write!(formatter, "{worker} leaves: {reason}"),
            Self::ReplicasDiffer { workers, tensor, step } => write!(
                formatter,
                "{} differed from the other replicas in {tensor} at step {step}",
                list(workers)
            ),
            Self::ShardsRebalanced { workers, shard_counts } => write!(
                formatter,
                "shards are dealt anew for the pace of {}: {}",
                list(workers),
                numbers(shard_counts)
            ),
            Self::WorkerDied { worker } => {
                write!(formatter, "{worker} died; its exit status is not known yet")
            }
        }
    }
}

/// Most workers that one sentence names, and most numbers.
const NAMED_MAX: usize = 16;

fn numbers(all: &[u32]) -> String {
    let named: Vec<String> = all.iter().take(NAMED_MAX).map(u32::to_string).collect();
    let more = if all.len() > NAMED_MAX { ", …" } else { "" };
    format!("{}{more} by rank", named.join(", "))
}

fn list(workers: &[WorkerId]) -> String {
    if workers.is_empty() {
        return "nobody".to_owned();
    }
    let named: Vec<String> = workers.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    match workers.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Whether the job reached its goal.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    /// Every worker of the last generation finished.
    Succeeded,
    /// The job ended for the reason given.
    Failed,
    /// The operator ended the job.
    Stopped,
}

/// The end of a job: one exit code, one reason (G-10).
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct JobResult {
    /// Whether the job reached its goal.
    pub outcome: JobOutcome,
    /// The exit code of the driver: 0 succeeded, 1 failed, 128 + n stopped by signal n, 130 by `elastic-node stop`.
    pub code: i32,
    /// The reason, in one sentence.
    pub reason: String,
    /// Advice to the operator, if there is any.
    pub hint: Option<String>,
    /// The last generation.
    pub generation: GenerationId,
    /// The first failure of the last generation that failed, if one did: the first real cause.
    pub first_failure: Option<WorkerFailure>,
}

/// One worker's failure.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct WorkerFailure {
    /// The worker.
    pub worker: WorkerId,
    /// Its rank in the generation in which it failed; `None` without one.
    pub rank: Option<u32>,
    /// Its process's exit status; `None` while the process lives.
    pub status: Option<ExitStatus>,
    /// Its error, or the last lines of its stderr.
    pub message: String,
}
