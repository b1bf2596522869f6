//! The task of a child: a future that runs its actor until the actor has ended. Started by `spawn_child`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};

use actix::dev::ContextFut;
use actix::{Actor, ActorContext, Addr, AsyncContext, Context};

use super::exit::{ChildExit, Current};
use super::handle::{ChildRequest, ChildShared};
use crate::panics;

/// An actor with its context. Dropping a live `ContextFut` would poll it once more: `stopping` and `stopped`
/// run, and after `Running::Continue` even messages that wait. So it is terminated first, and a crash or a
/// panic runs no more of the actor's code.
struct ActorTask<A: Actor<Context = Context<A>>>(ContextFut<A, Context<A>>);

impl<A: Actor<Context = Context<A>>> Drop for ActorTask<A> {
    fn drop(&mut self) {
        self.0.ctx().terminate();
    }
}

/// Polls an actor until it has ended, and gives its exit.
pub(super) struct ChildTask<A: Actor<Context = Context<A>>> {
    /// `None` once it has ended.
    task: Option<ActorTask<A>>,
    /// Keeps the mailbox open while there is no other address of the actor.
    _address: Addr<A>,
    slot: Rc<ChildShared>,
}

impl<A: Actor<Context = Context<A>>> ChildTask<A> {
    pub(super) fn new(context: Context<A>, actor: A, slot: Rc<ChildShared>) -> Self {
        let address = context.address();
        Self { task: Some(ActorTask(context.into_future(actor))), _address: address, slot }
    }

    /// Polls it once; how it ended, if it has.
    fn poll_actor(&mut self, cx: &mut TaskContext<'_>) -> Option<ChildExit> {
        let Some(task) = &mut self.task else { return Some(ChildExit::Stopped) };
        match self.slot.take_wanted() {
            ChildRequest::Run => {}
            ChildRequest::Stop => task.0.ctx().stop(),
            ChildRequest::Terminate => return Some(ChildExit::Terminated),
        }
        let polled = {
            let _current = Current::enter(&self.slot);
            catch_unwind(AssertUnwindSafe(|| Pin::new(&mut task.0).poll(cx)))
        };
        let failure = self.slot.take_failure().map(ChildExit::Failed);
        match polled {
            Err(payload) => {
                let message = panics::message(&*payload);
                tracing::error!(actor = std::any::type_name::<A>(), %message, "an actor panicked");
                Some(ChildExit::Panicked(message))
            }
            Ok(Poll::Ready(())) => Some(failure.unwrap_or(ChildExit::Stopped)),
            Ok(Poll::Pending) => failure,
        }
    }
}

impl<A: Actor<Context = Context<A>>> Unpin for ChildTask<A> {}

impl<A: Actor<Context = Context<A>>> Future for ChildTask<A> {
    type Output = ChildExit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<ChildExit> {
        let this = &mut *self;
        this.slot.wake_with(cx.waker());
        let Some(exit) = this.poll_actor(cx) else { return Poll::Pending };
        let task = this.task.take();
        // A panicked actor may panic again while it is dropped.
        match catch_unwind(AssertUnwindSafe(|| drop(task))) {
            Ok(()) => Poll::Ready(exit),
            Err(payload) if exit.is_normal() => {
                Poll::Ready(ChildExit::Panicked(panics::message(&*payload)))
            }
            Err(_second) => Poll::Ready(exit),
        }
    }
}
