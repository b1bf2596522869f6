//! [`UnformedGroup`]: stands in for a group until it is formed. Used by `asynchronous`.

use std::any::Any;
use std::io;
use std::sync::Arc;

use crate::communicator::Communicator;
use crate::error::CollectiveError;
use crate::operation::HostOperation;

/// The numbers of a group that is to be formed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GroupNumbers {
    /// The driver's term.
    pub term: u64,
    /// The generation.
    pub generation: u64,
    /// This process's rank.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: u32,
    /// Whether data is encrypted on its way to another host.
    pub encrypts: bool,
}

/// A communicator without a group: each of its operations fails.
pub(crate) struct UnformedGroup(GroupNumbers);

impl UnformedGroup {
    pub(crate) const fn new(numbers: GroupNumbers) -> UnformedGroup {
        UnformedGroup(numbers)
    }

    /// The error of its operations. Why the group was not formed, its owner knows.
    pub(crate) fn error() -> CollectiveError {
        CollectiveError::System(Arc::new(io::Error::other("the group was not formed")))
    }
}

impl Communicator for UnformedGroup {
    fn rank(&self) -> u32 {
        self.0.rank
    }

    fn world_size(&self) -> u32 {
        self.0.world_size
    }

    fn term(&self) -> u64 {
        self.0.term
    }

    fn generation(&self) -> u64 {
        self.0.generation
    }

    fn encrypts(&self) -> bool {
        self.0.encrypts
    }

    fn run(&mut self, _operation: HostOperation<'_>) -> Result<(), CollectiveError> {
        Err(UnformedGroup::error())
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn close(&mut self) {}
}
