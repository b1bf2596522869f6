//! The agent's actor: a thin shell over [`AgentCore`]. The command line starts it in an agent's process, the
//! simulation on each simulated host; only the [`ProcessPort`] differs.

use std::net::SocketAddr;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message};
use elastic_protocol::messages::{AgentToDriver, DriverToAgent, LaneStatus};
use elastic_protocol::{ActorId, ActorName, NodeId, NodeName, Term, Time};
use elastic_runtime::transport::LinkEvent;
use elastic_runtime::{
    ActorRef, Delivery, LinkChanged, NodeHandle, Returned, Routes, Shutdown, TimedActor, TimerSlot,
};
use tracing::{debug, info, warn};

use super::core::{AgentCore, AgentOutput, AgentSettings, DriverLink};
use super::process::{ProcessEvent, ProcessPort};

/// The operator's request that this host leaves (SIGTERM, SIGINT, a spot notice). The first request asks the
/// driver to take this host's workers out; the second ends everything at once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Drain {
    /// The reason, for the driver and the log; such as `SIGTERM`.
    pub reason: String,
    /// Exit code if the agent ends without the driver: 128 + the signal's number.
    pub code: i32,
}

impl Message for Drain {
    type Result = ();
}

/// A change of the host, which the driver is told: the address at which others reach it, or the lanes of the agent's
/// process that do not answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostChange {
    /// As in [`AgentSettings::meeting`].
    pub meeting: Option<SocketAddr>,
    /// All lanes that hang now.
    pub hanging: Vec<LaneStatus>,
}

impl Message for HostChange {
    type Result = ();
}

/// The end of the agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AgentExit {
    /// Exit code of the agent's process.
    pub code: i32,
    /// The reason, in one sentence (G-10).
    pub reason: String,
}

/// The agent of a host. Handles [`Delivery<DriverToAgent>`], [`LinkChanged`], [`ProcessEvent`], [`Drain`].
pub struct AgentActor {
    core: AgentCore,
    node: NodeHandle,
    timer: TimerSlot,
    processes: Box<dyn ProcessPort>,
    /// The driver of the current session.
    driver: Option<ActorRef<AgentToDriver>>,
    on_end: Option<Box<dyn FnOnce(AgentExit)>>,
}

impl AgentActor {
    /// An agent that waits for a link to a driver; the caller makes that link. `on_end` is called once, when no
    /// process of the agent is left. The actor then stops, and the session with the driver is closed.
    pub fn new(
        node: NodeHandle,
        settings: AgentSettings,
        processes: Box<dyn ProcessPort>,
        on_end: impl FnOnce(AgentExit) + 'static,
    ) -> Self {
        let (core, timer) = (AgentCore::new(node.now(), settings), TimerSlot::new(node.clock()));
        Self { core, node, timer, processes, driver: None, on_end: Some(Box::new(on_end)) }
    }

    /// Gives the core an input, and carries out its outputs.
    fn with_core(&mut self, ctx: &mut Context<Self>, input: impl FnOnce(&mut AgentCore, Time)) {
        input(&mut self.core, self.node.now());
        while let Some(output) = self.core.poll_output() {
            self.carry_out(output, ctx);
        }
        self.timer.arm(ctx, self.core.poll_timeout());
    }

    fn carry_out(&mut self, output: AgentOutput, ctx: &mut Context<Self>) {
        match output {
            AgentOutput::ToDriver(message) => self.send(message),
            AgentOutput::Spawn(order) => {
                info!(worker = %order.worker, program = ?order.program.argv, "starts");
                self.processes.spawn(*order, ctx.address().recipient());
            }
            AgentOutput::Signal { worker, signal, reason } => {
                info!(%worker, %signal, reason, "is stopped");
                self.processes.signal(&worker, signal);
            }
            AgentOutput::Inspect { worker, with_stack } => {
                self.processes.inspect(&worker, with_stack, ctx.address().recipient());
            }
            AgentOutput::CheckHealth { command, timeout } => {
                info!(command, ?timeout, "the health check begins");
                self.processes.check_health(command, timeout, ctx.address().recipient());
            }
            AgentOutput::Warn(warning) => warn!("{warning}"),
            AgentOutput::Exit { code, reason } => self.end(AgentExit { code, reason }, ctx),
        }
    }

    fn send(&mut self, message: AgentToDriver) {
        let undelivered = match &self.driver {
            Some(driver) => match driver.tell(message) {
                Ok(()) => return,
                Err(undelivered) => {
                    warn!("{undelivered}");
                    undelivered.message
                }
            },
            None => message,
        };
        self.core.handle_undeliverable(self.node.now(), undelivered);
    }

    fn end(&mut self, end: AgentExit, ctx: &mut Context<Self>) {
        info!(code = end.code, reason = end.reason, "the agent ends");
        if let Some(driver) = self.driver.take() {
            self.node.close(&driver.id().node, &end.reason);
        }
        self.node.unregister(ActorName::AGENT);
        if let Some(on_end) = self.on_end.take() {
            on_end(end);
        }
        ctx.stop();
    }

    /// Whether a message is from the driver of the current session.
    fn is_from_driver(&self, node: &NodeId) -> bool {
        self.driver.as_ref().is_some_and(|driver| driver.id().node == *node)
    }
}

impl Actor for AgentActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let routes = Routes::new().tell::<DriverToAgent>(ctx.address().recipient());
        self.node.register(ActorName::AGENT, routes);
        self.node.subscribe_links(ctx.address().recipient());
        self.with_core(ctx, |_core, _now| {});
    }
}

impl TimedActor for AgentActor {
    fn timer(&mut self) -> &mut TimerSlot {
        &mut self.timer
    }

    fn timer_fired(&mut self, now: Time, ctx: &mut Context<Self>) {
        self.with_core(ctx, |core, _now| core.handle_timeout(now));
    }
}

impl Handler<LinkChanged> for AgentActor {
    type Result = ();

    fn handle(&mut self, changed: LinkChanged, ctx: &mut Context<Self>) {
        if changed.peer.name != NodeName::Driver {
            return;
        }
        match changed.event {
            LinkEvent::Up => {
                info!(driver = %changed.peer, "reached");
                if let Some(former) = self.driver.take() {
                    let reason =
                        format!("{} has taken the place of {}", changed.peer, former.id().node);
                    self.with_core(ctx, |core, now| {
                        core.handle_link(now, DriverLink::Lost { reason });
                    });
                }
                let driver = ActorId::new(changed.peer, ActorName::DRIVER);
                let returns = ctx.address().recipient();
                self.driver = Some(self.node.reference(driver).returning(returns));
                self.with_core(ctx, |core, now| core.handle_link(now, DriverLink::Up));
            }
            event if self.is_from_driver(&changed.peer) => {
                if let LinkEvent::Lost { .. } = event {
                    self.driver = None;
                }
                debug!(driver = %changed.peer, ?event, "link");
                self.with_core(ctx, |core, now| core.handle_link(now, DriverLink::from(&event)));
            }
            // The event is about an earlier driver, which another one has replaced.
            LinkEvent::Lost { .. } | LinkEvent::Silent { .. } | LinkEvent::Heard => {}
        }
    }
}

impl Handler<Delivery<DriverToAgent>> for AgentActor {
    type Result = ();

    fn handle(&mut self, delivery: Delivery<DriverToAgent>, ctx: &mut Context<Self>) {
        if !self.is_from_driver(&delivery.from) {
            warn!(from = %delivery.from, "an order that is not from this session's driver was dropped (G-2)");
            return;
        }
        let Delivery { from, message } = delivery;
        if !self.core.heeds(Term(from.incarnation.0), &message) {
            warn!(%from, "the refusal of a driver that was succeeded was dropped (G-2)");
            return;
        }
        self.with_core(ctx, |core, now| core.handle_driver(now, message));
    }
}

impl Handler<Returned<AgentToDriver>> for AgentActor {
    type Result = ();

    fn handle(&mut self, returned: Returned<AgentToDriver>, ctx: &mut Context<Self>) {
        self.with_core(ctx, |core, now| core.handle_undeliverable(now, returned.message));
    }
}

impl Handler<ProcessEvent> for AgentActor {
    type Result = ();

    fn handle(&mut self, event: ProcessEvent, ctx: &mut Context<Self>) {
        match event {
            ProcessEvent::Spawned { worker, result } => {
                match &result {
                    Ok(pid) => info!(%worker, pid, "started"),
                    Err(failure) => warn!(%worker, reason = failure.reason, "not started"),
                }
                self.with_core(ctx, |core, now| core.handle_spawned(now, &worker, result));
            }
            ProcessEvent::Dying { worker } => {
                info!(%worker, "has died; its process is ending");
                self.with_core(ctx, |core, _now| core.handle_dying(&worker));
            }
            ProcessEvent::Exited { worker, status, library } => {
                match library.refused_release() {
                    None => info!(%worker, %status, "ended"),
                    Some(release) => {
                        warn!(%worker, %status, release, "ended: refused for its library's release");
                    }
                }
                self.with_core(ctx, |core, _now| {
                    core.handle_exited(&worker, status, library);
                });
            }
            ProcessEvent::Inspected { worker, sight } => {
                debug!(%worker, %sight, "was looked at");
                self.with_core(ctx, |core, _now| core.handle_inspected(&worker, sight));
            }
            ProcessEvent::HealthChecked { failure } => {
                match &failure {
                    Some(failure) => warn!("the health check has failed: {failure}"),
                    None => info!("the health check has passed"),
                }
                self.with_core(ctx, |core, _now| core.handle_health_checked(failure));
            }
            ProcessEvent::LastWords { worker, said } => {
                self.with_core(ctx, |core, _now| core.handle_last_words(&worker, said));
            }
        }
    }
}

impl Handler<HostChange> for AgentActor {
    type Result = ();

    fn handle(&mut self, HostChange { meeting, hanging }: HostChange, ctx: &mut Context<Self>) {
        self.with_core(ctx, |core, now| core.handle_host_changed(now, meeting, hanging));
    }
}

impl Handler<Drain> for AgentActor {
    type Result = ();

    fn handle(&mut self, drain: Drain, ctx: &mut Context<Self>) {
        self.with_core(ctx, |core, now| core.handle_drain(now, &drain.reason, drain.code));
    }
}

impl Handler<Shutdown> for AgentActor {
    type Result = ();

    /// A shutdown by the supervisor counts as the operator's second request.
    fn handle(&mut self, shutdown: Shutdown, ctx: &mut Context<Self>) {
        self.with_core(ctx, |core, now| {
            for _first_and_second in 0..2 {
                core.handle_drain(now, &shutdown.reason, 1);
            }
        });
    }
}
