//! The training thread's way to the GPU actor: questions, each with a channel for its answer, for which the thread
//! waits.

use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::{Message, Recipient};
use elastic_protocol::{Stamp, WorkerId};

use super::core::Close;
use crate::nccl::UniqueId;
use crate::offer::{FormPlan, Offer};
use crate::session::NcclSession;

/// Requests to the actor.
#[derive(Debug)]
pub enum GpuRequest {
    /// Asks for this member's offer to a generation of these members.
    Offer {
        /// The generation.
        stamp: Stamp,
        /// By rank.
        members: Vec<WorkerId>,
        /// The answer.
        reply: SyncSender<Result<Offer, String>>,
    },
    /// Make the meeting point of this plan.
    Identify {
        /// The plan.
        plan: FormPlan,
        /// The answer.
        reply: SyncSender<Result<UniqueId, String>>,
    },
    /// Form the generation's communicator.
    Form {
        /// The generation.
        stamp: Stamp,
        /// By rank.
        members: Vec<WorkerId>,
        /// The plan that all members have computed.
        plan: FormPlan,
        /// The meeting point, if the plan needs one.
        id: Option<UniqueId>,
        /// Most time that forming may take.
        patience: Duration,
        /// The answer.
        reply: SyncSender<Result<Arc<NcclSession>, String>>,
    },
    /// The generation runs: form these in the background.
    Spares {
        /// The generation.
        stamp: Stamp,
        /// For each spare: its number, which all its members know, its members by rank, and their meeting point.
        spares: Vec<(u32, Vec<WorkerId>, UniqueId)>,
        /// Most time that forming each may take.
        patience: Duration,
    },
    /// The training thread has left the generation.
    Close {
        /// The generation.
        stamp: Stamp,
        /// State in which it left the communicator.
        close: Close,
    },
    /// The State aborts the generation.
    Abort {
        /// The generation.
        stamp: Stamp,
    },
}

impl Message for GpuRequest {
    type Result = ();
}

/// The training thread's way to the actor, which is started on another thread, and may be started again.
#[derive(Clone, Default)]
pub struct GpuPort {
    actor: Arc<Mutex<Option<Recipient<GpuRequest>>>>,
}

impl GpuPort {
    /// The actor is there.
    pub fn open(&self, actor: Recipient<GpuRequest>) {
        *self.actor.lock().unwrap_or_else(PoisonError::into_inner) = Some(actor);
    }

    /// Tells it something; nothing where it is gone, since its end ends the generation too.
    pub fn tell(&self, request: GpuRequest) {
        let actor = self.actor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(actor) = actor.as_ref() {
            actor.do_send(request);
        }
    }

    /// Asks, and waits for the answer.
    pub(crate) fn ask<T>(
        &self,
        patience: Duration,
        request: impl FnOnce(SyncSender<Result<T, String>>) -> GpuRequest,
    ) -> Result<T, String> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.tell(request(reply));
        match answer.recv_timeout(patience) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => Err("the GPU actor does not answer".to_owned()),
            Err(RecvTimeoutError::Disconnected) => Err("the GPU actor is gone".to_owned()),
        }
    }
}

impl std::fmt::Debug for GpuPort {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("GpuPort")
    }
}

#[cfg(test)]
mod tests {
    use actix::{Actor, Context, Handler};
    use elastic_runtime::system;
    use tokio::sync::oneshot;

    use super::*;

    /// Takes requests and answers none.
    #[derive(Default)]
    struct MuteActor {
        kept: Vec<GpuRequest>,
    }

    impl Actor for MuteActor {
        type Context = Context<Self>;
    }

    impl Handler<GpuRequest> for MuteActor {
        type Result = ();

        fn handle(&mut self, request: GpuRequest, _: &mut Context<Self>) {
            self.kept.push(request);
        }
    }

    fn identify(port: &GpuPort, patience: Duration) -> Result<UniqueId, String> {
        let plan = FormPlan::init(1, "a test");
        port.ask(patience, |reply| GpuRequest::Identify { plan, reply })
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an actor without a supervisor, on its thread")]
    fn g_9_an_actor_that_does_not_answer_is_waited_for_until_the_patience_is_over() {
        let port = GpuPort::default();
        let gone = identify(&port, Duration::from_secs(60)).expect_err("nobody is there");
        assert_eq!(gone, "the GPU actor is gone");
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, is_ready) = mpsc::sync_channel(1);
        let opened = port.clone();
        let thread = std::thread::spawn(move || {
            system::run(async move {
                opened.open(MuteActor::default().start().recipient());
                ready.send(()).expect("the test waits");
                let _ = stopped.await;
            })
        });
        is_ready.recv().expect("the actor starts");
        let mute = identify(&port, Duration::from_millis(200)).expect_err("it is mute");
        assert_eq!(mute, "the GPU actor does not answer");
        drop(stop);
        thread.join().expect("it ends").expect("the system gives an event queue");
    }
}
