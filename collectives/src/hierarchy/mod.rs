//! [`HierarchicalCommunicator`]: shared memory within each host, and one leader per host between them.
//!
//! Reductions, broadcasts, all-gathers and barriers cross the network once per host. Operations with data from each
//! rank to each other one (all-to-all, reduce-scatter, messages) use the mesh of connections, which joins all ranks
//! and also detects a lost rank.

mod chain;
mod communicator;
mod host_groups;
mod hosts;
mod reductions;
mod regions;

pub use communicator::HierarchicalCommunicator;
pub(crate) use communicator::form;
pub use host_groups::form_in_hosts;
