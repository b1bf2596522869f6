//! Collective operations among the workers of one generation. The worker's training thread calls them.
//!
//! - [`Communicator`] is the trait of every backend, on bytes; [`CommunicatorExt`] its typed face.
//! - [`TcpFabric`] is the TCP backend: bound once for the life of a worker process, and re-formed in
//!   place for each generation into a [`TcpCommunicator`].
//! - [`HostFabric`] forms over the same listener, and lets ranks of one host share memory
//!   ([`ShmCommunicator`]).
//! - [`SoloCommunicator`] is a world of one.
//! - [`AbortHandle`] ends what blocks in a generation, from any thread, within milliseconds.
//! - [`wire`] has what stands on the wire, as pure functions.
//!
//! Nothing here starts a thread. A reduction folds in rank order whatever the path, so that every rank,
//! every size and every backend gives the same bits.

mod abort;
mod check;
mod clock;
mod communicator;
mod element;
mod error;
mod reduce;
mod shm;
mod solo;
mod tcp;
#[cfg(test)]
mod tests;
pub mod wire;

pub use abort::{Abort, AbortHandle};
pub use communicator::{Communicator, CommunicatorExt};
pub use element::{DataType, Element};
pub use error::{CollectiveError, FormError, MissingPeer, PeerLoss};
pub use reduce::ReduceOp;
pub use shm::{HostFabric, ShmCommunicator};
pub use solo::SoloCommunicator;
pub use tcp::{
    DEFAULT_FORM_DEADLINE, DEFAULT_OPERATION_DEADLINE, GroupSpec, TcpCommunicator, TcpFabric,
};
