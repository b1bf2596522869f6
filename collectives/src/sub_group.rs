//! [`SubGroup`]: a part of a group, whose errors name ranks of the whole generation, as the driver and its operator know them.
//! Made where a group is split.

use std::any::Any;
use std::time::Duration;

use crate::communicator::Communicator;
use crate::error::{CollectiveError, PeerLoss};
use crate::operation::HostOperation;
use crate::wire::OperationSignature;

/// A group that was split from another one.
pub struct SubGroup {
    inner: Box<dyn Communicator>,
    /// The ranks of its members in the group that was split.
    members: Vec<u32>,
}

impl SubGroup {
    /// The part of a group that consists of these of its ranks. `inner` numbers them from 0.
    pub fn new(inner: Box<dyn Communicator>, members: Vec<u32>) -> SubGroup {
        SubGroup { inner, members }
    }

    /// The error with the ranks of the group that was split.
    fn in_parent(&self, error: CollectiveError) -> CollectiveError {
        let rank = |own: u32| self.members.get(own as usize).copied().unwrap_or(own);
        match error {
            CollectiveError::PeerLost { rank: lost, source } => {
                let source = match source {
                    PeerLoss::Reported { by } => PeerLoss::Reported { by: rank(by) },
                    source => source,
                };
                CollectiveError::PeerLost { rank: rank(lost), source }
            }
            CollectiveError::DeadlinePassed { operation, sequence, waiting_for, details } => {
                let waiting_for = waiting_for.into_iter().map(rank).collect();
                CollectiveError::DeadlinePassed { operation, sequence, waiting_for, details }
            }
            CollectiveError::Mismatch { operation, sequence, rank: other, ours, theirs } => {
                let other = rank(other);
                CollectiveError::Mismatch { operation, sequence, rank: other, ours, theirs }
            }
            CollectiveError::Protocol { rank: other, source } => {
                CollectiveError::Protocol { rank: rank(other), source }
            }
            error => error,
        }
    }
}

impl Communicator for SubGroup {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn world_size(&self) -> u32 {
        self.inner.world_size()
    }

    fn term(&self) -> u64 {
        self.inner.term()
    }

    fn generation(&self) -> u64 {
        self.inner.generation()
    }

    fn encrypts(&self) -> bool {
        self.inner.encrypts()
    }

    fn run(&mut self, operation: HostOperation<'_>) -> Result<(), CollectiveError> {
        self.inner.run(operation).map_err(|error| self.in_parent(error))
    }

    fn run_part(
        &mut self,
        signature: OperationSignature,
        part: HostOperation<'_>,
    ) -> Result<(), CollectiveError> {
        self.inner.run_part(signature, part).map_err(|error| self.in_parent(error))
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i32,
    ) -> Result<Option<Box<dyn Communicator>>, CollectiveError> {
        let part = self.inner.split(colour, key).map_err(|error| self.in_parent(error))?;
        let members = || self.members.clone();
        Ok(part.map(|part| Box::new(SubGroup::new(part, members())) as Box<dyn Communicator>))
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self.inner.as_any_mut()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.inner.into_any()
    }

    fn set_operation_deadline(&mut self, deadline: Duration) {
        self.inner.set_operation_deadline(deadline);
    }

    fn close(&mut self) {
        self.inner.close();
    }
}
