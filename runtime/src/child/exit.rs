//! How an actor ended, and how an actor says that it failed.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use actix::{Actor, ActorContext, Context};

use super::handle::Slot;

/// How an actor ended.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Exit {
    /// It stopped: by itself, or because it was asked to.
    #[error("stopped")]
    Stopped,
    /// It declared that it failed, see [`fail`].
    #[error("failed: {0}")]
    Failed(String),
    /// It panicked; message and place.
    #[error("panicked: {0}")]
    Panicked(String),
    /// It was ended by force, see [`ChildHandle::terminate`](super::ChildHandle::terminate).
    #[error("ended by force")]
    Terminated,
}

impl Exit {
    /// Whether it ended without an error of its own.
    pub const fn is_normal(&self) -> bool {
        matches!(self, Self::Stopped | Self::Terminated)
    }
}

thread_local! {
    /// The child that is being polled.
    static CURRENT: RefCell<Option<Rc<Slot>>> = const { RefCell::new(None) };
}

/// Ends the calling actor with [`Exit::Failed`]: its `stopping` and `stopped` hooks run, and then it is
/// gone, whatever they say. The first failure counts.
///
/// To be called from within the actor (a handler, a timer, a hook) that `ctx` belongs to. An actor that
/// was not started by [`spawn_child`](super::spawn_child) just stops.
pub fn fail<A>(ctx: &mut Context<A>, error: impl fmt::Display)
where
    A: Actor<Context = Context<A>>,
{
    CURRENT.with_borrow(|current| {
        if let Some(slot) = current {
            slot.failed(error.to_string());
        }
    });
    ctx.stop();
}

/// Marks a child as the one being polled, until dropped.
pub(super) struct Current(Option<Rc<Slot>>);

impl Current {
    pub(super) fn enter(slot: &Rc<Slot>) -> Self {
        Self(CURRENT.replace(Some(slot.clone())))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}
