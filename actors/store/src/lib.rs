//! The job's key-value store, for scripts that bring their own collectives: torch's `TCPStore` protocol.
//!
//! A script of stock torch connects to `MASTER_ADDR:MASTER_PORT` without any credential. So nothing of the
//! store is open to the network: each agent serves it to its own workers on the loopback ([`relay`]), lets in
//! processes that belong to them only, and carries what they ask for over its authenticated session to the
//! driver, where the keys are ([`core`], [`actor`]). The address stays the same for as long as the agent
//! lives, whoever is rank 0, and no worker's death takes the store along.
//!
//! Each generation has a namespace of its own, so that no peer address of an earlier one is ever read; when a
//! generation ends, whoever still waits in its namespace fails at once instead of sitting out a time-out.

pub mod actor;
pub mod core;
pub mod limits;
pub mod messages;
pub mod relay;
pub mod wire;
