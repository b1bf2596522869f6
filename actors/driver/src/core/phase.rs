//! Phases of a generation (design: "The life of a generation, as supervision"). Kept in `Round`, read and set by the
//! core's handlers.

use std::collections::BTreeSet;
use std::sync::Arc;

use elastic_protocol::messages::{Formation, JobPhase, PhaseMs, UndoneTraining};
use elastic_protocol::{
    Assignment, GenerationId, JobOutcome, JobResult, ResetCause, Stamp, Time, WorkerId,
};
use serde::{Deserialize, Serialize};

use super::roster::CommitOrder;

/// The generation that was formed last.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct FormedGeneration {
    pub(crate) stamp: Stamp,
    #[serde(with = "crate::recording::readable::table")]
    pub(crate) assignment: Arc<Assignment>,
    /// The formation with the full table, for a member that asks for it.
    #[serde(with = "crate::recording::readable::formation")]
    pub(crate) formation: Formation,
    /// Number of the record that must be stored before members are told the generation.
    pub(crate) record: u64,
    /// Number of the record that reserves the next generation's number, if there is one under this driver: members may be told
    /// the next one once it is stored.
    #[serde(default)]
    pub(crate) next_reserved: Option<u64>,
    /// Members that are not lost.
    pub(crate) alive: BTreeSet<WorkerId>,
    /// The commit that the generation begins from; none if no member held any.
    pub(crate) began_from: CommitOrder,
    /// Members whose assignment did not leave before their sessions ended: they hold an older table or none.
    pub(crate) untold: BTreeSet<WorkerId>,
}

/// Phase of the job.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) enum RoundPhase {
    /// Waiting for enough workers.
    Gather(Gather),
    /// Assigned; waiting for READY from all.
    Form { deadline: Time },
    /// READY; waiting for SYNCED from all.
    Sync { deadline: Time },
    /// Training.
    Run,
    /// A planned end was announced; waiting for every member's boundary.
    Pausing {
        deadline: Time,
        waiting_for: BTreeSet<WorkerId>,
        /// The last boundary that a member has passed.
        passed: u64,
    },
    /// The boundary was given out; waiting for all members to arrive.
    Stopping { deadline: Time, boundary: u64, waiting_for: BTreeSet<WorkerId> },
    /// The job has failed; waiting for the last words of the process that is the first cause.
    Failing { because: String, deadline: Time },
    /// The job is over; waiting for processes and agents to leave.
    Ending {
        result: JobResult,
        deadline: Time,
        agents_told: bool,
        /// Whether training has finished. Processes end by themselves then, also if another one fails meanwhile.
        #[serde(default)]
        has_trained: bool,
    },
    /// The job is over, and its result has been given out.
    Ended { result: JobResult },
}

impl RoundPhase {
    /// Name in `status`.
    pub(crate) fn name(&self) -> JobPhase {
        match self {
            Self::Gather(_) => JobPhase::Gather,
            Self::Form { .. } => JobPhase::Form,
            Self::Sync { .. } => JobPhase::Sync,
            Self::Run | Self::Pausing { .. } | Self::Stopping { .. } => JobPhase::Run,
            Self::Failing { .. } => JobPhase::Failed,
            Self::Ending { result, .. } | Self::Ended { result } => match result.outcome {
                JobOutcome::Succeeded => JobPhase::Succeeded,
                JobOutcome::Failed | JobOutcome::Stopped => JobPhase::Failed,
            },
        }
    }

    /// Whether a generation is under way, so that losing a member ends it.
    pub(crate) fn is_generation_active(&self) -> bool {
        matches!(
            self,
            Self::Form { .. }
                | Self::Sync { .. }
                | Self::Run
                | Self::Pausing { .. }
                | Self::Stopping { .. }
        )
    }

    /// Deadline of the phase or of its next step; none if there is no deadline.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match self {
            Self::Gather(gather) => Some(gather.deadline),
            Self::Form { deadline }
            | Self::Sync { deadline }
            | Self::Pausing { deadline, .. }
            | Self::Stopping { deadline, .. }
            | Self::Failing { deadline, .. }
            | Self::Ending { deadline, .. } => Some(*deadline),
            Self::Run | Self::Ended { .. } => None,
        }
    }

    /// Members that the phase waits for by name.
    pub(crate) fn waiting_for(&self) -> Option<&BTreeSet<WorkerId>> {
        match self {
            Self::Gather(Gather { waiting_for, .. })
            | Self::Pausing { waiting_for, .. }
            | Self::Stopping { waiting_for, .. } => Some(waiting_for),
            _ => None,
        }
    }

    /// Whether the job is over.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Failing { .. } | Self::Ending { .. } | Self::Ended { .. })
    }
}

/// The gather room.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Gather {
    /// Time at which it opened.
    pub(crate) since: Time,
    /// End of the elastic timeout.
    pub(crate) deadline: Time,
    /// Members of the ended generation that have not arrived yet.
    pub(crate) waiting_for: BTreeSet<WorkerId>,
    /// Time at which processes that were told to end must have ended, by restart. Others go on without those that have not.
    #[serde(default)]
    pub(crate) ends_by: Option<Time>,
    /// Time of the last change of hosts or workers, from which the last call counts.
    pub(crate) changed_at: Time,
}

/// A reset, under way or the last one.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ResetRecord {
    pub(crate) cause: ResetCause,
    pub(crate) from: GenerationId,
    pub(crate) to: GenerationId,
    pub(crate) decided_at: Time,
    /// Time from which its elastic timeout counts: the decision, or the break of a generation on its way to a planned
    /// stop. Its members trained until then.
    pub(crate) counts_from: Time,
    #[serde(with = "crate::recording::readable::exact")]
    pub(crate) detect_ms: f64,
    pub(crate) ready_at: Option<Time>,
    pub(crate) synced_at: Option<Time>,
    /// Lost training, the most of any rank. The steps have those with them that were committed and that no worker holds any more.
    pub(crate) undone: UndoneTraining,
}

impl ResetRecord {
    pub(crate) fn phases(&self) -> PhaseMs {
        let form = self.ready_at.map(|at| at.ms_since(self.decided_at));
        let sync = self.ready_at.zip(self.synced_at).map(|(ready, at)| at.ms_since(ready));
        let total = form.zip(sync).map(|(form, sync)| self.detect_ms + form + sync);
        PhaseMs { detect: self.detect_ms, form, sync, total }
    }
}
