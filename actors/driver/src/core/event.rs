//! Events of the driver's core. The event log, the terminal, the page and the metrics are made from them. The core puts
//! them among its outputs. Observers outside of the core read them.

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

impl EventKind {
    /// Most [`EventKind::WorkerFailed`] of one generation.
    pub const WORKERS_FAILED_MAX: usize = 4;
}

/// Kinds of events. Readers of the log (`observe`) parse them into these types again.
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
        /// Duration in milliseconds; none: for good.
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
    /// A member's training function failed after the end of its generation was decided for another cause.
    WorkerFailed {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// Its error.
        error: String,
    },
    /// A worker's process could not be started.
    WorkerNotStarted {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// Reason of the failed start, such as the operating system's error message.
        reason: String,
    },
    /// The kernel's OOM killer has ended a worker's process. Follows its exit.
    WorkerOutOfMemory {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// Reading of the kernel's OOM counters, in words that follow the worker's name and `was`.
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
        /// Number of members that wait.
        waiting: usize,
        /// Time for which they have waited, in milliseconds.
        late_ms: u64,
        /// Present activity of the worker's process, in words that follow its name.
        doing: String,
        /// The Python stack of each of its threads; none if there is none, or if it is not wanted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stack: Option<String>,
        /// The native stack of its main thread; none if it is not wanted, or cannot be had.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        native_stack: Option<String>,
        /// Grounds on which a member by restart is taken to hang, and how sure they are; none for other members.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grounds: Option<HangGrounds>,
        /// Time since a stopped process was last heard, in milliseconds. The worker is given up for its silence, and the reset
        /// follows. None for other hangs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        silent_ms: Option<u64>,
    },
    /// A member that hung goes on.
    StallEnded {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// Time for which the others had waited for it, in milliseconds.
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
        /// Ratio of its time of computation to the median of its peers' times.
        factor: f64,
        /// Ratio of its time of computation to its own usual time before; absent while too little is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        own_factor: Option<f64>,
        /// Its time of computation in a step, in milliseconds.
        compute_ms: f64,
        /// The median of its peers' times, in milliseconds.
        peers_ms: f64,
        /// Time for which it has been slow, in milliseconds.
        slow_ms: f64,
    },
    /// A member that was named as slow is as fast as the others again.
    StragglerRecovered {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// Its rank.
        rank: u32,
        /// Time for which it was slow, in milliseconds.
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
        /// Ratio of the median of the other links' rates to its rate.
        factor: f64,
        /// Its rate, in megabytes a second.
        rate_mb_per_s: f64,
        /// The median of the others' rates, in megabytes a second.
        others_mb_per_s: f64,
        /// Delay that the slow link adds to a step of the receiver, in milliseconds.
        loss_ms: f64,
        /// Time for which it has been slow, in milliseconds.
        slow_ms: f64,
    },
    /// A link that was named as slow is as fast as the others again.
    SlowLinkRecovered {
        /// The host that sends.
        from: HostName,
        /// The host that receives.
        to: HostName,
        /// Time for which it was slow, in milliseconds.
        ms: f64,
    },
    /// Shares of the members' step time that were not computation. Written every 30 s, every 5 s while a member is named as
    /// slow, when one is named, and when a generation ends.
    StepsMeasured {
        /// Length of the measured span, which ends now, in milliseconds.
        ms: f64,
        /// Share of the span in which the members' training threads waited for data.
        data: f64,
        /// Share in which they copied the state for their commits.
        commit: f64,
        /// Share in which they waited for members that were named as slow.
        straggler: f64,
        /// The slowest of these stragglers; absent if nobody waited for one.
        #[serde(default, with = "event_form::texts", skip_serializing_if = "Vec::is_empty")]
        slowest: Vec<WorkerId>,
    },
    /// A member is replaced, since it hangs or is slow (`--on-hang replace`, `--on-straggler replace`). Its slot rests for
    /// a cool-down: it is used only if there would be fewer workers than `--min-np` without it.
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
        /// Reason of the replacement.
        why: ReplacedFor,
        /// Number of spare slots that take their places; without one, the job goes on with fewer workers.
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
        /// Reason for which it should be replaced.
        why: ReplacedFor,
        /// Reason for which it is not replaced.
        reason: String,
    },
    /// Effect of a replacement: the duration of steps in the generation after it.
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
        /// Median of the steps before, in milliseconds; absent if the job stood still.
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
        /// The slots of the host that are at rest.
        slots: Vec<u32>,
        /// Reason of the failure.
        reason: String,
        /// The last lines of its output.
        output: String,
    },
    /// Shards are dealt anew (`--on-straggler rebalance`): slow members are to carry fewer logical shards, or members that
    /// are fast again as many as the others. The same members begin the next generation with the new deal.
    ShardsRebalanced {
        /// The workers whose paces have changed.
        #[serde(with = "event_form::texts")]
        workers: Vec<WorkerId>,
        /// Their ranks.
        ranks: Vec<u32>,
        /// Ratio of each one's time for a shard to its peers' time; 1 for those that are fast again.
        factors: Vec<f64>,
        /// The number of shards of each rank before.
        counts_before: Vec<u32>,
        /// The number of shards of each rank from now on.
        shard_counts: Vec<u32>,
        /// Median of the steps before, in milliseconds.
        before_ms: f64,
        /// Expected median of the steps after the deal, in milliseconds.
        predicted_ms: f64,
    },
    /// A slow member does not carry fewer shards, although the operator wants it.
    NotRebalanced {
        /// The worker.
        #[serde(with = "event_form::text")]
        worker: WorkerId,
        /// Its rank.
        rank: u32,
        /// Reason for which it does not.
        reason: String,
    },
    /// Effect of a new deal of shards: the duration of steps with it.
    RebalanceTook {
        /// The workers whose paces had changed.
        #[serde(with = "event_form::texts")]
        workers: Vec<WorkerId>,
        /// The number of shards of each rank.
        shard_counts: Vec<u32>,
        /// Median of the steps before, in milliseconds.
        before_ms: f64,
        /// Expected median of the steps, in milliseconds.
        predicted_ms: f64,
        /// Median of the steps now, in milliseconds.
        after_ms: f64,
    },
    /// Members hold another content of an array than the majority, or no majority agrees on it.
    ReplicasDiffer {
        /// The array, as the program names it.
        tensor: String,
        /// Step of the first commit in which the difference was seen.
        step: u64,
        /// The workers; without a majority, all.
        #[serde(with = "event_form::texts")]
        workers: Vec<WorkerId>,
        /// Their ranks.
        ranks: Vec<u32>,
        /// Number of ranks that agree with each other.
        agreeing: u32,
        /// Number of ranks that were compared.
        members: u32,
    },
    /// An array is not compared between the members.
    NotCompared {
        /// The array; empty: the whole state.
        tensor: String,
        /// The reason, in words that follow the array's name.
        reason: String,
    },
    /// A generation is to end.
    ResetDecided {
        /// The reason.
        #[serde(flatten, with = "event_form::cause")]
        cause: ResetCause,
        /// Way in which the generation ends.
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
        /// Training time since the last commit that an abort undid, in milliseconds, the most of any rank.
        #[serde(default)]
        lost_ms: u64,
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
        /// Least number of lost steps, with those after the last commit.
        steps_lost: u64,
        /// Whether more may be lost: the members trained while no driver lived, and none of them is left that could tell.
        #[serde(default)]
        unseen: bool,
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
        /// Steps that were told to be lost and are in this checkpoint: no driver had heard of it.
        #[serde(default)]
        regained: u64,
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

/// Reason for which a member is replaced.
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
    /// All ways.
    pub const ALL: [Self; 3] = [Self::Interrupt, Self::Abort, Self::Restart];

    /// Name in the event log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupt",
            Self::Abort => "abort",
            Self::Restart => "restart",
        }
    }
}
