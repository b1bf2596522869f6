//! The Driver actor: a thin shell around [`DriverCore`](crate::DriverCore). It is the parent of the HostManager and the
//! WorkerStateRegistry. It passes the messages of agents and workers to the core, and carries out the core's outputs.
//! `parts` has what it is made of, `process` the messages of its own process, `operator` the requests of the operator. Started by the driver's process, and by the simulation.

mod operator;
mod parts;
mod process;

use std::rc::Rc;

use actix::{
    Actor, ActorFutureExt as _, Addr, AsyncContext, Context, Handler, Message, WrapFuture as _,
};
use elastic_host_manager::{
    Discovery, HostFailed, HostJoined, HostLeft, HostManager, HostManagerConfig, HostReport,
};
use elastic_protocol::messages::{
    AgentToDriver, ClientRequest, DriverToAgent, ProcessPlace, StatusReport, WorkerToDriver,
};
use elastic_protocol::{ActorId, ActorName, NodeId, Time, WireMessage, WorkerId};
use elastic_registry::{AskMissing, OpenGeneration, Registry, RegistryReport};
use elastic_runtime::{
    ChildExit, Delivery, LinkChanged, NodeHandle, Routes, TimedActor, TimerSlot, Undelivered,
    UndeliveredReason, moment_at, spawn_child,
};

use self::operator::OperatorAnswer;
pub use self::parts::{DriverObserver, DriverParts, JournalPort, WorkerCredentials};
pub use self::process::{
    Abandon, AskAgents, AskGlance, AskStatus, LaunchFailed, StandbysChanged, StopJob,
};
use crate::core::held_answers::HeldAnswers;
use crate::core::{DriverInput, DriverOutput};
use crate::recording::RecordedDriver;

/// An actor that the driver supervises ended.
struct ChildEnded {
    name: &'static str,
    exit: ChildExit,
}

impl Message for ChildEnded {
    type Result = ();
}

struct DriverChildren {
    host_manager: Addr<HostManager>,
    registry: Addr<Registry>,
}

/// The driver's actor.
pub struct Driver {
    core: RecordedDriver,
    node: NodeHandle,
    timer: TimerSlot,
    to_be_started: Option<(HostManagerConfig, Box<dyn Discovery>)>,
    children: Option<DriverChildren>,
    credentials: Rc<dyn WorkerCredentials>,
    observer: Box<dyn DriverObserver>,
    journal: Option<JournalPort>,
    permit: Box<dyn Fn() -> bool>,
    dropped_votes: u64,
    answers: HeldAnswers<OperatorAnswer>,
}

impl Driver {
    /// Starts the driver and its children on a node, and publishes them there.
    pub fn start(
        node: &NodeHandle,
        parts: DriverParts,
        on_exit: impl FnOnce(ChildExit) + 'static,
    ) -> Addr<Self> {
        let driver = Self {
            core: parts.core,
            node: node.clone(),
            timer: TimerSlot::new(node.clock()),
            to_be_started: Some((parts.host_manager, parts.discovery)),
            children: None,
            credentials: parts.credentials,
            observer: parts.observer,
            journal: parts.journal,
            permit: parts.permit,
            dropped_votes: 0,
            answers: HeldAnswers::default(),
        };
        spawn_child(|_| driver, on_exit)
    }

    fn start_children(&mut self, ctx: &mut Context<Self>) {
        let Some((config, discovery)) = self.to_be_started.take() else { return };
        let ended = |name: &'static str, ctx: &Context<Self>| {
            let parent = ctx.address();
            move |exit| parent.do_send(ChildEnded { name, exit })
        };
        let host_manager =
            HostManager::new(&self.node, config, discovery, ctx.address().recipient());
        let registry = Registry::new(&self.node, ctx.address().recipient());
        let registry = spawn_child(|_| registry, ended("registry", ctx));
        self.node.register(ActorName::REGISTRY, Registry::routes(&registry));
        let host_manager = spawn_child(|_| host_manager, ended("host manager", ctx));
        self.children = Some(DriverChildren { host_manager, registry });
    }

    fn now(&self) -> Time {
        self.node.now()
    }

    /// The status of the core and of its process.
    fn status(&self) -> StatusReport {
        let now = self.now();
        let wall_clock = self.node.wall_clock();
        let rfc_3339 =
            |at: Time| humantime::format_rfc3339_millis(moment_at(at, now, wall_clock)).to_string();
        let mut status = self.core.status(now, &rfc_3339);
        status.dropped_messages += self.dropped_votes;
        status.lanes = self.observer.lanes();
        status.goodput = self.observer.goodput();
        status.dashboard = self.observer.dashboard();
        status.warnings.extend(self.observer.warnings());
        status
    }

    /// Gives the core an input. `drain` must follow.
    fn take(&mut self, input: DriverInput) {
        self.core.handle(self.node.now(), input);
    }

    /// Carries out the core's outputs, and arms the timer.
    fn drain(&mut self, ctx: &mut Context<Self>) {
        if !(self.permit)() {
            self.take(DriverInput::Abandon { reason: "its lease has ended".to_owned() });
        }
        while let Some(output) = self.core.poll_output() {
            self.carry_out(output);
        }
        self.store(ctx);
        self.core.end_step(self.node.now(), || self.node.wall_clock());
        self.answer_operator();
        let due = [self.core.poll_timeout(), self.answers.due_at()];
        self.timer.arm(ctx, due.into_iter().flatten().min());
    }

    /// Stores the core's new records. Only one batch is on its way at a time.
    fn store(&mut self, ctx: &mut Context<Self>) {
        let Some(journal) = self.journal.clone() else { return };
        let Some(batch) = self.core.poll_batch() else { return };
        let upto = batch.last();
        let stored = async move { journal.append(batch).await }.into_actor(self);
        ctx.spawn(stored.map(move |stored, driver, ctx| {
            driver.take(match stored {
                Ok(()) => DriverInput::Journaled { upto },
                Err((reason, may_pass)) => DriverInput::JournalFailed { reason, may_pass },
            });
            driver.drain(ctx);
        }));
    }

    fn carry_out(&mut self, output: DriverOutput) {
        let Some(children) = &self.children else { return };
        match output {
            DriverOutput::ToAgent { to, message } => self.tell(to, ActorName::AGENT, message),
            DriverOutput::ToWorker { to, message } => {
                self.tell(NodeId::worker(&to), ActorName::STATE, message);
            }
            DriverOutput::ToWorkers { to, message } => {
                let nodes = to.iter().map(NodeId::worker);
                for (node, reason) in self.node.tell_all(nodes, ActorName::STATE, &message) {
                    self.not_delivered(&node, reason);
                }
            }
            DriverOutput::StartWorker { agent, worker, environment, place } => {
                self.start_worker(agent, worker, environment, place);
            }
            DriverOutput::OpenGeneration { stamp, members, budget } => {
                children.registry.do_send(OpenGeneration { stamp, members, budget });
            }
            DriverOutput::Incident(incident) => children.registry.do_send(incident),
            DriverOutput::Vote(vote) => {
                let local = self.node.local().clone();
                self.tell(local, ActorName::REGISTRY, vote);
            }
            DriverOutput::NameMissing { stamp } => children.registry.do_send(AskMissing { stamp }),
            DriverOutput::HostJoined { host, slots } => {
                children.host_manager.do_send(HostJoined { host, slots });
            }
            DriverOutput::HostLeft { host } => children.host_manager.do_send(HostLeft { host }),
            DriverOutput::HostFailed { host, fault, reason } => {
                children.host_manager.do_send(HostFailed { host, fault, reason });
            }
            DriverOutput::Event(event) => self.observer.event(self.node.wall_clock(), &event),
            DriverOutput::Ended(result) => self.observer.ended(&result),
            DriverOutput::Abandoned { reason, is_outdated } => {
                self.observer.abandoned(&reason, is_outdated);
            }
            DriverOutput::HandedOver => self.observer.handed_over(),
            DriverOutput::KnownDrivers { to, message } => {
                for (node, reason) in self.node.tell_all(to, ActorName::DRIVERS, &message) {
                    self.not_delivered(&node, reason);
                }
            }
        }
    }

    fn start_worker(
        &mut self,
        agent: NodeId,
        worker: WorkerId,
        environment: Vec<(String, String)>,
        place: Option<ProcessPlace>,
    ) {
        match self.credentials.issue(&worker) {
            Ok(credential) => {
                let message = DriverToAgent::Start { worker, environment, place, credential };
                self.tell(agent, ActorName::AGENT, message);
            }
            Err(reason) => {
                let message = AgentToDriver::StartFailed { worker, reason, is_programs: false };
                self.take(DriverInput::Agent { from: agent, message });
            }
        }
    }

    fn tell<M: WireMessage>(&self, node: NodeId, actor: ActorName, message: M) {
        let told = self.node.reference::<M>(ActorId::new(node, actor)).tell(message);
        if let Err(Undelivered { to, reason, .. }) = told {
            self.not_delivered(&to.node, reason);
        }
    }

    /// Undelivered messages are not sent again. On its next session, the node reports its own state and is answered
    /// from the driver's.
    fn not_delivered(&self, to: &NodeId, reason: UndeliveredReason) {
        match reason {
            UndeliveredReason::TransportFull => {
                self.node.close(to, "it does not keep up with what it is told");
            }
            UndeliveredReason::TooLarge => tracing::error!(%to, %reason, "not delivered"),
            _ => tracing::debug!(%to, %reason, "not delivered"),
        }
    }
}

impl Actor for Driver {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.start_children(ctx);
        let address = ctx.address();
        let routes = Routes::new()
            .tell::<AgentToDriver>(address.clone().recipient())
            .tell::<WorkerToDriver>(address.clone().recipient());
        self.node.register(ActorName::DRIVER, routes);
        let status = Routes::new().ask::<ClientRequest>(address.clone().recipient());
        self.node.register(ActorName::STATUS, status);
        self.node.subscribe_links(address.recipient());
        self.drain(ctx);
    }
}

impl TimedActor for Driver {
    fn timer(&mut self) -> &mut TimerSlot {
        &mut self.timer
    }

    fn timer_fired(&mut self, now: Time, ctx: &mut Context<Self>) {
        if self.core.poll_timeout().is_some_and(|at| at <= now) {
            self.core.handle(now, DriverInput::Timeout);
        }
        self.drain(ctx);
    }
}

impl Handler<Delivery<AgentToDriver>> for Driver {
    type Result = ();

    fn handle(&mut self, delivery: Delivery<AgentToDriver>, ctx: &mut Context<Self>) {
        let Delivery { from, message, .. } = delivery;
        self.take(DriverInput::Agent { from, message });
        self.drain(ctx);
    }
}

impl Handler<Delivery<WorkerToDriver>> for Driver {
    type Result = ();

    fn handle(&mut self, delivery: Delivery<WorkerToDriver>, ctx: &mut Context<Self>) {
        let Delivery { from, message, .. } = delivery;
        self.take(DriverInput::Worker { from, message });
        self.drain(ctx);
    }
}

impl Handler<LinkChanged> for Driver {
    type Result = ();

    fn handle(&mut self, link: LinkChanged, ctx: &mut Context<Self>) {
        let LinkChanged { peer, event, .. } = link;
        self.take(DriverInput::Link { peer, event });
        self.drain(ctx);
    }
}

impl Handler<RegistryReport> for Driver {
    type Result = ();

    fn handle(&mut self, report: RegistryReport, ctx: &mut Context<Self>) {
        match report {
            RegistryReport::Verdict(verdict) => self.take(DriverInput::Verdict(verdict)),
            RegistryReport::Missing { stamp, missing } => {
                self.take(DriverInput::Missing { stamp, missing });
            }
            RegistryReport::VoteDropped { total } => self.dropped_votes = total,
        }
        self.drain(ctx);
    }
}

impl Handler<HostReport> for Driver {
    type Result = ();

    fn handle(&mut self, report: HostReport, ctx: &mut Context<Self>) {
        match report {
            HostReport::Changed(snapshot) => {
                self.observer.hosts(&snapshot);
                self.take(DriverInput::Hosts(snapshot));
            }
            HostReport::DiscoveryFailed(failure) => {
                let reason = failure.error.to_string();
                self.take(DriverInput::Fatal { reason, hint: Some(failure.hint.to_owned()) });
            }
            HostReport::Refused { host, reason } => {
                tracing::warn!(%host, reason, "a host that is not listed waits");
            }
        }
        self.drain(ctx);
    }
}

impl Handler<ChildEnded> for Driver {
    type Result = ();

    /// Ends the job (G-10). A new registry or host manager would know nothing of the votes and the blacklist, and
    /// would decide wrongly from then on.
    fn handle(&mut self, ended: ChildEnded, ctx: &mut Context<Self>) {
        let reason = format!("a fault in the driver: its {} {}", ended.name, ended.exit);
        let hint = Some("please report this".to_owned());
        self.take(DriverInput::Fatal { reason, hint });
        self.drain(ctx);
    }
}
