//! The exit of an actor, and the function with which an actor declares a failure.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use actix::{Actor, ActorContext, Context};

use super::handle::ChildShared;

/// The way in which an actor ended.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ChildExit {
    /// The actor stopped, by itself or on request.
    #[error("stopped")]
    Stopped,
    /// The actor declared a failure, see [`fail`].
    #[error("failed: {0}")]
    Failed(String),
    /// The actor panicked; message and place.
    #[error("panicked: {0}")]
    Panicked(String),
    /// The actor was terminated, see [`ChildHandle::terminate`](super::ChildHandle::terminate).
    #[error("ended by force")]
    Terminated,
}

impl ChildExit {
    /// Whether the actor ended without an error of its own.
    pub const fn is_normal(&self) -> bool {
        matches!(self, Self::Stopped | Self::Terminated)
    }
}

thread_local! {
    /// The child that is being polled.
    static CURRENT: RefCell<Option<Rc<ChildShared>>> = const { RefCell::new(None) };
}

/// Ends the calling actor with [`ChildExit::Failed`]. Its `stopping` and `stopped` hooks run, and it ends regardless of
/// their results. The first failure counts.
///
/// To be called from within the actor (a handler, a timer, a hook) to which `ctx` belongs. An actor that
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
pub(super) struct Current(Option<Rc<ChildShared>>);

impl Current {
    pub(super) fn enter(slot: &Rc<ChildShared>) -> Self {
        Self(CURRENT.replace(Some(slot.clone())))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}
