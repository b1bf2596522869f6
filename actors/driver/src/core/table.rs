//! The driver's records of agents, slots and workers. Copies of facts that others own are marked so.

use std::net::SocketAddr;

use elastic_protocol::{
    CommitId, GenerationId, HostName, Incarnation, NodeId, Step, Time, WorkerId,
};

use super::restart::Stage;

/// A slot of a host.
pub(crate) type SlotId = (HostName, u32);

/// A host's agent.
#[derive(Clone, Debug)]
pub(crate) struct AgentRecord {
    /// Which life of it.
    pub(crate) node: NodeId,
    /// Slots that it said it has.
    pub(crate) slots: u32,
    /// The role of its workers.
    pub(crate) role: String,
    /// How its link is.
    pub(crate) link: Link,
    /// Why it wants to leave, if it does.
    pub(crate) draining: Option<String>,
    /// Whether it was told to leave.
    pub(crate) dismissed: bool,
}

impl AgentRecord {
    /// Whether its host can run workers.
    pub(crate) fn is_available(&self) -> bool {
        self.link != Link::Down && self.draining.is_none() && !self.dismissed
    }
}

/// A new agent with the name of one that may still be there.
#[derive(Clone, Debug)]
pub(crate) struct PendingJoin {
    pub(crate) node: NodeId,
    pub(crate) slots: u32,
    pub(crate) role: String,
    pub(crate) live: Vec<elastic_protocol::messages::LiveWorker>,
    pub(crate) deadline: Time,
}

/// How a link is, as the transport said last.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Link {
    /// No session.
    Down,
    /// Heard.
    Up,
    /// Not heard for a while.
    Silent,
}

/// A slot's history.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotRecord {
    /// The process that it has or is to have.
    pub(crate) worker: Option<WorkerId>,
    /// Failures that are held against it.
    pub(crate) failures: u32,
    /// When a process of it trained first after the last of them, under this driver.
    pub(crate) trains_since: Option<Time>,
    /// Not refilled before this.
    pub(crate) backoff_until: Option<Time>,
    /// Its worker left of its own accord under this agent of the host: not refilled until another agent joins.
    pub(crate) closed_under: Option<Incarnation>,
}

/// One life of a worker's process.
#[derive(Clone, Debug)]
pub(crate) struct WorkerRecord {
    pub(crate) pid: Option<u32>,
    pub(crate) data_address: Option<SocketAddr>,
    pub(crate) link: Link,
    pub(crate) stance: Stance,
    /// Where its process stands, if that lives for one generation only.
    pub(crate) stage: Option<Stage>,
    /// When the stance was taken.
    pub(crate) since: Time,
    /// The commit that it said it holds, when it arrived (copy).
    pub(crate) commit: Option<CommitId>,
    /// Its last commit's step (copy).
    pub(crate) step: Step,
    /// Its progress note (copy).
    pub(crate) note: String,
    /// It said that its training thread rests, and has been given nothing to do since.
    pub(crate) at_rest: bool,
    /// A peer said that its link to this one broke.
    pub(crate) accused: bool,
    /// Why it asked to leave, if it did.
    pub(crate) leaving: Option<String>,
}

impl WorkerRecord {
    pub(crate) fn starting(now: Time) -> Self {
        Self {
            pid: None,
            data_address: None,
            link: Link::Down,
            stance: Stance::Starting,
            stage: None,
            since: now,
            commit: None,
            step: Step::default(),
            note: String::new(),
            at_rest: false,
            accused: false,
            leaving: None,
        }
    }

    pub(crate) fn take_stance(&mut self, now: Time, stance: Stance) {
        self.stance = stance;
        self.since = now;
    }

    /// Its host is in reach again, and its process was there all the time.
    pub(crate) fn come_back(&mut self, now: Time) {
        let stance = match (self.link, self.at_rest) {
            (Link::Down, _) => Stance::Starting,
            (_, true) => Stance::Arrived,
            (_, false) => Stance::Attached,
        };
        self.take_stance(now, stance);
    }

    /// Its commit's place among commits; none comes before all.
    pub(crate) fn commit_order(&self) -> Option<(GenerationId, Step)> {
        self.commit.map(|held| (held.generation, held.step))
    }

    /// Whether it takes part, or is about to.
    pub(crate) fn is_wanted(&self) -> bool {
        !matches!(self.stance, Stance::Leaving | Stance::Lost) && self.leaving.is_none()
    }

    /// Whether a generation can be formed with it now.
    pub(crate) fn is_eligible(&self) -> bool {
        self.stance == Stance::Arrived && self.link == Link::Up && self.data_address.is_some()
    }
}

/// Where a worker stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stance {
    /// Its process was ordered; it has not attached.
    Starting,
    /// Attached; its training thread is not at rest yet.
    Attached,
    /// At rest, in the gather room.
    Arrived,
    /// In the current generation, or in the one that ended last and not yet arrived from there.
    Member,
    /// A member whose training function returned.
    Finished,
    /// Told to end; its process is on its way out.
    Leaving,
    /// Not reachable, its process perhaps alive on a host that is not reachable either.
    Lost,
}
