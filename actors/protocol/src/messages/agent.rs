//! Between an agent and the driver.

use serde::{Deserialize, Serialize};

use crate::deadlines::Deadlines;
use crate::ids::{HostName, JobId, Stamp, Term, WorkerId};
use crate::job::{ExitStatus, ProgramSpec};
use crate::output::OutputSettings;

/// A process that an agent has.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LiveWorker {
    /// Who.
    pub worker: WorkerId,
    /// Its process id.
    pub pid: u32,
}

/// What a program wrote about its own end, as torch's `@record` does.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProgramError {
    /// The error, with its traceback; at most [`AgentToDriver::TAIL_BYTES_MAX`] bytes.
    pub message: String,
    /// When that was, in seconds of its host's wall clock.
    pub at: Option<u64>,
}

/// What an agent tells the driver.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum AgentToDriver {
    /// First word on every new connection: this host is there, with these processes.
    Join {
        /// Its name.
        host: HostName,
        /// How many workers it can run at once.
        slots: u32,
        /// The role of its workers, for scripts of torch that have several; `default` where there is one.
        role: String,
        /// Processes that it still has: none on first contact.
        live: Vec<LiveWorker>,
    },
    /// A process was started.
    Started {
        /// Who.
        worker: WorkerId,
        /// Its process id.
        pid: u32,
    },
    /// A process could not be started.
    StartFailed {
        /// Who.
        worker: WorkerId,
        /// What the system said, and about which program.
        reason: String,
    },
    /// A process ended.
    Exited {
        /// Who.
        worker: WorkerId,
        /// How.
        status: ExitStatus,
        /// Who had it stopped, if it did not end of itself.
        stopped_by: Option<StoppedBy>,
        /// Whether the agent was stopping it, and had to use SIGKILL after the grace period.
        killed_after_grace: bool,
        /// The last lines that it wrote to stderr; at most [`AgentToDriver::TAIL_BYTES_MAX`] bytes.
        tail: String,
        /// What it wrote about its own end, if it did.
        error: Option<ProgramError>,
    },
    /// This host wants to leave (SIGTERM, spot notice): take its workers out, lose nothing.
    Drain {
        /// Why.
        reason: String,
    },
}

impl AgentToDriver {
    /// How much of a process's stderr an exit report carries.
    pub const TAIL_BYTES_MAX: usize = 4096;
}

/// Who was first to have a process stopped by its agent.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum StoppedBy {
    /// The driver of this term.
    Driver(Term),
    /// The agent itself, which leaves: its driver is gone, or its operator wants it to.
    Agent,
}

/// The place of a process that lives for one generation (`--mode restart`).
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProcessPlace {
    /// Which generation.
    pub stamp: Stamp,
    /// Its rank there.
    pub rank: u32,
    /// Its number among those of its host, from 0.
    pub local_rank: u32,
}

/// What the driver tells an agent.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum DriverToAgent {
    /// The answer to `Join`.
    Welcome {
        /// Which job this is.
        job: JobId,
        /// The driver's term.
        term: Term,
        /// What its workers run.
        program: ProgramSpec,
        /// How long waits may last.
        deadlines: Deadlines,
        /// What becomes of their output.
        output: Box<OutputSettings>,
    },
    /// The answer to a `Join` that is not taken: the agent ends with this reason.
    Refused {
        /// Why.
        reason: String,
    },
    /// Start a worker. Repeating it for a worker that was started already changes nothing.
    Start {
        /// Who.
        worker: WorkerId,
        /// Its environment beside the program's (RANK, MASTER_ADDR, ELASTIC_WORKER, …).
        environment: Vec<(String, String)>,
        /// Its place in the one generation that it lives for; none for a worker that goes from one to the next.
        place: Option<ProcessPlace>,
        /// The secret with which it joins; goes into its environment and nowhere else.
        credential: String,
    },
    /// Stop a worker: SIGTERM, then SIGKILL after the grace period.
    Stop {
        /// Who.
        worker: WorkerId,
        /// Milliseconds between the two; 0 is SIGKILL at once.
        grace_ms: u64,
        /// Why.
        reason: String,
    },
    /// The job is over, or the host is out of it: stop what still runs, then end with this code.
    Leave {
        /// Exit code of the agent.
        code: i32,
        /// Why.
        reason: String,
    },
}
