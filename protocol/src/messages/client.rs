//! Messages between a client, such as `elastic-node status`, and the driver; and the object of `status --json`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::words::counted;

use super::condition::{HealthCondition, HostCondition, JobPhase, WorkerCondition};
use super::divergence::{DivergentReplica, UncomparedTensor};
use super::drivers::DriverStatus;
use super::link::SlowLink;
use super::moved::MovedBytes;
use super::reported::ReportedValues;
use super::standstill::{AwaitedWorker, StalledWorker};
use super::straggler::StragglingWorker;
use crate::ids::{HostName, JobId};
use crate::job::JobResult;

/// Questions and requests of a client.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum ClientRequest {
    /// The status, once.
    Status,
    /// End the job, as Ctrl-C at the driver does; a second request ends it at once.
    Stop,
    /// Take a host out: its workers leave in order, and it gets no others until it is let in again.
    Drain {
        /// The host.
        host: HostName,
    },
    /// Let a host in again that was drained or blacklisted.
    Readmit {
        /// The host.
        host: HostName,
    },
}

/// Answers of the driver.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum ClientResponse {
    /// The status.
    Status(Box<StatusReport>),
    /// The request is carried out.
    Done,
    /// There is nothing to do: the requested state holds already.
    DoneAlready,
    /// The request cannot be carried out.
    Refused {
        /// The reason.
        reason: String,
    },
}

/// The job at a glance: the object that `status --json` prints.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct StatusReport {
    /// The job's id.
    pub job: JobId,
    /// The driver's term.
    pub term: u64,
    /// The driver that acts.
    #[serde(default)]
    pub driver: DriverStatus,
    /// The drivers that stand by for it.
    #[serde(default)]
    pub standbys: Vec<DriverStatus>,
    /// The current, or last, generation.
    pub generation: u64,
    /// The phase of the job.
    pub phase: JobPhase,
    /// Members of the current generation.
    pub world_size: u32,
    /// Fewest workers with which the job goes on.
    pub min_np: u32,
    /// Most workers; `None` without a cap.
    pub max_np: Option<u32>,
    /// The job's logical shards; `None` unless the driver was told them.
    #[serde(default)]
    pub shards: Option<u32>,
    /// Resets so far.
    pub resets: u64,
    /// Steps that they have lost, as far as is known.
    #[serde(default)]
    pub steps_lost: u64,
    /// Hosts in order, the oldest first.
    pub hosts: Vec<HostStatus>,
    /// Workers, members by rank first.
    pub workers: Vec<WorkerStatus>,
    /// The last reset.
    pub last_reset: Option<ResetStatus>,
    /// The last resets, the oldest first, the one under way or `last_reset` among them; at most
    /// [`StatusReport::RESETS_RECENT_MAX`].
    #[serde(default)]
    pub resets_recent: Vec<ResetStatus>,
    /// The bytes that members move in bulk now, in all: the state of a new generation, or a checkpoint.
    #[serde(default)]
    pub moved: Option<MovedBytes>,
    /// Workers present for the next generation, and workers needed. `None` while a generation is under way.
    #[serde(default)]
    pub gather: Option<GatherStatus>,
    /// The workers that the job waits for, and why, when it stands still (G-9).
    pub waiting_for: Option<String>,
    /// The workers that others, or the job, wait for; at most [`StatusReport::AWAITED_MAX`].
    #[serde(default)]
    pub awaited: Vec<AwaitedWorker>,
    /// Workers that hang in a generation that trains; at most [`StatusReport::AWAITED_MAX`].
    #[serde(default)]
    pub stalled: Vec<StalledWorker>,
    /// Members whose steps take longer than those of the others, which wait for them; at most
    /// [`StatusReport::AWAITED_MAX`].
    #[serde(default)]
    pub stragglers: Vec<StragglingWorker>,
    /// Links between hosts that are slower than the others, for which their receivers wait; at most
    /// [`StatusReport::AWAITED_MAX`].
    #[serde(default)]
    pub slow_links: Vec<SlowLink>,
    /// Arrays that ranks hold otherwise than most of the others; at most [`StatusReport::DIVERGENCE_MAX`].
    #[serde(default)]
    pub divergence: Vec<DivergentReplica>,
    /// Arrays that are not compared, with the reasons; at most [`StatusReport::AWAITED_MAX`].
    #[serde(default)]
    pub not_compared: Vec<UncomparedTensor>,
    /// Troubles that only a person can mend, such as a failing discovery script.
    pub warnings: Vec<String>,
    /// Hosts that do not reach each other, although the driver hears both: the last generation broke between them.
    #[serde(default)]
    pub unreachable: Vec<UnreachableHost>,
    /// The lanes of the driver's process: threads for work that may block.
    #[serde(default)]
    pub lanes: Vec<LaneStatus>,
    /// Use of the time of every slot since the job began. `None` if the driver's process keeps no account of it.
    #[serde(default)]
    pub goodput: Option<GoodputStatus>,
    /// The durable checkpoints; absent without `--checkpoint`.
    #[serde(default)]
    pub checkpoint: Option<CheckpointStatus>,
    /// The address of the job's page; absent without one.
    #[serde(default)]
    pub dashboard: Option<String>,
    /// Messages of old generations or dead incarnations that were dropped (G-2).
    pub dropped_messages: u64,
    /// The job's result, once the job has ended.
    #[serde(default)]
    pub result: Option<JobResult>,
    /// The driver's wall clock when it answered, in RFC 3339; absent from the driver's own copies.
    #[serde(default)]
    pub answered_at: Option<String>,
}

impl StatusReport {
    /// Most workers that are named as awaited, as stalled, or as stragglers, and links as slow.
    pub const AWAITED_MAX: usize = 8;

    /// Most arrays of ranks that are named as different.
    pub const DIVERGENCE_MAX: usize = 16;
    /// Most resets in the report.
    pub const RESETS_RECENT_MAX: usize = 16;
}

/// One line: the job's phase, and the object of its wait.
impl fmt::Display for StatusReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waited_for = self.waiting_for.as_deref().unwrap_or("nobody");
        let Self { phase, generation, .. } = self;
        write!(formatter, "phase {phase}, generation {generation}, waiting for {waited_for}")?;
        for (index, worker) in self.workers.iter().enumerate() {
            let lead = if index == 0 { "; workers: " } else { ", " };
            write!(formatter, "{lead}{}:{} {}", worker.host, worker.slot, worker.state)?;
        }
        for (index, host) in self.hosts.iter().enumerate() {
            let lead = if index == 0 { "; hosts: " } else { ", " };
            write!(formatter, "{lead}{} {}", host.name, host.state)?;
        }
        Ok(())
    }
}

/// Progress of the gather of workers for the next generation.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct GatherStatus {
    /// Workers that could be in it now.
    pub there: u32,
    /// Workers that it needs.
    pub needed: u32,
}

/// Goodput: the share of slot-seconds spent in training that was kept.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct GoodputStatus {
    /// Since the job began; none before a slot was there.
    pub since_start: Option<f64>,
    /// In the last ten minutes; none if no slot was there.
    pub last_10_min: Option<f64>,
    /// Seconds of all slots since the job began: the sum of `buckets`.
    pub slot_seconds: f64,
    /// Slot-seconds by bucket (docs/observability/goodput.md).
    pub buckets: BTreeMap<String, f64>,
    /// Slot-seconds of the bucket `straggler` by the worker that was waited for, as `host:slot`; at most
    /// [`GoodputStatus::STRAGGLERS_MAX`], those with the most.
    #[serde(default)]
    pub stragglers: BTreeMap<String, f64>,
}

impl GoodputStatus {
    /// Most workers that are named as stragglers.
    pub const STRAGGLERS_MAX: usize = 16;
}

/// The job's durable checkpoints.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CheckpointStatus {
    /// Their directory.
    pub directory: String,
    /// The step of the last one that is whole and safe.
    pub last_step: Option<u64>,
    /// When it became so, as RFC 3339; absent if that was under a former driver.
    pub at: Option<String>,
    /// The step that is being saved.
    pub saving: Option<u64>,
    /// The reason why the last save failed, or the ranks that a slow one waits for; absent once a save has succeeded
    /// since.
    pub failed: Option<String>,
}

/// A lane: a thread for work that may block, apart from all other work.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LaneStatus {
    /// `journal`, `discovery`, `event log` and so on; `actors` is the thread that decides and renews the lease.
    pub name: String,
    /// Time limit of one piece of work, in milliseconds; a longer one is named among the warnings.
    pub answers_within_ms: u64,
    /// Age of the current piece of work, in milliseconds, if it is past the limit.
    pub hanging_ms: Option<u64>,
    /// Lines dropped because the writer did not keep up.
    pub dropped_lines: u64,
}

impl LaneStatus {
    /// The same lane so much later, if it has hung on.
    pub fn after(&self, passed: Duration) -> Self {
        let passed_ms = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        let hanging_ms = self.hanging_ms.map(|ms| ms.saturating_add(passed_ms));
        Self { hanging_ms, ..self.clone() }
    }
}

/// A host that another one does not reach. With `from` equal to `to`, workers of that host do not reach each other.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct UnreachableHost {
    /// The host whose workers reported it.
    pub from: HostName,
    /// The host that they do not reach.
    pub to: HostName,
    /// Generations in a row that have broken between the two, in either direction.
    pub breaks: u32,
    /// The last report.
    pub error: String,
}

impl fmt::Display for UnreachableHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, breaks, error } = self;
        let breaks = counted(*breaks, "generation");
        if from == to {
            let what = "do not reach each other";
            return write!(formatter, "workers of host {to} {what} ({breaks} in a row): {error}");
        }
        write!(formatter, "host {from} does not reach host {to} ({breaks} in a row): {error}")
    }
}

/// One host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HostStatus {
    /// Its name.
    pub name: HostName,
    /// Its slots.
    pub slots: u32,
    /// Its condition.
    pub state: HostCondition,
    /// When a blacklisted host may come back, as RFC 3339; absent: never. Of a resting one, when its cool-down ends.
    #[serde(default)]
    pub until: Option<String>,
    /// The lanes of its agent that do not answer.
    #[serde(default)]
    pub lanes: Vec<LaneStatus>,
    /// State of the host's health check while a slot rests: `due`, `running`, `passed` or `failed`; absent without one.
    #[serde(default)]
    pub health_check: Option<HealthCondition>,
    /// The reason why the last health check failed; absent if it did not.
    #[serde(default)]
    pub health_failure: Option<String>,
}

/// One worker, or one slot without a worker.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct WorkerStatus {
    /// Its rank, if it is a member of the current generation.
    pub rank: Option<u32>,
    /// Its host.
    pub host: HostName,
    /// Its slot.
    pub slot: u32,
    /// Its process id, once known.
    pub pid: Option<u32>,
    /// Its condition.
    pub state: WorkerCondition,
    /// Its last commit.
    pub step: u64,
    /// Text that the program wants shown.
    #[serde(default)]
    pub note: String,
    /// The numbers that the program reports.
    #[serde(default)]
    pub reported: ReportedValues,
    /// Median time of its last steps, in milliseconds; absent until steps of the current generation were measured. A
    /// step is the time between two commits or checks for host updates.
    #[serde(default)]
    pub step_ms: Option<f64>,
    /// The part of that outside of collectives: computation, data, commits.
    #[serde(default)]
    pub compute_ms: Option<f64>,
    /// The part of that in which it was blocked in collectives, waiting for others or for data.
    #[serde(default)]
    pub waiting_ms: Option<f64>,
    /// The logical shards that it carries in a step; absent unless the driver was told the job's.
    #[serde(default)]
    pub shards: Option<u32>,
}

impl WorkerStatus {
    /// A slot of which nothing else is known: no process, no step, no figures.
    #[must_use]
    pub fn without_process(
        host: HostName,
        slot: u32,
        rank: Option<u32>,
        state: WorkerCondition,
    ) -> Self {
        Self {
            rank,
            host,
            slot,
            pid: None,
            state,
            step: 0,
            note: String::new(),
            reported: ReportedValues::default(),
            step_ms: None,
            compute_ms: None,
            waiting_ms: None,
            shards: None,
        }
    }
}

/// One reset.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ResetStatus {
    /// The generation that it led to; until that one stands, the generation that ended.
    pub generation: u64,
    /// The cause.
    pub cause: String,
    /// Time of the decision, as RFC 3339.
    pub at: String,
    /// Duration of each phase.
    pub ms: PhaseMs,
    /// Steps that it has lost, as far as is known.
    #[serde(default)]
    pub steps_lost: u64,
    /// Training time since the last commit that it has undone, in milliseconds, as far as is known.
    #[serde(default)]
    pub lost_ms: u64,
}

/// Phases of a reset, in milliseconds; a phase that has not ended is absent.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PhaseMs {
    /// From the first sign (a notice of death, or a silent node's last sign of life) to the decision.
    pub detect: f64,
    /// From the decision to READY from all.
    pub form: Option<f64>,
    /// From READY to SYNCED from all.
    pub sync: Option<f64>,
    /// Sum of the three phases.
    pub total: Option<f64>,
}
