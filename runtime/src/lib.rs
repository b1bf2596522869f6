//! The actor kit of Elastic Node over actix: the only crate that calls actix's lifecycle.

mod actor_ref;
mod ask;
pub mod child;
pub mod clock;
mod delivery;
pub mod envelope;
pub mod failure;
pub mod mailbox;
mod name;
pub mod node;
pub mod offload;
pub mod panics;
pub mod random;
pub mod restart;
pub mod session;
pub mod shutdown;
pub mod supervisor;
pub mod system;
pub mod timer;
pub mod transport;
mod wire;

pub use actor_ref::ActorRef;
pub use child::{ChildHandle, Exit, fail, spawn_child, spawn_child_with_handle};
pub use clock::{Clock, wall_clock};
pub use delivery::{Delivery, Question, ReplyTo, Returned};
pub use failure::{AskError, Refusal, Undelivered, UndeliveredReason};
pub use name::{ActorId, ActorName};
pub use node::{LinkChanged, LinkState, NodeHandle, Routes};
pub use offload::{OffloadError, OffloadPort};
pub use panics::{PanicRecord, install_panic_hook, take_panic};
pub use shutdown::{Shutdown, ShutdownReport, Stoppable, shutdown_in_order};
pub use supervisor::{ChildSpec, Supervisor, SupervisorEvent, SupervisorSpec};
pub use timer::{TimedActor, TimerSlot};
pub use wire::{FREE_KINDS_FROM, WireMessage, WireRequest};
