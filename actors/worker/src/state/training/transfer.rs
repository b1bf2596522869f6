//! Transfer of a commit from all ranks that hold it to all ranks that need it, in rounds. Called by `sync`. In
//! a round each taker gets a part of its own, as one stripe from each source; then the takers exchange their
//! parts. So no source sends a byte twice, and every connection carries its share. Finished rounds are kept if
//! a later one fails.

use std::ops::Range;

use elastic_collectives::{CollectiveError, Communicator, CommunicatorExt};

/// Bytes of a commit that move in one round.
pub(super) const ROUND_BYTES: usize = 32 << 20;
/// Longest commit, in bytes, that is sent by one broadcast.
const SMALL_BYTES: usize = 1 << 20;

/// The plan of a transfer; the same on every rank.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    /// The ranks that hold the commit.
    pub(super) sources: Vec<u32>,
    /// The ranks that need the commit.
    pub(super) takers: Vec<u32>,
    /// The length of the commit, in bytes.
    pub(super) length: usize,
    /// Bytes that all takers have already.
    pub(super) done: usize,
}

/// Part `index` of `count` near-equal parts of `whole`.
fn part(whole: &Range<usize>, index: usize, count: usize) -> Range<usize> {
    let (each, rest) = (whole.len() / count, whole.len() % count);
    let start = whole.start + index * each + index.min(rest);
    start..start + each + usize::from(index < rest)
}

impl Transfer {
    fn rounds(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let length = self.length;
        (self.done..length)
            .step_by(ROUND_BYTES)
            .map(move |start| start..(start + ROUND_BYTES).min(length))
    }

    fn is_small(&self) -> bool {
        self.length - self.done <= SMALL_BYTES
    }

    /// The stripe that a source sends to a taker.
    fn stripe(&self, round: &Range<usize>, source: usize, taker: usize) -> Range<usize> {
        let own = part(round, taker, self.takers.len());
        part(&own, source, self.sources.len())
    }

    /// A source's side.
    pub(super) fn give(
        &self,
        group: &mut dyn Communicator,
        commit: &[u8],
    ) -> Result<(), CollectiveError> {
        if self.takers.is_empty() {
            return Ok(());
        }
        if self.is_small() {
            // A broadcast takes its data mutably, also at the sender.
            let mut sent = commit[self.done..].to_vec();
            return group.broadcast(&mut sent, self.sources[0]);
        }
        self.split(group, None)?;
        let own = index(&self.sources, group.rank());
        let mut scratch = Vec::new();
        for round in self.rounds() {
            let stripe = |taker| self.stripe(&round, own, taker);
            let mut counts = vec![0; group.world_size() as usize];
            for (taker, rank) in self.takers.iter().enumerate() {
                counts[*rank as usize] = stripe(taker).len();
            }
            let sent: &[u8] = if self.takers.len() == 1 {
                &commit[stripe(0)]
            } else {
                scratch.clear();
                (0..self.takers.len()).for_each(|t| scratch.extend_from_slice(&commit[stripe(t)]));
                &scratch
            };
            let none = vec![0; counts.len()];
            group.all_to_all_v(sent, &counts, &mut [], &none)?;
        }
        Ok(())
    }

    /// A taker's side. `arrived` is called with the number of bytes that have arrived, counted from the
    /// commit's start.
    pub(super) fn take(
        &self,
        group: &mut dyn Communicator,
        buffer: &mut [u8],
        mut arrived: impl FnMut(usize),
    ) -> Result<(), CollectiveError> {
        if self.is_small() {
            group.broadcast(&mut buffer[self.done..], self.sources[0])?;
            arrived(self.length);
            return Ok(());
        }
        let own = index(&self.takers, group.rank());
        let mut others = self.split(group, Some(0))?;
        let mut scratch = Vec::new();
        for round in self.rounds() {
            let mut counts = vec![0; group.world_size() as usize];
            for (source, rank) in self.sources.iter().enumerate() {
                counts[*rank as usize] = self.stripe(&round, source, own).len();
            }
            let none = vec![0; counts.len()];
            let mine = part(&round, own, self.takers.len());
            group.all_to_all_v(&[], &none, &mut buffer[mine.clone()], &counts)?;
            if let Some(others) = &mut others {
                scratch.clear();
                scratch.extend_from_slice(&buffer[mine]);
                let count = |taker| part(&round, taker, self.takers.len()).len();
                let counts: Vec<usize> = (0..self.takers.len()).map(count).collect();
                others.all_gather_v(&scratch, &mut buffer[round.clone()], &counts)?;
            }
            arrived(round.end);
        }
        Ok(())
    }

    /// The group of the takers, if there are several.
    fn split(
        &self,
        group: &mut dyn Communicator,
        colour: Option<u32>,
    ) -> Result<Option<Box<dyn Communicator>>, CollectiveError> {
        if self.takers.len() == 1 { Ok(None) } else { group.split(colour, 0) }
    }
}

/// The index of this rank in `ranks`, which contains it.
fn index(ranks: &[u32], rank: u32) -> usize {
    ranks.iter().position(|other| *other == rank).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use elastic_collectives::SoloCommunicator;

    use super::*;

    #[test]
    fn stripes_cover_what_is_left_once() {
        for (sources, takers, done) in [(1, 1, 0), (3, 1, 5), (2, 3, 1 << 20), (5, 4, 0)] {
            let length = 2 * ROUND_BYTES + 12_345;
            let ranks = |from: u32, count: u32| (from..from + count).collect::<Vec<_>>();
            let transfer = Transfer {
                sources: ranks(0, sources),
                takers: ranks(sources, takers),
                length,
                done,
            };
            let mut next = done;
            for round in transfer.rounds() {
                for taker in 0..takers as usize {
                    for source in 0..sources as usize {
                        let stripe = transfer.stripe(&round, source, taker);
                        assert_eq!(stripe.start, next);
                        next = stripe.end;
                    }
                }
            }
            assert_eq!(next, length);
        }
    }

    #[test]
    fn a_short_commit_arrives_at_once() {
        let transfer = Transfer { sources: vec![0], takers: vec![0], length: 8, done: 3 };
        let (mut buffer, mut told) = ([7; 8], Vec::new());
        let taken =
            transfer.take(&mut SoloCommunicator::new(), &mut buffer, |arrived| told.push(arrived));
        taken.expect("a group of one cannot fail");
        assert_eq!(told, [8]);
    }

    #[test]
    fn a_rank_has_its_place_among_the_sources() {
        assert_eq!([4, 7, 9].map(|rank| index(&[4, 7, 9], rank)), [0, 1, 2]);
    }
}
