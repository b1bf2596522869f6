//! The host manager's actor: a thin shell around [`HostManagerCore`]. It runs in the driver's node, runs the
//! discovery, and reports each change to the driver.

#[cfg(test)]
mod tests;

use std::time::Duration;

use actix::{
    Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, MessageResult, Recipient,
    WrapFuture,
};
use elastic_protocol::{HostName, Time};
use elastic_runtime::{Clock, NodeHandle, TimedActor, TimerSlot};
use tokio::time::timeout;

use crate::core::{
    DiscoveryError, DiscoveryFailure, DrainDecision, FailureDecision, HostFault, HostManagerConfig,
    HostManagerCore, HostManagerOutput, HostsSnapshot, JoinDecision, ReadmitDecision,
};
use crate::discovery::Discovery;

/// Extra time after a discovery's time limit. A discovery enforces the limit itself, with a better error
/// message; one that runs longer than limit and extra time is dropped (G-9).
const DISCOVERY_GRACE: Duration = Duration::from_secs(1);

/// An agent of a host joined.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostJoined {
    /// The host.
    pub host: HostName,
    /// The slots that it offers.
    pub slots: u32,
}

impl Message for HostJoined {
    type Result = ();
}

/// A host's agent is gone for good.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostLeft {
    /// The host.
    pub host: HostName,
}

impl Message for HostLeft {
    type Result = ();
}

/// A host is to be blacklisted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostFailed {
    /// The host.
    pub host: HostName,
    /// The fault.
    pub fault: HostFault,
    /// Reason of the failure, in one sentence.
    pub reason: String,
}

impl Message for HostFailed {
    type Result = ();
}

/// The operator takes a host out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DrainHost {
    /// The host.
    pub host: HostName,
}

impl Message for DrainHost {
    type Result = DrainDecision;
}

/// The operator lets a host in again that was drained or blacklisted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReadmitHost {
    /// The host.
    pub host: HostName,
}

impl Message for ReadmitHost {
    type Result = ReadmitDecision;
}

/// Messages from the host manager to the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HostReport {
    /// Hosts or warnings changed.
    Changed(HostsSnapshot),
    /// The first discovery failed: the job ends.
    DiscoveryFailed(DiscoveryFailure),
    /// A host that joined is not one of the job's; the reason is for its agent.
    Refused {
        /// The host.
        host: HostName,
        /// The reason, and advice.
        reason: String,
    },
}

impl Message for HostReport {
    type Result = ();
}

/// The `HostManager`.
pub struct HostManager {
    core: HostManagerCore,
    clock: Clock,
    timer: TimerSlot,
    discovery: Box<dyn Discovery>,
    reports: Recipient<HostReport>,
}

impl HostManager {
    /// A host manager with validated settings. `discovery` is used only if they say [`HostSource::Script`].
    ///
    /// Reports go to `reports` without a bound: there are few per poll or failure, and a lost report would
    /// never be repeated (G-7).
    ///
    /// [`HostSource::Script`]: crate::HostSource::Script
    pub fn new(
        node: &NodeHandle,
        config: HostManagerConfig,
        discovery: Box<dyn Discovery>,
        reports: Recipient<HostReport>,
    ) -> Self {
        let rng = node.random("host manager: cooldown", 0);
        Self {
            core: HostManagerCore::new(config, rng, node.now()),
            clock: node.clock(),
            timer: TimerSlot::new(node.clock()),
            discovery,
            reports,
        }
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    /// Carries out the core's outputs, and arms the timer.
    fn drain(&mut self, ctx: &mut Context<Self>) {
        while let Some(output) = self.core.poll_output() {
            match output {
                HostManagerOutput::RunDiscovery { timeout } => self.discover(timeout, ctx),
                HostManagerOutput::HostsChanged(snapshot) => {
                    let hosts = snapshot.hosts.len();
                    tracing::debug!(hosts, update = ?snapshot.update, "the hosts changed");
                    self.reports.do_send(HostReport::Changed(snapshot));
                }
                HostManagerOutput::Fatal(failure) => {
                    self.reports.do_send(HostReport::DiscoveryFailed(failure));
                }
            }
        }
        self.timer.arm(ctx, self.core.poll_timeout());
    }

    fn discover(&mut self, limit: Duration, ctx: &mut Context<Self>) {
        let run = self.discovery.run(limit);
        let run = async move {
            timeout(limit + DISCOVERY_GRACE, run).await.unwrap_or_else(|_elapsed| {
                let command = "host discovery".to_owned();
                Err(DiscoveryError::TimedOut { command, limit, stderr: String::new() })
            })
        };
        ctx.spawn(run.into_actor(self).map(|result, actor, ctx| {
            actor.core.handle_discovery(actor.now(), result);
            actor.drain(ctx);
        }));
    }
}

impl Actor for HostManager {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.drain(ctx);
    }
}

impl TimedActor for HostManager {
    fn timer(&mut self) -> &mut TimerSlot {
        &mut self.timer
    }

    fn timer_fired(&mut self, now: Time, ctx: &mut Context<Self>) {
        self.core.handle_timeout(now);
        self.drain(ctx);
    }
}

impl Handler<HostJoined> for HostManager {
    type Result = ();

    fn handle(&mut self, joined: HostJoined, ctx: &mut Context<Self>) {
        let HostJoined { host, slots } = joined;
        let decision = self.core.handle_joined(self.now(), host.clone(), slots);
        match decision {
            JoinDecision::Refused(refusal) => {
                let reason = refusal.to_string();
                self.reports.do_send(HostReport::Refused { host, reason });
            }
            JoinDecision::Expected { slots: listed } if listed != slots => {
                tracing::debug!(%host, slots, listed, "the list's slots count, not the agent's");
            }
            JoinDecision::Expected { .. } | JoinDecision::Taken => {}
        }
        self.drain(ctx);
    }
}

impl Handler<HostLeft> for HostManager {
    type Result = ();

    fn handle(&mut self, left: HostLeft, ctx: &mut Context<Self>) {
        let decision = self.core.handle_left(self.now(), &left.host);
        tracing::debug!(host = %left.host, ?decision, "a host left");
        self.drain(ctx);
    }
}

impl Handler<HostFailed> for HostManager {
    type Result = ();

    fn handle(&mut self, failed: HostFailed, ctx: &mut Context<Self>) {
        let HostFailed { host, fault, reason } = failed;
        let now = self.now();
        match self.core.handle_failure(now, &host, fault, &reason) {
            FailureDecision::Blacklisted { until: Some(until), .. } => {
                let seconds = until.since(now).as_secs_f64();
                tracing::debug!(%host, seconds, reason, "blacklisted");
            }
            FailureDecision::Blacklisted { until: None, .. } => {
                tracing::debug!(%host, reason, "blacklisted for good");
            }
            FailureDecision::OutAlready { .. } => {
                tracing::debug!(%host, reason, "failed again while it is blacklisted");
            }
        }
        self.drain(ctx);
    }
}

impl Handler<DrainHost> for HostManager {
    type Result = MessageResult<DrainHost>;

    fn handle(&mut self, drain: DrainHost, ctx: &mut Context<Self>) -> Self::Result {
        let decision = self.core.handle_drain(self.now(), &drain.host);
        self.drain(ctx);
        MessageResult(decision)
    }
}

impl Handler<ReadmitHost> for HostManager {
    type Result = MessageResult<ReadmitHost>;

    fn handle(&mut self, readmit: ReadmitHost, ctx: &mut Context<Self>) -> Self::Result {
        let decision = self.core.handle_readmit(self.now(), &readmit.host);
        self.drain(ctx);
        MessageResult(decision)
    }
}
