//! [`CpuBackend`]: carries out an operation whose arguments have been checked. Every CPU backend implements it, and
//! is a [`Communicator`] through it, so that arguments are checked, and operations announced, in one place.

use std::any::Any;
use std::time::Duration;

use crate::communicator::Communicator;
use crate::error::{CollectiveError, CollectiveResult};
use crate::operation::HostOperation;
use crate::split::{Ancestry, SplitPart, split};
use crate::sub_group::SubGroup;
use crate::wire::OperationSignature;

/// A rank's place in one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupMembership {
    pub(crate) term: u64,
    pub(crate) generation: u64,
    pub(crate) rank: u32,
    pub(crate) world: u32,
}

/// The operations of a [`Communicator`], with checked arguments.
pub(crate) trait CpuBackend: Send + 'static {
    fn membership(&self) -> GroupMembership;
    /// Carries out an operation. All ranks must agree on `signature`, of which an operation with a length for each rank
    /// or pair does not contain these lengths.
    fn carry_out(
        &mut self,
        signature: OperationSignature,
        operation: HostOperation<'_>,
    ) -> CollectiveResult;
    /// The parent from which sub-groups are made.
    fn ancestry(&self) -> Ancestry;
    fn set_operation_deadline(&mut self, _deadline: Duration) {}
    fn close(&mut self);
}

impl<B: CpuBackend> Communicator for B {
    fn rank(&self) -> u32 {
        self.membership().rank
    }

    fn world_size(&self) -> u32 {
        self.membership().world
    }

    fn term(&self) -> u64 {
        self.membership().term
    }

    fn generation(&self) -> u64 {
        self.membership().generation
    }

    fn encrypts(&self) -> bool {
        match self.ancestry() {
            Ancestry::Group(origin, _) => origin.group.encrypts,
            Ancestry::Alone(_) => false,
        }
    }

    fn run(&mut self, operation: HostOperation<'_>) -> CollectiveResult {
        let GroupMembership { rank, world, .. } = self.membership();
        let signature = operation.check(rank, world)?;
        self.carry_out(signature, operation)
    }

    fn run_part(
        &mut self,
        signature: OperationSignature,
        part: HostOperation<'_>,
    ) -> CollectiveResult {
        self.carry_out(signature, part)
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i32,
    ) -> Result<Option<Box<dyn Communicator>>, CollectiveError> {
        let part = split(self, colour, key)?;
        let named = |part: SplitPart| Box::new(SubGroup::new(part.group, part.members));
        Ok(part.map(|part| named(part) as Box<dyn Communicator>))
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn set_operation_deadline(&mut self, deadline: Duration) {
        CpuBackend::set_operation_deadline(self, deadline);
    }

    fn close(&mut self) {
        CpuBackend::close(self);
    }
}
