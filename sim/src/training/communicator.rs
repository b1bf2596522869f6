//! [`SimulatedGroup`]: the communicator of a simulated training thread. Its data go through the exchange; its thread gives the turn
//! away while it waits. Made by `fabric`.

use std::any::Any;
use std::sync::Arc;

use elastic_collectives::wire::{FrameError, OperationKind};
use elastic_collectives::{
    CollectiveError, Communicator, DataType, HostOperation, Operation, PartRanges, PeerLoss,
    ReduceOp, SubGroup, WaitDetails,
};

use super::exchange::{GoneRank, GroupBreak, GroupName, GroupOffer, WaitOutcome};
use super::fold::fold;
use super::seat::ThreadSeat;

/// A rank's end of a group.
pub(super) struct SimulatedGroup {
    seat: Arc<ThreadSeat>,
    name: GroupName,
    rank: u32,
    world: u32,
    /// Number of the next operation.
    number: u64,
    /// The error that every further call returns.
    failed: Option<CollectiveError>,
    is_closed: bool,
}

impl SimulatedGroup {
    pub(super) fn new(seat: Arc<ThreadSeat>, name: GroupName, rank: u32, world: u32) -> Self {
        Self { seat, name, rank, world, number: 0, failed: None, is_closed: false }
    }

    fn aborted(&self) -> Option<CollectiveError> {
        let (term, generation) = (self.term(), self.generation());
        self.seat.abort.aborted(term, generation).map(CollectiveError::from)
    }

    fn enter(&self) -> Result<(), CollectiveError> {
        match (&self.failed, self.is_closed) {
            (Some(error), _) => Err(error.clone()),
            (None, true) => Err(CollectiveError::Closed),
            (None, false) => self.aborted().map_or(Ok(()), Err),
        }
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        self.failed = Some(error.clone());
        error
    }

    /// Gives the turn away until the thread's wait in the exchange has a result.
    fn wait(&mut self, kind: OperationKind) -> Result<(), CollectiveError> {
        let outcome = self.seat.wait_for_group();
        if let Some(error) = self.aborted() {
            return Err(self.fail(error));
        }
        self.seat.tell_blame(&outcome, &self.name);
        let broken = match outcome {
            WaitOutcome::There | WaitOutcome::Waits => return Ok(()),
            WaitOutcome::Lost(rank, why) => CollectiveError::PeerLost { rank, source: loss(why) },
            WaitOutcome::Broken(of) => self.broken(of, kind),
        };
        Err(self.fail(broken))
    }

    fn broken(&self, of: GroupBreak, kind: OperationKind) -> CollectiveError {
        let refused = || Arc::new(std::io::Error::other("the plan says so"));
        match of {
            GroupBreak::Connection(rank) => {
                CollectiveError::PeerLost { rank, source: PeerLoss::Connection(refused()) }
            }
            GroupBreak::Deadline(rank) => CollectiveError::DeadlinePassed {
                operation: kind,
                sequence: self.number,
                waiting_for: vec![rank],
                details: Box::new(WaitDetails::default()),
            },
            GroupBreak::Garbage(rank) => {
                CollectiveError::Protocol { rank, source: FrameError::Magic }
            }
            GroupBreak::System => CollectiveError::System(refused()),
        }
    }

    /// Offers, waits for the others, and returns the offers of the needed ranks.
    fn exchange(
        &mut self,
        kind: OperationKind,
        offer: GroupOffer,
        needs: Vec<u32>,
    ) -> Result<Vec<GroupOffer>, CollectiveError> {
        let number = self.number;
        self.number += 1;
        let place = (&self.name, number, self.rank);
        self.seat.exchange().offer(self.seat.number, place, offer, needs.clone());
        self.wait(kind)?;
        let mut exchange = self.seat.exchange();
        let offers = needs.iter().filter_map(|rank| exchange.offered_by(&self.name, number, *rank));
        let offers: Vec<GroupOffer> = offers.cloned().collect();
        exchange.finish(&self.name, number);
        drop(exchange);
        if offers.len() < needs.len() {
            return Err(self.fail(CollectiveError::Closed));
        }
        Ok(offers)
    }

    fn all(&self) -> Vec<u32> {
        (0..self.world).collect()
    }

    fn reduced(
        &mut self,
        kind: OperationKind,
        offer: GroupOffer,
        (data_type, op): (DataType, ReduceOp),
    ) -> Result<Vec<u8>, CollectiveError> {
        let offers = self.exchange(kind, offer, self.all())?;
        let parts: Vec<&[u8]> = offers.iter().filter_map(|of| first(of)).collect();
        Ok(fold(data_type, op, &parts))
    }
}

fn first(offer: &GroupOffer) -> Option<&[u8]> {
    offer.parts.first().map(Vec::as_slice)
}

fn loss(why: GoneRank) -> PeerLoss {
    match why {
        GoneRank::Died => PeerLoss::Closed,
        GoneRank::Left => PeerLoss::Left,
        GoneRank::GaveUp => PeerLoss::Failed,
    }
}

impl Communicator for SimulatedGroup {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world
    }

    fn term(&self) -> u64 {
        self.name.0.term.0
    }

    fn generation(&self) -> u64 {
        self.name.0.generation.0
    }

    fn encrypts(&self) -> bool {
        false
    }

    fn run(&mut self, mut operation: HostOperation<'_>) -> Result<(), CollectiveError> {
        let signature = operation.check(self.rank, self.world)?;
        self.enter()?;
        let (rank, world) = (self.rank, self.world);
        let offer = |parts| GroupOffer { signature: Some(signature), parts, split: None };
        let only = |needed: u32, root: u32| {
            if needed == root { (0..world).collect() } else { vec![needed] }
        };
        let kind = operation.kind();
        match &mut operation {
            Operation::AllReduce { data, data_type, op } => {
                let folded = self.reduced(kind, offer(vec![data.to_vec()]), (*data_type, *op))?;
                data.copy_from_slice(&folded);
            }
            Operation::GroupedAllReduce { buffers, op } => {
                let parts = buffers.iter().map(|(data, _)| data.to_vec()).collect();
                let offers = self.exchange(kind, offer(parts), self.all())?;
                for (place, (data, data_type)) in buffers.iter_mut().enumerate() {
                    let parts: Vec<&[u8]> = offers
                        .iter()
                        .filter_map(|of| of.parts.get(place))
                        .map(Vec::as_slice)
                        .collect();
                    data.copy_from_slice(&fold(*data_type, *op, &parts));
                }
            }
            Operation::Reduce { data, data_type, op, root } => {
                let offers = self.exchange(kind, offer(vec![data.to_vec()]), only(rank, *root))?;
                if rank == *root {
                    let parts: Vec<&[u8]> = offers.iter().filter_map(|of| first(of)).collect();
                    data.copy_from_slice(&fold(*data_type, *op, &parts));
                }
            }
            Operation::Broadcast { data, root, .. } => {
                let own = if rank == *root { vec![data.to_vec()] } else { Vec::new() };
                let offers = self.exchange(kind, offer(own), vec![*root])?;
                if let Some(content) = offers.first().and_then(first) {
                    data.copy_from_slice(content);
                }
            }
            Operation::Gather { input, output, root, .. } => {
                let offers = self.exchange(kind, offer(vec![input.to_vec()]), only(rank, *root))?;
                if let Some(output) = output {
                    let parts: Vec<&[u8]> = offers.iter().filter_map(|of| first(of)).collect();
                    output.copy_from_slice(&parts.concat());
                }
            }
            Operation::Scatter { input, output, root, .. } => {
                let length = output.len();
                let parts =
                    input.map(|all| all.chunks(length.max(1)).map(<[u8]>::to_vec).collect());
                let offers = self.exchange(kind, offer(parts.unwrap_or_default()), vec![*root])?;
                let part = offers.first().and_then(|of| of.parts.get(rank as usize));
                output.copy_from_slice(part.map_or(&[][..], Vec::as_slice));
            }
            Operation::AllGather { input, output, .. } => {
                let offers = self.exchange(kind, offer(vec![input.to_vec()]), self.all())?;
                let parts: Vec<&[u8]> = offers.iter().filter_map(|of| first(of)).collect();
                output.copy_from_slice(&parts.concat());
            }
            Operation::ReduceScatter { input, output, data_type, op } => {
                let folded = self.reduced(kind, offer(vec![input.to_vec()]), (*data_type, *op))?;
                let at = rank as usize * output.len();
                output.copy_from_slice(&folded[at..at + output.len()]);
            }
            Operation::AllToAll { input, output, counts, data_type } => {
                let bytes = input.len();
                let (sent, received) = PartRanges::of_all_to_all(*counts, bytes, world, *data_type);
                let parts = (0..world).map(|to| input[sent.of(to)].to_vec()).collect();
                let offers = self.exchange(kind, offer(parts), self.all())?;
                for (from, of) in (0..).zip(&offers) {
                    let (part, into) = (&of.parts[rank as usize], &mut output[received.of(from)]);
                    if part.len() != into.len() {
                        let said = format!(
                            "rank {from} sends {} bytes to rank {rank}, which expects {}",
                            part.len(),
                            into.len()
                        );
                        self.seat.exchange().disagreement.get_or_insert(said);
                        continue;
                    }
                    into.copy_from_slice(part);
                }
            }
            Operation::Barrier => drop(self.exchange(kind, offer(Vec::new()), self.all())?),
            Operation::Send { data, to, .. } => {
                self.seat.exchange().send(&self.name, rank, *to, data.to_vec());
            }
            Operation::Recv { data, from, .. } => {
                self.seat.exchange().expect(self.seat.number, &self.name, *from, rank);
                self.wait(kind)?;
                if let Some(message) = self.seat.exchange().take(&self.name, *from, rank) {
                    data.copy_from_slice(&message);
                }
            }
        }
        Ok(())
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i32,
    ) -> Result<Option<Box<dyn Communicator>>, CollectiveError> {
        self.enter()?;
        let number = self.number;
        let offer = GroupOffer { signature: None, parts: Vec::new(), split: Some((colour, key)) };
        let offers = self.exchange(OperationKind::Split, offer, self.all())?;
        let Some(own) = colour else { return Ok(None) };
        let mut ranks: Vec<(i32, u32)> = (0..)
            .zip(&offers)
            .filter_map(|(rank, of)| {
                let (colour, key) = of.split?;
                (colour == Some(own)).then_some((key, rank))
            })
            .collect();
        ranks.sort_unstable();
        let ranks: Vec<u32> = ranks.into_iter().map(|(_, rank)| rank).collect();
        let name = (self.name.0, format!("{}/{number}:{own}", self.name.1));
        self.seat.exchange().divide(&name, &ranks, &self.name);
        let place = ranks.iter().position(|rank| *rank == self.rank).unwrap_or_default();
        let (place, world) = (place as u32, ranks.len() as u32);
        let part = Self::new(Arc::clone(&self.seat), name, place, world);
        Ok(Some(Box::new(SubGroup::new(Box::new(part), ranks))))
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn close(&mut self) {
        if !std::mem::replace(&mut self.is_closed, true) {
            let why = if self.failed.is_some() { GoneRank::GaveUp } else { GoneRank::Left };
            self.seat.exchange().leave(&self.name, self.rank, why);
        }
    }
}

impl Drop for SimulatedGroup {
    fn drop(&mut self) {
        self.close();
    }
}
