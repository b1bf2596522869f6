//! The reduction of large messages over hosts: partial sums go down the chain of hosts, and results come back up,
//! piece by piece. Called by the hierarchical communicator.
//!
//! Host h folds the partial sum from host h - 1 with the contributions of its own ranks, so that the fold is in
//! rank order, as on every other path. In each round a host folds one piece, sends its partial sum on, and sends
//! one result back. Each link carries the data once in each direction. For two hosts that is the least that any
//! algorithm needs, and for many hosts at most twice that.

use std::ops::Range;

use crate::tcp::{Flow, IncomingBytes, OutgoingBytes, StreamLane, stream_count, stripe};

/// The approximate number of pieces of the data: few enough that each round moves enough data for its messages.
const PIECES: usize = 8;
const PIECE_LEAST: usize = 128 * 1024;
const PIECE_MOST: usize = 512 * 1024;

/// The actions of one host in one round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChainRound {
    /// The piece that the host folds, and then sends on unless it is the last host.
    pub(super) fold: Option<usize>,
    /// The piece whose partial sum comes in, to be folded in the next round.
    pub(super) carry: Option<usize>,
    /// The piece whose result comes in.
    pub(super) result: Option<usize>,
    /// The piece whose result the host sends back.
    pub(super) back: Option<usize>,
}

/// The schedule of rounds, for `hosts` hosts and `pieces` pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainSchedule {
    pub(super) host: usize,
    pub(super) hosts: usize,
    pub(super) pieces: usize,
}

impl ChainSchedule {
    pub(super) fn rounds(self) -> usize {
        self.pieces + 2 * self.hosts - 3
    }

    pub(super) fn round(self, round: usize) -> ChainRound {
        let ChainSchedule { host, hosts, pieces } = self;
        let piece = |earlier: usize| round.checked_sub(earlier).filter(|piece| *piece < pieces);
        let (first, last) = (host == 0, host == hosts - 1);
        ChainRound {
            fold: piece(host),
            carry: if first { None } else { piece(host - 1) },
            result: if last { None } else { piece(2 * hosts - 3 - host) },
            back: if first { None } else { piece(2 * hosts - 2 - host) },
        }
    }
}

/// The length of the pieces of data of this length, in bytes; whole elements of any type.
pub(super) fn piece_length(length: usize) -> usize {
    (length / PIECES).next_multiple_of(4096).clamp(PIECE_LEAST, PIECE_MOST)
}

/// The messages of a host's leader in one round.
pub(super) struct Messages<'a> {
    pub(super) data: &'a mut [u8],
    /// The partial sum to send on, where it is not in `data`.
    pub(super) partial: Option<&'a [u8]>,
    pub(super) carry: &'a mut [u8],
    pub(super) previous: Option<u32>,
    pub(super) next: Option<u32>,
    /// To the next leader: a partial sum, in the data.
    pub(super) forward: Option<Range<usize>>,
    /// To the previous leader: a result.
    pub(super) back: Option<Range<usize>>,
    /// From the previous leader: the length of a partial sum.
    pub(super) carried: Option<usize>,
    /// From the next leader: a result.
    pub(super) result: Option<Range<usize>>,
    /// The number of streams of a pair. A message uses as many as its length justifies.
    pub(super) streams: u32,
}

impl Messages<'_> {
    /// The part of a message of this length that is sent over a stream, if there is one.
    fn part(&self, length: Option<usize>, stream: u32) -> Option<Range<usize>> {
        let length = length?;
        let count = stream_count(length, self.streams);
        (stream < count).then(|| stripe(0..length, stream, count, 1))
    }

    fn sent(&self, lane: StreamLane) -> Option<&[u8]> {
        let message = self.to(lane.rank);
        self.part(message.map(<[u8]>::len), lane.stream).zip(message).map(|(part, all)| &all[part])
    }

    fn place_of(&self, lane: StreamLane) -> Option<Range<usize>> {
        let length = if self.previous == Some(lane.rank) {
            self.carried
        } else {
            self.result.clone().filter(|_| self.next == Some(lane.rank)).map(|result| result.len())
        };
        self.part(length, lane.stream)
    }

    fn to(&self, rank: u32) -> Option<&[u8]> {
        if self.next == Some(rank) {
            let forward = self.forward.clone()?;
            Some(self.partial.unwrap_or(&self.data[forward]))
        } else if self.previous == Some(rank) {
            Some(&self.data[self.back.clone()?])
        } else {
            None
        }
    }

    fn from(&mut self, rank: u32) -> Option<&mut [u8]> {
        if self.previous == Some(rank) {
            Some(&mut self.carry[..self.carried?])
        } else if self.next == Some(rank) {
            Some(&mut self.data[self.result.clone()?])
        } else {
            None
        }
    }
}

impl Flow for Messages<'_> {
    fn streams(&self) -> u32 {
        self.streams
    }

    fn sends_to(&self, lane: StreamLane) -> bool {
        self.sent(lane).is_some()
    }

    fn receives_from(&self, lane: StreamLane) -> bool {
        self.place_of(lane).is_some()
    }

    fn outgoing(&self, lane: StreamLane, moved: usize) -> OutgoingBytes<'_> {
        match self.sent(lane) {
            Some(bytes) if moved < bytes.len() => OutgoingBytes::Ready(&bytes[moved..]),
            _ => OutgoingBytes::Done,
        }
    }

    fn incoming(&mut self, lane: StreamLane, moved: usize) -> IncomingBytes<'_> {
        let part = self.place_of(lane).filter(|part| moved < part.len());
        match part.zip(self.from(lane.rank)) {
            Some((part, bytes)) => IncomingBytes::Ready(&mut bytes[part.start + moved..part.end]),
            None => IncomingBytes::Done,
        }
    }

    fn ready_from(&self, lane: StreamLane) -> usize {
        self.place_of(lane).map_or(0, |place| place.len())
    }

    fn length_to(&self, lane: StreamLane) -> u64 {
        self.sent(lane).map_or(0, |bytes| bytes.len() as u64)
    }

    fn announced_to(&self, rank: u32) -> u64 {
        self.to(rank).map_or(0, |bytes| bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In each round the neighbour receives what a host sends. Each piece is folded by all hosts in order, and its
    /// result reaches all of them.
    #[test]
    fn rounds_of_neighbours_fit() {
        for hosts in 2..6 {
            for pieces in 1..5 {
                let schedule = |host| ChainSchedule { host, hosts, pieces };
                let mut folded = vec![0; pieces];
                let mut results = vec![0; pieces];
                for round in 0..schedule(0).rounds() {
                    for host in 0..hosts {
                        let now = schedule(host).round(round);
                        if let Some(piece) = now.fold {
                            assert_eq!(folded[piece], host);
                            folded[piece] += 1;
                        }
                        results.iter_mut().enumerate().for_each(|(piece, count)| {
                            *count += usize::from(now.result == Some(piece));
                        });
                        if host + 1 < hosts {
                            let next = schedule(host + 1).round(round);
                            assert_eq!(next.carry, now.fold);
                            assert_eq!(next.back, now.result);
                        } else if let Some(piece) = now.back {
                            assert_eq!(folded[piece], hosts, "its result is known");
                        }
                    }
                }
                assert_eq!((folded, results), (vec![hosts; pieces], vec![hosts - 1; pieces]));
            }
        }
    }
}
