//! [`HierarchicalCommunicator`]: shared memory within each host, and one leader per host between them.
//!
//! Reductions, broadcasts, all-gathers and barriers cross the network once per host. What goes from each rank to
//! each other one (all-to-all, reduce-scatter, messages) takes the mesh of connections, which joins all ranks and
//! also tells when one is gone.

mod chain;
mod communicator;
mod hosts;

pub use communicator::HierarchicalCommunicator;
pub(crate) use communicator::form;
