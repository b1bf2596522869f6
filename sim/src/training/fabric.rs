//! [`SimulatedFabric`]: forms the groups of a simulated training thread. Given to its `Membership` by `nodes`.

use std::net::SocketAddr;
use std::sync::Arc;

use elastic_collectives::{
    CollectiveError, Communicator, FormError, MissingPeer, PeerLoss, ProgressThread,
};
use elastic_protocol::messages::Placement;
use elastic_worker::state::training::{Fabric, GroupDeadlines};

use super::communicator::SimulatedGroup;
use super::exchange::{GroupBreak, NodeNumber, WaitOutcome};
use super::seat::ThreadSeat;

/// The fabric of one process.
pub(super) struct SimulatedFabric {
    seat: Arc<ThreadSeat>,
}

impl SimulatedFabric {
    pub(super) fn new(seat: Arc<ThreadSeat>) -> Self {
        Self { seat }
    }
}

/// The processes of a table, by rank: a process's incarnation is its number.
fn members(placement: &Placement) -> Vec<NodeNumber> {
    let members = placement.assignment.members();
    members.map(|member| member.worker.incarnation.0 as NodeNumber).collect()
}

fn form_error(outcome: WaitOutcome) -> Option<FormError> {
    let lost = |rank| FormError::Broken {
        rank,
        source: Box::new(CollectiveError::PeerLost { rank, source: PeerLoss::Closed }),
    };
    match outcome {
        WaitOutcome::There | WaitOutcome::Waits => None,
        WaitOutcome::Lost(rank, _)
        | WaitOutcome::Broken(GroupBreak::Connection(rank) | GroupBreak::Garbage(rank)) => {
            Some(lost(rank))
        }
        WaitOutcome::Broken(GroupBreak::Deadline(rank)) => {
            let missing = vec![MissingPeer { rank, last_seen: "nowhere".to_owned() }];
            Some(FormError::DeadlinePassed { missing })
        }
        WaitOutcome::Broken(GroupBreak::System) => {
            Some(FormError::System(std::io::Error::other("the plan says so")))
        }
    }
}

impl Fabric for SimulatedFabric {
    fn form(
        &mut self,
        placement: &Placement,
        _deadlines: GroupDeadlines,
    ) -> Result<Box<dyn Communicator>, FormError> {
        let (stamp, members) = (placement.stamp, members(placement));
        let world = members.len() as u32;
        self.seat.exchange().come(self.seat.number, stamp, &members);
        let outcome = self.seat.wait_for_group();
        if let Some(abort) = self.seat.abort.aborted(stamp.term.0, stamp.generation.0) {
            let (term, generation, reason) = (abort.term, abort.generation, abort.reason);
            return Err(FormError::Aborted { term, generation, reason });
        }
        self.seat.tell_blame(&outcome, &(stamp, String::new()));
        if let Some(error) = form_error(outcome) {
            return Err(error);
        }
        let name = (stamp, String::new());
        Ok(Box::new(SimulatedGroup::new(Arc::clone(&self.seat), name, placement.rank, world)))
    }

    fn progress_thread(&self) -> ProgressThread {
        ProgressThread::inline()
    }

    fn relocate(&mut self) -> Option<SocketAddr> {
        let address = self.seat.orders().new_address.take();
        if let Some(address) = address {
            self.seat.witness().relocated(self.seat.number, address);
        }
        address
    }

    fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.seat.orders().warnings)
    }
}
