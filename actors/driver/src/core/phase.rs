//! Where a generation is on its way (design: "The life of a generation, as supervision").

use std::collections::BTreeSet;
use std::sync::Arc;

use elastic_protocol::messages::{Formation, PhaseMs};
use elastic_protocol::{
    Assignment, GenerationId, JobResult, Outcome, ResetCause, Stamp, Time, WorkerId,
};

/// The generation that was formed last.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    pub(crate) stamp: Stamp,
    pub(crate) assignment: Arc<Assignment>,
    /// What a member is told that asks for the full table.
    pub(crate) formation: Formation,
    /// The number of the record that gave it out.
    pub(crate) record: u64,
    /// Members that were not lost.
    pub(crate) alive: BTreeSet<WorkerId>,
}

/// What the driver is at.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
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
    /// The boundary was given out; waiting for everyone to arrive.
    Stopping { deadline: Time, boundary: u64, waiting_for: BTreeSet<WorkerId> },
    /// The job is over; waiting for processes and agents to leave.
    Ending { result: JobResult, deadline: Time, agents_told: bool },
    /// Everything has been said.
    Ended { result: JobResult },
}

impl Phase {
    /// As `status` names it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Gather(_) => "gather",
            Self::Form { .. } => "form",
            Self::Sync { .. } => "sync",
            Self::Run | Self::Pausing { .. } | Self::Stopping { .. } => "run",
            Self::Ending { result, .. } | Self::Ended { result } => match result.outcome {
                Outcome::Succeeded => "succeeded",
                Outcome::Failed | Outcome::Stopped => "failed",
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

    /// Whether the job is over.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Ending { .. } | Self::Ended { .. })
    }
}

/// The gather room.
#[derive(Clone, Debug)]
pub(crate) struct Gather {
    /// When it opened.
    pub(crate) since: Time,
    /// The elastic timeout.
    pub(crate) deadline: Time,
    /// Members of the generation that ended which have not arrived yet.
    pub(crate) waiting_for: BTreeSet<WorkerId>,
    /// When the set of hosts or workers changed last: the last call counts from there.
    pub(crate) changed_at: Time,
}

/// A reset on its way, or the last one.
#[derive(Clone, Debug)]
pub(crate) struct ResetRecord {
    pub(crate) cause: ResetCause,
    pub(crate) from: GenerationId,
    pub(crate) to: GenerationId,
    pub(crate) decided_at: Time,
    pub(crate) detect_ms: f64,
    pub(crate) ready_at: Option<Time>,
    pub(crate) synced_at: Option<Time>,
    pub(crate) steps_lost: u64,
}

impl ResetRecord {
    pub(crate) fn phases(&self) -> PhaseMs {
        let form = self.ready_at.map(|at| at.ms_since(self.decided_at));
        let sync = self.ready_at.zip(self.synced_at).map(|(ready, at)| at.ms_since(ready));
        let total = form.zip(sync).map(|(form, sync)| self.detect_ms + form + sync);
        PhaseMs { detect: self.detect_ms, form, sync, total }
    }
}
