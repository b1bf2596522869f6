//! The job's key-value store, for scripts that bring their own collectives: torch's `TCPStore` protocol.
//!
//! A script of stock torch connects to a store without any credential. So the store is not open to the network. Each
//! agent serves it on the loopback ([`relay`]) and admits only processes of its own workers. It carries their
//! requests over its authenticated session to the driver, which holds the keys ([`core`], [`actor`]). The address
//! stays the same for as long as the agent lives, no matter which worker has rank 0. The store outlives any worker.
//!
//! Each generation has a namespace of its own, so that no peer address of an earlier one is ever read. When a
//! generation ends, clients that still wait in its namespace fail at once instead of sitting out a time-out.

pub mod actor;
pub mod core;
pub mod limits;
pub mod messages;
pub mod relay;
pub mod wire;
