//! The agent's side of the store: takes connections of its own workers on the loopback, and carries their requests to
//! the driver. [`core`] decides, [`actor`] talks to the driver, [`listener`] has the sockets.

pub mod actor;
pub mod core;
#[cfg(test)]
mod flow_tests;
mod grants;
pub mod listener;
