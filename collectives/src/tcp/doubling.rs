//! All-gather in ⌈log₂ n⌉ rounds (Bruck, Ho, Kipnis, Upfal and Weathersby, 1997), for small messages among many
//! ranks. Called by the communicator.
//!
//! In round k each member sends the blocks that it has, at most 2^k, to the member 2^k places before it, and
//! receives as many from the one 2^k places behind it. The blocks are contributions and not sums. So every rank
//! folds them in the order of ranks, with the bits of every other path.

use super::flow::{Flow, IncomingBytes, OutgoingBytes, StreamLane};

/// The state of one all-gather by doubling: the members, and the place of each member's block.
pub(crate) struct Doubling<'a> {
    /// The blocks of this member, the one behind it, and so on around the group.
    blocks: &'a mut [u8],
    /// The start of each block in bytes, and the end of the last one.
    starts: &'a [usize],
    /// The members' ranks, ascending.
    members: &'a [u32],
    own: usize,
    /// The rounds whose blocks have arrived, one bit each: those of a later round may come first.
    arrived: u32,
}

impl<'a> Doubling<'a> {
    /// `own` is this rank's place among `members`; its block is already in `blocks`. Each block must have at least
    /// one byte: the arrival of an empty block cannot be waited for.
    pub(crate) fn new(
        blocks: &'a mut [u8],
        starts: &'a [usize],
        members: &'a [u32],
        own: usize,
    ) -> Doubling<'a> {
        Doubling { blocks, starts, members, own, arrived: 0 }
    }

    /// The distance of `rank` behind this member.
    fn behind(&self, rank: u32) -> Option<usize> {
        let place = self.members.binary_search(&rank).ok()?;
        let count = self.members.len();
        Some((place + count - self.own) % count)
    }

    /// The number of blocks that are sent over this distance in one round; `None` where no round has the distance.
    fn exchanged(&self, distance: usize) -> Option<usize> {
        distance.is_power_of_two().then(|| distance.min(self.members.len() - distance))
    }

    /// The length in bytes of the leading blocks that are sent to a rank.
    fn sent(&self, rank: u32) -> Option<usize> {
        let behind = self.behind(rank).filter(|behind| *behind > 0)?;
        self.exchanged(self.members.len() - behind).map(|count| self.starts[count])
    }

    /// The place of the blocks that a rank sends.
    fn place_of(&self, rank: u32) -> Option<std::ops::Range<usize>> {
        let behind = self.behind(rank).filter(|behind| *behind > 0)?;
        let count = self.exchanged(behind)?;
        Some(self.starts[behind]..self.starts[behind + count])
    }

    /// The number of leading blocks that have arrived.
    fn valid(&self) -> usize {
        (1 << self.arrived.trailing_ones()).min(self.members.len())
    }
}

impl Flow for Doubling<'_> {
    fn sends_to(&self, StreamLane { rank, .. }: StreamLane) -> bool {
        self.sent(rank).is_some()
    }

    fn receives_from(&self, StreamLane { rank, .. }: StreamLane) -> bool {
        self.place_of(rank).is_some()
    }

    fn outgoing(&self, StreamLane { rank, .. }: StreamLane, moved: usize) -> OutgoingBytes<'_> {
        let length = self.sent(rank).unwrap_or(0);
        if moved >= length {
            OutgoingBytes::Done
        } else if self.starts[self.valid()] >= length {
            OutgoingBytes::Ready(&self.blocks[moved..length])
        } else {
            OutgoingBytes::Blocked
        }
    }

    fn incoming(&mut self, StreamLane { rank, .. }: StreamLane, moved: usize) -> IncomingBytes<'_> {
        match self.place_of(rank) {
            Some(place) if moved < place.len() => {
                IncomingBytes::Ready(&mut self.blocks[place.start + moved..place.end])
            }
            _ => IncomingBytes::Done,
        }
    }

    fn received(&mut self, StreamLane { rank, .. }: StreamLane, moved: usize) {
        let (Some(behind), Some(place)) = (self.behind(rank), self.place_of(rank)) else { return };
        if moved == place.len() {
            self.arrived |= 1 << behind.trailing_zeros();
        }
    }

    fn may_defer(&self) -> bool {
        true
    }

    fn length_to(&self, StreamLane { rank, .. }: StreamLane) -> u64 {
        self.sent(rank).unwrap_or(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(rank: u32) -> StreamLane {
        StreamLane { rank, stream: 0 }
    }

    /// Each member sends what the other expects, one message each way in each round, and all blocks arrive together.
    #[test]
    fn all_blocks_reach_all_members() {
        for count in 1..=33usize {
            let members: Vec<u32> = (0..count as u32).map(|member| 3 * member).collect();
            let length = |member: usize| member % 3 + 1;
            let starts = |own: usize| {
                let mut starts = vec![0];
                (0..count).for_each(|j| starts.push(starts[j] + length((own + j) % count)));
                starts
            };
            let starts: Vec<_> = (0..count).map(starts).collect();
            let mut blocks: Vec<_> = starts.iter().map(|starts| vec![0; starts[count]]).collect();
            for (own, blocks) in blocks.iter_mut().enumerate() {
                blocks[..length(own)].fill(own as u8);
            }
            let mut flows: Vec<_> = (blocks.iter_mut().zip(&starts).enumerate())
                .map(|(own, (blocks, starts))| Doubling::new(blocks, starts, &members, own))
                .collect();
            // Each pass moves as much as possible; the last member goes first, so that rounds overtake each other.
            let mut moved = vec![vec![0; count]; count];
            for _ in 0..count.ilog2() + 1 {
                for from in (0..count).rev() {
                    for to in (0..count).filter(|to| *to != from) {
                        let (sender, receiver) = (members[from], members[to]);
                        assert_eq!(
                            flows[from].sends_to(lane(receiver)),
                            flows[to].receives_from(lane(sender)),
                            "{from} to {to} of {count}"
                        );
                        let bytes = match flows[from].outgoing(lane(receiver), moved[from][to]) {
                            OutgoingBytes::Ready(bytes) => bytes.to_vec(),
                            OutgoingBytes::Blocked | OutgoingBytes::Done => continue,
                        };
                        let IncomingBytes::Ready(place) =
                            flows[to].incoming(lane(sender), moved[from][to])
                        else {
                            panic!("{from} to {to} of {count}")
                        };
                        place.copy_from_slice(&bytes);
                        moved[from][to] += bytes.len();
                        flows[to].received(lane(sender), moved[from][to]);
                    }
                }
            }
            let peers = flows
                .iter()
                .map(|flow| members.iter().filter(|member| flow.sends_to(lane(**member))).count());
            assert!(
                peers.into_iter().all(|peers| peers == count.next_power_of_two().ilog2() as usize)
            );
            drop(flows);
            for (own, blocks) in blocks.iter().enumerate() {
                let due: Vec<u8> = (0..count)
                    .map(|j| (own + j) % count)
                    .flat_map(|member| vec![member as u8; length(member)])
                    .collect();
                assert_eq!(*blocks, due, "member {own} of {count}");
            }
        }
    }
}
