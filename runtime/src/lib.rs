//! The actor kit of Elastic Node over actix: the only crate that calls actix's lifecycle.
//!
//! An actor is a *core* (a state machine without actix, tokio and clock) in a thin *shell* (the actix actor):
//! the shell decodes, calls the core with `now`, carries out the core's outputs, and keeps one timer. The same
//! shells run in production ([`system::run`], QUIC) and in the simulation (a paused clock, a `LocalSet` and a
//! seeded network per node). Shells use these parts of the kit:
//!
//! | to | use |
//! | --- | --- |
//! | be reached | [`NodeHandle::register`] with [`Routes`]; messages come as [`Delivery`], questions as [`Question`] |
//! | say something | [`ActorRef::tell`], [`ActorRef::ask`]; the same type for actors here and elsewhere |
//! | hear of peers | [`NodeHandle::subscribe_links`], which sends [`LinkChanged`] |
//! | know the time | [`NodeHandle::now`], never the operating system's clock |
//! | wait | [`TimerSlot`], one an actor |
//! | start, restart and stop actors | [`spawn_child`], [`SupervisorSpec`], [`shutdown_in_order`] |
//! | fail | [`fail`]; the actor's parent gets [`ChildExit::Failed`] |
//! | block | [`OffloadPort`] |
//! | draw | [`NodeHandle::random`] |
//!
//! ```
//! use std::time::Duration;
//!
//! use actix::{Actor, Context, Handler};
//! use elastic_protocol::{
//!     ActorId, ActorName, FREE_KINDS_FROM, Incarnation, NodeId, NodeName, Time, WireMessage,
//! };
//! use elastic_runtime::*;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Hello(String);
//!
//! impl WireMessage for Hello {
//!     const KIND: u16 = FREE_KINDS_FROM;
//! }
//!
//! /// The core: greets back 10 ms after the last hello.
//! #[derive(Default)]
//! struct GreeterCore {
//!     due: Option<(Time, NodeId)>,
//!     outputs: Vec<(NodeId, Hello)>,
//! }
//!
//! impl GreeterCore {
//!     fn handle_hello(&mut self, now: Time, from: NodeId) {
//!         self.due = Some((now + Duration::from_millis(10), from));
//!     }
//!     fn handle_timeout(&mut self, now: Time) {
//!         if let Some((_, to)) = self.due.take_if(|(at, _)| *at <= now) {
//!             self.outputs.push((to, Hello("and hello to you".to_owned())));
//!         }
//!     }
//!     fn poll_output(&mut self) -> Option<(NodeId, Hello)> {
//!         self.outputs.pop()
//!     }
//!     fn poll_timeout(&self) -> Option<Time> {
//!         self.due.as_ref().map(|(at, _)| *at)
//!     }
//! }
//!
//! /// The shell.
//! struct Greeter {
//!     core: GreeterCore,
//!     node: NodeHandle,
//!     timer: TimerSlot,
//! }
//!
//! impl Greeter {
//!     fn drain(&mut self, ctx: &mut Context<Self>) {
//!         while let Some((to, hello)) = self.core.poll_output() {
//!             let peer = self.node.reference::<Hello>(ActorId::new(to, ActorName::CLIENT));
//!             if let Err(undelivered) = peer.tell(hello) {
//!                 fail(ctx, undelivered);
//!             }
//!         }
//!         self.timer.arm(ctx, self.core.poll_timeout());
//!     }
//! }
//!
//! impl Actor for Greeter {
//!     type Context = Context<Self>;
//! }
//!
//! impl Handler<Delivery<Hello>> for Greeter {
//!     type Result = ();
//!     fn handle(&mut self, hello: Delivery<Hello>, ctx: &mut Context<Self>) {
//!         self.core.handle_hello(self.node.now(), hello.from);
//!         self.drain(ctx);
//!     }
//! }
//!
//! impl TimedActor for Greeter {
//!     fn timer(&mut self) -> &mut TimerSlot {
//!         &mut self.timer
//!     }
//!     fn timer_fired(&mut self, now: Time, ctx: &mut Context<Self>) {
//!         self.core.handle_timeout(now);
//!         self.drain(ctx);
//!     }
//! }
//!
//! # fn main() -> std::io::Result<()> {
//! // The process: a node, a supervisor, the actor as its child, published under its name.
//! let exit = system::run(async {
//!     let local = NodeId { name: NodeName::Driver, incarnation: Incarnation(1) };
//!     let node = NodeHandle::new(local, 42);
//!     let (maker, publisher) = (node.clone(), node.clone());
//!     let greeter = ChildSpec::new(
//!         "greeter",
//!         restart::Lifetime::Permanent,
//!         move |_: &mut Context<Greeter>| Greeter {
//!             core: GreeterCore::default(),
//!             timer: TimerSlot::new(maker.clock()),
//!             node: maker.clone(),
//!         },
//!         move |address| {
//!             let routes = Routes::new().tell::<Hello>(address.recipient());
//!             publisher.register(ActorName::DRIVER, routes);
//!         },
//!     );
//!     // One restart; the second failure ends the supervisor.
//!     let policy = restart::RestartPolicy { restarts_max: 1, ..Default::default() };
//!     let (_, supervisor) = SupervisorSpec::new("top", policy).child(greeter).start(&node, |_| {});
//!     let greeter = node.reference::<Hello>(node.id(ActorName::DRIVER));
//!     while supervisor.exit().is_none() {
//!         // Nobody is published as CLIENT, so each answer fails.
//!         let _not_there_while_it_is_restarted = greeter.tell(Hello("hello".to_owned()));
//!         tokio::time::sleep(Duration::from_millis(20)).await;
//!     }
//!     supervisor.exited().await
//! })?;
//! assert!(matches!(exit, ChildExit::Failed(reason) if reason.contains("no actor of that name")));
//! # Ok(())
//! # }
//! ```

mod actor_ref;
mod ask;
pub mod child;
pub mod clock;
mod delivery;
pub mod envelope;
pub mod failure;
pub mod lane;
pub mod mailbox;
pub mod node;
mod null_device;
pub mod offload;
pub mod panics;
pub mod pulse;
pub mod random;
pub mod restart;
pub mod session;
pub mod shutdown;
pub mod supervisor;
pub mod system;
pub mod timer;
pub mod transport;
pub mod words;

pub use actor_ref::ActorRef;
pub use child::{ChildExit, ChildHandle, fail, spawn_child, spawn_child_with_handle};
pub use clock::{Clock, moment_at, wall_clock};
pub use delivery::{Delivery, Question, ReplyTo, Returned};
pub use failure::{AskError, DeliveryRefusal, Undelivered, UndeliveredReason};
pub use lane::BlockingLane;
pub use node::{LinkChanged, LinkState, NodeHandle, Routes};
pub use null_device::null_device;
pub use offload::{Hanging, OffloadError, OffloadPort};
pub use panics::{PanicRecord, install_panic_hook, take_panic};
pub use pulse::Pulse;
pub use shutdown::{Shutdown, ShutdownReport, Stoppable, shutdown_in_order};
pub use supervisor::{ChildSpec, Supervisor, SupervisorEvent, SupervisorSpec};
pub use timer::{TimedActor, TimerSlot};
pub use words::{
    DroppingWriter, DroppingWriterLane, DroppingWriterTrouble, WeakDroppingWriter,
    is_for_want_of_room,
};

#[cfg(test)]
mod tests;
