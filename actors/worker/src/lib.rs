//! The two halves of a worker: the agent, which is a host's process and watches the processes of its
//! slots, and the State, which is in each of them.

pub mod agent;
pub mod state;
