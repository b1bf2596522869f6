//! All-gather in ⌈log₂ n⌉ rounds (Bruck, Ho, Kipnis, Upfal and Weathersby, 1997), for small messages among many.
//!
//! In round k each member hands the blocks that it has, at most 2^k, to the member 2^k places before it, and gets as
//! many from the one 2^k places behind it. The blocks are contributions and not sums, so that whoever reduces them folds
//! them in the order of ranks, with the bits of every other path.

use super::flow::{Flow, Incoming, Lane, Outgoing};

/// Who takes part, and where each one's block lies.
pub(crate) struct Doubling<'a> {
    /// The blocks of this member, the one behind it, and so on around the group.
    blocks: &'a mut [u8],
    /// Where block j begins, and where the last one ends.
    starts: &'a [usize],
    /// The members' ranks, ascending.
    members: &'a [u32],
    own: usize,
    /// The rounds whose blocks are here, one bit each: a later round's may come first.
    arrived: u32,
}

impl<'a> Doubling<'a> {
    /// `own` is this rank's place among `members`, and its block stands in `blocks` already. A block has a byte at
    /// least: whoever waits for blocks without any waits for nobody.
    pub(crate) fn new(
        blocks: &'a mut [u8],
        starts: &'a [usize],
        members: &'a [u32],
        own: usize,
    ) -> Doubling<'a> {
        Doubling { blocks, starts, members, own, arrived: 0 }
    }

    /// How far behind this member `rank` is.
    fn behind(&self, rank: u32) -> Option<usize> {
        let place = self.members.binary_search(&rank).ok()?;
        let count = self.members.len();
        Some((place + count - self.own) % count)
    }

    /// The number of blocks that go over this distance in one round; none where no round has it.
    fn exchanged(&self, distance: usize) -> Option<usize> {
        distance.is_power_of_two().then(|| distance.min(self.members.len() - distance))
    }

    /// The blocks that go to a rank, in bytes from the first one on.
    fn sent(&self, rank: u32) -> Option<usize> {
        let behind = self.behind(rank).filter(|behind| *behind > 0)?;
        self.exchanged(self.members.len() - behind).map(|count| self.starts[count])
    }

    /// Where the blocks of a rank belong.
    fn place_of(&self, rank: u32) -> Option<std::ops::Range<usize>> {
        let behind = self.behind(rank).filter(|behind| *behind > 0)?;
        let count = self.exchanged(behind)?;
        Some(self.starts[behind]..self.starts[behind + count])
    }

    /// How many of the first blocks are here.
    fn valid(&self) -> usize {
        (1 << self.arrived.trailing_ones()).min(self.members.len())
    }
}

impl Flow for Doubling<'_> {
    fn sends_to(&self, Lane { rank, .. }: Lane) -> bool {
        self.sent(rank).is_some()
    }

    fn receives_from(&self, Lane { rank, .. }: Lane) -> bool {
        self.place_of(rank).is_some()
    }

    fn outgoing(&self, Lane { rank, .. }: Lane, moved: usize) -> Outgoing<'_> {
        let length = self.sent(rank).unwrap_or(0);
        if moved >= length {
            Outgoing::Done
        } else if self.starts[self.valid()] >= length {
            Outgoing::Ready(&self.blocks[moved..length])
        } else {
            Outgoing::Blocked
        }
    }

    fn incoming(&mut self, Lane { rank, .. }: Lane, moved: usize) -> Incoming<'_> {
        match self.place_of(rank) {
            Some(place) if moved < place.len() => {
                Incoming::Ready(&mut self.blocks[place.start + moved..place.end])
            }
            _ => Incoming::Done,
        }
    }

    fn received(&mut self, Lane { rank, .. }: Lane, moved: usize) {
        let (Some(behind), Some(place)) = (self.behind(rank), self.place_of(rank)) else { return };
        if moved == place.len() {
            self.arrived |= 1 << behind.trailing_zeros();
        }
    }

    fn may_defer(&self) -> bool {
        true
    }

    fn length_to(&self, Lane { rank, .. }: Lane) -> u64 {
        self.sent(rank).unwrap_or(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(rank: u32) -> Lane {
        Lane { rank, stream: 0 }
    }

    /// What each member sends the other expects, in each round one message each way, and all blocks come together.
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
            // Each pass moves what may be moved; the last member goes first, so that rounds overtake each other.
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
                            Outgoing::Ready(bytes) => bytes.to_vec(),
                            Outgoing::Blocked | Outgoing::Done => continue,
                        };
                        let Incoming::Ready(place) =
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
