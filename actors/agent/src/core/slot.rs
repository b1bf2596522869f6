//! One slot of the host: its current process, the progress of its stop, and the next worker. Used by the core.

use std::time::Duration;

use elastic_protocol::messages::StoppedBy;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Incarnation, Time, WorkerId};

use super::output::SpawnOrder;

/// A slot. The next worker is started only after the end of the former one was seen.
#[derive(Debug, Default)]
pub(super) struct AgentSlot {
    /// The process that runs on the slot, or is being started.
    pub(super) current: Option<SlotProcess>,
    /// The order that is carried out when `current` has ended.
    pub(super) next: Option<SpawnOrder>,
    /// The newest incarnation that was ever ordered on this slot.
    pub(super) newest: Option<Incarnation>,
}

impl AgentSlot {
    /// Whether no process runs on the slot, and none waits for it.
    pub(super) const fn is_empty(&self) -> bool {
        self.current.is_none() && self.next.is_none()
    }
}

/// A process, from the order to start it to its end.
#[derive(Debug)]
pub(super) struct SlotProcess {
    /// The worker that the process is.
    pub(super) worker: WorkerId,
    /// The process id; `None` while the process is being started.
    pub(super) pid: Option<u32>,
    /// Whether the driver of this session knows the process id.
    pub(super) announced: bool,
    /// The stop that was ordered, if any.
    pub(super) stop: Option<OrderedStop>,
}

impl SlotProcess {
    pub(super) const fn starting(worker: WorkerId) -> Self {
        Self { worker, pid: None, announced: false, stop: None }
    }

    /// The time of its SIGKILL, if the process is being stopped and was not killed yet.
    pub(super) fn kill_at(&self) -> Option<Time> {
        self.stop
            .as_ref()
            .filter(|stop| self.pid.is_some() && !stop.killed)
            .filter(|stop| !stop.terminated || !is_planted(Bug::NeverKills))
            .map(|stop| stop.kill_at)
    }
}

/// A stop that was ordered, and its progress.
#[derive(Debug)]
pub(super) struct OrderedStop {
    /// The reason of the first order.
    pub(super) reason: String,
    /// The origin of the first order.
    pub(super) by: StoppedBy,
    /// Grace period between SIGTERM and SIGKILL.
    pub(super) grace: Duration,
    /// The time at which the grace period ends.
    pub(super) kill_at: Time,
    /// Whether SIGTERM was sent.
    pub(super) terminated: bool,
    /// Whether SIGKILL was sent.
    pub(super) killed: bool,
}

impl OrderedStop {
    pub(super) fn new(now: Time, grace: Duration, reason: String, by: StoppedBy) -> Self {
        Self { reason, by, grace, kill_at: now + grace, terminated: false, killed: false }
    }

    /// Takes a further order: the earlier deadline counts.
    pub(super) fn hasten(&mut self, now: Time, grace: Duration) {
        if now + grace < self.kill_at {
            self.kill_at = now + grace;
            self.grace = grace;
        }
    }

    /// Whether SIGKILL had to be used after a grace period.
    pub(super) const fn killed_after_grace(&self) -> bool {
        self.killed && self.terminated && !self.grace.is_zero()
    }
}
