//! The shared-memory backend: the ranks of one host exchange data through a segment that all of them map. The mesh of
//! connections beside it detects a lost rank. Used by `HostFabric` and the hierarchical communicator.

mod brief;
mod communicator;
mod exchange;
mod futex;
mod layout;
mod memory;
mod patience;
mod poison;
mod rendezvous;
mod session;
mod stores;
#[cfg(test)]
mod tests;
mod watchful;

pub use communicator::ShmCommunicator;

/// Whether a world of this size can share memory.
pub(crate) fn serves(world: u32) -> bool {
    (2..=layout::WORLD_MAX).contains(&world)
}

#[cfg(test)]
pub(crate) use layout::PIECE_MOST;
