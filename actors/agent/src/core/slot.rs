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

    /// Checks that processes come one after the other, each of this slot.
    pub(super) fn check(&self, number: u32) -> Result<(), String> {
        let current = self.current.as_ref().map(|process| &process.worker);
        let next = self.next.as_ref().map(|order| &order.worker);
        for worker in current.into_iter().chain(next) {
            if worker.slot != number || self.newest.is_none_or(|newest| newest < worker.incarnation)
            {
                return Err(format!("has {worker}, and the newest is {:?}", self.newest));
            }
        }
        if let Some(next) = next
            && current.is_none_or(|current| current.incarnation >= next.incarnation)
        {
            return Err(format!("keeps {next} waiting for {current:?}"));
        }
        let Some(process) = &self.current else { return Ok(()) };
        let signalled = process.stop.as_ref().is_some_and(|stop| stop.terminated || stop.killed);
        if process.pid.is_none() && (signalled || process.announced) {
            return Err(format!(
                "has {}, which is not started and was signalled or announced",
                process.worker
            ));
        }
        if self.next.is_some() && process.stop.is_none() {
            return Err(format!("has {}, which is in the way and not told to end", process.worker));
        }
        Ok(())
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
    /// Whether the thread of the worker's actors has died; the process has not ended yet.
    pub(super) is_dying: bool,
    /// The look at the process that is under way.
    pub(super) inspection: Option<Inspection>,
    /// The stop that was ordered, if any.
    pub(super) stop: Option<OrderedStop>,
}

/// A look at a process that is under way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Inspection {
    pub(super) with_stack: bool,
    /// Whether the stacks were asked for while a look without them was under way: they follow it.
    pub(super) stack_follows: bool,
}

impl SlotProcess {
    pub(super) const fn starting(worker: WorkerId) -> Self {
        Self { worker, pid: None, announced: false, is_dying: false, inspection: None, stop: None }
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
        let until = if is_planted(Bug::GraceHalved) { grace / 2 } else { grace };
        Self { reason, by, grace, kill_at: now + until, terminated: false, killed: false }
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
