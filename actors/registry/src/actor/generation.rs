//! A generation as an actor: the registry's child, and the parent of its members, who are elsewhere and
//! stand here as entries of the core. It ends with the first member that is lost (one-for-all), and its
//! parent, the registry, sees the end with its reason.

use actix::{Actor, ActorContext, Context, Handler, Message};
use elastic_runtime::fail;

/// The actor.
pub(super) struct Generation;

impl Actor for Generation {
    type Context = Context<Self>;
}

/// Its end, as the core decided it.
pub(super) enum End {
    /// All members succeeded, or the generation was closed or replaced.
    Done,
    /// A member was lost.
    Lost(String),
}

impl Message for End {
    type Result = ();
}

impl Handler<End> for Generation {
    type Result = ();

    fn handle(&mut self, end: End, ctx: &mut Context<Self>) {
        match end {
            End::Done => ctx.stop(),
            End::Lost(reason) => fail(ctx, reason),
        }
    }
}
