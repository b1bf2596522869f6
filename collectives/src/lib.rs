//! Collective operations among the workers of one generation. The worker's training thread calls them.
//!
//! - [`Communicator`] is the trait of every backend, on bytes; [`CommunicatorExt`] its typed face.
//! - [`TcpFabric`] is the TCP backend: bound once for the life of a worker process, and re-formed in
//!   place for each generation into a [`TcpCommunicator`].
//! - [`HostFabric`] forms over the same listener, and lets ranks of one host share memory
//!   ([`ShmCommunicator`]); between hosts one rank of each speaks for it ([`HierarchicalCommunicator`]).
//! - [`SoloCommunicator`] is a world of one.
//! - [`AbortHandle`] ends what blocks in a generation, from any thread, within milliseconds.
//! - [`wire`] has what stands on the wire, as pure functions.
//!
//! - [`AsyncCommunicator`] runs operations beside the training thread, in the order of their launch.
//!
//! Nothing here starts a thread, but [`Progress`] one for the life of the process when it is first asked to, and so does
//! the first group that forms over QUIC ([`DataPlane`]). A reduction folds in rank order whatever the path, so that every rank,
//! every size and every backend gives the same bits.

mod abort;
mod asynchronous;
mod backend;
pub mod check;
mod clock;
mod communicator;
mod element;
mod error;
mod fusion;
mod hierarchy;
mod host_fabric;
mod quic;
mod reduce;
mod shards;
mod shm;
mod solo;
mod split;
mod tcp;
#[cfg(test)]
mod tests;
pub mod wire;

pub use abort::{Abort, AbortHandle};
pub use asynchronous::{AsyncCommunicator, LAUNCHED_MAX, Launched, Progress};
pub use communicator::{Communicator, CommunicatorExt};
pub use element::{DataType, Element};
pub use error::{CollectiveError, FormError, MissingPeer, PeerLoss, WaitDetails};
pub use hierarchy::HierarchicalCommunicator;
pub use host_fabric::HostFabric;
pub use reduce::ReduceOp;
pub use shards::shards_of;
pub use shm::ShmCommunicator;
pub use solo::SoloCommunicator;
pub use tcp::{
    DEFAULT_FORM_DEADLINE, DEFAULT_OPERATION_DEADLINE, DEFAULT_STREAMS, DataPlane, GroupSpec,
    TcpCommunicator, TcpFabric,
};
