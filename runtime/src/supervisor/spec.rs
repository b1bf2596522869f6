//! The specification of a supervisor's child, which is made anew for each of its lives.

use actix::{Actor, Addr, Context, Handler, Recipient};

use crate::child::{ChildExit, ChildHandle, spawn_child_with_handle};
use crate::restart::Lifetime;
use crate::shutdown::Shutdown;

type OnExit = Box<dyn FnOnce(ChildExit)>;
type StartChild = Box<dyn FnMut(OnExit) -> (ChildHandle, Option<Recipient<Shutdown>>)>;

/// A child: its name, which of its ends lead to a restart, and the factory that makes a new actor for each
/// life. An actor that failed or panicked is never used again.
pub struct ChildSpec {
    pub(super) name: String,
    pub(super) lifetime: Lifetime,
    pub(super) start: StartChild,
}

impl ChildSpec {
    /// A child whose actor `make` makes. `announce` gets the address of each life as it starts, because the old
    /// address is closed. Typically it registers the actor under its name
    /// ([`NodeHandle::register`](crate::NodeHandle::register)), so that references reach the new life.
    ///
    /// The child is stopped as by `ctx.stop()`; see [`ChildSpec::with_shutdown`].
    pub fn new<A: Actor<Context = Context<A>>>(
        name: impl Into<String>,
        lifetime: Lifetime,
        make: impl FnMut(&mut Context<A>) -> A + 'static,
        announce: impl FnMut(Addr<A>) + 'static,
    ) -> Self {
        Self::build(name.into(), lifetime, make, announce, |_| None)
    }

    /// A child that is stopped by [`Shutdown`], and answers by stopping itself when it is ready.
    pub fn with_shutdown<A: Actor<Context = Context<A>> + Handler<Shutdown>>(
        name: impl Into<String>,
        lifetime: Lifetime,
        make: impl FnMut(&mut Context<A>) -> A + 'static,
        announce: impl FnMut(Addr<A>) + 'static,
    ) -> Self {
        Self::build(name.into(), lifetime, make, announce, |address| {
            Some(address.clone().recipient())
        })
    }

    fn build<A: Actor<Context = Context<A>>>(
        name: String,
        lifetime: Lifetime,
        mut make: impl FnMut(&mut Context<A>) -> A + 'static,
        mut announce: impl FnMut(Addr<A>) + 'static,
        shutdown: fn(&Addr<A>) -> Option<Recipient<Shutdown>>,
    ) -> Self {
        let start = move |on_exit: OnExit| {
            let (address, handle) = spawn_child_with_handle(&mut make, on_exit);
            let shutdown = shutdown(&address);
            announce(address);
            (handle, shutdown)
        };
        Self { name, lifetime, start: Box::new(start) }
    }
}
