//! The mode *actors*: the real actix actors of driver, host manager, registry, agents and State over a simulated
//! transport, on a paused clock. Called by [`crate::run`].
//!
//! The world is the one of `cores`: the same network, faults, programs, oracle and trace vocabulary. Only the deciding
//! code differs. Each node is a [`LocalSet`](tokio::task::LocalSet) with the product's actors in it, and their messages
//! go through the product's envelopes and codec. Runs stay deterministic by these means:
//!
//! - One actix `System` on one thread, with tokio's clock paused and without I/O: a real socket panics.
//! - A node's actors are started in its own `LocalSet`, which one task of the outer one polls ([`node`]). A
//!   process that is killed is muted first, and then its `LocalSet` is dropped.
//! - A node's only way out is its [`Port`](hub::Port): transport, processes, training program and discovery
//!   go through it into the world.
//! - The [`ActorPump`] lets the world do what is due and sleeps on the paused clock until the next of it. The clock
//!   moves when all is idle, a millisecond being its shortest step; what happens in the world alone (collectives,
//!   threads) keeps its nanoseconds.
//! - Each node's clock has the rate of its machine: it is made from tokio's.

mod boot;
pub(crate) mod hub;
pub(crate) mod node;
mod ports;
#[cfg(test)]
mod tests;
mod transport;

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use elastic_runtime::{system, take_panic};
use tokio::time::{Instant, Sleep, sleep_until};

pub(crate) use self::boot::{AgentNode, DriverNode, StateNode};
use self::hub::Hub;
pub(crate) use self::node::NodeBirth;
pub(crate) use self::transport::Side;
use crate::cores::World;
use crate::options::RunOptions;
use crate::report::RunReport;
use crate::trace::Recording;

/// Timeout of the driver's status report after a failed run.
const STATUS_WITHIN: Duration = Duration::from_secs(1);

/// Runs a seed.
pub(crate) fn run(options: &RunOptions, recording: Recording) -> RunReport {
    run_beside(options, recording, |_| ())
}

/// Runs a seed beside something else that is kept until its end.
fn run_beside<T>(
    options: &RunOptions,
    recording: Recording,
    begin: impl FnOnce(&Rc<Hub>) -> T,
) -> RunReport {
    // A panic of an earlier run on this thread is stale.
    let _stale = take_panic();
    system::paused().block_on(async {
        let hub = Hub::new();
        let world = World::with_actors(options, recording, &hub);
        let _beside = begin(&hub);
        ActorPump::new(Rc::clone(&hub), Rc::clone(&world)).await;
        let status = world.borrow().status_question(STATUS_WITHIN);
        if let Some(status) = status {
            let answer = status.await;
            world.borrow_mut().explain_failure(answer);
        }
        let report = world.borrow_mut().end();
        hub.bury();
        report
    })
}

/// Drives the world in virtual time.
struct ActorPump {
    hub: Rc<Hub>,
    world: Rc<RefCell<World>>,
    sleep: Pin<Box<Sleep>>,
}

impl ActorPump {
    fn new(hub: Rc<Hub>, world: Rc<RefCell<World>>) -> Self {
        Self { hub, world, sleep: Box::pin(sleep_until(Instant::now())) }
    }
}

impl Future for ActorPump {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let next = {
                let mut world = self.world.borrow_mut();
                if let Some(panic) = take_panic() {
                    world.node_panicked(&panic);
                }
                world.advance(self.hub.now())
            };
            self.hub.bury();
            let Some(next) = next else { return Poll::Ready(()) };
            let deadline = self.hub.instant(next);
            self.hub.arm(next, cx.waker());
            self.sleep.as_mut().reset(deadline);
            if self.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}
