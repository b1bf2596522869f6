//! The shared-memory backend: the ranks of one host exchange data through a segment that all of them map,
//! beside the mesh of connections, which tells when one of them is gone.

mod communicator;
mod exchange;
mod fabric;
mod futex;
mod layout;
mod memory;
mod poison;
mod rendezvous;
mod session;
#[cfg(test)]
mod tests;

pub use communicator::ShmCommunicator;
pub use fabric::HostFabric;
#[cfg(test)]
pub(crate) use layout::PIECE;
