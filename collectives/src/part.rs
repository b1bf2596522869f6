//! [`PartCommunicator`]: a sub-group whose errors name ranks of the group that was split. Made by `split`.
//!
//! The driver knows ranks of the world, and whoever takes an error need not know in which part it arose. A part of a
//! part is translated twice, so its errors name ranks of the world, too.

use std::any::Any;
use std::time::Duration;

use crate::communicator::Communicator;
use crate::error::{CollectiveError, PeerLoss};
use crate::operation::HostOperation;
use crate::wire::OperationSignature;

/// A sub-group, with the rank of each of its members in the group that was split.
pub(crate) struct PartCommunicator {
    part: Box<dyn Communicator>,
    members: Vec<u32>,
}

impl PartCommunicator {
    pub(crate) fn new(part: Box<dyn Communicator>, members: Vec<u32>) -> PartCommunicator {
        PartCommunicator { part, members }
    }
}

impl Communicator for PartCommunicator {
    fn rank(&self) -> u32 {
        self.part.rank()
    }

    fn world_size(&self) -> u32 {
        self.part.world_size()
    }

    fn term(&self) -> u64 {
        self.part.term()
    }

    fn generation(&self) -> u64 {
        self.part.generation()
    }

    fn encrypts(&self) -> bool {
        self.part.encrypts()
    }

    fn run(&mut self, operation: HostOperation<'_>) -> Result<(), CollectiveError> {
        self.part.run(operation).map_err(|error| in_parent(error, &self.members))
    }

    fn run_part(
        &mut self,
        signature: OperationSignature,
        part: HostOperation<'_>,
    ) -> Result<(), CollectiveError> {
        self.part.run_part(signature, part).map_err(|error| in_parent(error, &self.members))
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i32,
    ) -> Result<Option<Box<dyn Communicator>>, CollectiveError> {
        let split = self.part.split(colour, key);
        let part = split.map_err(|error| in_parent(error, &self.members))?;
        Ok(part.map(|part| {
            Box::new(PartCommunicator::new(part, self.members.clone())) as Box<dyn Communicator>
        }))
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self.part.as_any_mut()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.part.into_any()
    }

    fn set_operation_deadline(&mut self, deadline: Duration) {
        self.part.set_operation_deadline(deadline);
    }

    fn close(&mut self) {
        self.part.close();
    }
}

/// An error of a part with the ranks of the group that was split; `members` has that rank of each member of the part.
pub(crate) fn in_parent(error: CollectiveError, members: &[u32]) -> CollectiveError {
    let rank_of = |rank: u32| members.get(rank as usize).copied().unwrap_or(rank);
    match error {
        CollectiveError::PeerLost { rank, source } => {
            let source = match source {
                PeerLoss::Reported { by } => PeerLoss::Reported { by: rank_of(by) },
                source => source,
            };
            CollectiveError::PeerLost { rank: rank_of(rank), source }
        }
        CollectiveError::DeadlinePassed { operation, sequence, waiting_for, details } => {
            let waiting_for = waiting_for.into_iter().map(rank_of).collect();
            CollectiveError::DeadlinePassed { operation, sequence, waiting_for, details }
        }
        CollectiveError::Mismatch { operation, sequence, rank, ours, theirs } => {
            CollectiveError::Mismatch { operation, sequence, rank: rank_of(rank), ours, theirs }
        }
        CollectiveError::Protocol { rank, source } => {
            CollectiveError::Protocol { rank: rank_of(rank), source }
        }
        error @ (CollectiveError::Aborted { .. }
        | CollectiveError::InvalidArgument { .. }
        | CollectiveError::Device { .. }
        | CollectiveError::Closed
        | CollectiveError::System(_)) => error,
    }
}
