//! Between `elastic-node status` (or any client) and the driver, and the `status --json` object.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::drivers::DriverStatus;
use crate::job::JobResult;

/// What a client asks.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum ClientRequest {
    /// The status, once.
    Status,
}

/// What the driver answers.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum ClientResponse {
    /// The status.
    Status(Box<StatusReport>),
}

/// The job at a glance: the object that `status --json` prints.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct StatusReport {
    /// The job's id.
    pub job: String,
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
    /// `gather`, `form`, `sync`, `run`, `succeeded` or `failed`.
    pub phase: String,
    /// Members of the current generation.
    pub world_size: u32,
    /// Fewest workers to go on with.
    pub min_np: u32,
    /// Most workers, if there is a cap.
    pub max_np: Option<u32>,
    /// Resets so far.
    pub resets: u64,
    /// Hosts in order, the oldest first.
    pub hosts: Vec<HostStatus>,
    /// Workers, members by rank first.
    pub workers: Vec<WorkerStatus>,
    /// The last reset.
    pub last_reset: Option<ResetStatus>,
    /// Who is waited for, and why, when the job stands still (G-9).
    pub waiting_for: Option<String>,
    /// What works again only when somebody mends it, such as a failing discovery script.
    pub warnings: Vec<String>,
    /// Messages of old generations or dead incarnations that were dropped (G-2).
    pub dropped_messages: u64,
    /// How the job ended, once it has.
    #[serde(default)]
    pub result: Option<JobResult>,
}

/// In one line: where the job is, and who is waited for.
impl fmt::Display for StatusReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waited_for = self.waiting_for.as_deref().unwrap_or("nobody");
        let Self { phase, generation, .. } = self;
        write!(formatter, "phase {phase}, generation {generation}, waiting for {waited_for}")?;
        for (index, worker) in self.workers.iter().enumerate() {
            let lead = if index == 0 { "; workers: " } else { ", " };
            write!(formatter, "{lead}{}[{}] {}", worker.host, worker.slot, worker.state)?;
        }
        for (index, host) in self.hosts.iter().enumerate() {
            let lead = if index == 0 { "; hosts: " } else { ", " };
            write!(formatter, "{lead}{} {}", host.name, host.state)?;
        }
        Ok(())
    }
}

/// One host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HostStatus {
    /// Its name.
    pub name: String,
    /// Its slots.
    pub slots: u32,
    /// `active`, `joining` (no agent yet), `lost`, `draining` or `blacklisted`.
    pub state: String,
    /// When a blacklisted host may come back, as RFC 3339; absent: never.
    #[serde(default)]
    pub until: Option<String>,
}

/// One worker, or one slot without.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct WorkerStatus {
    /// Its rank, if it is a member of the current generation.
    pub rank: Option<u32>,
    /// Its host.
    pub host: String,
    /// Its slot.
    pub slot: u32,
    /// Its process id, once known.
    pub pid: Option<u32>,
    /// `spare`, `backoff`, `starting`, `attached`, `forming`, `syncing`, `running`, `arriving`,
    /// `silent`, `leaving`, `succeeded`, `failed`.
    pub state: String,
    /// Its last commit.
    pub step: u64,
    /// What the program wants shown.
    #[serde(default)]
    pub note: String,
}

/// One reset.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ResetStatus {
    /// The generation that it led to; until that stands, the one that ended.
    pub generation: u64,
    /// Why.
    pub cause: String,
    /// When it was decided, as RFC 3339.
    pub at: String,
    /// How long each phase took.
    pub ms: PhaseMs,
}

/// Phases of a reset, in milliseconds; what has not ended yet is absent.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PhaseMs {
    /// From the first sign (a notice of death; the last sign of life of a silent node) to the decision.
    pub detect: f64,
    /// From the decision to READY from all.
    pub form: Option<f64>,
    /// From READY to SYNCED from all.
    pub sync: Option<f64>,
    /// Their sum.
    pub total: Option<f64>,
}
