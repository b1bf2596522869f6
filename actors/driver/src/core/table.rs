//! The driver's records of agents, slots and workers. Fields marked "copy" are owned by others. Used by the core's
//! handlers.

use std::net::SocketAddr;

use elastic_protocol::messages::{LaneStatus, MovedBytes, ReportedValues};
use elastic_protocol::{
    CommitId, GenerationId, HostName, Incarnation, NodeId, Stamp, Step, Time, WorkerId,
};
use elastic_runtime::transport::LinkEvent;
use serde::{Deserialize, Serialize};

use super::event::ReplacedFor;
use super::restart::ProcessStage;
use super::standing::WorkerStanding;

/// A slot: host, and number on it.
pub(crate) type SlotId = (HostName, u32);

/// A host's agent.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct AgentRecord {
    /// The agent's node, with its incarnation.
    pub(crate) node: NodeId,
    /// Number of slots that the agent reported.
    pub(crate) slots: u32,
    /// Role of the host's workers.
    pub(crate) role: String,
    /// Address at which other hosts reach a port opened by a program of this host, for `MASTER_ADDR` (copy).
    pub(crate) meeting: Option<SocketAddr>,
    /// The first one at that address, before its port was used: processes that outlive their generations keep it in their
    /// environment, so newcomers beside them are told the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) first_meeting: Option<SocketAddr>,
    /// Lanes of the agent's process that do not answer, as it reported last, and when it did.
    pub(crate) hanging: (Time, Vec<LaneStatus>),
    /// State of the link.
    pub(crate) link: PeerLink,
    /// Reason of the agent's wish to leave; none without such a wish.
    pub(crate) draining: Option<String>,
    /// Whether the agent was told to leave.
    pub(crate) dismissed: bool,
}

impl AgentRecord {
    /// The lanes that do not answer, with the time since the report.
    pub(crate) fn hanging_at(&self, now: Time) -> Vec<LaneStatus> {
        let (told_at, lanes) = &self.hanging;
        lanes.iter().map(|lane| lane.after(now.since(*told_at))).collect()
    }

    /// Whether the agent's host can run workers.
    pub(crate) fn is_available(&self) -> bool {
        self.link != PeerLink::Down && self.draining.is_none() && !self.dismissed
    }
}

/// A new agent that has the name of a known one, which may still be alive.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct PendingJoin {
    pub(crate) node: NodeId,
    pub(crate) slots: u32,
    pub(crate) role: String,
    pub(crate) meeting: Option<SocketAddr>,
    pub(crate) live: Vec<elastic_protocol::messages::LiveWorker>,
    pub(crate) deadline: Time,
}

/// State of a link, as the transport reported it last.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum PeerLink {
    /// No session.
    Down,
    /// The peer is heard.
    Up,
    /// The peer has not been heard for `suspect`.
    Silent,
}

impl PeerLink {
    /// State of a link after an event.
    pub(crate) const fn after(event: &LinkEvent) -> Self {
        match event {
            LinkEvent::Up | LinkEvent::Heard => Self::Up,
            LinkEvent::Silent { .. } => Self::Silent,
            LinkEvent::Lost { .. } => Self::Down,
        }
    }
}

/// A slot's history.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct SlotRecord {
    /// The slot's worker, running or to be started.
    pub(crate) worker: Option<WorkerId>,
    /// Number of failures counted against the slot.
    pub(crate) failures: u32,
    /// Number of those, under this driver, that were ends of a process with an exit code.
    pub(crate) exits: u32,
    /// Time at which a process of the slot first trained after its last failure, under this driver.
    pub(crate) trains_since: Option<Time>,
    /// End of the back-off: the slot is not refilled before.
    pub(crate) backoff_until: Option<Time>,
    /// Incarnation of the host's agent under which the slot's worker left of its own accord. The slot is not refilled
    /// until another agent joins.
    pub(crate) closed_under: Option<Incarnation>,
    /// Its cool-down after its worker was replaced.
    #[serde(default)]
    pub(crate) rest: Option<SlotRest>,
    /// Number of times that it was put to rest, under this driver.
    #[serde(default)]
    pub(crate) rests: u32,
}

/// The cool-down of a slot whose worker was replaced.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct SlotRest {
    /// Its end.
    pub(crate) until: Time,
    pub(crate) why: ReplacedFor,
}

/// One incarnation of a worker.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct WorkerRecord {
    pub(crate) pid: Option<u32>,
    pub(crate) data_address: Option<SocketAddr>,
    pub(crate) link: PeerLink,
    pub(crate) stance: Stance,
    /// Stage of a process that lives for one generation; none for other processes.
    pub(crate) stage: Option<ProcessStage>,
    /// Time at which the stance was taken.
    pub(crate) since: Time,
    /// Time at which a worker that has lost its session was heard last; none if it has not, or if that is not known.
    #[serde(default)]
    pub(crate) heard_until: Option<Time>,
    /// Commit that the worker reported when it arrived (copy).
    pub(crate) commit: Option<CommitId>,
    /// Step of the worker's last commit (copy).
    pub(crate) step: Step,
    /// The worker's progress note (copy).
    pub(crate) note: String,
    /// Number of warnings of this process that this driver has passed on.
    #[serde(default)]
    pub(crate) warnings: usize,
    /// The numbers that the worker's program reports (copy).
    #[serde(default)]
    pub(crate) reported: ReportedValues,
    /// The bytes that the worker moves in bulk, and the generation for which it does.
    #[serde(default)]
    pub(crate) moved: Option<(Stamp, MovedBytes)>,
    /// Whether the training thread is at rest, as the worker said, and has been given no work since.
    pub(crate) at_rest: bool,
    /// Whether it has attached to this driver, and has not come to a generation yet.
    #[serde(default)]
    pub(crate) is_before_arrival: bool,
    /// Whether a peer said that its link to this worker broke.
    pub(crate) accused: bool,
    /// Reason of the worker's wish to leave; none without such a wish.
    pub(crate) leaving: Option<String>,
}

impl WorkerRecord {
    pub(crate) fn starting(now: Time) -> Self {
        Self {
            pid: None,
            data_address: None,
            link: PeerLink::Down,
            stance: Stance::Starting,
            stage: None,
            since: now,
            heard_until: None,
            commit: None,
            step: Step::default(),
            note: String::new(),
            warnings: 0,
            moved: None,
            reported: ReportedValues::default(),
            at_rest: false,
            is_before_arrival: false,
            accused: false,
            leaving: None,
        }
    }

    pub(crate) fn take_stance(&mut self, now: Time, stance: Stance) {
        self.stance = stance;
        self.since = now;
        self.heard_until = None;
    }

    /// Sets the stance of a worker whose host is in reach again and whose process ran all the time.
    pub(crate) fn come_back(&mut self, now: Time) {
        let stance = match (self.link, self.at_rest) {
            (PeerLink::Down, _) => Stance::Starting,
            (_, true) => Stance::Arrived,
            (_, false) => Stance::Attached,
        };
        self.take_stance(now, stance);
    }

    /// The commit's place in the order of commits; none comes before all.
    pub(crate) fn commit_order(&self) -> Option<(GenerationId, Step)> {
        self.commit.map(|held| (held.generation, held.step))
    }

    /// Whether the worker itself may be in reach, and takes messages.
    pub(crate) fn may_be_told(&self) -> bool {
        self.link != PeerLink::Down && self.stage.is_none()
    }

    /// Whether the worker takes part, or is about to.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.stance.is_gone() && self.leaving.is_none()
    }

    /// Whether a generation can be formed with the worker now.
    pub(crate) fn is_eligible(&self) -> bool {
        self.standing() == WorkerStanding::Ready
    }
}

/// State of a worker, as the driver sees it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Stance {
    /// Process ordered; not attached yet.
    Starting,
    /// Attached; its training thread is not at rest yet.
    Attached,
    /// Arrived: at rest, in the gather room.
    Arrived,
    /// Member of the current generation, or of the one that ended last and not yet arrived from there.
    Member,
    /// A member whose training function returned.
    Finished,
    /// Told to end; the process is on its way out.
    Leaving,
    /// Dead, as its agent has seen; the process has not ended yet, and its exit status is not known.
    Dying,
    /// Out of reach; the process may be alive on a host that is out of reach, too.
    Lost,
}

impl Stance {
    /// Whether the worker takes no part any more: it was told to end, is dead, or is out of reach.
    pub(crate) const fn is_gone(self) -> bool {
        matches!(self, Self::Leaving | Self::Dying | Self::Lost)
    }
}
