//! Collective operations among the workers of one generation. The worker's training thread calls them.
//!
//! - [`Operation`] is one collective as data. [`Communicator`] is the trait of every backend, which runs it;
//!   [`CommunicatorExt`] adds the typed methods.
//! - [`TcpFabric`] is the TCP backend: bound once for the life of a worker process, and re-formed in place for each
//!   generation into a [`TcpCommunicator`].
//! - [`HostFabric`] forms over the same listener. Ranks of one host share memory ([`ShmCommunicator`]); between
//!   hosts one leader per host communicates ([`HierarchicalCommunicator`]).
//! - [`SoloCommunicator`] is a world of one.
//! - [`AbortHandle`] ends blocked calls of a generation, from any thread, within milliseconds.
//! - [`wire`] encodes and decodes the wire format, as pure functions.
//! - [`AsyncCommunicator`] runs operations beside the training thread, in the order of their launch.
//! - [`OperationWatch`] shows where a process stands among its collectives.
//! - [`LinkRates`] shows how fast data comes in from other hosts.
//! - [`negotiation`] lets ranks agree on calls by name before they run, as Horovod does.
//!
//! Only two parts of this crate start a thread: [`ProgressThread`] with the first launch, and the first group that
//! forms over QUIC ([`DataPlane`]). A reduction folds in rank order on every path, so that every rank, every size and
//! every backend gives the same bits.

mod abort;
mod asynchronous;
mod attention;
mod backend;
mod check;
mod clock;
mod communicator;
mod element;
mod error;
mod fusion;
mod hierarchy;
mod host_fabric;
mod link_rates;
pub mod negotiation;
mod operation;
mod quic;
mod reduce;
mod shards;
mod shm;
mod solo;
mod split;
mod sub_group;
mod tcp;
#[cfg(test)]
mod tests;
mod unformed;
mod waited;
mod watch;
pub mod wire;

pub use abort::{Abort, AbortHandle};
pub use asynchronous::{
    AsyncCommunicator, EarlyResult, FormingGroup, LAUNCHED_MAX, Launched, ProgressThread,
};
pub use attention::attentive;
pub use communicator::{Communicator, CommunicatorExt};
pub use elastic_protocol::DataPlane;
pub use element::{DataType, Element};
pub use error::{CollectiveError, CollectiveResult, FormError, MissingPeer, PeerLoss, WaitDetails};
pub use fusion::all_reduce_grouped;
pub use hierarchy::{HierarchicalCommunicator, form_in_hosts};
pub use host_fabric::HostFabric;
pub use link_rates::{LinkRates, LinkReading};
pub use operation::{HostOperation, Operation, OperationMemory, OwnedOperation, PartRanges};
pub use reduce::ReduceOp;
pub use shards::{ShardDeal, ShardFold, are_siblings, fold_partial};
pub use shm::ShmCommunicator;
pub use solo::SoloCommunicator;
pub use sub_group::SubGroup;
pub use tcp::{
    DEFAULT_FORM_DEADLINE, DEFAULT_OPERATION_DEADLINE, DEFAULT_PATH_DEADLINE, DEFAULT_STREAMS,
    GroupSpec, TcpCommunicator, TcpFabric,
};
pub use unformed::GroupNumbers;
pub use waited::{WaitReading, WaitUnderWay};
pub use watch::{OperationWatch, WatchedGroup};
