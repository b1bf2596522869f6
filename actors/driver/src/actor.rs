//! The Driver actor: a thin shell around [`DriverCore`](crate::DriverCore). It is the parent of the HostManager and the
//! WorkerStateRegistry. It passes the messages of agents and workers to the core, and carries out the core's outputs.
//! Started by the driver's process, and by the simulation.

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use actix::{
    Actor, ActorFutureExt as _, Addr, AsyncContext, Context, Handler, Message, MessageResult,
    WrapFuture as _,
};
use elastic_host_manager::{
    Discovery, DrainDecision, DrainHost, HostFailed, HostJoined, HostLeft, HostManager,
    HostManagerConfig, HostReport, HostsSnapshot, ReadmitDecision, ReadmitHost,
};
use elastic_journal::{Journal, JournalBatch, JournalError};
use elastic_protocol::messages::{
    AgentToDriver, ClientRequest, ClientResponse, DriverStatus, DriverToAgent, GoodputStatus,
    LaneStatus, ProcessPlace, StatusReport, WorkerToDriver,
};
use elastic_protocol::{
    ActorId, ActorName, HostName, JobResult, NodeId, NodeName, Time, WireMessage, WorkerId,
};
use elastic_registry::{AskMissing, OpenGeneration, Registry, RegistryReport};
use elastic_runtime::{
    ChildExit, Delivery, LinkChanged, NodeHandle, OffloadError, OffloadPort, Question, ReplyTo,
    Routes, TimedActor, TimerSlot, Undelivered, UndeliveredReason, moment_at, spawn_child,
};

use crate::core::held_answers::{HeldAnswers, ReleasedAnswer};
use crate::core::{DriverEvent, DriverInput, DriverOutput, Glance};
use crate::recording::RecordedDriver;

/// Issues the one-time credentials with which workers join.
pub trait WorkerCredentials {
    /// A secret that lets this worker join, once.
    ///
    /// # Errors
    /// The reason no credential can be issued.
    fn issue(&self, worker: &WorkerId) -> Result<String, String>;
}

/// Observer of the driver: the event log, the launcher, the process itself.
pub trait DriverObserver {
    /// An event of the log.
    fn event(&mut self, at: SystemTime, event: &DriverEvent);
    /// The hosts that the job may use changed.
    fn hosts(&mut self, hosts: &HostsSnapshot);
    /// The job is over, and all processes have left.
    fn ended(&mut self, result: &JobResult);
    /// The driver must end at once without a message to anyone. The job goes on without it. `is_outdated`: its journal
    /// is older than the job, and no driver may lead from it.
    fn abandoned(&mut self, reason: &str, is_outdated: bool);
    /// The driver must end at once without a message to anyone. A standby goes on with the job.
    fn handed_over(&mut self);
    /// State of the process's lanes (threads for blocking work).
    fn lanes(&self) -> Vec<LaneStatus> {
        Vec::new()
    }
    /// The goodput ledger: use of the job's slot-seconds, from its events. None if the process does not account for them.
    fn goodput(&self) -> Option<GoodputStatus> {
        None
    }
    /// The address of the job's page; none without one.
    fn dashboard(&self) -> Option<String> {
        None
    }
    /// Parts of the process that do not answer in time.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Parts of a driver.
pub struct DriverParts {
    /// The state machine, with its recorder.
    pub core: RecordedDriver,
    /// Validated settings of the host manager.
    pub host_manager: HostManagerConfig,
    /// The discovery of hosts.
    pub discovery: Box<dyn Discovery>,
    /// Issues workers' credentials.
    pub credentials: Rc<dyn WorkerCredentials>,
    /// The observer of events.
    pub observer: Box<dyn DriverObserver>,
    /// Storage of the core's records; none: the core makes no records.
    pub journal: Option<JournalPort>,
    /// Whether the driver may act now (it holds the leader lease); checked before any output leaves.
    pub permit: Box<dyn Fn() -> bool>,
}

/// Storage of records, and the lane that does the blocking work.
#[derive(Clone)]
pub struct JournalPort {
    journal: Arc<Mutex<Box<dyn Journal>>>,
    offload: OffloadPort,
}

impl JournalPort {
    /// Stores in `journal`, by way of `offload`.
    pub fn new(journal: Box<dyn Journal>, offload: OffloadPort) -> Self {
        Self { journal: Arc::new(Mutex::new(journal)), offload }
    }

    /// Stores a batch. The error has a text, and whether it may pass.
    async fn append(&self, batch: JournalBatch) -> Result<(), (String, bool)> {
        let journal = Arc::clone(&self.journal);
        let append = move || match journal.lock() {
            Ok(mut journal) => journal.append(&batch),
            Err(_) => Err(JournalError::Corrupt("a former write of it panicked".to_owned())),
        };
        match self.offload.run("journal", append).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err((error_text(&error), error.may_pass())),
            Err(error) => {
                let may_pass =
                    matches!(error, OffloadError::Busy { .. } | OffloadError::Cancelled { .. });
                Err((error.to_string(), may_pass))
            }
        }
    }
}

fn error_text(error: &JournalError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

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

/// An actor that the driver supervises ended.
struct ChildEnded {
    name: &'static str,
    exit: ChildExit,
}

impl Message for ChildEnded {
    type Result = ();
}

/// A decision of the host manager about the operator's request. It comes by way of the driver's mailbox, and so after the hosts
/// that it changed.
struct HostDecided(HostAnswer);

impl Message for HostDecided {
    type Result = ();
}

/// An answer to the operator about a host.
struct HostAnswer {
    reply: ReplyTo<ClientRequest>,
    response: ClientResponse,
    /// The state of the host since the decision, as a text.
    state: String,
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
    answers: HeldAnswers<HostAnswer>,
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

    /// Answers the operator's commands whose effects are stored, and those whose effects are not stored in time.
    fn answer_operator(&mut self) {
        let now = self.node.now();
        while let Some(released) = self.answers.poll(now, |record| self.core.is_recorded(record)) {
            match released {
                ReleasedAnswer::Stored(answer) => answer.reply.answer(answer.response),
                ReleasedAnswer::Late(HostAnswer { reply, state, .. }) => {
                    let trouble = self.core.journal_trouble();
                    let trouble = trouble.unwrap_or("the journal does not answer");
                    reply.answer(refused(format!(
                        "{state}, but this is not stored, and the next driver would not know it: {trouble}; \
                         give the command again once the journal can be written"
                    )));
                }
            }
        }
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

    /// Passes a request of the operator to the host manager. `answer` makes the answer of its decision. Without a decision the
    /// client gets no answer, and reports that.
    fn ask_host_manager<M>(
        &self,
        request: M,
        ctx: &mut Context<Self>,
        answer: impl FnOnce(M::Result) -> HostAnswer + 'static,
    ) where
        M: Message + Send + 'static,
        M::Result: Send,
        HostManager: Handler<M>,
    {
        let Some(children) = &self.children else { return };
        let decided = children.host_manager.send(request).into_actor(self);
        ctx.spawn(decided.map(|decision, _driver, ctx| {
            if let Ok(decision) = decision {
                ctx.address().do_send(HostDecided(answer(decision)));
            }
        }));
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

impl Handler<Question<ClientRequest>> for Driver {
    type Result = ();

    fn handle(&mut self, question: Question<ClientRequest>, ctx: &mut Context<Self>) {
        // A worker may ask for the status, but not decide about its job.
        let is_client = question.from.name == NodeName::Client;
        match question.request {
            request if request != ClientRequest::Status && !is_client => {
                question.reply.answer(refused(
                    "only a client with the job's token may ask for that".to_owned(),
                ));
            }
            ClientRequest::Status => {
                let mut status = self.status();
                let now = humantime::format_rfc3339_millis(self.node.wall_clock());
                status.answered_at = Some(now.to_string());
                question.reply.answer(ClientResponse::Status(Box::new(status)));
            }
            ClientRequest::Stop => {
                self.take(DriverInput::StopAsked);
                self.drain(ctx);
                question.reply.answer(ClientResponse::Done);
            }
            ClientRequest::Drain { host } => {
                let reply = question.reply;
                self.ask_host_manager(DrainHost { host: host.clone() }, ctx, move |decision| {
                    let response = match decision {
                        DrainDecision::Drained => ClientResponse::Done,
                        DrainDecision::OutAlready => ClientResponse::DoneAlready,
                        DrainDecision::NotListed => refused(format!("this job has no host {host}")),
                        DrainDecision::TooMany => refused("too many hosts are drained".to_owned()),
                    };
                    HostAnswer { reply, response, state: format!("host {host} is drained") }
                });
            }
            ClientRequest::Readmit { host } => {
                let reply = question.reply;
                let state = format!("host {host} may have workers again");
                self.ask_host_manager(ReadmitHost { host }, ctx, move |decision| {
                    let response = match decision {
                        ReadmitDecision::Readmitted => ClientResponse::Done,
                        ReadmitDecision::NotOut => ClientResponse::DoneAlready,
                    };
                    HostAnswer { reply, response, state }
                });
            }
        }
    }
}

impl Handler<HostDecided> for Driver {
    type Result = ();

    /// Answers once the last record is stored. A request that found the host as it was asked for waits, too: the record that
    /// says so may be on its way.
    fn handle(&mut self, decided: HostDecided, ctx: &mut Context<Self>) {
        let answer = decided.0;
        if matches!(answer.response, ClientResponse::Refused { .. }) {
            return answer.reply.answer(answer.response);
        }
        self.answers.hold(self.now(), self.core.last_record(), answer);
        self.drain(ctx);
    }
}

const fn refused(reason: String) -> ClientResponse {
    ClientResponse::Refused { reason }
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
