//! Starting and ending actors: the only place where an actor's life begins. Called by supervisors and by
//! the shells of processes.
//!
//! Unlike `Actor::start`, a child's end is always seen, with its reason, and a child whose node is dropped
//! runs no more of its code. It lands in the `LocalSet` in which it is started. It lives until it ends
//! itself, fails, panics, or is ended through its handle; not being addressed by anyone does not end it.
//!
//! Actors end themselves by `ctx.stop()` or [`fail`], never by `ctx.terminate()`: in actix 0.13 that loops for
//! ever where a future was cancelled (a timer armed anew, say) in the same turn and others are still there.

mod exit;
mod handle;
mod task;

use actix::{Actor, Addr, AsyncContext, Context};

pub use self::exit::{ChildExit, fail};
pub use self::handle::ChildHandle;
use self::handle::ChildShared;
use self::task::ChildTask;
use crate::mailbox::MAILBOX_MESSAGES_MAX;

/// Starts an actor. `make` gets its context (for its own address, another mailbox capacity, first timers);
/// `on_exit` is called once, when the actor is gone and its mailbox closed. It is not called when the node
/// is dropped, or crashes.
///
/// The mailbox holds [`MAILBOX_MESSAGES_MAX`] messages if `make` says nothing else.
///
/// # Panics
/// If no `LocalSet` is there to start it in.
pub fn spawn_child<A>(
    make: impl FnOnce(&mut Context<A>) -> A,
    on_exit: impl FnOnce(ChildExit) + 'static,
) -> Addr<A>
where
    A: Actor<Context = Context<A>>,
{
    spawn_child_with_handle(make, on_exit).0
}

/// [`spawn_child`], with a handle to end the actor and to wait for its end.
pub fn spawn_child_with_handle<A>(
    make: impl FnOnce(&mut Context<A>) -> A,
    on_exit: impl FnOnce(ChildExit) + 'static,
) -> (Addr<A>, ChildHandle)
where
    A: Actor<Context = Context<A>>,
{
    let mut context = Context::new();
    context.set_mailbox_capacity(MAILBOX_MESSAGES_MAX);
    let actor = make(&mut context);
    let address = context.address();
    let slot = ChildShared::new();
    let task = ChildTask::new(context, actor, slot.clone());
    let handle = ChildHandle::new(slot.clone());
    tokio::task::spawn_local(async move {
        let exit = task.await;
        slot.ended(exit.clone());
        on_exit(exit);
    });
    (address, handle)
}
