//! The State's actor: a thin shell over [`StateCore`], between the driver and the training thread. Runs on
//! the thread beside the training thread; in the simulation beside a simulated training program.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message};
use elastic_collectives::AbortHandle;
use elastic_protocol::messages::{DriverToWorker, Vote, WorkerToDriver};
use elastic_protocol::{
    ActorId, ActorName, Deadlines, NodeId, NodeName, Stamp, Term, Time, WireMessage,
};
use elastic_runtime::transport::LinkEvent;
use elastic_runtime::{
    Delivery, LinkChanged, NodeHandle, Routes, TimedActor, TimerSlot, Undelivered,
    UndeliveredReason, fail,
};
use tracing::{debug, info, warn};

use super::core::{
    BoundaryAnswer, CheckpointCommand, CheckpointOutcome, StateConfig, StateCore, StateOutput,
    TrainingCommand, TrainingProgress,
};
use super::training::{ControlShared, ThreadMessage};

impl Message for ThreadMessage {
    type Result = ();
}

/// A planned departure: SIGTERM, SIGINT or a spot notice has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Depart;

impl Message for Depart {
    type Result = ();
}

/// The training side, as the actor sees it: [`TrainingThread`], or a simulated training program. The training
/// side answers with [`ThreadMessage`]s. No method blocks.
pub trait TrainingPort {
    /// Called when the actor has started: actors that serve the training thread, such as its GPU actor, start
    /// now as its children.
    fn started(&mut self) {}
    /// Gives the training thread a command.
    ///
    /// # Errors
    /// The reason why the command is not taken: the training thread breaks its contract, or is gone.
    fn command(&mut self, command: TrainingCommand) -> Result<(), String>;
    /// Sets the abort word: collectives of this generation and of all earlier ones return at once.
    fn abort(&mut self, stamp: Stamp, reason: String);
    /// Sets the pause flag, and returns the boundary that has been reached.
    fn pause(&mut self) -> u64;
    /// Clears the pause flag.
    fn unpause(&mut self);
    /// Resets the boundary counter for a new generation. Called while the training thread is at rest.
    fn begin_generation(&mut self);
    /// The progress of training.
    fn progress(&self) -> TrainingProgress;
    /// Carries out a checkpoint command beside training. Returns the outcome if it is known at once. Otherwise it comes
    /// as [`ThreadMessage::Checkpoint`].
    fn checkpoint(&mut self, command: CheckpointCommand) -> Option<CheckpointOutcome>;
    /// Takes the deadlines that the driver has sent.
    fn set_deadlines(&mut self, deadlines: &Deadlines);
    /// Called when the actor is gone, for any reason: the training side must not wait for it any more.
    fn release(&mut self);
}

/// The actor's handles on the training thread.
pub struct TrainingThread {
    /// The channel of its commands, of capacity
    /// [`TrainingControl::COMMANDS_MAX`](super::training::TrainingControl::COMMANDS_MAX).
    pub commands: SyncSender<TrainingCommand>,
    /// The state shared by both threads.
    pub shared: Arc<ControlShared>,
    /// The abort word of its collectives.
    pub abort: AbortHandle,
}

impl TrainingPort for TrainingThread {
    fn command(&mut self, command: TrainingCommand) -> Result<(), String> {
        self.commands.try_send(command).map_err(|error| error.to_string())
    }

    fn abort(&mut self, stamp: Stamp, reason: String) {
        self.shared.note_end();
        self.abort.abort(stamp.term.0, stamp.generation.0, reason);
    }

    fn pause(&mut self) -> u64 {
        self.shared.pause()
    }

    fn unpause(&mut self) {
        self.shared.unpause();
    }

    fn begin_generation(&mut self) {
        self.shared.begin_generation();
    }

    fn progress(&self) -> TrainingProgress {
        self.shared.take_progress()
    }

    fn checkpoint(&mut self, command: CheckpointCommand) -> Option<CheckpointOutcome> {
        self.shared.checkpoints().command(command)
    }

    fn set_deadlines(&mut self, deadlines: &Deadlines) {
        self.shared.set_deadlines(deadlines);
    }

    /// Wakes the training thread everywhere: a collective sees the abort word, a boundary sees the pause flag,
    /// and a wait for a command sees the closed channel.
    fn release(&mut self) {
        self.abort.abort(u64::MAX, u64::MAX, "the worker's actor thread has ended");
        self.shared.pause();
    }
}

/// A worker's State. Handles [`Delivery<DriverToWorker>`], [`LinkChanged`], [`ThreadMessage`], [`Depart`].
pub struct StateActor {
    core: StateCore,
    node: NodeHandle,
    timer: TimerSlot,
    thread: Box<dyn TrainingPort>,
    /// The driver of the current session.
    driver: Option<NodeId>,
}

impl StateActor {
    /// A State that waits for a link to a driver; the caller makes that link. It stops, and closes the session,
    /// once it has told the training thread to leave `run`.
    pub fn new(node: NodeHandle, config: StateConfig, thread: impl TrainingPort + 'static) -> Self {
        let timer = TimerSlot::new(node.clock());
        let core = StateCore::new(config, node.now());
        Self { core, node, timer, thread: Box::new(thread), driver: None }
    }

    /// Gives the core an input, and carries out its outputs.
    fn with_core(&mut self, ctx: &mut Context<Self>, input: impl FnOnce(&mut StateCore, Time)) {
        input(&mut self.core, self.node.now());
        while let Some(output) = self.core.poll_output() {
            self.carry_out(output, ctx);
        }
        self.timer.arm(ctx, self.core.poll_timeout());
    }

    fn carry_out(&mut self, output: StateOutput, ctx: &mut Context<Self>) {
        match output {
            StateOutput::ToDriver(message) => {
                let optional = matches!(
                    message,
                    WorkerToDriver::Progress { .. } | WorkerToDriver::Moves { .. }
                );
                self.send(ActorName::DRIVER, message, optional, ctx);
            }
            StateOutput::Vote(vote) => {
                debug!(ballot = ?vote.ballot, generation = %vote.stamp.generation, "votes");
                self.send::<Vote>(ActorName::REGISTRY, vote, false, ctx);
            }
            StateOutput::Training(command) => self.command(command, ctx),
            StateOutput::Abort { stamp, reason } => {
                info!(generation = %stamp.generation, reason, "aborts");
                self.thread.abort(stamp, reason);
            }
            StateOutput::PauseFlag { on: false } => self.thread.unpause(),
            StateOutput::PauseFlag { on: true } => {
                let boundary = self.thread.pause();
                self.core.handle_pause_read(self.node.now(), boundary);
            }
            StateOutput::Checkpoint(command) => {
                if let Some(outcome) = self.thread.checkpoint(command) {
                    self.core.handle_checkpoint(self.node.now(), outcome);
                }
            }
            StateOutput::SampleProgress => self.progress(),
        }
    }

    fn progress(&mut self) {
        let progress = self.thread.progress();
        self.core.handle_progress(self.node.now(), progress);
    }

    fn command(&mut self, command: TrainingCommand, ctx: &mut Context<Self>) {
        if let TrainingCommand::Form(placement) = &command {
            info!(
                generation = %placement.stamp.generation,
                rank = placement.rank,
                world_size = placement.assignment.world_size(),
                "forms"
            );
            self.thread.begin_generation();
        }
        let exit = match &command {
            TrainingCommand::Exit(exit) => Some(format!("{exit:?}")),
            _ => None,
        };
        if let Err(error) = self.thread.command(command) {
            fail(ctx, format!("the training thread takes no command: {error}"));
        } else if let Some(exit) = exit {
            info!(exit, "leaves");
            self.node.unregister(ActorName::STATE);
            if let Some(driver) = self.driver.take() {
                self.node.close(&driver, "the worker leaves");
            }
            ctx.stop();
        }
    }

    fn send<M: WireMessage>(
        &self,
        to: ActorName,
        message: M,
        optional: bool,
        ctx: &mut Context<Self>,
    ) {
        let Some(driver) = &self.driver else { return };
        let receiver = self.node.reference::<M>(ActorId::new(driver.clone(), to));
        let Err(Undelivered { reason, .. }) = receiver.tell(message) else { return };
        // Without a session the message can be dropped: important facts are sent again on the next one. With a
        // session the message would be lost unnoticed, so the actor fails.
        if optional || reason == UndeliveredReason::NoSession {
            debug!(%reason, "not sent");
        } else {
            fail(ctx, format!("nothing can be told to the {to}: {reason}"));
        }
    }
}

impl Actor for StateActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let routes = Routes::new().tell::<DriverToWorker>(ctx.address().recipient());
        self.node.register(ActorName::STATE, routes);
        self.node.subscribe_links(ctx.address().recipient());
        self.thread.started();
        self.with_core(ctx, |_core, _now| {});
    }
}

/// Releases the training thread at any end of the actor, a panic included.
impl Drop for StateActor {
    fn drop(&mut self) {
        self.thread.release();
    }
}

impl TimedActor for StateActor {
    fn timer(&mut self) -> &mut TimerSlot {
        &mut self.timer
    }

    fn timer_fired(&mut self, now: Time, ctx: &mut Context<Self>) {
        self.with_core(ctx, |core, _now| core.handle_timeout(now));
    }
}

impl Handler<LinkChanged> for StateActor {
    type Result = ();

    fn handle(&mut self, changed: LinkChanged, ctx: &mut Context<Self>) {
        if changed.peer.name != NodeName::Driver {
            return;
        }
        match &changed.event {
            LinkEvent::Up => {
                info!(driver = %changed.peer, "reached");
                self.driver = Some(changed.peer);
            }
            LinkEvent::Lost { reason, .. } if self.driver.as_ref() == Some(&changed.peer) => {
                warn!(driver = %changed.peer, %reason, "lost");
                self.driver = None;
            }
            // The event is about an earlier driver, which another one has replaced.
            _ if self.driver.as_ref() != Some(&changed.peer) => return,
            LinkEvent::Lost { .. } | LinkEvent::Silent { .. } | LinkEvent::Heard => {}
        }
        self.with_core(ctx, |core, now| core.handle_link(now, &changed.event));
    }
}

impl Handler<Delivery<DriverToWorker>> for StateActor {
    type Result = ();

    fn handle(&mut self, delivery: Delivery<DriverToWorker>, ctx: &mut Context<Self>) {
        if self.driver.as_ref() != Some(&delivery.from) {
            warn!(from = %delivery.from, "not from this session's driver: dropped (G-2)");
            return;
        }
        if !self.core.heeds(Term(delivery.from.incarnation.0)) {
            warn!(from = %delivery.from, "a later driver is known: dropped (G-2)");
            return;
        }
        if let DriverToWorker::Welcome { deadlines, .. } = &delivery.message {
            self.thread.set_deadlines(deadlines);
        }
        self.with_core(ctx, |core, now| core.handle_driver(now, delivery.message));
    }
}

impl Handler<ThreadMessage> for StateActor {
    type Result = ();

    fn handle(&mut self, message: ThreadMessage, ctx: &mut Context<Self>) {
        match message {
            ThreadMessage::Event(event) => {
                self.with_core(ctx, |core, now| core.handle_training(now, event));
            }
            ThreadMessage::Boundary { stamp, boundary } => {
                let mut verdict = BoundaryAnswer::Hold;
                self.with_core(ctx, |core, now| {
                    verdict = core.handle_boundary(now, stamp, boundary);
                });
                match verdict {
                    BoundaryAnswer::Hold => {}
                    BoundaryAnswer::Pass => self.command(TrainingCommand::Pass, ctx),
                    BoundaryAnswer::Stop => self.command(TrainingCommand::Stop, ctx),
                    BoundaryAnswer::End => self.command(TrainingCommand::End, ctx),
                }
            }
            ThreadMessage::Checkpoint(outcome) => {
                self.with_core(ctx, |core, now| core.handle_checkpoint(now, outcome));
            }
            ThreadMessage::FirstCommit => {
                self.progress();
                self.with_core(ctx, |_core, _now| {});
            }
        }
    }
}

impl Handler<Depart> for StateActor {
    type Result = ();

    fn handle(&mut self, Depart: Depart, ctx: &mut Context<Self>) {
        self.with_core(ctx, |core, now| core.handle_sigterm(now));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use elastic_protocol::messages::UndoneTraining;
    use elastic_protocol::{Deadlines, HostName, Incarnation, JobId, WorkerId};
    use elastic_runtime::{spawn_child_with_handle, system};

    use super::*;
    use crate::state::core::{RunExit, TrainingEvent};
    use crate::state::training::TrainingControl;

    struct Rig {
        actor: StateActor,
        commands: mpsc::Receiver<TrainingCommand>,
        shared: Arc<ControlShared>,
        abort: AbortHandle,
    }

    fn rig() -> Rig {
        let host = HostName::new("a").expect("a literal");
        let worker = WorkerId { host, slot: 0, incarnation: Incarnation(1) };
        let node = NodeHandle::new(NodeId::worker(&worker), 1);
        let (sender, commands) = mpsc::sync_channel(TrainingControl::COMMANDS_MAX);
        let shared = Arc::new(ControlShared::default());
        let abort = AbortHandle::new().expect("a descriptor is free");
        let config = StateConfig {
            job: JobId(uuid::Uuid::nil()),
            worker,
            pid: 1,
            data_address: ([127, 0, 0, 1], 9).into(),
            deadlines: Deadlines::default(),
        };
        let thread =
            TrainingThread { commands: sender, shared: Arc::clone(&shared), abort: abort.clone() };
        Rig { actor: StateActor::new(node, config, thread), commands, shared, abort }
    }

    #[test]
    fn whatever_ends_the_actor_the_training_thread_is_freed() {
        system::run_paused(async {
            let Rig { actor, commands, shared, abort } = rig();
            let (_address, handle) = spawn_child_with_handle(|_| actor, |_exit| {});
            handle.terminate();
            handle.exited().await;
            assert!(abort.aborted(1, 1).is_some(), "out of a collective");
            assert!(shared.must_ask(), "out of the next step");
            assert!(commands.recv().is_err(), "out of a wait");
        });
    }

    #[test]
    fn a_worker_that_no_driver_answers_leaves_after_the_orphan_deadline() {
        system::run_paused(async {
            let Rig { actor, commands, .. } = rig();
            let (address, handle) = spawn_child_with_handle(|_| actor, |_exit| {});
            let at_rest = TrainingEvent::AtRest { commit: None, undone: UndoneTraining::default() };
            address.do_send(ThreadMessage::Event(at_rest));
            assert!(handle.exited().await.is_normal());
            let orphaned = TrainingCommand::Exit(RunExit::Orphaned { gone_ms: 30_000 });
            assert_eq!(commands.try_recv(), Ok(orphaned), "G-9");
        });
    }
}
