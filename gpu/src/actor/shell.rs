//! The actor's shell: passes requests to the core, and carries out the core's outputs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, WrapFuture};
use elastic_collectives::AbortHandle;
use elastic_protocol::{Stamp, Time};
use elastic_runtime::{NodeHandle, OffloadError, OffloadPort, TimedActor, TimerSlot, fail};
use tracing::{debug, info, warn};

use super::core::{
    AskTicket, CommId, CoreConfig, GpuAnswer, GpuCore, GpuJobId, GpuOutput, GpuWork, WorkOutcome,
};
use super::jobs::{self, Form, WaitLimits};
use super::port::{GpuPort, GpuRequest};
use super::thread::GpuThread;
use crate::gpu::Gpu;
use crate::nccl::{Comm, UniqueId};
use crate::offer::{How, Offer};
use crate::session::NcclSession;

/// Threads that are left behind, stuck in a call, before the actor gives up.
const LEFT_BEHIND_MAX: u32 = 4;

/// Settings of the actor.
#[derive(Clone, Debug)]
pub struct GpuConfig {
    /// The GPU and its libraries.
    pub gpu: Arc<Gpu>,
    /// Settings of the core.
    pub core: CoreConfig,
    /// The abort word of this worker's collectives.
    pub abort: AbortHandle,
    /// The training thread's way to the actor.
    pub port: GpuPort,
}

/// The asker of a pending question.
enum Asked {
    Offer(SyncSender<Result<Offer, String>>),
    Identify(SyncSender<Result<UniqueId, String>>),
    Form { reply: SyncSender<Result<Arc<NcclSession>, String>>, stamp: Stamp, ranks: Vec<u32> },
}

/// Results of a job.
enum Made {
    Nothing,
    Id(UniqueId),
    Comm(CommId, Comm),
}

/// Owns the GPU, its communicators, and the thread in which their calls may block.
pub struct GpuActor {
    config: GpuConfig,
    core: GpuCore,
    node: NodeHandle,
    timer: TimerSlot,
    thread: GpuThread,
    offload: OffloadPort,
    comms: BTreeMap<CommId, Arc<Comm>>,
    session: Option<Arc<NcclSession>>,
    asked: BTreeMap<AskTicket, Asked>,
    /// The meeting point of the communicator that is being formed. `made_id` is set if this worker has made it.
    id: Option<UniqueId>,
    made_id: Option<UniqueId>,
    spare_ids: BTreeMap<u32, UniqueId>,
    /// The job under way and its stop flag; its memory is lost with it if it is stuck.
    under_way: Option<(GpuJobId, Arc<AtomicBool>)>,
    left_behind: u32,
    next_ticket: u64,
}

impl GpuActor {
    /// An actor that has formed nothing yet.
    pub fn new(node: NodeHandle, config: GpuConfig) -> GpuActor {
        let thread = GpuThread::default();
        GpuActor {
            core: GpuCore::new(config.core.clone()),
            timer: TimerSlot::new(node.clock()),
            offload: OffloadPort::new(thread.clone()),
            thread,
            node,
            config,
            comms: BTreeMap::new(),
            session: None,
            asked: BTreeMap::new(),
            id: None,
            made_id: None,
            spare_ids: BTreeMap::new(),
            under_way: None,
            left_behind: 0,
            next_ticket: 0,
        }
    }

    fn with_core(&mut self, ctx: &mut Context<Self>, input: impl FnOnce(&mut GpuCore, Time)) {
        input(&mut self.core, self.node.now());
        while let Some(output) = self.core.poll_output() {
            self.carry_out(output, ctx);
        }
        self.timer.arm(ctx, self.core.poll_timeout());
    }

    fn carry_out(&mut self, output: GpuOutput, ctx: &mut Context<Self>) {
        match output {
            GpuOutput::Answer(ticket, answer) => self.answer(ticket, answer),
            GpuOutput::Do(id, work) => self.start(id, work, ctx),
            GpuOutput::Cancel(id) => {
                if let Some((_, cancelled)) = self.under_way.as_ref().filter(|(job, _)| *job == id)
                {
                    cancelled.store(true, Ordering::Relaxed);
                }
            }
            GpuOutput::LeaveBehind(_) => self.leave_behind(ctx),
            GpuOutput::Sample(stamp) => {
                let session = self.session.as_ref().filter(|session| session.stamp() == stamp);
                if let Some(sample) = session.map(|session| session.sample()) {
                    self.core.handle_sample(self.node.now(), stamp, sample);
                }
            }
            GpuOutput::Fail(stamp, reason) => {
                warn!(generation = %stamp.generation, reason, "the GPU's collectives have failed");
                if let Some(session) =
                    self.session.as_ref().filter(|session| session.stamp() == stamp)
                {
                    session.fail(reason);
                }
            }
        }
    }

    fn ticket(&mut self, asked: Asked) -> AskTicket {
        self.next_ticket += 1;
        let ticket = AskTicket(self.next_ticket);
        self.asked.insert(ticket, asked);
        ticket
    }

    /// The asker may have given up: then the answer has no reader.
    fn answer(&mut self, ticket: AskTicket, answer: GpuAnswer) {
        match (self.asked.remove(&ticket), answer) {
            (Some(Asked::Offer(reply)), GpuAnswer::Offer(offer)) => drop(reply.try_send(Ok(offer))),
            (Some(Asked::Identify(reply)), GpuAnswer::Identified(result)) => {
                let id = self.made_id.ok_or_else(|| "no meeting point was made".to_owned());
                drop(reply.try_send(result.and(id)));
            }
            (Some(Asked::Form { reply, stamp, ranks }), GpuAnswer::Formed(result)) => {
                let comm = result.and_then(|comm| {
                    let comm = self.comms.get(&comm).cloned();
                    comm.ok_or_else(|| "the communicator is gone".to_owned())
                });
                let session = comm.map(|comm| Arc::new(NcclSession::new(stamp, comm, ranks)));
                self.session = session.as_ref().ok().cloned();
                drop(reply.try_send(session));
            }
            _ => {}
        }
    }

    fn start(&mut self, id: GpuJobId, work: GpuWork, ctx: &mut Context<Self>) {
        let cancelled = Arc::new(AtomicBool::new(false));
        self.under_way = Some((id, Arc::clone(&cancelled)));
        let maker = self.config.gpu.maker().clone();
        let limits = |patience: Duration, abort| WaitLimits { patience, abort, cancelled };
        let now = self.node.now();
        let (label, job): (_, Box<dyn FnOnce() -> Result<Made, String> + Send>) = match work {
            GpuWork::Identify(parent) => {
                let parent = parent.and_then(|parent| self.comms.get(&parent).cloned());
                let job = move || {
                    let id = jobs::identify(&maker, parent.as_deref());
                    id.map(Made::Id).map_err(|error| error.to_string())
                };
                ("gpu identify", Box::new(job))
            }
            GpuWork::Form { into, parent, how, rank, world, stamp, due } => {
                info!(generation = %stamp.generation, ?how, rank, world, "forms a communicator");
                let parent = parent.and_then(|parent| self.comms.get(&parent).cloned());
                let hosts_id = self.id.is_some() && self.id == self.made_id;
                let form = Form { how, parent, id: self.id, hosts_id, rank, world };
                let limits = limits(due.since(now), Some((self.config.abort.clone(), stamp)));
                let job =
                    move || jobs::form(&maker, form, &limits).map(|comm| Made::Comm(into, comm));
                ("gpu form", Box::new(job))
            }
            GpuWork::FormSpare { into, number, rank, world, due } => {
                let id = self.spare_ids.get(&number).copied();
                let form = Form { how: How::Init, parent: None, id, hosts_id: false, rank, world };
                let limits = limits(due.since(now), None);
                let job =
                    move || jobs::form(&maker, form, &limits).map(|comm| Made::Comm(into, comm));
                ("gpu spare", Box::new(job))
            }
            GpuWork::Revoke(comm) => {
                let comm = self.comms.get(&comm).cloned();
                let job =
                    move || comm.map_or(Ok(()), |comm| jobs::revoke(&comm)).map(|()| Made::Nothing);
                ("gpu revoke", Box::new(job))
            }
            GpuWork::End(number) => {
                let comm = self.comms.remove(&number);
                let job = move || {
                    comm.iter().for_each(Comm::end_beside);
                    Ok(Made::Nothing)
                };
                ("gpu end", Box::new(job))
            }
        };
        let done = self.offload.run(label, job).into_actor(self);
        ctx.spawn(done.map(move |result, actor, ctx| actor.done(id, result, ctx)));
    }

    fn done(
        &mut self,
        id: GpuJobId,
        result: Result<Result<Made, String>, OffloadError>,
        ctx: &mut Context<Self>,
    ) {
        if self.under_way.as_ref().is_none_or(|(job, _)| *job != id) {
            // An abandoned job came back after all: its result is ended as it is dropped.
            return;
        }
        self.under_way = None;
        let result = result.unwrap_or_else(|error| Err(error.to_string()));
        let outcome = match result {
            Ok(made) => {
                match made {
                    Made::Nothing => {}
                    Made::Id(id) => self.made_id = Some(id),
                    Made::Comm(number, comm) => {
                        self.comms.insert(number, Arc::new(comm));
                    }
                }
                WorkOutcome::Done
            }
            Err(reason) => {
                debug!(reason, "work of the GPU's thread has failed");
                WorkOutcome::Failed(reason)
            }
        };
        // An end that has failed leaves nothing that could be used.
        self.comms.retain(|_, comm| !comm.is_ended());
        self.with_core(ctx, |core, now| core.handle_done(now, id, outcome));
    }

    fn leave_behind(&mut self, ctx: &mut Context<Self>) {
        self.thread.leave_behind();
        self.under_way = None;
        self.left_behind += 1;
        warn!(
            left_behind = self.left_behind,
            "the GPU's thread is stuck: another one takes its place"
        );
        if self.left_behind >= LEFT_BEHIND_MAX {
            fail(ctx, format!("{LEFT_BEHIND_MAX} calls of the GPU's libraries never came back"));
        }
    }
}

impl Actor for GpuActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.config.port.open(ctx.address().recipient());
    }
}

/// However the actor ends, by a panic too, the training thread must not wait in a communicator without a watcher.
impl Drop for GpuActor {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            session.fail("the GPU actor has ended".to_owned());
        }
        if let Some((_, cancelled)) = &self.under_way {
            cancelled.store(true, Ordering::Relaxed);
        }
    }
}

impl TimedActor for GpuActor {
    fn timer(&mut self) -> &mut TimerSlot {
        &mut self.timer
    }

    fn timer_fired(&mut self, _now: Time, ctx: &mut Context<Self>) {
        self.with_core(ctx, GpuCore::handle_timeout);
    }
}

impl Handler<GpuRequest> for GpuActor {
    type Result = ();

    fn handle(&mut self, request: GpuRequest, ctx: &mut Context<Self>) {
        match request {
            GpuRequest::Offer { stamp, members, reply } => {
                let ticket = self.ticket(Asked::Offer(reply));
                self.with_core(ctx, |core, now| core.handle_offer(now, ticket, stamp, &members));
            }
            GpuRequest::Identify { plan, reply } => {
                self.made_id = None;
                let ticket = self.ticket(Asked::Identify(reply));
                self.with_core(ctx, |core, now| core.handle_identify(now, ticket, &plan));
            }
            GpuRequest::Form { stamp, members, plan, id, patience, reply } => {
                self.id = id;
                let ranks = plan.ranks.clone();
                let ticket = self.ticket(Asked::Form { reply, stamp, ranks });
                self.with_core(ctx, |core, now| {
                    core.handle_form(now, ticket, stamp, &members, &plan, now + patience);
                });
            }
            GpuRequest::Spares { stamp, spares, patience } => {
                self.spare_ids.clear();
                let mut members = Vec::new();
                for (number, spare, id) in spares {
                    self.spare_ids.insert(number, id);
                    members.push((number, spare));
                }
                self.with_core(ctx, |core, now| {
                    core.handle_spares(now, stamp, &members, now + patience);
                });
            }
            GpuRequest::Close { stamp, close } => {
                self.session.take_if(|session| session.stamp() == stamp);
                self.with_core(ctx, |core, now| core.handle_close(now, stamp, close));
            }
            GpuRequest::Abort { stamp } => {
                self.with_core(ctx, |core, now| core.handle_abort(now, stamp));
            }
        }
    }
}
