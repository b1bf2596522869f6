//! What the driver's core wants done. Carried out by `actor.rs`, and by the simulation.

use elastic_protocol::messages::{DriverToAgent, DriverToWorker, KnownDrivers, ProcessPlace, Vote};
use elastic_protocol::{
    ExitStatus, GenerationId, HostName, JobResult, NodeId, ResetCause, Stamp, WorkerId,
};
use serde::Serialize;

/// One thing to do, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverOutput {
    /// Tell an agent.
    ToAgent {
        /// Which.
        to: NodeId,
        /// What.
        message: DriverToAgent,
    },
    /// Tell an agent to start a worker; whoever carries this out adds the worker's credential.
    StartWorker {
        /// Which agent.
        agent: NodeId,
        /// Whom.
        worker: WorkerId,
        /// With what environment, beside the program's and the credential.
        environment: Vec<(String, String)>,
        /// Its place in the one generation that it lives for, if it lives for one.
        place: Option<ProcessPlace>,
    },
    /// Tell a worker.
    ToWorker {
        /// Whom.
        to: WorkerId,
        /// What.
        message: DriverToWorker,
    },
    /// Tell the same to many workers, in this order: it is encoded once.
    ToWorkers {
        /// Whom.
        to: Vec<WorkerId>,
        /// What.
        message: DriverToWorker,
    },
    /// Tell agents and workers where a driver may be found.
    KnownDrivers {
        /// Whom.
        to: Vec<NodeId>,
        /// What.
        message: KnownDrivers,
    },
    /// Tell the registry that a generation begins.
    OpenGeneration {
        /// Which.
        stamp: Stamp,
        /// Its members.
        members: Vec<WorkerId>,
    },
    /// Tell the registry how a member's process ended.
    Vote(Vote),
    /// Ask the registry whose READY or SYNCED is missing, for `handle_missing`.
    NameMissing {
        /// The generation.
        stamp: Stamp,
    },
    /// Tell the host manager that a host's agent is there.
    HostJoined {
        /// Which host.
        host: HostName,
        /// Its slots.
        slots: u32,
    },
    /// Tell the host manager that a host's agent has gone.
    HostLeft {
        /// Which host.
        host: HostName,
    },
    /// Tell the host manager that a host is to be blacklisted.
    HostFailed {
        /// Which host.
        host: HostName,
        /// Why.
        reason: String,
    },
    /// Write to the event log.
    Event(Event),
    /// The job is over and everyone has left, or had the time to: the driver ends with this result.
    Ended(JobResult),
    /// The journal is lost to this driver, or another acts: it ends at once and says nothing to anybody, and the
    /// job goes on without it.
    Abandoned {
        /// Why.
        reason: String,
    },
    /// It ends at once, as it was asked to; one that stands by goes on with the job.
    HandedOver,
}

/// One line of the event log, less its time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// The driver's term.
    pub term: u64,
    /// The generation at the time.
    pub generation: u64,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// A host's agent joined.
    HostJoined {
        /// Which host.
        host: HostName,
        /// Its slots.
        slots: u32,
    },
    /// An agent was not taken.
    HostRefused {
        /// Which host.
        host: HostName,
        /// Why.
        reason: String,
    },
    /// A host's agent has gone.
    HostLost {
        /// Which host.
        host: HostName,
        /// How it was noticed.
        reason: String,
    },
    /// The hosts that the job may use changed.
    HostsChanged {
        /// `name:slots`, the oldest first; blacklisted ones in parentheses.
        hosts: Vec<String>,
    },
    /// A worker's process is to be started.
    WorkerStarted {
        /// Whom.
        worker: String,
    },
    /// A worker attached.
    WorkerAttached {
        /// Who.
        worker: String,
        /// Its process id.
        pid: u32,
    },
    /// A worker's process ended.
    WorkerExited {
        /// Who.
        worker: String,
        /// How.
        #[serde(serialize_with = "as_text")]
        status: ExitStatus,
        /// Whether that was asked for.
        expected: bool,
        /// Whether SIGKILL was needed after the grace period.
        killed_after_grace: bool,
    },
    /// A worker was told to end, and why.
    WorkerStopped {
        /// Whom.
        worker: String,
        /// Why.
        reason: String,
    },
    /// A generation was assigned.
    GenerationFormed {
        /// Its members by rank.
        members: Vec<String>,
        /// The rank that the others take their state from; none: all hold the same.
        root: Option<u32>,
        /// The step that it begins at.
        step: u64,
    },
    /// A generation trains.
    GenerationRunning {
        /// Its world size.
        world_size: u32,
    },
    /// A generation is to end.
    ResetDecided {
        /// Why.
        #[serde(serialize_with = "as_text")]
        cause: ResetCause,
        /// `interrupt` or `abort`.
        way: &'static str,
    },
    /// A planned end was called off.
    ResetCalledOff {
        /// Why.
        reason: String,
    },
    /// A generation of processes that were to live for it ended before it trained: its program has turned out to be
    /// elastic in process, and every process is kept for the next one.
    GenerationTakenBack {
        /// Who attached first.
        worker: String,
    },
    /// A reset is complete: a new generation trains.
    ResetDone {
        /// Why it was.
        cause: String,
        /// The generation that ended.
        from: GenerationId,
        /// Milliseconds by phase.
        ms: elastic_protocol::messages::PhaseMs,
        /// Steps beyond the last commit that an abort undid (the most of any rank).
        steps_lost: u64,
    },
    /// A driver goes on where a former one ended.
    TakeoverBegun {
        /// Hosts whose agents are awaited.
        hosts: usize,
        /// Workers' processes that were there.
        workers: usize,
    },
    /// Those who were there under the former driver are back or lost.
    TakeoverDone {
        /// Hosts and members that did not come back.
        lost: usize,
        /// Milliseconds since this driver began.
        ms: f64,
    },
    /// Drivers that stand by came or went.
    StandbysChanged {
        /// Where they are reached.
        standbys: Vec<String>,
    },
    /// This driver was asked to end, and leaves the job to those that stand by.
    HandedOver {
        /// Where they are reached.
        to: Vec<String>,
    },
    /// This driver may not act any more; the job goes on without it.
    Abandoned {
        /// Why.
        reason: String,
    },
    /// Something that only somebody outside can mend.
    Warning {
        /// What.
        message: String,
    },
    /// The job is over.
    JobEnded {
        /// How.
        result: JobResult,
    },
}

fn as_text<T: ToString, S: serde::Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}
