//! The TCP collectives behind the run loop's port.

use std::time::Duration;

use elastic_collectives::{
    AbortHandle, Communicator, FormError, GroupSpec, SoloCommunicator, TcpFabric,
};
use elastic_protocol::messages::Placement;

use super::run_loop::Fabric;

/// Forms a group over TCP for each generation; a world of one needs none.
pub struct TcpGroups {
    fabric: TcpFabric,
    abort: AbortHandle,
    operation_deadline: Duration,
}

impl TcpGroups {
    /// Groups over a bound fabric, that `abort` ends. An operation that takes longer than
    /// `operation_deadline` fails, and names who was waited for (G-9).
    pub const fn new(fabric: TcpFabric, abort: AbortHandle, operation_deadline: Duration) -> Self {
        Self { fabric, abort, operation_deadline }
    }
}

impl Fabric for TcpGroups {
    fn form(
        &mut self,
        placement: &Placement,
        deadline: Duration,
    ) -> Result<Box<dyn Communicator>, FormError> {
        let (term, generation) = (placement.stamp.term.0, placement.stamp.generation.0);
        let members = &placement.assignment.members;
        if members.len() == 1 {
            return Ok(Box::new(SoloCommunicator::of_generation(term, generation, &self.abort)));
        }
        let group = GroupSpec {
            term,
            generation,
            rank: placement.rank,
            peers: members.iter().map(|member| member.data_address).collect(),
            key: placement.key.0,
            form_deadline: deadline,
            operation_deadline: self.operation_deadline,
        };
        Ok(Box::new(self.fabric.form(&group, &self.abort)?))
    }
}
