//! The one timer of an actor. Each wake of an actix context polls all its futures, so many pending timers are
//! costly; and a core has one `poll_timeout()` anyway.

use std::time::Duration;

use actix::{Actor, AsyncContext, Context, SpawnHandle};
use elastic_protocol::Time;

use crate::clock::Clock;

/// An actor with one timer.
pub trait TimedActor: Actor<Context = Context<Self>> {
    /// Its timer.
    fn timer(&mut self) -> &mut TimerSlot;

    /// Called at the deadline for which the timer was armed. Typically: call the core's `handle_timeout(now)`,
    /// carry out its outputs, and arm the timer again.
    fn timer_fired(&mut self, now: Time, ctx: &mut Context<Self>);
}

/// Holds the one timer of an actor.
#[derive(Debug)]
pub struct TimerSlot {
    clock: Clock,
    armed: Option<(Time, SpawnHandle)>,
}

/// Wait for a deadline that has passed already, so that a core that asks for it again and again cannot hold the
/// thread. One tick of tokio's clock.
const SHORTEST: Duration = Duration::from_millis(1);

impl TimerSlot {
    /// A timer that is not armed. `clock` is the node's ([`NodeHandle::clock`](crate::NodeHandle::clock)).
    pub const fn new(clock: Clock) -> Self {
        Self { clock, armed: None }
    }

    /// Arms the timer for `deadline`, in place of the former one; `None` disarms it. Arming it for the same
    /// deadline again does nothing, so shells call it after each step: `self.timer.arm(ctx,
    /// self.core.poll_timeout())`.
    ///
    /// The timer fires at the deadline or up to a millisecond later, never before.
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

    /// The deadline for which the timer is armed.
    pub fn armed(&self) -> Option<Time> {
        self.armed.map(|(deadline, _)| deadline)
    }
}
