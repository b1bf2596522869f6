//! One timer an actor. Each wake of an actix context polls all its futures, so many pending timers are dear;
//! a core has one `poll_timeout()` anyway.

use std::time::Duration;

use actix::{Actor, AsyncContext, Context, SpawnHandle};
use elastic_protocol::Time;

use crate::clock::Clock;

/// An actor with one timer.
pub trait TimedActor: Actor<Context = Context<Self>> {
    /// Its timer.
    fn timer(&mut self) -> &mut TimerSlot;

    /// The deadline that the timer was armed for has come. Typically: call the core's `handle_timeout(now)`,
    /// carry out its outputs, and arm the timer again.
    fn timer_fired(&mut self, now: Time, ctx: &mut Context<Self>);
}

/// Holds the one timer of an actor.
#[derive(Debug)]
pub struct TimerSlot {
    clock: Clock,
    armed: Option<(Time, SpawnHandle)>,
}

/// A deadline that has passed already is waited for so long, so that a core that asks for it again and again
/// cannot hold the thread. One tick of tokio's clock.
const SHORTEST: Duration = Duration::from_millis(1);

impl TimerSlot {
    /// Not armed. `clock` is the node's ([`NodeHandle::clock`](crate::NodeHandle::clock)).
    pub const fn new(clock: Clock) -> Self {
        Self { clock, armed: None }
    }

    /// Arms the timer for `deadline`, in place of what it was armed for; `None` disarms it. Nothing happens if
    /// that is what it is armed for already, so shells call it after each thing that they did:
    /// `self.timer.arm(ctx, self.core.poll_timeout())`.
    ///
    /// It fires at the deadline or up to a millisecond later, never before.
    pub fn arm<A: TimedActor>(&mut self, ctx: &mut Context<A>, deadline: Option<Time>) {
        if self.armed() == deadline {
            return;
        }
        if let Some((_, handle)) = self.armed.take() {
            ctx.cancel_future(handle);
        }
        let Some(deadline) = deadline else { return };
        let wait = self.clock.until(deadline);
        let wait = if wait.is_zero() { SHORTEST } else { wait };
        let handle = ctx.run_later(wait, |actor, ctx| {
            let timer = actor.timer();
            timer.armed = None;
            let now = timer.clock.now();
            actor.timer_fired(now, ctx);
        });
        self.armed = Some((deadline, handle));
    }

    /// What it is armed for.
    pub fn armed(&self) -> Option<Time> {
        self.armed.map(|(deadline, _)| deadline)
    }
}
