//! One slot of the host: the process that is on it, how far its stop is, and who comes next.

use std::time::Duration;

use elastic_protocol::messages::StoppedBy;
use elastic_protocol::{Incarnation, Time, WorkerId};
use elastic_runtime::planted::{Bug, is_planted};

use super::output::SpawnOrder;

/// A slot. Its next worker is started only when the former one's end was seen.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The process that is here, or is being started.
    pub(super) current: Option<Process>,
    /// Who is started when `current` has ended.
    pub(super) next: Option<SpawnOrder>,
    /// The newest life that was ever ordered here.
    pub(super) newest: Option<Incarnation>,
}

impl Slot {
    /// Whether nothing runs here, and nothing waits to.
    pub(super) const fn is_empty(&self) -> bool {
        self.current.is_none() && self.next.is_none()
    }
}

/// A process, from the order to start it to its end.
#[derive(Debug)]
pub(super) struct Process {
    /// Who.
    pub(super) worker: WorkerId,
    /// Its process id, once it was started.
    pub(super) pid: Option<u32>,
    /// Whether this session's driver has been told its process id.
    pub(super) announced: bool,
    /// How far its stop is.
    pub(super) stop: Option<Stop>,
}

impl Process {
    pub(super) const fn starting(worker: WorkerId) -> Self {
        Self { worker, pid: None, announced: false, stop: None }
    }

    /// When it has to be killed, if it is being stopped and was not killed yet.
    pub(super) fn kill_at(&self) -> Option<Time> {
        self.stop
            .as_ref()
            .filter(|stop| self.pid.is_some() && !stop.killed)
            .filter(|stop| !stop.terminated || !is_planted(Bug::NeverKills))
            .map(|stop| stop.kill_at)
    }
}

/// A stop that was ordered.
#[derive(Debug)]
pub(super) struct Stop {
    /// Why; the first order's reason.
    pub(super) reason: String,
    /// Who gave the first order.
    pub(super) by: StoppedBy,
    /// How long it has between SIGTERM and SIGKILL.
    pub(super) grace: Duration,
    /// When that is over.
    pub(super) kill_at: Time,
    /// Whether SIGTERM was sent.
    pub(super) terminated: bool,
    /// Whether SIGKILL was sent.
    pub(super) killed: bool,
}

impl Stop {
    pub(super) fn new(now: Time, grace: Duration, reason: String, by: StoppedBy) -> Self {
        Self { reason, by, grace, kill_at: now + grace, terminated: false, killed: false }
    }

    /// Takes a second order: the earlier end counts.
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
