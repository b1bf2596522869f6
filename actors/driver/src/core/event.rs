//! Events of the driver's core: what the event log, the terminal, the page and metrics are told. `journaling` puts them among the
//! outputs; observers outside of the core read them.

use std::collections::BTreeMap;
use std::fmt;

use elastic_protocol::messages::{HangGrounds, JobPhase, UnreachableHost};
use elastic_protocol::{ExitStatus, GenerationId, HostName, JobResult, ResetCause, Term, WorkerId};
use serde::{Deserialize, Serialize};

use super::event_form::{self, ListedHost};

/// One line of the event log, without its time.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct DriverEvent {
    /// The driver's term.
    pub term: Term,
    /// The generation at the time.
    pub generation: GenerationId,
    /// The kind of event, with its fields.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Kinds of events. What reads the log reads them back as these types (`observe`).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// A host's agent joined.
    HostJoined {
        /// The host.
        host: HostName,
        /// Number of its slots.
        slots: u32,
    },
    /// An agent was refused.
    HostRefused {
        /// The host.
        host: HostName,
        /// The reason.
        reason: String,
    },
    /// A host's agent has gone.
    HostLost {
        /// The host.
        host: HostName,
        /// Evidence of the loss.
        reason: String,
    },
    /// A host gets no workers because of its failures.
    HostBlacklisted {
        /// The host.
        host: HostName,
        /// The last failure.
        reason: String,
        /// For how long, in milliseconds; none: for good.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<f64>,
    },
    /// The operator has taken a host out: its workers leave in order.
    HostDrained {
        /// The host.
        host: HostName,
    },
    /// A host that was blacklisted or drained may have workers again.
    HostReadmitted {
        /// The host.
        host: HostName,
    },
    /// Two hosts do not reach each other, although the driver hears both: a generation broke between them.
    HostUnreachable(UnreachableHost),
    /// The hosts that the job may use changed.
    HostsChanged {
        /// The workers that the next generation needs.
        #[serde(default)]
        needed: u32,
        /// The workers that any generation after it needs.
        #[serde(default)]
        min_np: u32,
        /// `name:slots`, the oldest first; those that get no workers in parentheses.
        #[serde(with = "event_form::texts")]
        hosts: Vec<ListedHost>,
    },
    /// A worker's process is to be started.
    WorkerStarted {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
    },
    /// A worker's process runs.
    ProcessStarted {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// The process id.
        pid: u32,
    },
    /// A worker attached.
    WorkerAttached {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// The process id.
        pid: u32,
    },
    /// A worker's process ended.
    WorkerExited {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// The exit status.
        #[serde(with = "event_form::status")]
        status: ExitStatus,
        /// Whether the driver or the agent had asked for the end.
        expected: bool,
        /// Whether SIGKILL was needed after the grace period.
        killed_after_grace: bool,
    },
    /// A worker's process could not be started.
    WorkerNotStarted {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// What the system said.
        reason: String,
    },
    /// The kernel's OOM killer has ended a worker's process. Follows its exit.
    WorkerOutOfMemory {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// Where the kernel counted it.
        detail: String,
    },
    /// A worker was told to end, and why.
    WorkerStopped {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// The reason.
        reason: String,
    },
    /// A generation was assigned.
    GenerationFormed {
        /// The members by rank.
        #[serde(with = "event_form::texts")]
        members: Vec<WorkerId>,
        /// Rank of the root, from which the others take their state; none: all hold the same state.
        root: Option<u32>,
        /// Step at which the generation begins.
        step: u64,
    },
    /// A generation trains.
    GenerationRunning {
        /// The world size.
        world_size: u32,
    },
    /// A member hangs: others have waited for it in a collective for longer than is usual.
    WorkerStalled {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// Its rank.
        rank: u32,
        /// Its process; none if it is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        /// The collective that the others wait in, such as `all_reduce, call 17`.
        operation: String,
        /// How many wait.
        waiting: usize,
        /// How long they have waited, in milliseconds.
        late_ms: u64,
        /// What the worker's process does instead, in words that follow its name.
        doing: String,
        /// The Python stack of each of its threads; none where there is none, or where it is not wanted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stack: Option<String>,
        /// The native stack of its main thread; none where it is not wanted, or cannot be had.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        native_stack: Option<String>,
        /// By restart, why it is taken to hang, and how sure that is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grounds: Option<HangGrounds>,
        /// For a process that somebody has stopped: how long it has not been heard, in milliseconds. It is given up for that,
        /// and its reset follows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        silent_ms: Option<u64>,
    },
    /// A member that hung goes on.
    StallEnded {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// How long the others had waited for it, in milliseconds.
        ms: f64,
        /// Whether the wait counts among the usual ones of steps from now on. It does not if the process was stopped or
        /// frozen, had not committed yet, or was in a section of its program, nor if it goes on for other members.
        usual: bool,
    },
    /// A member has computed for longer than the others for a while: they wait for it in each step.
    StragglerFound {
        /// The worker; of several of one host, the one that was slow first.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// Its rank.
        rank: u32,
        /// The ranks that are slow, this one among them: several if their host is at fault.
        ranks: Vec<u32>,
        /// Whether its host is at fault: several of its members are slow, and none elsewhere.
        is_host: bool,
        /// How many times as long as the median of its peers it computes.
        factor: f64,
        /// How many times as long as before it computes; absent while too little is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        own_factor: Option<f64>,
        /// Its time of computation in a step, in milliseconds.
        compute_ms: f64,
        /// The median of its peers' times, in milliseconds.
        peers_ms: f64,
        /// How long it has been slow, in milliseconds.
        slow_ms: f64,
    },
    /// A member that was named as slow is as fast as the others again.
    StragglerRecovered {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// Its rank.
        rank: u32,
        /// How long it was slow, in milliseconds.
        ms: f64,
    },
    /// A link between two hosts carries data more slowly than the others do, and its receiver waits for that in each step.
    SlowLinkFound {
        /// The host that sends.
        from: HostName,
        /// The host that receives.
        to: HostName,
        /// The host at fault, if all of its links in this direction are slow; absent if it is this link alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<HostName>,
        /// How many times as fast the median of the other links is.
        factor: f64,
        /// Its rate, in megabytes a second.
        rate_mb_per_s: f64,
        /// The median of the others' rates, in megabytes a second.
        others_mb_per_s: f64,
        /// What its receiver loses in a step, in milliseconds.
        loss_ms: f64,
        /// How long it has been slow, in milliseconds.
        slow_ms: f64,
    },
    /// A link that was named as slow is as fast as the others again.
    SlowLinkRecovered {
        /// The host that sends.
        from: HostName,
        /// The host that receives.
        to: HostName,
        /// How long it was slow, in milliseconds.
        ms: f64,
    },
    /// What the time of the members' steps went into, beside their computation. Told every 30 s, every 5 s while a
    /// member is named as slow, when one is named, and when a generation ends.
    StepsMeasured {
        /// The time that it is about, up to now, in milliseconds.
        ms: f64,
        /// Share of it in which the members' training threads waited for data.
        data: f64,
        /// Share of it in which they made the copies of their commits.
        commit: f64,
        /// Share of it in which they waited for members that were named as slow.
        straggler: f64,
        /// The slowest of those; absent where there is none.
        #[serde(default, with = "event_form::texts", skip_serializing_if = "Vec::is_empty")]
        slowest: Vec<WorkerId>,
    },
    /// A member is replaced, since it hangs or is slow (`--on-hang replace`, `--on-straggler replace`). Its slot rests for
    /// a cool-down: it is used only where there would be fewer workers than `--min-np` without it.
    WorkerReplaced {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// Its rank.
        rank: u32,
        /// The ranks that are replaced, this one among them: several if their host is at fault.
        ranks: Vec<u32>,
        /// Whether the host is at fault, and all of its members are replaced.
        is_host: bool,
        /// Why.
        why: ReplacedFor,
        /// How many spare slots take their places; without one, the job goes on with fewer workers.
        spares: u32,
        /// The longest cool-down of these slots, in seconds.
        rest_s: f64,
    },
    /// A member that hangs or is slow is not replaced, although the operator wants it.
    WorkerNotReplaced {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// Its rank.
        rank: u32,
        /// Why it should be.
        why: ReplacedFor,
        /// Why it is not.
        reason: String,
    },
    /// The effect of a replacement: how long steps take in the generation after it.
    ReplacementTook {
        /// The worker that was replaced.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// The workers that have come since.
        #[serde(with = "event_form::texts")]
        by: Vec<WorkerId>,
        /// The world size before.
        world_before: u32,
        /// The world size now.
        world_size: u32,
        /// Median of the steps before, in milliseconds; absent where the job stood still.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before_ms: Option<f64>,
        /// Median of the steps now, in milliseconds.
        after_ms: f64,
    },
    /// The cool-down of a slot is over: it may have a worker like any other.
    SlotRested {
        /// The host.
        host: HostName,
        /// The slot.
        slot: u32,
    },
    /// A host whose worker was replaced has passed its health check (`--health-check`).
    HealthCheckPassed {
        /// The host.
        host: HostName,
    },
    /// The health check of a host whose worker was replaced has failed: its slots at rest are closed until one passes.
    HealthCheckFailed {
        /// The host.
        host: HostName,
        /// These slots.
        slots: Vec<u32>,
        /// How the check ended.
        reason: String,
        /// The last lines of its output.
        output: String,
    },
    /// Slow members are to carry fewer logical shards, or those that are fast again as many as the others
    /// (`--on-straggler rebalance`): the same members begin the next generation with another deal.
    ShardsRebalanced {
        /// The workers whose paces have changed.
        #[serde(with = "event_form::texts")]
        workers: Vec<WorkerId>,
        /// Their ranks.
        ranks: Vec<u32>,
        /// How many times as long as its peers each of them takes for a shard; 1 for those that are fast again.
        factors: Vec<f64>,
        /// The number of shards of each rank before.
        counts_before: Vec<u32>,
        /// The number of shards of each rank from now on.
        shard_counts: Vec<u32>,
        /// Median of the steps before, in milliseconds.
        before_ms: f64,
        /// The expected one after it, in milliseconds.
        predicted_ms: f64,
    },
    /// A slow member does not carry fewer shards, although the operator wants it.
    NotRebalanced {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// Its rank.
        rank: u32,
        /// Why not.
        reason: String,
    },
    /// The effect of another deal of shards: how long steps take by it.
    RebalanceTook {
        /// The workers whose paces had changed.
        #[serde(with = "event_form::texts")]
        workers: Vec<WorkerId>,
        /// The number of shards of each rank.
        shard_counts: Vec<u32>,
        /// Median of the steps before, in milliseconds.
        before_ms: f64,
        /// The expected one, in milliseconds.
        predicted_ms: f64,
        /// Median of the steps now, in milliseconds.
        after_ms: f64,
    },
    /// Members hold an array otherwise than the majority, or no majority agrees on it.
    ReplicasDiffer {
        /// The array, as the program names it.
        tensor: String,
        /// The first commit in which it was seen.
        step: u64,
        /// The workers; without a majority, all.
        #[serde(with = "event_form::texts")]
        workers: Vec<WorkerId>,
        /// Their ranks.
        ranks: Vec<u32>,
        /// How many ranks agree with each other.
        agreeing: u32,
        /// How many were compared.
        members: u32,
    },
    /// An array is not compared between the members.
    NotCompared {
        /// The array; empty: the whole state.
        tensor: String,
        /// Why, in words that follow its name.
        reason: String,
    },
    /// A generation is to end.
    ResetDecided {
        /// The reason.
        #[serde(flatten, with = "event_form::cause")]
        cause: ResetCause,
        /// How the generation ends.
        way: ResetWay,
    },
    /// A planned end was called off.
    ResetCalledOff {
        /// The reason.
        reason: String,
    },
    /// A generation ended before it trained (`--mode auto`). Its processes were to live for it only, but the program
    /// turned out to be elastic in process. Every process is kept for the next generation.
    GenerationTakenBack {
        /// The worker that attached first.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
    },
    /// A reset is complete: a new generation trains.
    ResetDone {
        /// The cause of the reset.
        #[serde(flatten, with = "event_form::cause")]
        cause: ResetCause,
        /// The generation that ended.
        from: GenerationId,
        /// Duration of the reset by phase, in milliseconds.
        ms: elastic_protocol::messages::PhaseMs,
        /// Lost steps: those beyond the last commit that an abort undid, the most of any rank, and committed ones that
        /// no worker holds any more.
        steps_lost: u64,
    },
    /// The first steps after a reset: when each host of the new generation was READY, was SYNCED and had trained a
    /// step. Follows `ResetDone`.
    FirstSteps {
        /// The generation that ended.
        from: GenerationId,
        /// The hosts.
        hosts: BTreeMap<HostName, HostResetMs>,
    },
    /// Committed steps are lost, since every worker that held them is gone.
    StateLost {
        /// Highest step that all members of a generation are known to have committed.
        committed: u64,
        /// Step at which training goes on; 0: from the start.
        begins_at: u64,
        /// Lost steps, with those after the last commit; at least so many.
        steps_lost: u64,
    },
    /// A new driver takes over from a former one.
    TakeoverBegun {
        /// Number of hosts whose agents are awaited.
        hosts: usize,
        /// Number of workers' processes on record.
        workers: usize,
        /// Members of the generation on record, by rank; empty without one.
        #[serde(default, with = "event_form::texts")]
        members: Vec<WorkerId>,
        /// Phase of that generation, as it is on record.
        #[serde(default = "event_form::gather")]
        phase: JobPhase,
    },
    /// The takeover is complete: all agents and workers of the former driver are back or lost.
    TakeoverDone {
        /// Number of hosts and members that did not come back.
        lost: usize,
        /// Milliseconds since this driver began.
        ms: f64,
    },
    /// Standby drivers came or went.
    StandbysChanged {
        /// Addresses of the standbys.
        standbys: Vec<String>,
    },
    /// This driver was asked to end, and leaves the job to the standbys.
    HandedOver {
        /// Addresses of the standbys.
        to: Vec<String>,
    },
    /// This driver has lost the leader lease. The job goes on without it.
    Abandoned {
        /// The reason.
        reason: String,
    },
    /// A commit is durable on storage.
    CheckpointSaved {
        /// The step.
        step: u64,
        /// Bytes of all files.
        bytes: u64,
        /// Milliseconds since the save was ordered.
        ms: f64,
    },
    /// A commit was not saved, or its save is slow. Training goes on.
    CheckpointFailed {
        /// The step.
        step: u64,
        /// The reason.
        reason: String,
    },
    /// The operator ends the job. The next commit is saved first.
    Stopping {
        /// The request: a signal, or `elastic-node stop`.
        reason: String,
        /// Milliseconds after which the job ends even without that checkpoint.
        within_ms: u64,
    },
    /// No worker held a commit, and the root has looked for a checkpoint.
    CheckpointLoaded {
        /// The step of the checkpoint that training begins from; none: it begins from the start.
        step: Option<u64>,
        /// Checkpoints that were passed over or set aside, with the reasons.
        notes: Vec<String>,
    },
    /// A condition that needs the operator's attention.
    Warning {
        /// The warning.
        message: String,
    },
    /// The job is over.
    JobEnded {
        /// The job's result.
        result: JobResult,
    },
}

/// A host's part in a reset, in milliseconds since the decision. The host's last rank counts.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct HostResetMs {
    /// READY of its last rank.
    pub ready: f64,
    /// SYNCED of its last rank.
    pub synced: f64,
    /// The first commit of its last rank that had not ended before; none if one had not committed when this was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<f64>,
}

/// Why a member is replaced.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplacedFor {
    /// Others have waited for it for too long.
    Hang,
    /// It is slower than the others, which wait for it in each step.
    Slow,
}

/// In words that follow the worker's name.
impl fmt::Display for ReplacedFor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Hang => "hangs",
            Self::Slow => "is slow",
        })
    }
}

/// Ways to end a generation.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ResetWay {
    /// Planned end: every rank stops at one boundary and keeps its live state.
    Interrupt,
    /// Unplanned end: every rank rolls back to its last commit at once.
    Abort,
    /// End by restart: the generation's processes are stopped, and others are started for the next one.
    Restart,
}

impl ResetWay {
    /// Name in the event log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupt",
            Self::Abort => "abort",
            Self::Restart => "restart",
        }
    }
}
