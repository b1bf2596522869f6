//! Conditions of the job, a host and a worker, as `status` names them. Enums in memory, words in JSON and
//! tables.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The phase of the job.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobPhase {
    /// Waiting for enough workers.
    Gather,
    /// A generation is assigned; its members connect.
    Form,
    /// Its members take the root's commit over.
    Sync,
    /// The generation trains.
    Run,
    /// The job has ended with success.
    Succeeded,
    /// The job has ended without success.
    Failed,
}

impl JobPhase {
    /// The word that `status` shows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gather => "gather",
            Self::Form => "form",
            Self::Sync => "sync",
            Self::Run => "run",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for JobPhase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// State of the health check of a host with a resting slot.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthCondition {
    /// It begins as soon as the slots are empty and the agent is there.
    Due,
    /// Its first run is under way.
    Running,
    /// The host is well.
    Passed,
    /// The last run has failed; it is made again.
    Failed,
}

/// The condition of a host.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HostCondition {
    /// The host's agent is present.
    Active,
    /// The host is listed and has no agent yet.
    Joining,
    /// The host's agent has been silent for a while.
    Silent,
    /// The host's agent has gone.
    Lost,
    /// The host's agent has asked to leave.
    Draining,
    /// The host's agent is present, but the host is not listed.
    Unlisted,
    /// The host is left out because of its failures.
    Blacklisted,
    /// The workers of all its slots were replaced, since they hung or were slow: it is used last of all for a cool-down.
    Resting,
    /// The operator has taken the host out.
    Drained,
}

impl HostCondition {
    /// The word that `status` shows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Joining => "joining",
            Self::Silent => "silent",
            Self::Lost => "lost",
            Self::Draining => "draining",
            Self::Unlisted => "unlisted",
            Self::Blacklisted => "blacklisted",
            Self::Resting => "resting",
            Self::Drained => "drained",
        }
    }
}

impl fmt::Display for HostCondition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The condition of a worker, or of a slot without one.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerCondition {
    /// A slot without a process, not needed at present.
    Spare,
    /// A slot that waits for its back-off before it is filled again.
    Backoff,
    /// The worker's start was ordered; its process has not attached yet.
    Starting,
    /// The worker waits for the next generation.
    Attached,
    /// The worker connects to the other members.
    Forming,
    /// The worker takes the root's commit over.
    Syncing,
    /// The worker trains.
    Running,
    /// The worker's generation has ended; its training thread is not at rest yet.
    Arriving,
    /// The worker has been silent for a while.
    Silent,
    /// The worker was told to end.
    Leaving,
    /// The worker is out of reach.
    Lost,
    /// The worker's training function has returned.
    Succeeded,
    /// A slot without a process whose worker was replaced: it is used last of all for a cool-down.
    Resting,
}

impl WorkerCondition {
    /// The word that `status` shows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spare => "spare",
            Self::Backoff => "backoff",
            Self::Starting => "starting",
            Self::Attached => "attached",
            Self::Forming => "forming",
            Self::Syncing => "syncing",
            Self::Running => "running",
            Self::Arriving => "arriving",
            Self::Silent => "silent",
            Self::Leaving => "leaving",
            Self::Lost => "lost",
            Self::Succeeded => "succeeded",
            Self::Resting => "resting",
        }
    }
}

impl fmt::Display for WorkerCondition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
