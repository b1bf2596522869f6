//! The agent's side of the store: takes connections of its own workers on the loopback, and carries what they
//! ask for to the driver. [`core`] decides, [`actor`] talks to the driver, [`listener`] has the sockets.

pub mod actor;
pub mod core;
pub mod listener;
