//! Messages of the driver's own process to its actor (signals, the launcher's failures, the lease, questions for the status), and
//! how the actor takes them.

use actix::{Context, Handler, Message, MessageResult};
use elastic_protocol::messages::{DriverStatus, StatusReport};
use elastic_protocol::{HostName, NodeId};

use super::Driver;
use crate::core::{DriverInput, Glance};

/// A signal with which the operator ends the job. SIGTERM ends only this driver if there are standbys. A second signal ends
/// the job at once.
#[derive(Clone, Copy, Debug)]
pub struct StopJob {
    /// Signal number: SIGINT is 2, SIGTERM 15.
    pub signal: i32,
}

impl Message for StopJob {
    type Result = ();
}

/// Report of the launcher: no agent can be started on a host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LaunchFailed {
    /// The host.
    pub host: HostName,
    /// The reason.
    pub reason: String,
}

impl Message for LaunchFailed {
    type Result = ();
}

/// Question for the state of the job in a few numbers.
#[derive(Clone, Copy, Debug)]
pub struct AskGlance;

impl Message for AskGlance {
    type Result = Glance;
}

/// The new list of standby drivers.
#[derive(Clone, Debug)]
pub struct StandbysChanged(pub Vec<DriverStatus>);

impl Message for StandbysChanged {
    type Result = ();
}

/// Report that this driver has lost the leader lease.
#[derive(Clone, Debug)]
pub struct Abandon {
    /// Reason of the loss.
    pub reason: String,
}

impl Message for Abandon {
    type Result = ();
}

/// Question for the whole status, from the driver's own process.
#[derive(Clone, Copy, Debug)]
pub struct AskStatus;

impl Message for AskStatus {
    type Result = Box<StatusReport>;
}

/// Question for the agents that are there, by host.
#[derive(Clone, Copy, Debug)]
pub struct AskAgents;

impl Message for AskAgents {
    type Result = Vec<(HostName, NodeId)>;
}

impl Handler<AskStatus> for Driver {
    type Result = MessageResult<AskStatus>;

    fn handle(&mut self, _: AskStatus, _: &mut Context<Self>) -> Self::Result {
        MessageResult(Box::new(self.status()))
    }
}

impl Handler<AskAgents> for Driver {
    type Result = MessageResult<AskAgents>;

    fn handle(&mut self, _: AskAgents, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.core.agents_there())
    }
}

impl Handler<StopJob> for Driver {
    type Result = ();

    fn handle(&mut self, stop: StopJob, ctx: &mut Context<Self>) {
        if !self.core.leads() {
            tracing::warn!(
                signal = stop.signal,
                "this driver leads the job no more, and cannot end it: `elastic-node stop` asks the one that leads"
            );
        }
        self.take(DriverInput::Stop { signal: stop.signal });
        self.drain(ctx);
    }
}

impl Handler<AskGlance> for Driver {
    type Result = MessageResult<AskGlance>;

    fn handle(&mut self, _: AskGlance, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.core.glance(self.now()))
    }
}

impl Handler<LaunchFailed> for Driver {
    type Result = ();

    fn handle(&mut self, failed: LaunchFailed, ctx: &mut Context<Self>) {
        let LaunchFailed { host, reason } = failed;
        self.take(DriverInput::LaunchFailed { host, reason });
        self.drain(ctx);
    }
}

impl Handler<StandbysChanged> for Driver {
    type Result = ();

    fn handle(&mut self, changed: StandbysChanged, ctx: &mut Context<Self>) {
        self.take(DriverInput::Standbys(changed.0));
        self.drain(ctx);
    }
}

impl Handler<Abandon> for Driver {
    type Result = ();

    fn handle(&mut self, abandon: Abandon, ctx: &mut Context<Self>) {
        self.take(DriverInput::Abandon { reason: abandon.reason });
        self.drain(ctx);
    }
}
