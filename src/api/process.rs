//! The thread beside the training thread: a node, its link with the driver over QUIC, and the State's actor.
//! The thread ends when the actor does. `start` makes it.

use std::rc::Rc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use actix::{Addr, Recipient};
use elastic_protocol::{NodeId, NodeName, environment};
use elastic_robust_lock::RobustLock;
use elastic_runtime::{NodeHandle, spawn_child_with_handle, system};
use elastic_transport::{ConnectError, ConnectOptions, JoinToken, QuicTransport};
use elastic_worker::state::actor::{Depart, StateActor, TrainingThread};
use elastic_worker::state::core::StateConfig;
use elastic_worker::state::training::{Error, Result, ThreadMessage};

use super::gpu::{GpuSide, WithGpu};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{debug, warn};

/// Time limit for the last messages to reach the driver.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Result of the thread, with the text of its error.
pub(super) type ThreadEnd = Result<(), String>;

/// The start parameters of the thread.
pub(super) struct ActorThreadStart {
    pub(super) address: String,
    pub(super) token: JoinToken,
    pub(super) watch_interrupt: bool,
    pub(super) config: StateConfig,
    pub(super) thread: TrainingThread,
    pub(super) gpu: GpuSide,
}

impl ActorThreadStart {
    /// Runs until the actor has ended. `ready` is told once: the actor's address, or why it could not start.
    ///
    /// The thread holds this worker's robust lock as long as it runs, so that its agent knows at once when it dies.
    pub(super) fn run(self, ready: SyncSender<Result<Recipient<ThreadMessage>>>) -> ThreadEnd {
        let lock = take_lock();
        if let Some(lock) = &lock {
            self.thread.abort.watch_locks(lock.peers());
        }
        match system::run(self.serve(ready, lock.as_ref())) {
            Ok(end) => end,
            Err(error) => Err(format!("the operating system refused an event queue: {error}")),
        }
    }

    async fn serve(
        self,
        ready: SyncSender<Result<Recipient<ThreadMessage>>>,
        lock: Option<&RobustLock>,
    ) -> ThreadEnd {
        let Self { address, token, watch_interrupt, config, thread, gpu } = self;
        let worker = &config.worker;
        let seed = uuid::Uuid::new_v4().as_u64_pair().1;
        let node = NodeHandle::new(NodeId::worker(worker), seed);
        let options = ConnectOptions {
            deadlines: config.deadlines,
            seed,
            patience: config.deadlines.orphan,
            ..ConnectOptions::new(
                address.clone(),
                token,
                NodeName::Worker(worker.host.clone(), worker.slot),
            )
        };
        let transport = match QuicTransport::connect(options, node.sink()).await {
            Ok((transport, _driver)) => transport,
            Err(error) => {
                if let (ConnectError::Version { ours, .. }, Some(lock)) = (&error, lock) {
                    // The driver has not heard which worker it has refused.
                    lock.leave_note(ours);
                }
                let what = format!("joining the driver at {address}");
                let _ = ready.send(Err(Error::Start { what, source: error.into() }));
                return Ok(());
            }
        };
        node.attach(Rc::<QuicTransport>::clone(&transport) as _);
        transport.learn_drivers(&node);
        let thread = WithGpu::new(thread, gpu, node.clone());
        let (actor, handle) =
            spawn_child_with_handle(move |_| StateActor::new(node, config, thread), |_exit| {});
        watch_signals(&actor, watch_interrupt);
        let _ = ready.send(Ok(actor.recipient()));
        let exit = handle.exited().await;
        transport.shutdown("the worker leaves", LAST_WORDS).await;
        if exit.is_normal() { Ok(()) } else { Err(exit.to_string()) }
    }
}

/// Takes the lock that the agent named, if it did; without one the agent sees the end of this process later.
fn take_lock() -> Option<RobustLock> {
    let named = std::env::var(environment::LOCK).ok()?;
    RobustLock::take(&named)
        .inspect_err(|error| debug!(%error, "no lock shows this worker's life"))
        .ok()
}

/// Makes SIGTERM, and SIGINT if it is watched, a notice that this worker is to leave, rather than its end.
fn watch_signals(actor: &Addr<StateActor>, watch_interrupt: bool) {
    let interrupt = watch_interrupt.then(SignalKind::interrupt);
    for kind in [SignalKind::terminate()].into_iter().chain(interrupt) {
        let actor = actor.clone();
        match signal(kind) {
            Ok(mut signals) => {
                tokio::task::spawn_local(async move {
                    while signals.recv().await.is_some() {
                        actor.do_send(Depart);
                    }
                });
            }
            Err(error) => warn!(%error, "signals of this worker end it at once"),
        }
    }
}
