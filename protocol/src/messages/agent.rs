//! Messages between an agent and the driver.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::client::LaneStatus;
use super::standstill::ProcessSight;
use crate::deadlines::Deadlines;
use crate::ids::{HostName, JobId, Stamp, Term, WorkerId};
use crate::job::{ExitStatus, ProgramSpec};
use crate::output::OutputSettings;

/// A live process of an agent.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LiveWorker {
    /// The worker that runs in it.
    pub worker: WorkerId,
    /// Its process id.
    pub pid: u32,
    /// Whether the agent is stopping it, by the order of a driver or of its own accord.
    pub is_being_stopped: bool,
}

/// A program's own report of its failure, as torch's `@record` writes it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProgramError {
    /// The error, with its traceback; at most [`AgentToDriver::TAIL_BYTES_MAX`] bytes.
    pub message: String,
    /// Time of the report, in seconds of its host's wall clock.
    pub at: Option<u64>,
}

/// The number of hosts of a job that is started on each of them (`--nnodes`).
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct NodeCount {
    /// Fewest hosts.
    pub min: u32,
    /// Most hosts.
    pub max: u32,
}

impl fmt::Display for NodeCount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.min == self.max {
            true => write!(formatter, "{}", self.max),
            false => write!(formatter, "{}:{}", self.min, self.max),
        }
    }
}

/// The whole job as the command of a host describes it, where the job is started by the same command on each of its hosts (`run
/// --nnodes`). A host whose command says another thing is refused.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct JobCommand {
    /// The number of hosts.
    pub count: NodeCount,
    /// Digests of the program and of flags, by their names. Empty once a driver has welcomed the host: it is part of the job then,
    /// also if its driver is started again with other flags.
    pub settings: BTreeMap<String, u64>,
}

impl JobCommand {
    /// The digest of a setting, over its encoding in messages. All values that cannot be encoded have the same.
    pub fn digest(setting: &impl Serialize) -> u64 {
        postcard::to_allocvec(setting).map_or(0, |bytes| xxh3_64(&bytes))
    }
}

/// Messages from an agent to the driver.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum AgentToDriver {
    /// First message on every new connection: the host is present, with these processes.
    Join {
        /// The host's name.
        host: HostName,
        /// Most workers that the host can run at once.
        slots: u32,
        /// The role of the host's workers, for torch scripts with several roles; `default` if there is only one.
        role: String,
        /// An address at which others can reach a listener of a program of this host: the host's data address, with a
        /// free port. A loopback address if the agent reached the driver over loopback.
        meeting: Option<SocketAddr>,
        /// The name of the job that the host was told to join (`--rdzv-id`), if it was told one.
        run_id: Option<String>,
        /// The job as the host's command describes it, if the job is started on each of its hosts.
        nodes: Option<JobCommand>,
        /// Processes that still live; empty on first contact.
        live: Vec<LiveWorker>,
    },
    /// A process was started.
    Started {
        /// The worker.
        worker: WorkerId,
        /// Its process id.
        pid: u32,
    },
    /// A process could not be started.
    StartFailed {
        /// The worker.
        worker: WorkerId,
        /// The system's error, and the program that it is about.
        reason: String,
        /// Whether the program itself is at fault on this host: it is missing there, or nothing that can be executed.
        is_programs: bool,
    },
    /// A process ended. Sent at once; [`AgentToDriver::LastWords`] follows.
    Exited {
        /// The worker.
        worker: WorkerId,
        /// Its exit status.
        status: ExitStatus,
        /// The first to have the process stopped; `None` if it ended by itself.
        stopped_by: Option<StoppedBy>,
        /// Whether the agent was stopping the process, and had to use SIGKILL after the grace period.
        killed_after_grace: bool,
        /// The process's use of the library.
        library: LibraryTrace,
    },
    /// The host wants to leave (SIGTERM, spot notice): its workers are to be taken out without loss.
    Drain {
        /// The reason.
        reason: String,
    },
    /// The last output of a process that has ended. Follows each [`AgentToDriver::Exited`] within
    /// [`AgentToDriver::LAST_WORDS_WITHIN`].
    LastWords {
        /// The worker.
        worker: WorkerId,
        /// The last lines of its stderr; at most [`AgentToDriver::TAIL_BYTES_MAX`] bytes.
        tail: String,
        /// The program's own report of its failure, if it wrote one.
        error: Option<ProgramError>,
        /// The reading of the kernel's OOM counters, if the OOM killer ended the process.
        out_of_memory: Option<String>,
    },
    /// The thread of a worker's actors has ended, and has not said goodbye: the worker is lost. Its process is ending, or
    /// has replaced its program. If it ends, [`AgentToDriver::Exited`] follows, once the system has cleared its memory;
    /// repeated after each `Welcome` until then.
    Dying {
        /// The worker.
        worker: WorkerId,
    },
    /// Facts about the host that may have changed since it joined. Sent at each change, and after each `Welcome`.
    HostChanged {
        /// As in [`AgentToDriver::Join`]: another address if the host was renumbered.
        meeting: Option<SocketAddr>,
        /// The lanes of the agent's process that do not answer; at most [`AgentToDriver::LANES_MAX`].
        hanging: Vec<LaneStatus>,
    },
    /// The answer to [`DriverToAgent::Inspect`]; there is none if the process has ended.
    Inspected {
        /// The worker.
        worker: WorkerId,
        /// The observed activity of its process.
        sight: Box<ProcessSight>,
    },
    /// The answer to [`DriverToAgent::CheckHealth`].
    HealthChecked {
        /// The number of the question.
        number: u64,
        /// The reason for the failure; `None`: the host is well.
        failure: Option<HealthFailure>,
    },
}

/// The failure of a health check.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HealthFailure {
    /// The end of its process, such as `exit code 1`.
    pub reason: String,
    /// The last lines of its output; at most [`HealthFailure::OUTPUT_BYTES_MAX`] bytes.
    pub output: String,
}

impl HealthFailure {
    /// Most bytes of a check's output that are reported.
    pub const OUTPUT_BYTES_MAX: usize = 2048;
}

/// One line: the reason, and the last line of its output.
impl fmt::Display for HealthFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.reason)?;
        match self.output.lines().next_back() {
            Some(line) => write!(formatter, ": {line}"),
            None => Ok(()),
        }
    }
}

impl AgentToDriver {
    /// Most lanes that an agent names.
    pub const LANES_MAX: usize = 8;

    /// Most bytes of a process's stderr in its last words.
    pub const TAIL_BYTES_MAX: usize = 4096;

    /// Time limit for reading the rest of a process's output after its end. The output is in the pipe already: only a
    /// slow disk or an overloaded machine needs this time.
    pub const LAST_WORDS_WITHIN: Duration = Duration::from_secs(2);
}

/// A process's use of the library, as its agent finds it when the process has ended.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum LibraryTrace {
    /// Nothing: its program does not use the library, has not come to it, or the system cannot show it (Linux before
    /// 5.16).
    #[default]
    Unseen,
    /// It has begun to use the library. Its exit status alone does not show whether it has done its part.
    Used,
    /// The driver has refused it, since its library is of this release and not of the driver's: before it had shown which worker
    /// it is. A short text: the table of locks holds 124 bytes of it.
    Refused(String),
}

impl LibraryTrace {
    /// The release for which the process was refused.
    pub fn refused_release(&self) -> Option<&str> {
        match self {
            Self::Refused(release) => Some(release),
            Self::Unseen | Self::Used => None,
        }
    }
}

/// The first to have a process stopped by its agent.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum StoppedBy {
    /// The driver of this term.
    Driver(Term),
    /// The agent itself, because it leaves: its driver is gone, or its operator wants it to leave.
    Agent,
}

/// The place of a process that lives for one generation (`--mode restart`).
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProcessPlace {
    /// The generation.
    pub stamp: Stamp,
    /// Its rank in that generation.
    pub rank: u32,
    /// Its number among that generation's processes on its host, from 0.
    pub local_rank: u32,
}

/// Messages from the driver to an agent.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum DriverToAgent {
    /// The answer to `Join`.
    Welcome {
        /// The job's id.
        job: JobId,
        /// The driver's term.
        term: Term,
        /// The program of the workers.
        program: ProgramSpec,
        /// The limits on waits.
        deadlines: Deadlines,
        /// Settings for storing and showing the workers' output.
        output: Box<OutputSettings>,
    },
    /// The answer to a `Join` that is refused: the agent ends with this reason.
    Refused {
        /// The reason.
        reason: String,
    },
    /// Start a worker. Repeating the message for a started worker changes nothing.
    Start {
        /// The worker.
        worker: WorkerId,
        /// Its environment in addition to the program's (RANK, MASTER_ADDR, ELASTIC_WORKER, …).
        environment: Vec<(String, String)>,
        /// Its place, for a process that lives for one generation; `None` for a worker that lives through
        /// several.
        place: Option<ProcessPlace>,
        /// The secret with which the worker joins. The agent puts it into the worker's environment and nowhere
        /// else.
        credential: String,
    },
    /// Stop a worker: SIGTERM, then SIGKILL after the grace period.
    Stop {
        /// The worker.
        worker: WorkerId,
        /// Grace period between SIGTERM and SIGKILL, in milliseconds; 0 means SIGKILL at once.
        grace_ms: u64,
        /// The reason.
        reason: String,
    },
    /// Look at the activity of a worker's process: others wait for it.
    Inspect {
        /// The worker.
        worker: WorkerId,
        /// Whether its stacks are wanted, too.
        with_stack: bool,
    },
    /// Run the operator's health check: a worker of this host was replaced, and none is on its slot. One runs at a time; the result of
    /// one under way answers this, too.
    CheckHealth {
        /// The number of the question.
        number: u64,
        /// The command, for the shell.
        command: String,
        /// The time within which it must end, in milliseconds.
        timeout_ms: u64,
    },
    /// The job is over, or the host is out of it: stop the processes that still run, then end with this code.
    Leave {
        /// Exit code of the agent.
        code: i32,
        /// The reason.
        reason: String,
    },
}
